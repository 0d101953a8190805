//go:build unix && !solaris && !illumos

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// terminalColumns returns the width of a terminal, or 0 if unknown, and whether the file
// is a terminal.
func terminalColumns(f *os.File) (width int, terminal bool) {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	return int(size.Col), true
}
