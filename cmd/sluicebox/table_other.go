//go:build !unix || solaris || illumos

package main

import "os"

// terminalColumns reports whether the file may be a terminal. The width is unknown on
// this system, so nothing is cut.
func terminalColumns(f *os.File) (width int, terminal bool) {
	info, err := f.Stat()
	return 0, err == nil && info.Mode()&os.ModeCharDevice != 0
}
