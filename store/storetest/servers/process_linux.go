package servers

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
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

// killedAttributes are attributes of a program that does not end by SIGQUIT, such as Java.
func killedAttributes() *syscall.SysProcAttr {
	attr := attributes()
	attr.Pdeathsig = syscall.SIGKILL
	return attr
}

// deathSignal returns the signal that ends a program at once.
func deathSignal(attr *syscall.SysProcAttr) syscall.Signal { return attr.Pdeathsig }

// awaitStop waits until a process that was sent SIGSTOP has stopped. Until then it may still
// answer.
func awaitStop(pid int) error {
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil); err != unix.EINTR {
			return err
		}
	}
}

// mountMemory mounts an empty file system in memory of a size in bytes.
func mountMemory(dir string, size int64) error {
	return unix.Mount("sluicebox", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size))
}

// resizeMemory changes the size of such a file system in bytes. It fails if more is on it.
func resizeMemory(dir string, size int64) error {
	return unix.Mount("sluicebox", dir, "tmpfs", unix.MS_REMOUNT, fmt.Sprintf("size=%d", size))
}

// usedMemory is how many bytes of such a file system are taken.
func usedMemory(dir string) (int64, error) {
	var of unix.Statfs_t
	err := unix.Statfs(dir, &of)
	return int64(of.Blocks-of.Bfree) * int64(of.Bsize), err //nolint:gosec // far below the limit
}

// detach unmounts a file system, which a process may still use.
func detach(dir string) error { return unix.Unmount(dir, unix.MNT_DETACH) }
