package dispatch

import (
	"slices"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// A source that polls tables need not keep rows that do not move in memory, because the
// tables keep them. It leaves out the lanes of ExcludedLanes and reads the rows of others.
// Blocked, failing or very large groups then fill neither the buffer nor every poll.

// ExcludedLanes returns the lanes of an outbox that a polling source must leave out for
// now:
//
//   - lanes on hold, and lanes with spilled rows
//   - failing or waiting lanes that already have as many rows as they keep
//   - lanes with more rows in memory than the buffer has room for, so that other lanes get
//     room however many lanes are large
//   - lanes with a row whose claim is being given back
//
// The source must call ExcludedLanes before Held, because a row whose claim is being given
// back moves from the one to the other. The time is linear in the lanes.
func (d *Dispatcher) ExcludedLanes(outbox string) []store.LaneKey {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.excludedLanes(outbox)
}

// Unload evicts rows of lanes that do not move and gives back their claims: all rows of a
// lane on hold, and all but the first few of a failing or waiting lane.
//
// It is for a polling source, which finds the rows again once ExcludedLanes no longer names
// the lane. The source must have no rows of the outbox on their way to the lanes, because
// these would overtake the unloaded rows.
func (d *Dispatcher) Unload(outbox string) {
	d.mu.Lock()
	some := d.core.unload(outbox)
	d.mu.Unlock()
	if some {
		d.wakeWorkers()
	}
}

func (c *core) excludedLanes(outbox string) (keys []store.LaneKey) {
	keeps, m := c.lanes.WaitingKeepRows(), &c.lanes.Memory
	room := max(c.cfg.BufferRows-m.Used(lanes.Buffered)-m.Used(lanes.Reloaded)-m.Used(lanes.Detached), c.cfg.APIBatchSize)
	for _, l := range c.lanes.Live() {
		switch {
		case l.Name.Outbox != outbox || c.lanes.IsRowLane(l):
		case l.OnHold(), l.HasSpilled, l.IsWaiting() && len(l.Rows) >= keeps, len(l.Rows) > room:
			keys = append(keys, l.Name.LaneKey)
		}
	}

	for o := range c.outcomes.All() { // rows given back go in front of rows still to be read
		if o.Outbox == outbox && o.Of.Lane == nil && o.Status == store.Pending {
			keys = append(keys, o.Of.Row.Lane())
		}
	}
	return keys
}

// unload evicts rows as Unload says and reports whether there were any.
func (c *core) unload(outbox string) (some bool) {
	if c.ended {
		return false
	}

	keeps := c.lanes.WaitingKeepRows()
	for _, l := range c.lanes.Live() {
		held := l.State == lanes.Held
		if l.Name.Outbox != outbox || l.HasSpilled || c.lanes.IsRowLane(l) || !held && !l.IsWaiting() {
			continue
		}
		keep := keeps
		if held {
			keep = 0
		}
		for i, rw := range slices.Backward(l.Rows) {
			if rw.Skip != nil || rw.Copy == lanes.CopyStored || rw.Copy == lanes.CopyWriting {
				keep = max(keep, i+1)
				break
			}
		}
		if keep >= len(l.Rows) {
			continue
		}
		for _, rw := range l.Rows[keep:] {
			c.Unclaim(rw)
			c.drop(rw)
		}
		l.Rows, some = slices.Clone(l.Rows[:keep]), true
	}

	return some
}
