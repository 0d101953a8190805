//go:build !unix

package bench

// peak is the most memory that an ended process had, in bytes; 0 where the system
// does not tell.
func (pr *process) peak() int64 { return 0 }
