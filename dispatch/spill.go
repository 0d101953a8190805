package dispatch

import (
	"slices"

	"github.com/sluicebox/sluicebox/store"
)

// A lane in memory is the beginning of what is to be delivered of its group. Rows
// that are parked lie behind it in the store, in the order of their seq, and what
// the log brings goes there too until the lane is whole again. A parked row may
// have a copy in memory.

// pendingSpill is a row on its way to the parked table.
type pendingSpill struct {
	lane *lane // nil: a row that was delivered and is in no lane
	row  *row
	// copied: the lane keeps the row in memory.
	copied bool
}

// spillBehind puts a row behind the parked ones of its lane.
func (c *core) spillBehind(l *lane, rw *row) {
	c.directSpills++
	c.queueSpill(l, rw, false)
}

func (c *core) queueSpill(l *lane, rw *row, copied bool) {
	rw.spilling = true
	l.spilling++
	c.toSpill = append(c.toSpill, pendingSpill{l, rw, copied})
}

// spillRows parks those rows of a lane that are in memory alone, but for the ones
// in flight and those that the store does not take. Rows that were set back are found in
// their table again.
func (c *core) spillRows(l *lane) {
	for i, rw := range l.rows {
		if i >= l.inFlight && rw.Seq != 0 && !rw.spilled && !rw.spilling && !rw.unspillable {
			c.queueSpill(l, rw, true)
		}
	}
}

// nextSpills takes at most most rows to park. The caller reports them by parked;
// there is one such batch at a time, and none beside a reading.
func (c *core) nextSpills(most int) []store.Item {
	n := min(most, len(c.toSpill))
	if c.ended || n == 0 {
		return nil
	}
	c.spilling = c.toSpill[:n:n]
	c.toSpill = c.toSpill[n:]
	items := make([]store.Item, n)
	for i := range c.spilling {
		items[i] = c.spilling[i].row.Item
	}
	return items
}

// spillsWritten is told that the batch of nextSpills is durable, but for the rows that the
// store refused: the checkpoint may pass the others.
func (c *core) spillsWritten(refused []bool) {
	batch := c.spilling
	c.spilling = nil
	var lanes []*lane
	for i := range batch {
		l, rw := batch[i].lane, batch[i].row
		rw.spilling = false
		switch {
		case refused[i]:
			delete(c.settlingSpilled, store.SpilledRef{Ref: rw.Ref, Seq: rw.Seq}) // there is no copy
			c.keepUnspillable(&batch[i])
		default:
			rw.spilled = true
			c.spilledRows++
			rw.releaseTicket()
			if !batch[i].copied {
				c.directSpills--
				l.spilledRows++
				c.removeRow(rw)
			}
		}
		if o := rw.pendingOutcome; o != nil {
			rw.pendingOutcome = nil
			c.enqueue(*o)
		}
		if l == nil {
			if rw.spilled {
				c.detachRow(rw)
			}
			continue
		}
		l.spilling--
		if last := len(lanes) - 1; last < 0 || lanes[last] != l {
			lanes = append(lanes, l)
		}
	}
	for _, l := range lanes {
		if c.lanes[l.name] != l {
			continue
		}
		c.evictTail(l)
		if !l.spillingInMemory() {
			c.evictSpilled(l)
		}
		if c.lanes[l.name] == l {
			c.wake(l)
			c.evictIdleLane(l)
		}
	}
}

// keepUnspillable keeps a row in memory that the store does not take. Its lane keeps its place,
// and rows of the lane that come later are parked behind it all the same.
func (c *core) keepUnspillable(p *pendingSpill) {
	if !p.row.done {
		p.row.unspillable = true
		c.unspillableRows++
	}
	if !p.copied {
		c.directSpills--
		p.lane.unspillableTail = append(p.lane.unspillableTail, p.row)
	}
}

// retryUnspillable lets rows that the store did not take be parked once more: at once those
// behind parked ones.
func (c *core) retryUnspillable() {
	if c.unspillableRows == 0 || c.ended {
		return
	}
	for _, l := range c.lanesByAge() {
		for _, rw := range l.rows {
			c.clearUnspillable(rw)
		}
		for _, rw := range l.unspillableTail {
			if !rw.spilling {
				c.clearUnspillable(rw)
				c.queueSpill(l, rw, true)
			}
		}
	}
}

// evictTail takes rows out of memory that the store has taken after all and that lie
// behind other parked ones.
func (c *core) evictTail(l *lane) {
	l.unspillableTail = slices.DeleteFunc(l.unspillableTail, func(rw *row) bool {
		if rw.spilled {
			c.removeRow(rw)
			l.spilledRows++
		}
		return rw.spilled
	})
}

func (c *core) clearUnspillable(rw *row) {
	if rw.unspillable {
		rw.unspillable = false
		c.unspillableRows--
	}
}

// deleteSpilled queues a row that was found settled or gone to be forgotten by the
// store.
func (c *core) deleteSpilled(rw *row) {
	switch {
	case rw.spilled:
		ref := store.SpilledRef{Ref: rw.Ref, Seq: rw.Seq}
		c.settlingSpilled[ref] = true
		c.toDeleteSpilled = append(c.toDeleteSpilled, ref)
	case rw.spilling:
		rw.pendingOutcome = &outcome{row: rw}
	}
}

// nextDeletes takes rows that the store is to forget. The caller reports them by
// unparked.
func (c *core) nextDeletes(most int) []store.SpilledRef {
	n := min(most, len(c.toDeleteSpilled))
	if c.ended || n == 0 {
		return nil
	}
	refs := c.toDeleteSpilled[:n:n]
	c.toDeleteSpilled = c.toDeleteSpilled[n:]
	return refs
}

// spilledDeleted is told that the store has forgotten rows.
func (c *core) spilledDeleted(refs ...store.SpilledRef) {
	for _, ref := range refs {
		delete(c.settlingSpilled, ref)
		c.spilledRows--
		if c.deletedDuringReload != nil {
			c.deletedDuringReload[ref] = true
		}
	}
}

// releaseTicket tells whoever waits for the row that the checkpoint may pass it.
func (rw *row) releaseTicket() {
	if rw.ticket != nil {
		rw.ticket.Done(1)
		rw.ticket = nil
	}
}

// removeRow takes a row out of memory that is not settled.
func (c *core) removeRow(rw *row) {
	c.rows--
	c.clearExtraWeight(rw)
	c.clearUnspillable(rw)
	c.clearReloaded(rw)
	if rw.detached {
		rw.detached = false
		c.detachedRows--
	}
	c.dropPayload(rw)
	if c.leftSinceWatch != nil {
		c.leftSinceWatch[rw.Ref] = true
	}
}

// clearReloaded ends that a row counts among those that were read back.
func (c *core) clearReloaded(rw *row) {
	if rw.reloaded {
		rw.reloaded = false
		c.reloadedRows--
	}
}
