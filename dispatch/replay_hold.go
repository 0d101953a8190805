package dispatch

import (
	"iter"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// A replay holds the live lane of a group. Before the job reads which rows were delivered,
// everything of the lane in flight must end, because a row whose COMPLETED is not yet
// written looks undelivered.

// holdForReplay holds a live lane for a job. A run in flight ends first. Rows that have
// their own lanes have no order to keep and move on; the rows in flight among them are
// recorded.
func (c *core) holdForReplay(id string, key store.LaneKey) {
	if c.lanes.HasRowLanes(key) {
		c.holds.Hold(key, c.inFlightRows(key, c.lanes.InFlight(key)))
		return
	}
	l := c.spill.Lane(LaneName{LaneKey: key})
	if !slices.Contains(l.ReplayHolds, id) {
		l.ReplayHolds = append(l.ReplayHolds, id)
	}
	c.lanes.Dequeue(l)
	c.Wake(l)
}

// releaseReplayHold ends holdForReplay.
func (c *core) releaseReplayHold(id string, key store.LaneKey, now time.Time) {
	c.holds.Release(key)
	if l := c.lanes.Get(LaneName{LaneKey: key}); l != nil {
		l.ReplayHolds = slices.DeleteFunc(l.ReplayHolds, func(other string) bool { return other == id })
		c.releaseLane(l, now)
	}
}

// quiescent reports whether nothing of a held lane is in flight, and whether the lane is
// paused. For rows with their own lanes, only rows in flight at the hold count. If the lane
// is not quiescent, the next TakeChanged says to ask again.
func (c *core) quiescent(key store.LaneKey) (quiet, paused bool) {
	if rows, there := c.holds.Rows(key); there {
		var lanes []*lane
		for rw := range rows {
			if l := c.lanes.Get(c.lanes.NameOf(&rw.Item)); l != nil {
				lanes = append(lanes, l)
			}
		}
		quiet = c.holds.Narrow(key, c.inFlightRows(key, lanes))
	} else if l := c.lanes.Get(LaneName{LaneKey: key}); l != nil && len(l.ReplayHolds) > 0 {
		quiet, paused = true, l.Paused != nil
		for range c.inFlightRows(key, []*lane{l}) {
			quiet = false
			break
		}
	}

	if !quiet {
		c.jobs.Notify() // it asks again after the next event
	}
	return quiet, paused
}

// inFlightRows iterates over the live rows of a key that are in a claim or request of these
// lanes, or have an unwritten outcome.
func (c *core) inFlightRows(key store.LaneKey, lanes []*lane) iter.Seq[*row] {
	return func(yield func(*row) bool) {
		for _, l := range lanes {
			for _, rw := range l.Rows[:l.InFlight] {
				if !yield(rw) {
					return
				}
			}
		}
		for o := range c.outcomes.All() {
			if o.Outbox == key.Outbox && o.Status.Settled() && o.Of.Row.Lane() == key && !yield(o.Of.Row) {
				return
			}
		}
		for p := range c.spill.All() {
			if rw := p.Row; rw.PendingOutcome != nil && rw.Lane() == key && !yield(rw) {
				return
			}
		}
	}
}
