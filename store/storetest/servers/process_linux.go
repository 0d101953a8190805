package servers

import (
	"os"
	"syscall"
)

// attributes makes a server end at once when the test's process dies, also
// where no cleanup runs, such as after a test's time-out. Root becomes nobody.
func attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if os.Geteuid() == 0 {
		attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	return attr
}
