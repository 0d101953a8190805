package dispatch

import (
	"iter"
	"slices"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// The rows of a lane in memory are the first undelivered rows of its group. Spilled rows
// lie behind them in the store, in seq order. New rows from the log are spilled too, until
// the lane has no spilled rows left. A spilled row may have a copy in memory.

// setCopy sets the state of a row's copy.
func (c *core) setCopy(rw *row, to lanes.Copy) {
	if rw.Copy == lanes.CopyRefused {
		c.spills.refused--
	}
	rw.Copy = to
	if to == lanes.CopyRefused {
		c.spills.refused++
	}
}

// pendingSpill is a row on its way to the spilled rows of the store.
type pendingSpill struct {
	Lane *lane // nil for a delivered row, which is in no lane
	Row  *row

	// Copied: the lane keeps the row in memory.
	Copied bool
}

// batches is a queue that is written in batches, one at a time.
type batches[T any] struct{ waiting, writing []T }

func (b *batches[T]) add(v T) { b.waiting = append(b.waiting, v) }

// take begins to write the first n values.
func (b *batches[T]) take(n int) []T {
	b.writing = b.waiting[:n:n]
	b.waiting = b.waiting[n:]
	return b.writing
}

// written ends the batch and returns its values.
func (b *batches[T]) written() []T {
	batch := b.writing
	b.writing = nil
	return batch
}

// all iterates over the values, the waiting ones first.
func (b *batches[T]) all() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for _, queue := range [][]T{b.waiting, b.writing} {
			for i := range queue {
				if !yield(&queue[i]) {
					return
				}
			}
		}
	}
}

// spills holds the rows on their way to the store.
type spills struct {
	batches[pendingSpill]
	direct  int // rows that their lanes do not keep
	refused int // rows in memory that the store refuses to spill
}

func (s *spills) add(p pendingSpill) {
	if !p.Copied {
		s.direct++
	}
	s.batches.add(p)
}

// written ends the batch and returns it.
func (s *spills) written() []pendingSpill {
	batch := s.batches.written()
	for i := range batch {
		if !batch[i].Copied {
			s.direct--
		}
	}
	return batch
}

// cancel removes and returns the waiting rows that a lane does not keep.
func (s *spills) cancel(l *lane) (rows []*row) {
	s.waiting = slices.DeleteFunc(s.waiting, func(p pendingSpill) bool {
		if p.Lane != l || p.Copied {
			return false
		}
		rows = append(rows, p.Row)
		return true
	})
	s.direct -= len(rows)
	return rows
}

// copies are the spilled rows in the store.
type copies struct {
	rows     int // in the store
	toDelete []store.SpilledRef

	// settling holds the copies whose outcome or delete is in flight, deletedDuringReload
	// those deleted while a reload is in flight; nil if none is.
	settling, deletedDuringReload map[store.SpilledRef]bool
}

// settle records that the outcome of a row is in flight, so that its copy is not reloaded.
func (c *copies) settle(rw *row) { c.settling[rw.SpilledRef()] = true }

// delete queues the delete of a row's copy.
func (c *copies) delete(rw *row) {
	c.settle(rw)
	c.toDelete = append(c.toDelete, rw.SpilledRef())
}

// next returns at most limit copies to delete.
func (c *copies) next(limit int) []store.SpilledRef {
	n := min(limit, len(c.toDelete))
	if n == 0 {
		return nil
	}
	refs := c.toDelete[:n:n]
	c.toDelete = c.toDelete[n:]
	return refs
}

// deleted records that a copy is deleted.
func (c *copies) deleted(ref store.SpilledRef) {
	delete(c.settling, ref)
	c.rows--
	if c.deletedDuringReload != nil {
		c.deletedDuringReload[ref] = true
	}
}

func (c *core) queueSpill(l *lane, rw *row, copied bool) {
	c.setCopy(rw, lanes.CopyWriting)
	l.Spilling++
	c.spills.add(pendingSpill{l, rw, copied})
}

// spillRows spills the rows of a lane that are only in memory. It leaves out rows in flight
// and unspillable rows. It also leaves out requeued rows without a seq, because the sweep
// finds them in their table again.
func (c *core) spillRows(l *lane) {
	for i, rw := range l.Rows {
		if i >= l.InFlight && rw.Seq != 0 && rw.Copy == lanes.NoCopy {
			c.queueSpill(l, rw, true)
		}
	}
}

