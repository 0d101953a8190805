package dispatch

import (
	"cmp"
	"slices"
	"time"
)

// relieve begins to move rows out of memory until half the buffer is free: those
// of lanes that stand still while their sink lives; with others, also those of
// lanes that do not move for whatever reason, then of lanes with more than half
// the buffer, then of those that have waited longest. A healthy lane that waits
// for its turn is not touched without need.
func (c *core) relieve(others bool) {
	excess := c.live() - c.passing - c.cfg.BufferRows/2
	for l := range c.shrinking {
		excess -= l.leaves()
	}
	if c.ended || excess <= 0 {
		return
	}
	heads := c.cfg.BufferRows / 4 // rows that lanes which do not move may keep
	keeps := c.keeps()
	for _, l := range c.movable(others) {
		if excess <= 0 {
			return
		}
		keep := 0
		if l.state != laneHeld && l.still() && heads >= keeps {
			keep = keeps
			heads -= keep
		}
		excess -= c.shrink(l, keep)
	}
}

// live is how many rows in memory count against the buffer. Those that were read
// back have room of their own: neither they nor what the log brings keeps the other
// away. So do those whose outcome is refused; clogged bounds them.
func (c *core) live() int { return c.rows - c.back - c.spilled + c.extra }

// press parks what keeps the log from being given away: the rows of lanes that do
// not move, or of all, and those whose outcome the store does not take for now. They
// stay in memory, too.
func (c *core) press(all bool) {
	if c.ended {
		return
	}
	for o := range c.putAside() {
		c.spill(o)
		if o.lane != nil {
			c.parkRows(o.lane)
		}
	}
	for _, l := range c.byAge() {
		if all || l.state == laneHeld || l.still() {
			c.parkRows(l)
		}
	}
}

// byAge returns the lanes in the order in which they came up.
func (c *core) byAge() []*lane {
	lanes := make([]*lane, 0, len(c.lanes))
	for _, l := range c.lanes {
		lanes = append(lanes, l)
	}
	slices.SortFunc(lanes, func(a, b *lane) int { return cmp.Compare(a.born, b.born) })
	return lanes
}

// movable returns the lanes whose rows may leave memory, those to begin with
// first.
func (c *core) movable(others bool) []*lane {
	rank := func(l *lane) int {
		switch {
		case l.state == laneHeld, l.state == laneWaiting && l.failures > 1 && !l.to.suspect, l.locked, l.refused():
			return 0
		case l.still():
			return 1
		case len(l.rows) > c.cfg.BufferRows/2:
			return 2
		}
		return 3
	}
	var lanes []*lane
	ranks := map[*lane]int{}
	for _, l := range c.lanes {
		if c.shrinking[l] || l.reading || len(l.rows) == 0 || l.allBack() || l.rows[len(l.rows)-1].unparkable {
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
		return cmp.Or(ranks[a]-ranks[b], by, cmp.Compare(a.born, b.born))
	})
	return lanes
}

// shrink parks a lane and keeps so many of its rows in memory, or those that
// cannot leave it. It returns how many leave.
func (c *core) shrink(l *lane, keep int) int {
	before := len(l.rows)
	c.putDown(l)
	c.parkRows(l)
	c.returnRows(l, keep)
	l.keep, l.behind = keep, l.name.RowID == ""
	c.shrinking[l] = true
	n := before - len(l.rows) + l.leaves()
	if len(l.rows) == 0 && l.state != laneHeld {
		c.takeOut(l)
	}
	if !l.copying() {
		c.trim(l)
	}
	if c.lanes[l.name] == l {
		c.wake(l)
	}
	return n
}

// putDown drops rows that were set back and have no place in the log: they are
// found in their table again.
func (c *core) putDown(l *lane) {
	kept := l.rows[:0]
	for i, rw := range l.rows {
		if i < l.inFlight || rw.Seq != 0 || rw.ticket != nil || rw.bound() {
			kept = append(kept, rw)
			continue
		}
		c.leave(rw)
	}
	clear(l.rows[len(kept):])
	l.rows = kept
}

// returnRows gives back what is claimed of a lane that does not move, but for the
// rows that it keeps. Nothing is claimed of it until the head is given back.
func (c *core) returnRows(l *lane, keep int) {
	if l.state != laneHeld && !l.still() {
		return
	}
	for i, rw := range l.rows {
		if i >= max(keep, l.inFlight) && !rw.claimed.IsZero() && rw.skip == nil && !rw.mended {
			rw.returning = true
			c.unclaim(rw)
		}
	}
	if len(l.rows) > 0 && l.rows[0].returning && l.state != laneHeld {
		c.takeOut(l)
	}
}

// returned is told that a row's claim was given back.
func (c *core) returned(rw *row, now time.Time) {
	if !rw.returning {
		return
	}
	rw.returning = false
	l := c.lanes[c.nameOf(&rw.Item)]
	if l == nil {
		return
	}
	if !l.copying() {
		c.trim(l)
	}
	switch {
	case c.lanes[l.name] != l || l.state != laneIdle:
	case len(l.rows) > 0 && !l.standing() && l.wakeAt.After(now) && !l.rows[0].returning:
		c.wait(l, l.wakeAt)
	default:
		c.wake(l)
	}
}

// bound reports whether a row that is not in flight cannot leave memory.
func (rw *row) bound() bool {
	return rw.returning || !rw.claimed.IsZero() || rw.skip != nil || rw.mended || rw.requeued && rw.Seq != 0
}

// stays is how many of the lane's first rows stay in memory while it shrinks.
func (l *lane) stays() int {
	for i, rw := range slices.Backward(l.rows) {
		if i < max(l.keep, l.inFlight) || rw.bound() || !rw.parked && !rw.parking {
			return i + 1
		}
	}
	return 0
}

// copying reports whether rows that are in memory are being parked. Those that
// pass behind them do not count: they may never end.
func (l *lane) copying() bool {
	return slices.ContainsFunc(l.rows, func(rw *row) bool { return rw.parking })
}

// leaves is how many rows leave memory while the lane shrinks.
func (l *lane) leaves() int {
	n := len(l.rows) - l.stays()
	for _, rw := range l.rows[min(l.keep, len(l.rows)):] {
		if rw.returning {
			n++
		}
	}
	return min(n, len(l.rows))
}

// trim takes out of memory what is parked of a lane that shrinks.
func (c *core) trim(l *lane) {
	if !c.shrinking[l] {
		return
	}
	if !slices.ContainsFunc(l.rows, func(rw *row) bool { return rw.returning }) {
		delete(c.shrinking, l)
	}
	n := l.stays()
	if n == 0 && len(l.rows) > 0 {
		l.note()
	}
	for _, rw := range l.rows[n:] {
		c.leave(rw)
		c.beyond(l, rw)
	}
	l.rows = slices.Clone(l.rows[:n])
	switch {
	case n > 0:
	case l.parking == 0 && len(l.tail) == 0:
		c.putAway(l)
	case l.state == laneReady:
		c.takeOut(l)
	}
}

// beyond notes that a parked row of a lane is not in memory.
func (c *core) beyond(l *lane, rw *row) {
	if l.name.RowID != "" {
		// Such rows are parked as one lane, which has none of them in memory.
		l = c.lane(LaneName{LaneKey: l.name.LaneKey})
		l.missed = l.reading
		defer c.wake(l)
	}
	l.after = min(l.after, rw.Seq-1)
	l.behind = true
	l.beyond++
}
