package dispatch

import (
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

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
	l.to.lanes--
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
	n := max(0, recv.ready.len()+recv.tried.len()-recv.shadows) + recv.probes
	for i := range c.reads {
		if c.readFor(&c.reads[i]) == recv {
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