// nextSpills returns at most limit rows to spill. The caller reports them to spillsWritten.
// Only one such batch is in flight, and none while a reload is.
func (c *core) nextSpills(limit int) []store.Item {
	n := min(limit, len(c.spills.waiting))
	if c.ended || n == 0 {
		return nil
	}
	items := make([]store.Item, n)
	for i, p := range c.spills.take(n) {
		items[i] = p.Row.Item
	}
	return items
}

// spillsWritten handles a durable batch of nextSpills. The checkpoint may pass its rows,
// except those the store refused.
func (c *core) spillsWritten(refused []bool) {
	batch := c.spills.written()
	var touched []*lane
	for i := range batch {
		l, rw := batch[i].Lane, batch[i].Row
		switch {
		case refused[i]:
			delete(c.copies.settling, rw.SpilledRef()) // there is no copy
			c.keepUnspillable(&batch[i])
		default:
			c.setCopy(rw, lanes.CopyStored)
			c.copies.rows++
			rw.ReleaseTicket()
			if !batch[i].Copied {
				l.SpilledRows++
				c.removeRow(rw)
			}
		}
		if o := rw.PendingOutcome; o != nil {
			rw.PendingOutcome = nil
			c.enqueue(*o)
		}
		if l == nil {
			if rw.Copy == lanes.CopyStored {
				c.detachRow(rw)
			}
			continue
		}
		l.Spilling--
		if last := len(touched) - 1; last < 0 || touched[last] != l {
			touched = append(touched, l)
		}
	}

	for _, l := range touched {
		if c.lanes.Get(l.Name) != l {
			continue
		}
		c.evictTail(l)
		if !l.SpillingInMemory() {
			c.evictSpilled(l)
		}
		if c.lanes.Get(l.Name) == l {
			c.wake(l)
			c.evictIdleLane(l)
		}
	}
}

// keepUnspillable keeps a row in memory that the store refuses to spill. The row keeps its
// place, and later rows of the lane are still spilled behind it.
func (c *core) keepUnspillable(p *pendingSpill) {
	c.setCopy(p.Row, lanes.CopyRefused)
	if p.Row.Done {
		c.setCopy(p.Row, lanes.NoCopy)
	}
	if !p.Copied {
		p.Lane.UnspillableTail = append(p.Lane.UnspillableTail, p.Row)
	}
}

// retryUnspillable allows another try to spill unspillable rows. Rows behind spilled ones
// are queued at once.
func (c *core) retryUnspillable() {
	if c.spills.refused == 0 || c.ended {
		return
	}
	for _, l := range c.lanes.ByAge() {
		for _, rw := range l.Rows {
			c.clearUnspillable(rw)
		}
		for _, rw := range l.UnspillableTail {
			if rw.Copy != lanes.CopyWriting {
				c.clearUnspillable(rw)
				c.queueSpill(l, rw, true)
			}
		}
	}
}

// evictTail evicts rows of the unspillable tail that are spilled by now.
func (c *core) evictTail(l *lane) {
	l.UnspillableTail = slices.DeleteFunc(l.UnspillableTail, func(rw *row) bool {
		spilled := rw.Copy == lanes.CopyStored
		if spilled {
			c.removeRow(rw)
			l.SpilledRows++
		}
		return spilled
	})
}

func (c *core) clearUnspillable(rw *row) {
	if rw.Copy == lanes.CopyRefused {
		c.setCopy(rw, lanes.NoCopy)
	}
}

// deleteSpilled queues the delete of the spilled copy of a row found settled or gone.
func (c *core) deleteSpilled(rw *row) {
	switch rw.Copy {
	case lanes.CopyStored:
		c.copies.delete(rw)
	case lanes.CopyWriting:
		rw.PendingOutcome = &outcome{Of: owner{Row: rw}}
	}
}

// nextDeletes returns spilled rows to delete. The caller reports them to spilledDeleted.
func (c *core) nextDeletes(limit int) []store.SpilledRef {
	if c.ended {
		return nil
	}
	return c.copies.next(limit)
}

// spilledDeleted records that the store has deleted spilled rows.
func (c *core) spilledDeleted(refs ...store.SpilledRef) {
	for _, ref := range refs {
		c.copies.deleted(ref)
	}
}

// removeRow removes an unsettled row from memory.
func (c *core) removeRow(rw *row) {
	c.clearUnspillable(rw)
	c.lanes.Memory.Leave(rw)
	if c.leftSinceWatch != nil {
		c.leftSinceWatch[rw.Ref] = true
	}
}
