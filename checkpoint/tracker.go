package checkpoint

import (
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Tracker computes the low watermark of batches that enter in commit order and settle
// in any order. It does no I/O. It is safe for concurrent use, except that Begin must
// be called in commit order.
//
// It holds one entry per batch with unsettled rows: a finished batch passes its
// position to the batch before it.
type Tracker struct {
	mu        sync.Mutex
	head      *Ticket // oldest batch with unsettled rows
	tail      *Ticket
	watermark store.Checkpoint
	settled   int64
	read      store.Position // the latest position that entered
	readAt    time.Time      // when the last batch entered
	changed   chan struct{}
}

// Ticket is one batch. Call Done for its rows.
type Ticket struct {
	tracker    *Tracker
	prev, next *Ticket
	open       int
	place      watermarkTarget
}

// watermarkTarget is the watermark after a ticket and all earlier ones are done.
type watermarkTarget struct {
	position store.Position
	seq      store.Seq
}

// NewTracker returns a Tracker that starts at a checkpoint.
func NewTracker(start store.Checkpoint) *Tracker {
	return &Tracker{watermark: start, read: start.Position, changed: make(chan struct{}, 1)}
}

// Passed records that the rows up to a seq were read again, at or below the watermark: they are
// done. The watermark keeps its position. Its seq becomes theirs, because rows that come behind
// them have seqs of this epoch.
func (t *Tracker) Passed(seq store.Seq) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watermark.Seq = max(t.watermark.Seq, seq)
}

// Begin adds a batch of n rows. The batch ends at position, and seq is the last
// assigned seq. A position of "" (a part of a transaction) never becomes the
// watermark. If n is 0 only the position moves, and the ticket is nil.
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

// Done marks n rows of the batch as settled or spilled. It panics if that is more
// than the rest of the batch, because the watermark would be wrong.
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

// advance passes a position to the ticket before it, or to the watermark if there is
// none.
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

// Watermark returns the watermark and the number of rows that are done since
// NewTracker.
func (t *Tracker) Watermark() (cp store.Checkpoint, settled int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.watermark, t.settled
}

// LastRead returns the latest position that entered and the time of the last batch.
// The time is zero before the first batch.
func (t *Tracker) LastRead() (store.Position, time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.read, t.readAt
}

// Changed returns a channel that receives a signal after the watermark moved. It has
// one receiver.
func (t *Tracker) Changed() <-chan struct{} { return t.changed }
