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

// holdFor keeps a live lane from moving for a job. A run in flight ends first. Rows
// that have lanes of their own have no order to keep and move on; of them, those are
// noted that are under way.
func (c *core) holdFor(id string, key store.LaneKey) {
	if c.eachApart(key) {
		c.resting[key] = map[*row]bool{}
		for rw := range c.underWay(key, c.lanesOf(key)) {
			c.resting[key][rw] = true
		}
		return
	}
	l := c.lane(LaneName{LaneKey: key})
	if !slices.Contains(l.replays, id) {
		l.replays = append(l.replays, id)
	}
	c.takeOut(l)
	c.wake(l)
}

// letGoFor ends what holdFor began.
func (c *core) letGoFor(id string, key store.LaneKey, now time.Time) {
	delete(c.resting, key)
	if l := c.lanes[LaneName{LaneKey: key}]; l != nil {
		l.replays = slices.DeleteFunc(l.replays, func(other string) bool { return other == id })
		c.letGo(l, now)
	}
}

// still reports whether nothing is under way of a lane that stands for a job, or
// nothing any more of what was when the job came, and whether the lane is paused.
// After a no, told says when to ask again.
func (c *core) still(key store.LaneKey) (still, paused bool) {
	if rows, there := c.resting[key]; there {
		var lanes []*lane
		for rw := range rows {
			if l := c.lanes[c.nameOf(&rw.Item)]; l != nil {
				lanes = append(lanes, l)
			}
		}
		now := map[*row]bool{}
		for rw := range c.underWay(key, lanes) {
			now[rw] = rows[rw]
		}
		maps.DeleteFunc(rows, func(rw *row, _ bool) bool { return !now[rw] })
		still = len(rows) == 0
	} else if l := c.lanes[LaneName{LaneKey: key}]; l != nil && len(l.replays) > 0 {
		still, paused = true, l.paused != nil
		for range c.underWay(key, []*lane{l}) {
			still = false
			break
		}
	}
	c.restless = c.restless || !still
	return still, paused
}

// told reports whether something may have changed for whoever replays since it was
// last called: rows left memory, an operator paused or resumed a lane, or one may have
// come to rest.
func (c *core) told() bool {
	told := c.moved || c.restless
	c.moved, c.restless = false, false
	return told
}

// eachApart reports whether the rows of a key have lanes of their own.
func (c *core) eachApart(key store.LaneKey) bool {
	return !key.Group.Valid && c.cfg.Ungrouped == Parallel
}

// underWay goes through the live rows of a key that are in a claim or a request, as
// far as they are in these lanes, or whose outcome is not written.
func (c *core) underWay(key store.LaneKey, lanes []*lane) iter.Seq[*row] {
	return func(yield func(*row) bool) {
		for _, l := range lanes {
			for _, rw := range l.rows[:l.inFlight] {
				if !yield(rw) {
					return
				}
			}
		}
		for o := range c.unwritten() {
			if o.Outbox == key.Outbox && o.Status.Settled() && o.row.Lane() == key && !yield(o.row) {
				return
			}
		}
		for _, queue := range [][]parking{c.toPark, c.parkings} {
			for i := range queue {
				rw := queue[i].row
				if rw.late != nil && rw.Lane() == key && !yield(rw) {
					return
				}
			}
		}
	}
}

// lanesOf returns those of the lanes of a key's rows that are in flight, where each row
// has one.
func (c *core) lanesOf(key store.LaneKey) (lanes []*lane) {
	for name, l := range c.lanes {
		if name.LaneKey == key && l.inFlight > 0 {
			lanes = append(lanes, l)
		}
	}
	return lanes
}
