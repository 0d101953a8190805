//go:build unix && !solaris && !illumos

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// terminalColumns is the width of a terminal, 0 where it does not tell, and whether the
// file is one.
func terminalColumns(f *os.File) (width int, terminal bool) {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	return int(size.Col), true
}
