package dispatch

import (
	"slices"

	"github.com/sluicebox/sluicebox/store"
)

// A source that reads tables again and again need not keep in memory what does
// not move: the rows are safe where they are. So that groups which are blocked,
// failing or just large neither fill the buffer nor every reading, such a source
// leaves out the lanes that Standing names and asks for the rows of others.

// ExcludedLanes returns the lanes of an outbox whose rows a source that reads tables
// is to leave out for now: those that are blocked or paused, those that fail or
// wait with as many rows as they keep, and those that have more rows in memory
// than the buffer has room for. The last bound leaves room for other lanes,
// however many are large. The time is linear in the lanes.
//
// Such a source asks for ExcludedLanes before Held: a row that was taken out of memory
// and is still to be given back is among those that Held names, and its lane among
// these.
func (d *Dispatcher) ExcludedLanes(outbox string) []store.LaneKey {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.excludedLanes(outbox)
}

// Unload takes rows out of memory that lie in lanes that do not move, and gives
// back those that were claimed: all of a blocked or paused lane, and all but the
// first few of one that fails or waits. It is for a source that reads tables,
// which finds them again as soon as Standing does not name the lane any more, and
// that has no rows of the outbox on their way to the lanes: else these would come
// before the others.
func (d *Dispatcher) Unload(outbox string) {
	d.mu.Lock()
	some := d.core.unload(outbox)
	d.mu.Unlock()
	if some {
		d.wakeWorkers()
	}
}

// isWaiting reports whether the lane waits for a time, for a suspect sink, for a locked
// table or for one that refuses the outcome of its head.
func (l *lane) isWaiting() bool {
	return l.state == laneWaiting || l.state == laneReady && (l.receiver.breakerOpen || l.locked) || l.waitsForRefused()
}

// waitsForRefused reports whether the lane waits for an outcome that the table refuses.
func (l *lane) waitsForRefused() bool { return l.state == laneWriting && l.refusal != "" }

// waitingKeepRows is how many rows a lane keeps that is still: what one request takes, but
// half the buffer for all of them together.
func (c *core) waitingKeepRows() int {
	n := 1
	for _, l := range c.lanes {
		if l.isWaiting() {
			n++
		}
	}
	return max(1, min(c.cfg.APIBatchSize, c.cfg.BufferRows/2/n))
}

func (c *core) excludedLanes(outbox string) (lanes []store.LaneKey) {
	keeps, room := c.waitingKeepRows(), max(c.cfg.BufferRows-c.rows-c.extraWeight-c.extraReloaded, c.cfg.APIBatchSize)
	for _, l := range c.lanes {
		switch {
		case l.name.Outbox != outbox || c.isRowLane(l):
		case l.onHold(), l.hasSpilled, l.isWaiting() && len(l.rows) >= keeps, len(l.rows) > room:
			lanes = append(lanes, l.name.LaneKey)
		}
	}
	for o := range c.unwrittenOutcomes() { // rows that are given back go in front of what is read
		if o.Outbox == outbox && o.lane == nil && o.Status == store.Pending {
			lanes = append(lanes, o.row.Lane())
		}
	}
	return lanes
}

// isRowLane reports whether the lane is that of a row without a group, of which
// others have lanes of their own. There is no telling them apart by the key.
func (c *core) isRowLane(l *lane) bool {
	return l.name.RowID != "" || !l.name.Group.Valid && c.cfg.Ungrouped == Parallel
}

// unload reports whether it took rows out of memory.
func (c *core) unload(outbox string) (some bool) {
	if c.ended {
		return false
	}
	keeps := c.waitingKeepRows()
	for _, l := range c.lanes {
		held := l.state == laneHeld
		if l.name.Outbox != outbox || l.hasSpilled || c.isRowLane(l) || !held && !l.isWaiting() {
			continue
		}
		keep := keeps
		if held {
			keep = 0
		}
		for i, rw := range slices.Backward(l.rows) {
			if rw.skip != nil || rw.spilled || rw.spilling {
				keep = max(keep, i+1)
				break
			}
		}
		if keep >= len(l.rows) {
			continue
		}
		for _, rw := range l.rows[keep:] {
			c.unloadRow(rw)
		}
		l.rows, some = slices.Clone(l.rows[:keep]), true
	}
	return some
}

// unloadRow takes a row out of memory that is not settled.
func (c *core) unloadRow(rw *row) {
	c.unclaim(rw)
	c.drop(rw)
}
