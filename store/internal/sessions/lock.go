package sessions

import (
	"context"
	"errors"
	"sync"

	"github.com/sluicebox/sluicebox/store"
)

// errReleased reports that a call came after Release, or that Release canceled it.
var errReleased = errors.New("relay lock released")

// Holder is the session that holds a lock. One call at a time uses it.
type Holder interface {
	// Lost reports whether the session is known to have ended.
	Lost() bool
	// Unlock releases the lock. The end of the session releases it too, but later.
	Unlock(ctx context.Context)
	// Drop closes the session.
	Drop()
}

// Lock is a lock that a server holds for the life of a session. One call at a time uses the
// session, and a call that fails on it loses the lock.
type Lock struct {
	session  Holder
	released context.Context // canceled by Release
	release  context.CancelFunc

	mu   sync.Mutex // held by the call that uses session
	lost error      // why session no longer holds the lock
}

// NewLock returns the lock that session has acquired.
func NewLock(session Holder) *Lock {
	l := &Lock{session: session}
	l.released, l.release = context.WithCancel(context.Background())
	return l
}

// Use runs a call on the session. After an error it drops the session, because it is
// unknown whether the server still holds the lock.
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

// Release cancels the running call, releases the lock and drops the session. The lock is
// free when Release returns, unless the server does not respond. It may be called more than
// once.
func (l *Lock) Release() {
	l.release()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost != nil {
		return
	}
	l.lost = errReleased
	ctx, cancel := context.WithTimeout(context.Background(), store.CloseTimeout)
	defer cancel()
	l.session.Unlock(ctx)
	l.session.Drop()
}
