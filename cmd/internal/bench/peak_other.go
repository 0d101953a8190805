//go:build !unix

package bench

// peakMemory returns the peak memory of an ended process in bytes, 0 if the system does not
// report it.
func (pr *process) peakMemory() int64 { return 0 }
