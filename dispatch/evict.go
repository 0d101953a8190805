package dispatch

import (
	"cmp"
	"slices"
	"time"
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

	keeps := c.waitingKeepRows()
	for _, l := range c.spillCandidates(others) {
		if excess <= 0 {
			return
		}
		keep := 0
		if l.State != laneHeld && l.IsWaiting() && heads >= keeps {
			keep = keeps
			heads -= keep
		}
		excess -= c.shrink(l, keep)
	}
}

// bufferedRows is the number of rows that count against the buffer.
func (c *core) bufferedRows() int { return c.memory.used(buffered) }

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

	for _, l := range c.lanesByAge() {
		if all || l.State == laneHeld || l.IsWaiting() {
			c.spillRows(l)
		}
	}
}

// lanesByAge returns the lanes in order of creation.
func (c *core) lanesByAge() []*lane {
	lanes := make([]*lane, 0, len(c.lanes))
	for _, l := range c.lanes {
		lanes = append(lanes, l)
	}
	slices.SortFunc(lanes, func(a, b *lane) int { return cmp.Compare(a.CreatedOrder, b.CreatedOrder) })
	return lanes
}

// spillCandidates returns the lanes that may leave memory, the best first.
func (c *core) spillCandidates(others bool) []*lane {
	rank := func(l *lane) int {
		switch {
		case l.State == laneHeld, l.State == laneWaiting && l.Failures > 1 && !l.Receiver.Breaker.Open(), l.Locked, l.WaitsForRefused():
			return 0
		case l.IsWaiting():
			return 1
		case len(l.Rows) > c.cfg.BufferRows/2:
			return 2
		}
		return 3
	}

	var lanes []*lane
	ranks := map[*lane]int{}
	for _, l := range c.lanes {
		if c.shrinking[l] || l.Reloading || len(l.Rows) == 0 || l.AllReloaded() || l.Rows[len(l.Rows)-1].Copy == copyRefused {
			continue
		}
		if r := rank(l); others || r == 0 {
			lanes, ranks[l] = append(lanes, l), r
		}
	}

	slices.SortFunc(lanes, func(a, b *lane) int {
		by := len(b.Rows) - len(a.Rows)
		if ranks[a] == 3 {
			by = cmp.Compare(a.Rows[0].Seq, b.Rows[0].Seq)
		}
		return cmp.Or(ranks[a]-ranks[b], by, cmp.Compare(a.CreatedOrder, b.CreatedOrder))
	})
	return lanes
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
	if len(l.Rows) == 0 && l.State != laneHeld {
		c.dequeue(l)
	}
	if !l.SpillingInMemory() {
		c.evictSpilled(l)
	}
	if c.lanes[l.Name] == l {
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
	if l.State != laneHeld && !l.IsWaiting() {
		return
	}
	for i, rw := range l.Rows {
		if i >= max(keep, l.InFlight) && !rw.Claimed.IsZero() && rw.Skip == nil && !rw.RequeuedInFlight {
			rw.Unclaiming = true
			c.unclaim(rw)
		}
	}
	if len(l.Rows) > 0 && l.Rows[0].Unclaiming && l.State != laneHeld {
		c.dequeue(l)
	}
}

// unclaimed handles a row whose claim was given back.
func (c *core) unclaimed(rw *row, now time.Time) {
	if !rw.Unclaiming {
		return
	}
	rw.Unclaiming = false
	l := c.lanes[c.laneNameOf(&rw.Item)]
	if l == nil {
		return
	}
	if !l.SpillingInMemory() {
		c.evictSpilled(l)
	}

	switch {
	case c.lanes[l.Name] != l || l.State != laneIdle:
	case len(l.Rows) > 0 && !l.OnHold() && l.WakeAt.After(now) && !l.Rows[0].Unclaiming:
		c.wait(l, l.WakeAt)
	default:
		c.wake(l)
	}
}

// Pinned reports whether a row that is not in flight must stay in memory.
func (rw *row) Pinned() bool {
	return rw.Unclaiming || !rw.Claimed.IsZero() || rw.Skip != nil || rw.RequeuedInFlight || rw.Requeued && rw.Seq != 0
}

// PinnedRows is how many leading rows stay in memory while the lane shrinks.
func (l *lane) PinnedRows() int {
	for i, rw := range slices.Backward(l.Rows) {
		if i < max(l.KeepRows, l.InFlight) || rw.Pinned() || rw.Copy != copyStored && rw.Copy != copyWriting {
			return i + 1
		}
	}
	return 0
}

// SpillingInMemory reports whether rows in memory are being spilled. Rows spilled behind
// them do not count, because such rows may keep coming.
func (l *lane) SpillingInMemory() bool {
	return slices.ContainsFunc(l.Rows, func(rw *row) bool { return rw.Copy == copyWriting })
}

// LeavingRows is how many rows leave memory while the lane shrinks.
func (l *lane) LeavingRows() int {
	n := len(l.Rows) - l.PinnedRows()
	for _, rw := range l.Rows[min(l.KeepRows, len(l.Rows)):] {
		if rw.Unclaiming {
			n++
		}
	}
	return min(n, len(l.Rows))
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
	case l.State == laneReady:
		c.dequeue(l)
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
