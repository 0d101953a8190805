//go:build !unix

package passwordcommand

import (
	"os"
	"syscall"
)

// ownGroup returns no attributes: there are no process groups.
func ownGroup() *syscall.SysProcAttr { return nil }

// killGroup ends the program alone.
func killGroup(of *os.Process) error { return of.Kill() }
