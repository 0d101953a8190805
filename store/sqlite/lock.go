package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/sessions"
)

var (
	// errLockHeld reports that another process holds a file's lock.
	errLockHeld = errors.New("lock is held")
	errReleased = errors.New("relay lock released")
)

// Lock implements store.Locker with a lock on the file PATH.NAME.sluicebox-lock beside the
// database. The lock is held until it is released, the store is closed or the process ends
// for any reason. A frozen process keeps it.
func (s *Store) Lock(ctx context.Context) (store.Lock, error) {
	if s.lifetime.Ended() {
		return nil, sessions.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}

	file, err := s.openLock()
	if err != nil {
		return nil, err
	}
	if err := lockFile(file); err != nil {
		by := readHolder(file)
		_ = file.Close() // nothing was written
		if errors.Is(err, errLockHeld) {
			return nil, &store.LockedError{Holder: by}
		}
		return nil, fmt.Errorf("lock %s: %w", file.Name(), err)
	}

	held := &lock{file: file, lifetime: s.lifetime, lost: make(chan struct{}), requests: requestCounter{path: s.path, relay: s.name}}
	if !s.lifetime.Add(held) {
		held.Release()
		return nil, sessions.ErrClosed
	}
	if err := writeHolder(file, s.holder); err != nil {
		held.Release()
		return nil, fmt.Errorf("write to %s: %w", file.Name(), err)
	}
	return held, nil
}

// openLock opens the lock file. The file is never deleted, because a lock on a file that
// another process deletes and recreates would exclude nobody.
func (s *Store) openLock() (*os.File, error) {
	real, err := filepath.Abs(s.path)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err != nil {
		return nil, fmt.Errorf("find database: %w", err)
	}
	file, err := os.OpenFile(real+"."+s.name+".sluicebox-lock", os.O_RDWR|os.O_CREATE, 0o644)
	if errors.Is(err, os.ErrPermission) {
		return nil, &store.SetupError{
			Problem: "relay lock cannot be acquired: " + err.Error(),
			Remedy:  "give the relay's user write permission on the directory of the database",
		}
	}
	if err != nil {
		return nil, fmt.Errorf("acquire relay lock: %w", err)
	}
	return file, nil
}

// writeHolder writes the id of this process and the relay's holder name into the lock file,
// for processes that find it locked.
func writeHolder(file *os.File, name string) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"+name+"\n"), 0)
	return err
}

// maxNoteBytes is the number of bytes to read of a lock file, more than any relay writes.
const maxNoteBytes = 1024

// readHolder describes the holder of the lock: relay, process and file.
func readHolder(file *os.File) string {
	text := make([]byte, maxNoteBytes)
	n, _ := file.ReadAt(text, 0) // it may be shorter, or being written
	first, rest, _ := strings.Cut(string(text[:n]), "\n")
	process := "another process"
	if pid, err := strconv.Atoi(strings.TrimSpace(first)); err == nil {
		process = fmt.Sprintf("process %d", pid)
	}
	by := process + " holds the lock on " + file.Name()
	if name, _, _ := strings.Cut(rest, "\n"); name != "" {
		by = name + " (" + by + ")"
	}
	return by
}

// lock is a lock file that this process holds.
type lock struct {
	file     *os.File
	lifetime *sessions.Lifetime
	released sync.Once
	lost     chan struct{} // closed when the lock is released

	requests requestCounter
}

// Ping implements store.Lock. It never finds the lock lost while it is held, because only
// this process can release it, whatever happens to the database.
func (l *lock) Ping(ctx context.Context) error {
	l.requests.refresh(ctx)
	select {
	case <-l.lost:
		return errReleased
	default:
		return nil
	}
}

// RequestCount implements store.Lock.
func (l *lock) RequestCount() int64 { return l.requests.requests }

// Watch implements store.Lock.
func (l *lock) Watch(ctx context.Context) error {
	select {
	case <-l.lost:
		return errReleased
	case <-ctx.Done():
		return nil
	}
}

// Release implements store.Lock.
func (l *lock) Release() {
	l.released.Do(func() {
		l.lifetime.Remove(l)
		_ = l.file.Close() // the kernel releases the lock with the file
		l.requests.close()
		close(l.lost)
	})
}

// Close releases the lock when the store is closed.
func (l *lock) Close() { l.Release() }
