// Package link keeps the connection of a sink.
package link

import (
	"context"
	"sync"
)

// Session is a connection.
type Session interface {
	comparable

	// Usable reports whether requests can be made. A client may reconnect a usable session.
	Usable() bool

	// Close ends the connection and waits for its goroutines.
	Close()
}

// Link is a connection that its first use makes. If it is lost for good, the next use makes it
// anew. Uses at the same time share one attempt.
type Link[S Session] struct {
	connect func() (S, error)

	mu      sync.Mutex
	now     S           // zero before the first use, and after an attempt that failed
	attempt *attempt[S] // nil if none is under way
}

// attempt is an attempt to connect. Its results are set when done is closed.
type attempt[S Session] struct {
	done    chan struct{}
	session S
	err     error
}

// New returns a link. connect bounds its time itself, because an attempt goes on if those who
// wait for it give up.
func New[S Session](connect func() (S, error)) *Link[S] { return &Link[S]{connect: connect} }

// Get returns the session. It connects if there is none, or none that is usable.
func (l *Link[S]) Get(ctx context.Context) (S, error) {
	var none S
	l.mu.Lock()
	if s := l.now; s != none && s.Usable() {
		l.mu.Unlock()
		return s, nil
	}
	a := l.attempt
	if a == nil {
		a = &attempt[S]{done: make(chan struct{})}
		l.attempt = a
		go l.try(a, l.now)
	}
	l.mu.Unlock()

	select {
	case <-a.done:
		return a.session, a.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// try connects, after it has closed the session before.
func (l *Link[S]) try(a *attempt[S], before S) {
	var none S
	if before != none {
		before.Close()
	}
	if a.session, a.err = l.connect(); a.err != nil {
		a.session = none
	}
	l.mu.Lock()
	l.now, l.attempt = a.session, nil
	l.mu.Unlock()
	close(a.done)
}

// Close ends the connection, or waits for the attempt to connect and ends its connection. Call it
// only when no Get is running.
func (l *Link[S]) Close() {
	l.mu.Lock()
	a := l.attempt
	l.mu.Unlock()
	if a != nil {
		<-a.done
	}
	var none S
	if l.now != none {
		l.now.Close()
	}
}
