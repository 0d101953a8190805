package dispatch

import (
	"slices"
	"strings"
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
	hash store.LaneHash
}

// awayLanes are the lanes of a kind that are away: all their rows are parked, and none
// is in memory.
type awayLanes struct {
	outbox, kind string
	rows         map[store.LaneHash]int
	order        fifo[store.LaneHash] // in which they are read back; some are there no more
}

func (c *core) awayOf(outbox, kind string) *awayLanes {
	for _, s := range c.away {
		if s.outbox == outbox && s.kind == kind {
			return s
		}
	}
	s := &awayLanes{outbox: outbox, kind: kind, rows: map[store.LaneHash]int{}}
	c.away = append(c.away, s)
	slices.SortFunc(c.away, func(a, b *awayLanes) int { // whatever the order in which they came
		return strings.Compare(a.outbox+"\x00"+a.kind, b.outbox+"\x00"+b.kind)
	})
	return s
}

func (s *awayLanes) put(hash store.LaneHash, rows int) {
	s.rows[hash] = rows
	s.order.push(hash)
	if s.order.len() > 2*len(s.rows)+readLanes {
		seen := make(map[store.LaneHash]bool, len(s.rows))
		s.order.items = slices.DeleteFunc(s.order.items, func(h store.LaneHash) bool {
			_, there := s.rows[h]
			again := seen[h]
			seen[h] = true
			return !there || again
		})
	}
}

// putAway forgets a lane whose rows are all parked. One that waits for a time or
// for somebody stays known.
func (c *core) putAway(l *lane) {
	if l.standing() || l.name.RowID == "" && l.state != laneIdle && l.state != laneReady {
		return
	}
	c.takeOut(l)
	delete(c.lanes, l.name)
	if l.name.RowID == "" {
		c.awayOf(l.name.Outbox, l.name.Kind).put(l.name.Hash(), l.beyond)
	}
}

// idle puts a lane away that has nothing in memory and is not to be read back for
// now.
func (c *core) idle(l *lane) {
	if l.state == laneIdle && l.behind && len(l.rows) == 0 && l.parking == 0 && !c.apart(l) && !c.wanted(l.to) {
		c.putAway(l)
	}
}

// fetch makes a new lane go on where its parked rows end, if it was away.
func (c *core) fetch(l *lane) {
	if len(c.away) == 0 || l.name.RowID != "" {
		return
	}
	s := c.awayOf(l.name.Outbox, l.name.Kind)
	if len(s.rows) == 0 {
		return
	}
	hash := l.name.Hash()
	if n, there := s.rows[hash]; there {
		delete(s.rows, hash)
		l.behind, l.beyond = true, n
	}
}

// shelve is told which lanes have parked rows, before anything else.
func (c *core) shelve(lanes []store.ParkedLane) {
	for i := range lanes {
		p := &lanes[i]
		c.parkedRows += p.Rows
		c.awayOf(p.Outbox, p.Kind).put(p.Hash, p.Rows)
	}
	if c.cfg.Ungrouped != Parallel {
		return
	}
	for _, s := range c.away { // rows without a group are read as one lane
		key := store.LaneKey{Outbox: s.outbox, Kind: s.kind}
		if _, there := s.rows[key.Hash()]; there {
			c.wake(c.lane(LaneName{LaneKey: key}))
		}
	}
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
		case len(l.rows) == 0 && !c.wanted(l.to):
			c.hunger(l)
			c.idle(l)
		default:
			l.reading = true
			c.reads = append(c.reads, reading{lane: l})
		}
	}
	for _, s := range c.away {
		c.readAway(s, most)
	}
	if len(c.reads) == 0 {
		return nil, 0
	}
	c.left = map[store.ParkedRef]bool{}
	probes := true
	for i := range c.reads {
		r := &c.reads[i]
		if l := r.lane; l != nil {
			from = append(from, store.ParkedFrom{Outbox: l.name.Outbox, Lane: l.name.Hash(), After: l.reach()})
			probes = probes && l.to.suspect
		} else {
			from = append(from, store.ParkedFrom{Outbox: r.away.outbox, Lane: r.hash})
			probes = probes && c.receiver(r.away.kind).suspect
		}
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
	room := max(1, c.cfg.BufferRows/2) - c.back
	if room > 0 || now.Sub(c.evicted) < evictEvery {
		return room
	}
	c.evicted = now
	for _, l := range c.byAge() {
		switch {
		case !l.allBack() || l.reading || c.shrinking[l]:
		case l.state == laneHeld, l.state == laneWaiting && l.name.RowID == "":
			c.shrink(l, 0) // the lane is still known, and when it is due
		case l.still() && len(l.rows) > 1:
			c.shrink(l, 1)
		}
	}
	return max(1, c.cfg.BufferRows/2) - c.back
}

