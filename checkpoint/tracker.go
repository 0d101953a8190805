package checkpoint

import (
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Tracker is the low watermark over batches that enter in commit order and
// settle in any order. It does no I/O. It is safe for concurrent use, except
// that Begin calls must come in commit order.
//
// It holds one entry per batch with unsettled rows: a batch that is done lends
// its place to the one before it.
type Tracker struct {
	mu        sync.Mutex
	head      *Ticket // oldest batch with unsettled rows
	tail      *Ticket
	watermark store.Checkpoint
	settled   int64
	read      store.Position // the latest that entered
	readAt    time.Time      // when anything did
	changed   chan struct{}
}

// Ticket stands for one batch. Call Done for each of its rows.
type Ticket struct {
	tracker    *Tracker
	prev, next *Ticket
	open       int
	place      watermarkTarget
}

// watermarkTarget is how far the watermark may go once a ticket and all before it are
// done.
type watermarkTarget struct {
	position store.Position
	seq      store.Seq
}

// NewTracker starts at a checkpoint.
func NewTracker(start store.Checkpoint) *Tracker {
	return &Tracker{watermark: start, read: start.Position, changed: make(chan struct{}, 1)}
}

// Begin enters a batch of n rows that ends at a position, with seq the last seq
// given out. A position of "" (a transaction in part) never becomes the
// watermark. With n = 0 only the position moves, and the ticket is nil.
func (t *Tracker) Begin(position store.Position, seq store.Seq, n int) *Ticket {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.readAt = time.Now()
	if position != "" {
		t.read = position
	}
	at := watermarkTarget{position, seq}
	if n == 0 {
		t.advance(t.tail, at)
		return nil
	}
	tk := &Ticket{tracker: t, prev: t.tail, open: n, place: at}
	if t.tail != nil {
		t.tail.next = tk
	} else {
		t.head = tk
	}
	t.tail = tk
	return tk
}

// Done reports n rows of the batch as settled or parked. It panics when more
// rows are reported than the batch has: the watermark would lie.
func (tk *Ticket) Done(n int) {
	t := tk.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	tk.open -= n
	t.settled += int64(n)
	if tk.open < 0 {
		panic("checkpoint: more rows done than the batch has")
	}
	if tk.open > 0 {
		return
	}
	before := tk.prev
	t.unlink(tk)
	t.advance(before, tk.place)
}

// advance gives a place to the ticket that still stands before it, or, if none
// does, to the watermark.
func (t *Tracker) advance(before *Ticket, to watermarkTarget) {
	if to.position == "" {
		return
	}
	if before != nil {
		before.place = to
		return
	}
	t.watermark.Position, t.watermark.Seq = to.position, to.seq
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

func (t *Tracker) unlink(tk *Ticket) {
	if tk.prev != nil {
		tk.prev.next = tk.next
	} else {
		t.head = tk.next
	}
	if tk.next != nil {
		tk.next.prev = tk.prev
	} else {
		t.tail = tk.prev
	}
	tk.prev, tk.next = nil, nil
}

// Watermark returns the watermark, and how many rows were reported done since
// the tracker began.
func (t *Tracker) Watermark() (cp store.Checkpoint, settled int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.watermark, t.settled
}

// LastRead returns the latest position that was entered, and when a batch last was;
// the time is zero before the first.
func (t *Tracker) LastRead() (store.Position, time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.read, t.readAt
}

// Changed holds a signal after the watermark moved. It has one receiver.
func (t *Tracker) Changed() <-chan struct{} { return t.changed }
