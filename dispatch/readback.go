package dispatch

import (
	"math"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// readLanes is the most lanes of one reading.
	readLanes = 200
	// readRuns is how many requests' worth of rows a reading takes of a lane.
	readRuns = 4
	// probeLanes is how many lanes of a suspect receiver are read back, to be
	// tried.
	probeLanes = 2 * probesAtOnce
)

// reading is a lane whose parked rows are being read: one in memory, or, by its
// hash, one that is away.
type reading struct {
	lane *lane
	away *awayLanes
	hash groupHash
}

// readFor is the receiver that the rows of a reading go to.
func (c *core) readFor(r *reading) *receiver {
	if r.lane != nil {
		return r.lane.to
	}
	return c.receiver(r.away.kind)
}

// hunger queues a lane to be read back.
func (c *core) hunger(l *lane) {
	if !l.hungry {
		l.hungry = true
		c.hungry.push(l)
	}
}

// low reports whether the lane has so few rows in memory that more are read back.
func (c *core) low(l *lane) bool {
	few := 1
	if l.failures == 0 && !l.to.suspect {
		few = c.cfg.APIBatchSize
	}
	return l.behind && len(l.rows) < few
}

// nextReads takes lanes to read back: of each, at most each rows. The caller
// reports them by readBack; there is one reading at a time, and none beside a
// parking.
func (c *core) nextReads(now time.Time) (from []store.ParkedFrom, each int) {
	if c.ended || c.hungry.len() == 0 && !c.someAway() {
		return nil, 0
	}
	room := c.roomBack(now)
	if room <= 0 {
		return nil, 0
	}
	most := min(readLanes, room)
	for range c.hungry.len() {
		l := c.hungry.pop()
		l.hungry = false
		switch {
		case c.lanes[l.name] != l || l.standing() && !l.asked || !c.low(l):
		case len(c.reads) == most || c.shrinking[l]:
			c.hunger(l)
		case c.lockOf(l.name.Outbox) != nil, len(l.rows) == 0 && !c.wanted(l.to):
			c.hunger(l)
			c.idle(l)
		default:
			l.reading = true
			c.reads = append(c.reads, reading{lane: l})
		}
	}
	c.readAway(most)
	if len(c.reads) == 0 {
		return nil, 0
	}
	c.left = map[store.ParkedRef]bool{}
	probes := true
	for i := range c.reads {
		r := &c.reads[i]
		if l := r.lane; l != nil {
			from = append(from, store.ParkedFrom{Outbox: l.name.Outbox, Lane: l.name.Hash(), After: l.reach()})
		} else {
			from = append(from, store.ParkedFrom{Outbox: r.away.outbox, Lane: r.away.laneHash(r.hash)})
		}
		probes = probes && c.readFor(r).suspect
	}
	if probes {
		return from, 1
	}
	return from, max(1, min(room/len(from), readRuns*c.cfg.APIBatchSize))
}

// evictEvery is the least time between two searches for rows that were read back
// in vain: each goes through all lanes.
const evictEvery = 10 * time.Millisecond

// roomBack returns how many rows may be read back. Those of lanes that do not move
// after all make room for others.
func (c *core) roomBack(now time.Time) int {
	room := max(1, c.cfg.BufferRows/2) - c.back - c.extraBack
	if room > 0 || now.Sub(c.evicted) < evictEvery {
		return room
	}
	c.evicted = now
	for _, l := range c.byAge() {
		switch {
		case !l.allBack() || l.reading || c.shrinking[l]:
		case l.state == laneHeld, l.state == laneWaiting && l.name.RowID == "", l.locked:
			c.shrink(l, 0) // the lane is still known, and when it is due
		case l.still() && len(l.rows) > 1:
			c.shrink(l, 1)
		}
	}
	return max(1, c.cfg.BufferRows/2) - c.back - c.extraBack
}

// allBack reports whether the lane's rows in memory were read back: the first and
// the last, and with them those between.
func (l *lane) allBack() bool {
	return len(l.rows) > 0 && l.rows[0].back && l.rows[len(l.rows)-1].back
}

// reach is the seq of the last row of the lane that is or was in memory.
func (l *lane) reach() store.Seq {
	for _, rw := range slices.Backward(l.rows) {
		if !rw.requeued {
			return max(l.after, rw.Seq)
		}
	}
	return l.after
}

