// Package acked remembers how much of a log a receiver was offered, and how much of it
// is no longer needed, for sources whose server is not told of that.
package acked

import (
	"sync/atomic"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Ack is a position that was acknowledged.
type Ack[P any] struct {
	Position store.Position
	// Parsed is what the source reads in the position.
	Parsed P
	// At is when it was acknowledged.
	At time.Time
}

// Tracker is one source's. Its zero value is ready for Begin, before which nothing can be
// acknowledged. Its methods are safe for concurrent use.
type Tracker[P any] struct {
	offered atomic.Pointer[store.Position] // the last since Begin
	acked   atomic.Pointer[Ack[P]]
}

// Reset forgets everything: the log goes on behind a position, up to which it counts as
// acknowledged.
func (l *Tracker[P]) Reset(from store.Position, place P) {
	l.offered.Store(&from)
	l.acked.Store(&Ack[P]{Position: from, Parsed: place, At: time.Now()})
}

// Offer allows a position to be acknowledged. "" is none. It comes before the send,
// since an acknowledgement may come before that returns.
func (l *Tracker[P]) Offer(p store.Position) {
	if p != "" {
		l.offered.Store(&p)
	}
}

// Acknowledge notes a position. One that was not offered since Begin is ignored, for it
// is of another log, and so is one that is not behind the last.
func (l *Tracker[P]) Acknowledge(p store.Position, parse func(store.Position) (P, error), compare func(a, b store.Position) int) {
	offered := l.offered.Load()
	place, err := parse(p)
	if err != nil || offered == nil || compare(p, *offered) > 0 {
		return
	}
	next := &Ack[P]{Position: p, Parsed: place, At: time.Now()}
	for {
		old := l.acked.Load()
		if old != nil && compare(p, old.Position) <= 0 || l.acked.CompareAndSwap(old, next) {
			return
		}
	}
}

// Last returns the last acknowledgement, or where the log began; nil before Begin.
func (l *Tracker[P]) Last() *Ack[P] { return l.acked.Load() }
