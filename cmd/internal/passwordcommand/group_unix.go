//go:build unix

package passwordcommand

import (
	"errors"
	"os"
	"syscall"
)

// ownGroup makes a program the first of a process group.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// killGroup ends the first program of a process group and its children.
func killGroup(of *os.Process) error {
	err := syscall.Kill(-of.Pid, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}
