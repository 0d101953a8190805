//go:build unix

package bench

import (
	"runtime"
	"syscall"
)

// peakMemory is the most memory that an ended process had, in bytes.
func (pr *process) peakMemory() int64 {
	usage, ok := pr.cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	if runtime.GOOS == "darwin" || runtime.GOOS == "ios" {
		return usage.Maxrss // getrusage(2): bytes there, elsewhere kilobytes
	}
	return usage.Maxrss << 10
}
