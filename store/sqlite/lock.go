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
	"github.com/sluicebox/sluicebox/store/internal/lifetime"
)

// LockedError says that another relay of the same name runs on the same file.
// Trying again helps once that one has ended.
type LockedError struct {
	Path string // of the lock file
	PID  int    // of its holder, 0 if it is not known
}

func (e *LockedError) Error() string {
	by := "another process"
	if e.PID > 0 {
		by = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("another relay of this name runs: %s holds the lock on %s", by, e.Path)
}

// errHeld says that somebody else holds a file's lock.
var errHeld = errors.New("the lock is held")

// Lock makes the caller the only relay of its name on the file. It takes a lock
// on the file PATH.NAME.sluicebox-lock beside the database and holds it until
// release is called, the store is closed or the process ends, however it ends.
// It does not wait: if another relay holds the lock, the error is a *LockedError.
//
// The lock gives liveness: call it before Lead, so that two relays do not take
// the lead from each other in turns. The epoch gives safety: it holds also
// between relays that never asked for the lock.
func (s *Store) Lock(ctx context.Context) (release func(), err error) {
	if s.life.Ended() {
		return nil, lifetime.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	real, err := filepath.Abs(s.path)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err != nil {
		return nil, fmt.Errorf("find the database: %w", err)
	}
	path := real + "." + s.name + ".sluicebox-lock"
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if errors.Is(err, os.ErrPermission) {
		return nil, &store.SetupError{
			Problem: "the relay's lock cannot be taken: " + err.Error(),
			Remedy:  "give the relay's user the right to write to the directory of the database",
		}
	}
	if err != nil {
		return nil, fmt.Errorf("take the relay's lock: %w", err)
	}
	if err := lockFile(file); err != nil {
		held := &LockedError{Path: path, PID: holder(file)}
		_ = file.Close() // nothing was written
		if errors.Is(err, errHeld) {
			return nil, held
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	release, ok := s.locks.add(file)
	if !ok {
		return nil, lifetime.ErrClosed
	}
	if err := note(file); err != nil {
		release()
		return nil, fmt.Errorf("write to %s: %w", path, err)
	}
	return release, nil
}

// note writes the number of this process into the lock file, for whoever finds
// it locked.
func note(file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func holder(file *os.File) int {
	text := make([]byte, 20)
	n, _ := file.ReadAt(text, 0) // it may be shorter, or just being written
	pid, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil {
		return 0
	}
	return pid
}

// locks are the lock files that a store holds. The file stays: a lock on a file
// that somebody else deletes and makes anew is no lock.
type locks struct {
	mu     sync.Mutex
	closed bool
	files  map[*os.File]struct{}
}

// add takes a locked file over.
func (l *locks) add(file *os.File) (release func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = file.Close() // which gives up the lock
		return nil, false
	}
	if l.files == nil {
		l.files = map[*os.File]struct{}{}
	}
	l.files[file] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if _, held := l.files[file]; held {
			delete(l.files, file)
			_ = file.Close() // which gives up the lock
		}
	}, true
}

func (l *locks) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for file := range l.files {
		_ = file.Close() // which gives up the lock
	}
	l.files = nil
}
