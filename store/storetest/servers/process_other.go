//go:build !linux

package servers

import "syscall"

func attributes() *syscall.SysProcAttr { return nil }

func killedAttributes() *syscall.SysProcAttr { return nil }

func deathSignal(*syscall.SysProcAttr) syscall.Signal { return syscall.SIGKILL }

// awaitStop does nothing.
func awaitStop(int) error { return nil }
