// Package session lets one call at a time use a connection of a store, which is
// opened when a call needs it and given up when one fails on it. Every store has
// some.
package session

import (
	"context"

	"github.com/sluicebox/sluicebox/store/internal/lifetime"
)

// Link is the connection behind a session. Only whoever has the session's turn
// calls it.
type Link interface {
	// Ready opens it, if it is not open, or not fit for use any more.
	Ready(ctx context.Context) error
	// Survives reports whether an error that a call returned is an answer, and no sign
	// of trouble with the connection.
	Survives(err error) bool
	// Drop gives it up. It may be called more than once.
	Drop()
}

// Session serves one call at a time, in the order in which they came.
type Session struct {
	lifetime *lifetime.Lifetime
	link     Link
	token    chan struct{} // holds a token while the session is free
}

// New returns a session that ends with a lifetime. It opens nothing.
func New(life *lifetime.Lifetime, link Link) *Session {
	s := &Session{lifetime: life, link: link, token: make(chan struct{}, 1)}
	s.token <- struct{}{}
	return s
}

// Do runs a call on the link. Calls after the end of the lifetime fail with
// lifetime.ErrClosed, and those that it cuts short have it as their context's cause.
func (s *Session) Do(ctx context.Context, call func(context.Context) error) error {
	if s.lifetime.Ended() {
		return lifetime.ErrClosed
	}
	ctx, cancel := s.lifetime.Bind(ctx)
	defer cancel()
	select {
	case <-s.token:
		defer s.release()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if s.lifetime.Ended() { // both were ready
		return lifetime.ErrClosed
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

// TryDo runs something on the link if no call uses it, and says whether it did. It
// opens nothing: the link may be down.
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

// Close waits for the call that uses the session, if any, and drops the link for
// good. The lifetime must have ended.
func (s *Session) Close() {
	<-s.token
	defer s.release()
	s.link.Drop()
}

func (s *Session) release() { s.token <- struct{}{} }
