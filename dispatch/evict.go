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
		excess -= l.leavingRows()
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
		if l.state != laneHeld && l.isWaiting() && heads >= keeps {
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
		if o.Of.lane != nil {
			c.spillRows(o.Of.lane)
		}
	}

	for _, l := range c.lanesByAge() {
		if all || l.state == laneHeld || l.isWaiting() {
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
	slices.SortFunc(lanes, func(a, b *lane) int { return cmp.Compare(a.createdOrder, b.createdOrder) })
	return lanes
}

// spillCandidates returns the lanes that may leave memory, the best first.
func (c *core) spillCandidates(others bool) []*lane {
	rank := func(l *lane) int {
		switch {
		case l.state == laneHeld, l.state == laneWaiting && l.failures > 1 && !l.receiver.breaker.Open(), l.locked, l.waitsForRefused():
			return 0
		case l.isWaiting():
			return 1
		case len(l.rows) > c.cfg.BufferRows/2:
			return 2
		}
		return 3
	}

	var lanes []*lane
	ranks := map[*lane]int{}
	for _, l := range c.lanes {
		if c.shrinking[l] || l.reloading || len(l.rows) == 0 || l.allReloaded() || l.rows[len(l.rows)-1].copy == copyRefused {
			continue
		}
		if r := rank(l); others || r == 0 {
			lanes, ranks[l] = append(lanes, l), r
		}
	}

	slices.SortFunc(lanes, func(a, b *lane) int {
		by := len(b.rows) - len(a.rows)
		if ranks[a] == 3 {
			by = cmp.Compare(a.rows[0].Seq, b.rows[0].Seq)
		}
		return cmp.Or(ranks[a]-ranks[b], by, cmp.Compare(a.createdOrder, b.createdOrder))
	})
	return lanes
}

// shrink spills a lane and evicts all but keep rows, or all but the pinned rows if they are
// more. It returns how many rows leave memory.
func (c *core) shrink(l *lane, keep int) int {
	before := len(l.rows)
	c.dropRequeued(l)
	c.spillRows(l)
	c.unclaimRows(l, keep)
	l.keepRows, l.hasSpilled = keep, l.name.RowID == ""
	c.shrinking[l] = true
	n := before - len(l.rows) + l.leavingRows()
	if len(l.rows) == 0 && l.state != laneHeld {
		c.dequeue(l)
	}
	if !l.spillingInMemory() {
		c.evictSpilled(l)
	}
	if c.lanes[l.name] == l {
		c.wake(l)
	}
	return n
}

// dropRequeued drops requeued rows without a seq. The sweep finds them in their table
// again.
func (c *core) dropRequeued(l *lane) {
	kept := l.rows[:0]
	for i, rw := range l.rows {
		if i < l.inFlight || rw.Seq != 0 || rw.ticket != nil || rw.pinned() {
			kept = append(kept, rw)
			continue
		}
		c.removeRow(rw)
	}
	clear(l.rows[len(kept):])
	l.rows = kept
}

// unclaimRows gives back the claims of a lane that does not move, except for the rows it
// keeps. The lane claims no row until the head's claim is given back.
func (c *core) unclaimRows(l *lane, keep int) {
	if l.state != laneHeld && !l.isWaiting() {
		return
	}
	for i, rw := range l.rows {
		if i >= max(keep, l.inFlight) && !rw.claimed.IsZero() && rw.skip == nil && !rw.requeuedInFlight {
			rw.unclaiming = true
			c.unclaim(rw)
		}
	}
	if len(l.rows) > 0 && l.rows[0].unclaiming && l.state != laneHeld {
		c.dequeue(l)
	}
}

// unclaimed handles a row whose claim was given back.
func (c *core) unclaimed(rw *row, now time.Time) {
	if !rw.unclaiming {
		return
	}
	rw.unclaiming = false
	l := c.lanes[c.laneNameOf(&rw.Item)]
	if l == nil {
		return
	}
	if !l.spillingInMemory() {
		c.evictSpilled(l)
	}

	switch {
	case c.lanes[l.name] != l || l.state != laneIdle:
	case len(l.rows) > 0 && !l.onHold() && l.wakeAt.After(now) && !l.rows[0].unclaiming:
		c.wait(l, l.wakeAt)
	default:
		c.wake(l)
	}
}

// pinned reports whether a row that is not in flight must stay in memory.
func (rw *row) pinned() bool {
	return rw.unclaiming || !rw.claimed.IsZero() || rw.skip != nil || rw.requeuedInFlight || rw.requeued && rw.Seq != 0
}

// pinnedRows is how many leading rows stay in memory while the lane shrinks.
func (l *lane) pinnedRows() int {
	for i, rw := range slices.Backward(l.rows) {
		if i < max(l.keepRows, l.inFlight) || rw.pinned() || rw.copy != copyStored && rw.copy != copyWriting {
			return i + 1
		}
	}
	return 0
}

// spillingInMemory reports whether rows in memory are being spilled. Rows spilled behind
// them do not count, because such rows may keep coming.
func (l *lane) spillingInMemory() bool {
	return slices.ContainsFunc(l.rows, func(rw *row) bool { return rw.copy == copyWriting })
}

// leavingRows is how many rows leave memory while the lane shrinks.
func (l *lane) leavingRows() int {
	n := len(l.rows) - l.pinnedRows()
	for _, rw := range l.rows[min(l.keepRows, len(l.rows)):] {
		if rw.unclaiming {
			n++
		}
	}
	return min(n, len(l.rows))
}

// evictSpilled evicts the spilled rows of a shrinking lane.
func (c *core) evictSpilled(l *lane) {
	if !c.shrinking[l] {
		return
	}
	if !slices.ContainsFunc(l.rows, func(rw *row) bool { return rw.unclaiming }) {
		delete(c.shrinking, l)
	}
	n := l.pinnedRows()
	if n == 0 && len(l.rows) > 0 {
		l.saveFailures()
	}

	for _, rw := range l.rows[n:] {
		c.removeRow(rw)
		c.countSpilled(l, rw)
	}

	l.rows = slices.Clone(l.rows[:n])
	switch {
	case n > 0:
	case l.spilling == 0 && len(l.unspillableTail) == 0:
		c.evictLane(l)
	case l.state == laneReady:
		c.dequeue(l)
	}
}

// countSpilled records that a spilled row of a lane is not in memory.
func (c *core) countSpilled(l *lane, rw *row) {
	if l.name.RowID != "" {
		// Such rows are spilled as one lane, which has none of them in memory.
		l = c.lane(LaneName{LaneKey: l.name.LaneKey})
		l.missedDuringReload = l.reloading
		defer c.wake(l)
	}
	l.reloadedUpTo = min(l.reloadedUpTo, rw.Seq-1)
	l.hasSpilled = true
	l.spilledRows++
}
