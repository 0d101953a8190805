package dispatch

import (
	"cmp"
	"slices"
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
)

// spillExcess starts to evict rows until half the buffer is free. It takes lanes in this
// order:
//
//   - lanes that do not move although their sink works
//   - with others: lanes that do not move for any reason
//   - with others: lanes with more than half the buffer
//   - with others: lanes that have waited longest
//
// So it leaves a healthy lane that waits for its turn in memory if it can.
func (c *core) spillExcess(others bool) {
	excess := c.bufferedRows() - c.spills.direct - c.cfg.BufferRows/2
	for l := range c.shrinking {
		excess -= l.LeavingRows()
	}
	if c.ended || excess <= 0 {
		return
	}
	heads := c.cfg.BufferRows / 4 // rows that waiting lanes may keep

	keeps := c.lanes.WaitingKeepRows()
	for _, l := range c.spillCandidates(others) {
		if excess <= 0 {
			return
		}
		keep := 0
		if l.State != lanes.Held && l.IsWaiting() && heads >= keeps {
			keep = keeps
			heads -= keep
		}
		excess -= c.shrink(l, keep)
	}
}

// bufferedRows is the number of rows that count against the buffer.
func (c *core) bufferedRows() int { return c.lanes.Memory.Used(lanes.Buffered) }

// spillForLog spills the rows that keep the checkpoint from advancing: rows of lanes that
// do not move, or of all lanes, and rows with a deferred outcome. The rows stay in memory
// too.
func (c *core) spillForLog(all bool) {
	if c.ended {
		return
	}
	for o := range c.outcomes.Unready() {
		c.spillUnwritten(o)
		if o.Of.Lane != nil {
			c.spillRows(o.Of.Lane)
		}
	}

	for _, l := range c.lanes.ByAge() {
		if all || l.State == lanes.Held || l.IsWaiting() {
			c.spillRows(l)
		}
	}
}

// spillCandidates returns the lanes that may leave memory, the best first.
func (c *core) spillCandidates(others bool) []*lane {
	rank := func(l *lane) int {
		switch {
		case l.State == lanes.Held, l.State == lanes.Waiting && l.Failures > 1 && !l.Receiver.Breaker.Open(), l.Locked, l.WaitsForRefused():
			return 0
		case l.IsWaiting():
			return 1
		case len(l.Rows) > c.cfg.BufferRows/2:
			return 2
		}
		return 3
	}

	var found []*lane
	ranks := map[*lane]int{}
	for _, l := range c.lanes.Live() {
		if c.shrinking[l] || l.Reloading || len(l.Rows) == 0 || l.AllReloaded() || l.Rows[len(l.Rows)-1].Copy == lanes.CopyRefused {
			continue
		}
		if r := rank(l); others || r == 0 {
			found, ranks[l] = append(found, l), r
		}
	}

	slices.SortFunc(found, func(a, b *lane) int {
		by := len(b.Rows) - len(a.Rows)
		if ranks[a] == 3 {
			by = cmp.Compare(a.Rows[0].Seq, b.Rows[0].Seq)
		}
		return cmp.Or(ranks[a]-ranks[b], by, cmp.Compare(a.CreatedOrder, b.CreatedOrder))
	})
	return found
}

// shrink spills a lane and evicts all but keep rows, or all but the pinned rows if they are
// more. It returns how many rows leave memory.
func (c *core) shrink(l *lane, keep int) int {
	before := len(l.Rows)
	c.dropRequeued(l)
	c.spillRows(l)
	c.unclaimRows(l, keep)
	l.KeepRows, l.HasSpilled = keep, l.Name.RowID == ""
	c.shrinking[l] = true
	n := before - len(l.Rows) + l.LeavingRows()
	if len(l.Rows) == 0 && l.State != lanes.Held {
		c.lanes.Dequeue(l)
	}
	if !l.SpillingInMemory() {
		c.evictSpilled(l)
	}
	if c.lanes.Get(l.Name) == l {
		c.wake(l)
	}
	return n
}

// dropRequeued drops requeued rows without a seq. The sweep finds them in their table
// again.
func (c *core) dropRequeued(l *lane) {
	kept := l.Rows[:0]
	for i, rw := range l.Rows {
		if i < l.InFlight || rw.Seq != 0 || rw.Ticket != nil || rw.Pinned() {
			kept = append(kept, rw)
			continue
		}
		c.removeRow(rw)
	}
	clear(l.Rows[len(kept):])
	l.Rows = kept
}

// unclaimRows gives back the claims of a lane that does not move, except for the rows it
// keeps. The lane claims no row until the head's claim is given back.
func (c *core) unclaimRows(l *lane, keep int) {
	if l.State != lanes.Held && !l.IsWaiting() {
		return
	}
	for i, rw := range l.Rows {
		if i >= max(keep, l.InFlight) && !rw.Claimed.IsZero() && rw.Skip == nil && !rw.RequeuedInFlight {
			rw.Unclaiming = true
			c.unclaim(rw)
		}
	}
	if len(l.Rows) > 0 && l.Rows[0].Unclaiming && l.State != lanes.Held {
		c.lanes.Dequeue(l)
	}
}

// unclaimed handles a row whose claim was given back.
func (c *core) unclaimed(rw *row, now time.Time) {
	if !rw.Unclaiming {
		return
	}
	rw.Unclaiming = false
	l := c.lanes.Get(c.lanes.NameOf(&rw.Item))
	if l == nil {
		return
	}
	if !l.SpillingInMemory() {
		c.evictSpilled(l)
	}

	switch {
	case c.lanes.Get(l.Name) != l || l.State != lanes.Idle:
	case len(l.Rows) > 0 && !l.OnHold() && l.WakeAt.After(now) && !l.Rows[0].Unclaiming:
		c.wait(l, l.WakeAt)
	default:
		c.wake(l)
	}
}

// evictSpilled evicts the spilled rows of a shrinking lane.
func (c *core) evictSpilled(l *lane) {
	if !c.shrinking[l] {
		return
	}
	if !slices.ContainsFunc(l.Rows, func(rw *row) bool { return rw.Unclaiming }) {
		delete(c.shrinking, l)
	}
	n := l.PinnedRows()
	if n == 0 && len(l.Rows) > 0 {
		l.SaveFailures()
	}

	for _, rw := range l.Rows[n:] {
		c.removeRow(rw)
		c.countSpilled(l, rw)
	}

	l.Rows = slices.Clone(l.Rows[:n])
	switch {
	case n > 0:
	case l.Spilling == 0 && len(l.UnspillableTail) == 0:
		c.evictLane(l)
	case l.State == lanes.Ready:
		c.lanes.Dequeue(l)
	}
}

// countSpilled records that a spilled row of a lane is not in memory.
func (c *core) countSpilled(l *lane, rw *row) {
	if l.Name.RowID != "" {
		// Such rows are spilled as one lane, which has none of them in memory.
		l = c.lane(LaneName{LaneKey: l.Name.LaneKey})
		l.MissedDuringReload = l.Reloading
		defer c.wake(l)
	}
	l.ReloadedUpTo = min(l.ReloadedUpTo, rw.Seq-1)
	l.HasSpilled = true
	l.SpilledRows++
}
