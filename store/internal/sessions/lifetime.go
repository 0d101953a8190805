package sessions

import (
	"context"
	"errors"
	"sync"
)

// ErrClosed reports that a call came after Close, or that Close canceled it.
var ErrClosed = errors.New("store closed")

// Closer is an open resource of a store.
type Closer interface {
	// Close closes the resource. It may be called more than once.
	Close()
}

// Lifetime closes the open resources of one store with the store: calls, views and background
// work. All methods are safe for concurrent use.
type Lifetime struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	work   sync.WaitGroup

	mu      sync.Mutex
	closers map[Closer]struct{}
}

// NewLifetime starts a lifetime.
func NewLifetime() *Lifetime {
	l := &Lifetime{closers: map[Closer]struct{}{}}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// Ended reports whether End was called.
func (l *Lifetime) Ended() bool { return l.ctx.Err() != nil }

// Bind returns a context that ends with ctx, or with the lifetime, which cancels it with
// ErrClosed as the cause.
func (l *Lifetime) Bind(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.ctx, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// Begin registers work that Wait waits for. It reports false if the lifetime has ended.
// Call Done when the work ends.
func (l *Lifetime) Begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Ended() {
		return false
	}
	l.work.Add(1)
	return true
}

// Done ends work that Begin registered.
func (l *Lifetime) Done() { l.work.Done() }

// Do runs work, canceled when the lifetime ends, and Wait waits for it. It returns
// ErrClosed if the lifetime has already ended.
func (l *Lifetime) Do(ctx context.Context, work func(context.Context) error) error {
	if !l.Begin() {
		return ErrClosed
	}
	defer l.Done()
	ctx, cancel := l.Bind(ctx)
	defer cancel()
	return work(ctx)
}

// Go runs work in the background. Wait waits for it.
func (l *Lifetime) Go(work func()) { l.work.Go(work) }

// Add registers c, so that End closes it. It reports false if the lifetime has ended; then
// the caller must close c.
func (l *Lifetime) Add(c Closer) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Ended() {
		return false
	}
	l.closers[c] = struct{}{}
	return true
}

// Remove unregisters c after it was closed.
func (l *Lifetime) Remove(c Closer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.closers, c)
}

// End cancels all bound contexts and closes all registered resources.
func (l *Lifetime) End() {
	l.mu.Lock() // an earlier Begin or Add has registered its work
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

// Wait waits until all work is done.
func (l *Lifetime) Wait() { l.work.Wait() }
