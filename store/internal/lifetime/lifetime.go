// Package lifetime ends with a store what the store has open: calls, views, and
// whatever takes itself down in the background. Every store has one.
package lifetime

import (
	"context"
	"errors"
	"sync"
)

// ErrClosed says that a call came after Close, or was cut short by it.
var ErrClosed = errors.New("the store is closed")

// Closer is what a store has open and ends with it.
type Closer interface {
	// Close ends it. It may be called more than once.
	Close()
}

// Lifetime is that of one store. All methods are safe for concurrent use.
type Lifetime struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	work   sync.WaitGroup

	mu      sync.Mutex
	closers map[Closer]struct{}
}

// New begins a lifetime.
func New() *Lifetime {
	l := &Lifetime{closers: map[Closer]struct{}{}}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// Ended reports whether End was called.
func (l *Lifetime) Ended() bool { return l.ctx.Err() != nil }

// Bind returns a context that ends with the call's own or, with ErrClosed as its
// cause, with the store.
func (l *Lifetime) Bind(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.ctx, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// Begin counts work in that Wait waits for, and reports false if the lifetime has
// ended. Done counts it out.
func (l *Lifetime) Begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Ended() {
		return false
	}
	l.work.Add(1)
	return true
}

// Done counts work out.
func (l *Lifetime) Done() { l.work.Done() }

// Do does work that ends with the lifetime, and which Wait waits for. It fails with
// ErrClosed if the lifetime has ended.
func (l *Lifetime) Do(ctx context.Context, work func(context.Context) error) error {
	if !l.Begin() {
		return ErrClosed
	}
	defer l.Done()
	ctx, cancel := l.Bind(ctx)
	defer cancel()
	return work(ctx)
}

// Go does work in the background, which Wait waits for.
func (l *Lifetime) Go(work func()) { l.work.Go(work) }

// Add makes c known, so that End closes it, and reports false if the lifetime has
// ended: then the caller closes it.
func (l *Lifetime) Add(c Closer) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Ended() {
		return false
	}
	l.closers[c] = struct{}{}
	return true
}

// Remove forgets c, which was closed.
func (l *Lifetime) Remove(c Closer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.closers, c)
}

// End ends all bound contexts and closes what is open.
func (l *Lifetime) End() {
	l.mu.Lock() // a Begin or Add that came first has counted
	l.cancel(ErrClosed)
	open := make([]Closer, 0, len(l.closers))
	for c := range l.closers {
		open = append(open, c)
	}
	l.mu.Unlock()
	for _, c := range open {
		c.Close()
	}
}

// Wait returns when all work is done.
func (l *Lifetime) Wait() { l.work.Wait() }
