//go:build !unix || solaris || illumos

package main

import "os"

// terminalColumns reports whether the file may be a terminal. The width is unknown on
// this system, so nothing is cut.
func terminalColumns(f *os.File) (width int, terminal bool) {
	info, err := f.Stat()
	return 0, err == nil && info.Mode()&os.ModeCharDevice != 0
}

// terminalHeight returns 0, because the height is unknown on this system.
func terminalHeight(*os.File) int { return 0 }

// isOutputClosed returns false, because a closed pipe shows only at a write on this
// system.
func isOutputClosed(*os.File) bool { return false }
