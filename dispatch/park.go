package dispatch

import (
	"slices"

	"github.com/sluicebox/sluicebox/store"
)

// A lane in memory is the beginning of what is to be delivered of its group. Rows
// that are parked lie behind it in the store, in the order of their seq, and what
// the log brings goes there too until the lane is whole again. A parked row may
// have a copy in memory.

// parking is a row on its way to the parked table.
type parking struct {
	lane *lane // nil: a row that was delivered and is in no lane
	row  *row
	// copied: the lane keeps the row in memory.
	copied bool
}

// putBehind puts a row behind the parked ones of its lane.
func (c *core) putBehind(l *lane, rw *row) {
	c.passing++
	c.park(l, rw, false)
}

func (c *core) park(l *lane, rw *row, copied bool) {
	rw.parking = true
	l.parking++
	c.toPark = append(c.toPark, parking{l, rw, copied})
}

// parkRows parks those rows of a lane that are in memory alone, but for the ones
// in flight and those that the store does not take. Rows that were set back are found in
// their table again.
func (c *core) parkRows(l *lane) {
	for i, rw := range l.rows {
		if i >= l.inFlight && rw.Seq != 0 && !rw.parked && !rw.parking && !rw.unparkable {
			c.park(l, rw, true)
		}
	}
}

// nextParks takes at most most rows to park. The caller reports them by parked;
// there is one such batch at a time, and none beside a reading.
func (c *core) nextParks(most int) []store.Item {
	n := min(most, len(c.toPark))
	if c.ended || n == 0 {
		return nil
	}
	c.parkings = c.toPark[:n:n]
	c.toPark = c.toPark[n:]
	items := make([]store.Item, n)
	for i := range c.parkings {
		items[i] = c.parkings[i].row.Item
	}
	return items
}

// parked is told that the batch of nextParks is durable, but for the rows that the
// store refused: the checkpoint may pass the others.
func (c *core) parked(refused []bool) {
	batch := c.parkings
	c.parkings = nil
	var lanes []*lane
	for i := range batch {
		l, rw := batch[i].lane, batch[i].row
		rw.parking = false
		switch {
		case refused[i]:
			delete(c.settling, store.ParkedRef{Ref: rw.Ref, Seq: rw.Seq}) // there is no copy
			c.keep(&batch[i])
		default:
			rw.parked = true
			c.parkedRows++
			rw.pass()
			if !batch[i].copied {
				c.passing--
				l.beyond++
				c.leave(rw)
			}
		}
		if o := rw.late; o != nil {
			rw.late = nil
			c.enqueue(*o)
		}
		if l == nil {
			if rw.parked {
				c.setAside(rw)
			}
			continue
		}
		l.parking--
		if last := len(lanes) - 1; last < 0 || lanes[last] != l {
			lanes = append(lanes, l)
		}
	}
	for _, l := range lanes {
		if c.lanes[l.name] != l {
			continue
		}
		c.letTailGo(l)
		if !l.copying() {
			c.trim(l)
		}
		if c.lanes[l.name] == l {
			c.wake(l)
			c.idle(l)
		}
	}
}

// keep keeps a row in memory that the store does not take. Its lane keeps its place,
// and rows of the lane that come later are parked behind it all the same.
func (c *core) keep(p *parking) {
	if !p.row.done {
		p.row.unparkable = true
		c.unparkable++
	}
	if !p.copied {
		c.passing--
		p.lane.tail = append(p.lane.tail, p.row)
	}
}

// tryParked lets rows that the store did not take be parked once more: at once those
// behind parked ones.
func (c *core) tryParked() {
	if c.unparkable == 0 || c.ended {
		return
	}
	for _, l := range c.byAge() {
		for _, rw := range l.rows {
			c.takable(rw)
		}
		for _, rw := range l.tail {
			if !rw.parking {
				c.takable(rw)
				c.park(l, rw, true)
			}
		}
	}
}

// letTailGo takes rows out of memory that the store has taken after all and that lie
// behind other parked ones.
func (c *core) letTailGo(l *lane) {
	l.tail = slices.DeleteFunc(l.tail, func(rw *row) bool {
		if rw.parked {
			c.leave(rw)
			l.beyond++
		}
		return rw.parked
	})
}

func (c *core) takable(rw *row) {
	if rw.unparkable {
		rw.unparkable = false
		c.unparkable--
	}
}

// unpark queues a row that was found settled or gone to be forgotten by the
// store.
func (c *core) unpark(rw *row) {
	switch {
	case rw.parked:
		ref := store.ParkedRef{Ref: rw.Ref, Seq: rw.Seq}
		c.settling[ref] = true
		c.toUnpark = append(c.toUnpark, ref)
	case rw.parking:
		rw.late = &outcome{row: rw}
	}
}

// nextUnparks takes rows that the store is to forget. The caller reports them by
// unparked.
func (c *core) nextUnparks(most int) []store.ParkedRef {
	n := min(most, len(c.toUnpark))
	if c.ended || n == 0 {
		return nil
	}
	refs := c.toUnpark[:n:n]
	c.toUnpark = c.toUnpark[n:]
	return refs
}

// unparked is told that the store has forgotten rows.
func (c *core) unparked(refs ...store.ParkedRef) {
	for _, ref := range refs {
		delete(c.settling, ref)
		c.parkedRows--
		if c.left != nil {
			c.left[ref] = true
		}
	}
}

// pass tells whoever waits for the row that the checkpoint may pass it.
func (rw *row) pass() {
	if rw.ticket != nil {
		rw.ticket.Done(1)
		rw.ticket = nil
	}
}

// leave takes a row out of memory that is not settled.
func (c *core) leave(rw *row) {
	c.rows--
	c.lighten(rw)
	c.takable(rw)
	c.noLongerBack(rw)
	if rw.spilled {
		rw.spilled = false
		c.spilled--
	}
	c.dropPayload(rw)
	if c.watched != nil {
		c.watched[rw.Ref] = true
	}
}

// noLongerBack ends that a row counts among those that were read back.
func (c *core) noLongerBack(rw *row) {
	if rw.back {
		rw.back = false
		c.back--
	}
}
