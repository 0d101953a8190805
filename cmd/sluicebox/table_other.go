//go:build !unix || solaris || illumos

package main

import "os"

// columns tells whether the file may be a terminal. Its width is not known here:
// nothing is cut.
func terminalColumns(f *os.File) (width int, terminal bool) {
	info, err := f.Stat()
	return 0, err == nil && info.Mode()&os.ModeCharDevice != 0
}
