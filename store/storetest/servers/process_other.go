//go:build !linux

package servers

import (
	"errors"
	"syscall"
)

func attributes() *syscall.SysProcAttr { return nil }

func killedAttributes() *syscall.SysProcAttr { return nil }

func deathSignal(*syscall.SysProcAttr) syscall.Signal { return syscall.SIGKILL }

// awaitStop does nothing.
func awaitStop(int) error { return nil }

// mountMemory returns an error.
func mountMemory(string, int64) error { return errors.ErrUnsupported }

// resizeMemory returns an error.
func resizeMemory(string, int64) error { return errors.ErrUnsupported }

// usedMemory returns an error.
func usedMemory(string) (int64, error) { return 0, errors.ErrUnsupported }

// detach does nothing.
func detach(string) error { return nil }
