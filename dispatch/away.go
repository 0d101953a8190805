package dispatch

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// awayLanes are the lanes of a kind that are away: all their rows are parked, and none
// is in memory.
type awayLanes struct {
	outbox, kind string
	hash         store.KindHash
	lanes        laneSet
	last         groupHash // that was read back
}

func (s *awayLanes) laneHash(group groupHash) (h store.LaneHash) {
	copy(h[copy(h[:], s.hash[:]):], group[:])
	return h
}

// awayOf returns the lanes of a kind that are away, nil if there never were any.
func (c *core) awayOf(outbox string, kind store.KindHash) *awayLanes {
	for _, s := range c.away {
		if s.hash == kind && s.outbox == outbox {
			return s
		}
	}
	return nil
}

// putLane notes that a lane is away with so many rows, and returns how many it was
// known to have.
func (c *core) putLane(outbox, kind string, hash store.LaneHash, rows int) (before int) {
	s := c.awayOf(outbox, hash.Kind())
	if s == nil {
		s = &awayLanes{outbox: outbox, kind: kind, hash: hash.Kind()}
		c.away = append(c.away, s)
		slices.SortFunc(c.away, func(a, b *awayLanes) int { // whatever the order in which they came
			return cmp.Or(strings.Compare(a.outbox, b.outbox), strings.Compare(a.kind, b.kind), bytes.Compare(a.hash[:], b.hash[:]))
		})
	}
	return s.lanes.put(groupOf(hash), rows)
}

// putAway forgets a lane whose rows are all parked. One that waits for a time or
// for somebody stays known.
func (c *core) putAway(l *lane) {
	if l.standing() || len(l.tail) > 0 || l.name.RowID == "" && l.state != laneIdle && l.state != laneReady {
		return
	}
	c.takeOut(l)
	l.to.lanes--
	delete(c.lanes, l.name)
	if l.name.RowID == "" {
		c.putLane(l.name.Outbox, l.name.Kind, l.name.Hash(), l.beyond)
	}
}

// idle puts a lane away that has nothing in memory and is not to be read back for
// now.
func (c *core) idle(l *lane) {
	if l.state == laneIdle && l.behind && len(l.rows)+len(l.tail) == 0 && l.parking == 0 && !c.apart(l) &&
		(c.lockOf(l.name.Outbox) != nil || !c.wanted(l.to)) {
		c.putAway(l)
	}
}

// fetch makes a new lane go on where its parked rows end, if it was away.
func (c *core) fetch(l *lane) {
	if l.name.RowID != "" || !c.someAway() {
		return
	}
	hash := l.name.Hash()
	if s := c.awayOf(l.name.Outbox, hash.Kind()); s != nil {
		if rows, there := s.lanes.take(groupOf(hash)); there {
			l.behind, l.beyond = true, rows
		}
	}
}

// shelve is told which lanes have parked rows, before anything else. It may be told of
// a lane again.
func (c *core) shelve(lanes []store.ParkedLane) {
	for i := range lanes {
		p := &lanes[i]
		key := store.LaneKey{Outbox: p.Outbox, Kind: p.Kind}
		if c.cfg.Ungrouped == Parallel && p.Hash == key.Hash() { // rows without a group are read as one lane
			if l := c.lane(LaneName{LaneKey: key}); !l.behind {
				l.behind, l.beyond = true, p.Rows
				c.parkedRows += p.Rows
				c.wake(l)
			}
			continue
		}
		c.parkedRows += p.Rows - c.putLane(p.Outbox, p.Kind, p.Hash, p.Rows)
	}
}

func (c *core) someAway() bool {
	return slices.ContainsFunc(c.away, func(s *awayLanes) bool { return s.lanes.n > 0 })
}

// readAway takes lanes that are away, of each kind in turn: in the order of their
// hashes, behind the one that was read last.
func (c *core) readAway(most int) {
	c.awayTurn++
	for i := range c.away {
		s := c.away[(c.awayTurn+i)%len(c.away)]
		if c.lockOf(s.outbox) != nil {
			continue
		}
		to := c.receiver(s.kind)
		if s.lanes.n > 0 && !c.wanted(to) {
			c.rotate(to)
		}
		for left := s.lanes.n; left > 0 && len(c.reads) < most && c.wanted(to); left-- {
			s.last = s.lanes.next(s.last)
			c.reads = append(c.reads, reading{away: s, hash: s.last})
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
