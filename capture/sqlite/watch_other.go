//go:build !linux

package sqlite

// watch signals nothing on these systems. Their watchers open the watched files, or report a
// file only when it is closed.
type watch struct{}

func newWatch(string) *watch { return nil }

func (*watch) appended() <-chan struct{} { return nil }

func (*watch) close() {}
