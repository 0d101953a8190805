// Package sessions holds the life of a store's sessions. A [Session] gives one call at a time
// exclusive use of a connection, which is opened when a call needs it and closed when a call
// fails on it. A [Lock] is held by a session. A [Lifetime] ends all of them with the store.
package sessions

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Link is the connection behind a session. Only the call that holds the session uses it.
type Link interface {
	// Ready opens the connection if it is not open or no longer usable.
	Ready(ctx context.Context) error
	// Survives reports whether err is an answer of the server, so that the connection is
	// still usable.
	Survives(err error) bool
	// Drop closes the connection. It may be called more than once.
	Drop()
}

// Session serves one call at a time, in arrival order.
type Session struct {
	lifetime *Lifetime
	link     Link
	token    chan struct{} // contains a token while the session is free

	// Of CloseIdle. The call that holds the session uses them.
	idle  time.Duration
	used  time.Time // when the last call ended
	timed bool      // closeIdle will be called
}

// New returns a session that ends with a lifetime. It does not open the link.
func New(life *Lifetime, link Link) *Session {
	s := &Session{lifetime: life, link: link, token: make(chan struct{}, 1)}
	s.token <- struct{}{}
	return s
}

// CloseIdle makes the session close its link once it has not been used for that long. The next call opens it
// again. It is called before the first call; 0 keeps the link open.
func (s *Session) CloseIdle(after time.Duration) { s.idle = after }

// keepUntilIdle sees to the end of a link that was just used.
func (s *Session) keepUntilIdle() {
	if s.idle <= 0 {
		return
	}
	s.used = time.Now()
	if !s.timed {
		s.timed = true
		time.AfterFunc(s.idle, s.closeIdle)
	}
}

// closeIdle closes the link if no call has used it for long enough.
func (s *Session) closeIdle() {
	if !s.lifetime.Begin() {
		return // Close closes it
	}
	defer s.lifetime.Done()
	free := s.TryDo(func() {
		if rest := s.idle - time.Since(s.used); rest > 0 {
			time.AfterFunc(rest, s.closeIdle)
			return
		}
		s.timed = false
		s.link.Drop()
	})
	if !free {
		time.AfterFunc(s.idle, s.closeIdle) // a call uses it
	}
}

// Do runs a call on the link. It returns ErrClosed after the end of the lifetime;
// a call that the end interrupts has ErrClosed as its context's cause.
func (s *Session) Do(ctx context.Context, call func(context.Context) error) error {
	if s.lifetime.Ended() {
		return ErrClosed
	}

	ctx, cancel := s.lifetime.Bind(ctx)
	defer cancel()
	select {
	case <-s.token:
		defer s.release()
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	if s.lifetime.Ended() { // select may choose the token even if ctx is done
		return ErrClosed
	}
	if err := s.link.Ready(ctx); err != nil {
		return withCause(ctx, err)
	}

	err := call(ctx)
	s.keepUntilIdle()
	if err != nil && !s.link.Survives(err) {
		s.link.Drop()
		err = withCause(ctx, err)
	}

	return err
}

// withCause adds why the context of a failed call has ended, if it has: some drivers say only that the
// connection is closed then.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// TryDo runs do on the link if no call uses it, and reports whether it did. It does not
// open the link, so the connection may be closed.
func (s *Session) TryDo(do func()) bool {
	select {
	case <-s.token:
		defer s.release()
		do()
		return true
	default:
		return false
	}
}

// Close waits for a running call and closes the link for good. The lifetime must have
// ended.
func (s *Session) Close() {
	<-s.token
	defer s.release()
	s.link.Drop()
}

func (s *Session) release() { s.token <- struct{}{} }
