// Package logsource is shared by the sources that read a log. It keeps acknowledgements, finds
// the columns to read, and turns the rows of a transaction into batches of items.
package logsource

import (
	"sync/atomic"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Ack is an acknowledged position.
type Ack[P any] struct {
	Position store.Position
	// Parsed is the position as parsed by the source.
	Parsed P
	// At is the time of the acknowledgement.
	At time.Time
}

// Acks tracks the positions that a source offered to its receiver, and the last acknowledged
// one. The zero value is ready for Reset; before Reset nothing can be acknowledged. Its methods
// are safe for concurrent use.
type Acks[P any] struct {
	offered atomic.Pointer[store.Position] // the last position offered since Reset
	acked   atomic.Pointer[Ack[P]]
}

// Reset restarts the tracker at a position, up to which the log counts as acknowledged.
func (l *Acks[P]) Reset(from store.Position, place P) {
	l.offered.Store(&from)
	l.acked.Store(&Ack[P]{Position: from, Parsed: place, At: time.Now()})
}

// Offer allows a position to be acknowledged; "" is ignored. Call it before sending, because
// the acknowledgement may arrive before the send returns.
func (l *Acks[P]) Offer(p store.Position) {
	if p != "" {
		l.offered.Store(&p)
	}
}

// Acknowledge records a position. It ignores a position that was not offered since Reset,
// because it belongs to another log, and a position at or before the last one. It reports
// whether it recorded the position.
func (l *Acks[P]) Acknowledge(p store.Position, parse func(store.Position) (P, error), compare func(a, b store.Position) int) bool {
	offered := l.offered.Load()
	place, err := parse(p)
	if err != nil || offered == nil || compare(p, *offered) > 0 {
		return false
	}
	next := &Ack[P]{Position: p, Parsed: place, At: time.Now()}
	for {
		old := l.acked.Load()
		if old != nil && compare(p, old.Position) <= 0 {
			return false
		}
		if l.acked.CompareAndSwap(old, next) {
			return true
		}
	}
}

// Last returns the last acknowledgement, or the position of Reset. It is nil before Reset.
func (l *Acks[P]) Last() *Ack[P] { return l.acked.Load() }
