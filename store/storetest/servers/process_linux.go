package servers

import (
	"os"
	"syscall"
)

// attributes makes a server end when the test's process dies, even without a cleanup, for
// example after a test timeout. A server of root runs as nobody.
func attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if os.Geteuid() == 0 {
		attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	return attr
}
