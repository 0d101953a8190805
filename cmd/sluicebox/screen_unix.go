//go:build unix && !solaris && !illumos

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// terminalHeight is how many lines a terminal shows, 0 where it does not tell.
func terminalHeight(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Row)
}
