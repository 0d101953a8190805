//go:build !unix || solaris || illumos

package main

import "os"

// terminalSize reports whether the file may be a terminal. Its size is unknown on this
// system, so nothing is cut.
func terminalSize(f *os.File) (width, height int, terminal bool) {
	info, err := f.Stat()
	return 0, 0, err == nil && info.Mode()&os.ModeCharDevice != 0
}

// isOutputClosed returns false, because a closed pipe shows only at a write on this
// system.
func isOutputClosed(*os.File) bool { return false }
