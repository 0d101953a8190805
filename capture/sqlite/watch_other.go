//go:build !linux

package sqlite

// watch tells of nothing here: what other systems have opens the files that it
// watches, or tells only when a file is closed.
type watch struct{}

func newWatch(string) *watch { return nil }

func (*watch) appended() <-chan struct{} { return nil }

func (*watch) close() {}
