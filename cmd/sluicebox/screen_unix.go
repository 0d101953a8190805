//go:build unix && !solaris && !illumos

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// terminalHeight returns the number of lines of a terminal, or 0 if unknown.
func terminalHeight(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Row)
}
