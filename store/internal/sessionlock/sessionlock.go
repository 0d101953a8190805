// Package sessionlock holds a lock that a server keeps for as long as a session
// lives: one call at a time uses the session, and one that fails on it gives the lock
// up.
package sessionlock

import (
	"context"
	"errors"
	"sync"
	"time"
)

// errReleased says that a call came after Release, or was cut short by it.
var errReleased = errors.New("the relay's lock was released")

// unlockTimeout bounds the farewell to a server that may be gone.
const unlockTimeout = time.Second

// Session is the session that holds the lock. One call at a time uses it.
type Session interface {
	// Lost reports whether it is known to have ended.
	Lost() bool
	// Unlock gives the lock back. It goes with the session too, but later.
	Unlock(ctx context.Context)
	// Drop gives the session up.
	Drop()
}

// Lock is a lock that a session holds.
type Lock struct {
	session  Session
	released context.Context // ends with Release
	release  context.CancelFunc

	mu   sync.Mutex // held by the call that uses session
	lost error      // why session does not hold the lock any more
}

// New returns the lock that a session holds by now.
func New(session Session) *Lock {
	l := &Lock{session: session}
	l.released, l.release = context.WithCancel(context.Background())
	return l
}

// Use runs a call on the session. After an error nobody knows whether the lock is
// held, so it is given up.
func (l *Lock) Use(ctx context.Context, call func(context.Context) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost != nil {
		return l.lost
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.released, cancel)()
	err := call(ctx)
	released := l.released.Err() != nil
	if released {
		err = errors.Join(errReleased, err)
	}
	if err != nil && (!released || l.session.Lost()) {
		l.lost = err
		l.session.Drop()
	}
	return err
}

// Release cuts short the call that uses the session, and gives the lock back and the
// session up. The lock is free when it returns, unless the server does not answer. It
// may be called more than once.
func (l *Lock) Release() {
	l.release()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost != nil {
		return
	}
	l.lost = errReleased
	ctx, cancel := context.WithTimeout(context.Background(), unlockTimeout)
	defer cancel()
	l.session.Unlock(ctx)
	l.session.Drop()
}
