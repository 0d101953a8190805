//go:build unix

package sqlite

import (
	"errors"
	"os"
	"syscall"
)

// lockFile acquires a flock(2) lock, which belongs to the open file. The kernel releases it
// with the process.
func lockFile(file *os.File) error {
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EWOULDBLOCK):
			return errLockHeld
		}
		return err
	}
}
