// Package acked remembers how much of a log a receiver was offered, and how much of it
// is no longer needed, for sources whose server is not told of that.
package acked

import (
	"sync/atomic"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Mark is a position that was acknowledged.
type Mark[P any] struct {
	Position store.Position
	// Place is what the source reads in the position.
	Place P
	// At is when it was acknowledged.
	At time.Time
}

// Log is one source's. Its zero value is ready for Begin, before which nothing can be
// acknowledged. Its methods are safe for concurrent use.
type Log[P any] struct {
	offered atomic.Pointer[store.Position] // the last since Begin
	acked   atomic.Pointer[Mark[P]]
}

// Begin forgets everything: the log goes on behind a position, up to which it counts as
// acknowledged.
func (l *Log[P]) Begin(from store.Position, place P) {
	l.offered.Store(&from)
	l.acked.Store(&Mark[P]{Position: from, Place: place, At: time.Now()})
}

// Offer allows a position to be acknowledged. "" is none. It comes before the send,
// since an acknowledgement may come before that returns.
func (l *Log[P]) Offer(p store.Position) {
	if p != "" {
		l.offered.Store(&p)
	}
}

// Acknowledge notes a position. One that was not offered since Begin is ignored, for it
// is of another log, and so is one that is not behind the last.
func (l *Log[P]) Acknowledge(p store.Position, parse func(store.Position) (P, error), compare func(a, b store.Position) int) {
	offered := l.offered.Load()
	place, err := parse(p)
	if err != nil || offered == nil || compare(p, *offered) > 0 {
		return
	}
	next := &Mark[P]{Position: p, Place: place, At: time.Now()}
	for {
		old := l.acked.Load()
		if old != nil && compare(p, old.Position) <= 0 || l.acked.CompareAndSwap(old, next) {
			return
		}
	}
}

// Last returns the last acknowledgement, or where the log began; nil before Begin.
func (l *Log[P]) Last() *Mark[P] { return l.acked.Load() }
