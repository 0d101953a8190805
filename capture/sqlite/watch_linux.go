package sqlite

import (
	"os"
	"syscall"
)

// watch signals appends to a WAL file, by inotify(7). A nil watch signals nothing.
type watch struct {
	file *os.File
	told chan struct{}
	done chan struct{}
}

// newWatch watches the WAL file of an open database. It returns nil if the kernel has no
// watch left.
func newWatch(database string) *watch {
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return nil
	}
	file := os.NewFile(uintptr(fd), "inotify")
	if _, err := syscall.InotifyAddWatch(fd, database+"-wal", syscall.IN_MODIFY); err != nil {
		_ = file.Close() // it watched nothing
		return nil
	}
	w := &watch{file: file, told: make(chan struct{}, 1), done: make(chan struct{})}
	go w.run()
	return w
}

// run turns events into signals until the file is closed.
func (w *watch) run() {
	defer close(w.done)
	events := make([]byte, 64*syscall.SizeofInotifyEvent)
	for {
		if _, err := w.file.Read(events); err != nil {
			return
		}
		select {
		case w.told <- struct{}{}:
		default:
		}
	}
}

// appended returns a channel that holds a signal after an append.
func (w *watch) appended() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.told
}

func (w *watch) close() {
	if w != nil {
		_ = w.file.Close() // ends run
		<-w.done
	}
}
