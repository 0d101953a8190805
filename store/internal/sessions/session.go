// Package sessions holds the life of a store's sessions. A [Session] gives one call at a time
// exclusive use of a connection, which is opened when a call needs it and closed when a call
// fails on it. A [Lock] is held by a session. A [Lifetime] ends all of them with the store.
package sessions

import "context"

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
}

// New returns a session that ends with a lifetime. It does not open the link.
func New(life *Lifetime, link Link) *Session {
	s := &Session{lifetime: life, link: link, token: make(chan struct{}, 1)}
	s.token <- struct{}{}
	return s
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
		return err
	}

	err := call(ctx)
	if err != nil && !s.link.Survives(err) {
		s.link.Drop()
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