// readBack takes the rows of a reading, by position. A lane of which fewer came
// than were asked for is whole again.
func (c *core) readBack(answers [][]store.Item, each int) {
	reads := c.reads
	c.reads = nil
	c.loose = c.looseRows()
	for i := range reads {
		l, items := reads[i].lane, answers[i]
		if l == nil {
			if len(items) == 0 {
				reads[i].away.lanes.take(reads[i].hash)
				continue
			}
			l = c.lane(LaneName{LaneKey: items[0].Lane()})
			if recv := l.to; recv.suspect && recv.rotated > reads[i].away.lanes.n {
				l.tried = recv.round // each was tried once: from now on with back-off
			}
		}
		l.reading, l.asked = false, false
		if c.lanes[l.name] != l {
			continue
		}
		switch {
		case !c.apart(l):
			c.takeBack(l, items)
		case l.missed: // rows have left memory meanwhile, maybe some from before the reading
			l.missed = false
			c.wake(l)
			continue
		default:
			c.takeApart(l, items)
		}
		if len(items) < each {
			l.takeTail(math.MaxInt64)
			l.behind, l.beyond, l.after = false, 0, l.reach()
			c.unqueue(l)
		}
		c.wake(l)
	}
	c.left, c.loose = nil, nil
}

// looseRows are the rows that were set back and delivered, and whose COMPLETED is not
// written: a parked copy from before is theirs.
func (c *core) looseRows() map[store.Ref]*row {
	rows := map[store.Ref]*row{}
	for o := range c.unwritten() {
		if o.row.requeued && o.row.Seq == 0 && o.Status.Settled() {
			rows[o.Ref] = o.row
		}
	}
	return rows
}

// apart reports whether the lane stands for rows that have lanes of their own.
func (c *core) apart(l *lane) bool {
	return l.name.RowID == "" && !l.name.Group.Valid && c.cfg.Ungrouped == Parallel
}

// takeBack puts parked rows behind those of a lane that are in memory.
func (c *core) takeBack(l *lane, items []store.Item) {
	for i := range items {
		l.takeTail(items[i].Seq)
		if items[i].Seq <= l.reach() {
			continue
		}
		l.beyond = max(0, l.beyond-1)
		if c.known(&items[i]) {
			l.after = items[i].Seq
			continue
		}
		if l.has(&items[i]) {
			continue
		}
		rw := c.takeIn(&items[i])
		l.lend(rw)
		l.recall(rw)
		l.rows = append(l.rows, rw)
	}
}

// takeTail puts rows that are in memory alone back into their place in front of a seq.
func (l *lane) takeTail(before store.Seq) {
	n := 0
	for n < len(l.tail) && l.tail[n].Seq < before {
		n++
	}
	l.rows = append(l.rows, l.tail[:n]...)
	l.tail = slices.Delete(l.tail, 0, n)
}

// has reports whether one of the lane's first rows, which were set back, is the one
// that was read, and notes that it is parked.
func (l *lane) has(it *store.Item) bool {
	for _, rw := range l.rows {
		if !rw.requeued {
			return false
		}
		if rw.ID != it.ID {
			continue
		}
		if rw.Seq == 0 {
			rw.Seq, rw.parked = it.Seq, true
		}
		l.after = max(l.after, it.Seq)
		return true
	}
	return false
}

// takeIn counts a row in that was read back.
func (c *core) takeIn(it *store.Item) *row {
	rw := &row{Item: *it, parked: true, back: true}
	c.back++
	c.count(rw)
	return rw
}

// takeApart gives each parked row a lane of its own.
func (c *core) takeApart(all *lane, items []store.Item) {
	for i := range items {
		all.after = items[i].Seq
		all.beyond = max(0, all.beyond-1)
		name := c.nameOf(&items[i])
		if c.known(&items[i]) {
			continue
		}
		if l := c.lanes[name]; l != nil {
			l.has(&items[i])
			continue
		}
		l := c.lane(name)
		l.rows = append(l.rows, c.takeIn(&items[i]))
		c.wake(l)
	}
}

// known reports whether a row that was read is done with, and its parked copy on
// the way out.
func (c *core) known(it *store.Item) bool {
	ref := store.ParkedRef{Ref: it.Ref, Seq: it.Seq}
	if c.settling[ref] || c.left[ref] {
		return true
	}
	rw := c.loose[it.Ref]
	if rw != nil {
		rw.Seq, rw.parked = it.Seq, true
		c.settling[ref] = true
		delete(c.loose, it.Ref)
	}
	return rw != nil
}

// unqueue takes rows of a lane that is whole back from those that wait to be
// parked: they are next.
func (c *core) unqueue(l *lane) {
	if l.parking == 0 {
		return
	}
	c.toPark = slices.DeleteFunc(c.toPark, func(p parking) bool {
		if p.lane != l || p.copied {
			return false
		}
		p.row.parking = false
		l.parking--
		c.passing--
		l.rows = append(l.rows, p.row)
		return true
	})
}
