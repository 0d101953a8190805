//go:build !unix

package bench

// peakMemory is the most memory that an ended process had, in bytes; 0 where the system
// does not tell.
func (pr *process) peakMemory() int64 { return 0 }
