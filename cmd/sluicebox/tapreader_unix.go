//go:build unix && !solaris && !illumos

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// isOutputClosed reports whether the reader of a pipe, or a terminal, is gone. It is
// false for other files.
func isOutputClosed(f *os.File) (gone bool) {
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	_ = conn.Control(func(fd uintptr) {
		ask := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(ask, 0)
		gone = err == nil && n > 0 && ask[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
	})
	return gone
}
