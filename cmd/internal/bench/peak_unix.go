//go:build unix

package bench

import (
	"runtime"
	"syscall"
)

// peakMemory returns the peak memory of an ended process, in bytes.
func (pr *process) peakMemory() int64 {
	usage, ok := pr.cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	if runtime.GOOS == "darwin" || runtime.GOOS == "ios" {
		return usage.Maxrss // getrusage(2): bytes on macOS, kilobytes elsewhere
	}
	return usage.Maxrss << 10
}
