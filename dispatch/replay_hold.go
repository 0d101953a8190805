package dispatch

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// A lane stands in memory while a job sends its rows again. Before the job looks
// which of them were delivered, whatever is under way of the lane has to end: a row
// whose COMPLETED is not written yet looks like one that is still to come.

// holdForReplay keeps a live lane from moving for a job. A run in flight ends first. Rows
// that have lanes of their own have no order to keep and move on; of them, those are
// noted that are under way.
func (c *core) holdForReplay(id string, key store.LaneKey) {
	if c.hasRowLanes(key) {
		c.inFlightAtHold[key] = map[*row]bool{}
		for rw := range c.inFlightRows(key, c.inFlightLanes(key)) {
			c.inFlightAtHold[key][rw] = true
		}
		return
	}
	l := c.lane(LaneName{LaneKey: key})
	if !slices.Contains(l.replayHolds, id) {
		l.replayHolds = append(l.replayHolds, id)
	}
	c.dequeue(l)
	c.wake(l)
}

// releaseReplayHold ends what holdForReplay began.
func (c *core) releaseReplayHold(id string, key store.LaneKey, now time.Time) {
	delete(c.inFlightAtHold, key)
	if l := c.lanes[LaneName{LaneKey: key}]; l != nil {
		l.replayHolds = slices.DeleteFunc(l.replayHolds, func(other string) bool { return other == id })
		c.releaseLane(l, now)
	}
}

// quiescent reports whether nothing is under way of a lane that stands for a job, or
// nothing any more of what was when the job came, and whether the lane is paused.
// After a no, told says when to ask again.
func (c *core) quiescent(key store.LaneKey) (still, paused bool) {
	if rows, there := c.inFlightAtHold[key]; there {
		var lanes []*lane
		for rw := range rows {
			if l := c.lanes[c.laneNameOf(&rw.Item)]; l != nil {
				lanes = append(lanes, l)
			}
		}
		now := map[*row]bool{}
		for rw := range c.inFlightRows(key, lanes) {
			now[rw] = rows[rw]
		}
		maps.DeleteFunc(rows, func(rw *row, _ bool) bool { return !now[rw] })
		still = len(rows) == 0
	} else if l := c.lanes[LaneName{LaneKey: key}]; l != nil && len(l.replayHolds) > 0 {
		still, paused = true, l.paused != nil
		for range c.inFlightRows(key, []*lane{l}) {
			still = false
			break
		}
	}
	c.awaitingQuiescence = c.awaitingQuiescence || !still
	return still, paused
}

// takeReplayChanged reports whether something may have changed for whoever replays since it was
// last called: rows left memory, an operator paused or resumed a lane, or one may have
// come to rest.
func (c *core) takeReplayChanged() bool {
	told := c.replayChanged || c.awaitingQuiescence
	c.replayChanged, c.awaitingQuiescence = false, false
	return told
}

// hasRowLanes reports whether the rows of a key have lanes of their own.
func (c *core) hasRowLanes(key store.LaneKey) bool {
	return !key.Group.Valid && c.cfg.Ungrouped == Parallel
}

// inFlightRows goes through the live rows of a key that are in a claim or a request, as
// far as they are in these lanes, or whose outcome is not written.
func (c *core) inFlightRows(key store.LaneKey, lanes []*lane) iter.Seq[*row] {
	return func(yield func(*row) bool) {
		for _, l := range lanes {
			for _, rw := range l.rows[:l.inFlight] {
				if !yield(rw) {
					return
				}
			}
		}
		for o := range c.unwrittenOutcomes() {
			if o.Outbox == key.Outbox && o.Status.Settled() && o.row.Lane() == key && !yield(o.row) {
				return
			}
		}
		for _, queue := range [][]pendingSpill{c.toSpill, c.spilling} {
			for i := range queue {
				rw := queue[i].row
				if rw.pendingOutcome != nil && rw.Lane() == key && !yield(rw) {
					return
				}
			}
		}
	}
}

// inFlightLanes returns those of the lanes of a key's rows that are in flight, where each row
// has one.
func (c *core) inFlightLanes(key store.LaneKey) (lanes []*lane) {
	for name, l := range c.lanes {
		if name.LaneKey == key && l.inFlight > 0 {
			lanes = append(lanes, l)
		}
	}
	return lanes
}