// allBack reports whether the lane's rows in memory were read back: the first and
// the last, and with them those between.
func (l *lane) allBack() bool {
	return len(l.rows) > 0 && l.rows[0].back && l.rows[len(l.rows)-1].back
}

func (c *core) someAway() bool {
	return slices.ContainsFunc(c.away, func(s *awayLanes) bool { return len(s.rows) > 0 })
}

// readAway takes lanes that are away.
func (c *core) readAway(s *awayLanes, most int) {
	to := c.receiver(s.kind)
	if len(s.rows) > 0 && !c.wanted(to) {
		c.rotate(to)
	}
	for len(c.reads) < most && s.order.len() > 0 && c.wanted(to) {
		hash := s.order.pop()
		if _, there := s.rows[hash]; there {
			c.reads = append(c.reads, reading{away: s, hash: hash})
		}
	}
}

// wanted reports whether more lanes of a receiver are to be in memory.
func (c *core) wanted(recv *receiver) bool {
	if !recv.suspect {
		return true
	}
	n := recv.ready.len() + recv.tried.len() + recv.probes
	for i := range c.reads {
		if r := &c.reads[i]; r.lane != nil && r.lane.to == recv || r.lane == nil && c.receiver(r.away.kind) == recv {
			n++
		}
	}
	return n < probeLanes
}

// rotate makes room for a lane that is away, once all that are in memory of a
// suspect receiver were tried: the one that shows it to be well may be elsewhere.
func (c *core) rotate(recv *receiver) {
	if recv.ready.len()+recv.probes > 0 {
		return
	}
	for _, l := range recv.tried.items {
		if l.probed && l.allBack() && !l.reading && !c.shrinking[l] && l.parking == 0 {
			recv.rotated++
			c.shrink(l, 0)
			return
		}
	}
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
	for i := range reads {
		l, items := reads[i].lane, answers[i]
		if l == nil {
			if len(items) == 0 {
				delete(reads[i].away.rows, reads[i].hash)
				continue
			}
			l = c.lane(LaneName{LaneKey: items[0].Lane()})
			if recv := l.to; recv.suspect && recv.rotated > len(reads[i].away.rows) {
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
			l.behind, l.beyond, l.after = false, 0, l.reach()
			c.unqueue(l)
		}
		c.wake(l)
	}
	c.left = nil
}

// apart reports whether the lane stands for rows that have lanes of their own.
func (c *core) apart(l *lane) bool {
	return l.name.RowID == "" && !l.name.Group.Valid && c.cfg.Ungrouped == Parallel
}

// takeBack puts parked rows behind those of a lane that are in memory.
func (c *core) takeBack(l *lane, items []store.Item) {
	for i := range items {
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
		l.recall(rw)
		l.rows = append(l.rows, rw)
	}
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
	c.rows++
	c.back++
	c.bytes += int64(len(it.Payload))
	return &row{Item: *it, parked: true, back: true}
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
	return c.settling[ref] || c.left[ref]
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
