package dispatch

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// spilledLaneSet is the set of spilled lanes of a kind. A spilled lane has all its rows in
// the store and none in memory.
type spilledLaneSet struct {
	outbox, kind string
	hash         store.KindHash
	lanes        laneSet
	lastReloaded groupHash // last lane reloaded
}

func (s *spilledLaneSet) laneHash(group groupHash) (h store.LaneHash) {
	copy(h[copy(h[:], s.hash[:]):], group[:])
	return h
}

// spilledLanesOf returns the spilled lanes of a kind; nil if there were never any.
func (c *core) spilledLanesOf(outbox string, kind store.KindHash) *spilledLaneSet {
	for _, s := range c.spilledLanes {
		if s.hash == kind && s.outbox == outbox {
			return s
		}
	}
	return nil
}

// recordSpilledLane records a spilled lane and its row count. It returns the previous
// count.
func (c *core) recordSpilledLane(outbox, kind string, hash store.LaneHash, rows int) (before int) {
	s := c.spilledLanesOf(outbox, hash.Kind())
	if s == nil {
		s = &spilledLaneSet{outbox: outbox, kind: kind, hash: hash.Kind()}
		c.spilledLanes = append(c.spilledLanes, s)
		slices.SortFunc(c.spilledLanes, func(a, b *spilledLaneSet) int { // independent of the order of arrival
			return cmp.Or(strings.Compare(a.outbox, b.outbox), strings.Compare(a.kind, b.kind), bytes.Compare(a.hash[:], b.hash[:]))
		})
	}
	return s.lanes.put(groupOf(hash), rows)
}

// evictLane removes a lane whose rows are all spilled. A lane on hold or with a timer
// stays.
func (c *core) evictLane(l *lane) {
	if l.OnHold() || len(l.UnspillableTail) > 0 || l.Name.RowID == "" && l.State != lanes.Idle && l.State != lanes.Ready {
		return
	}
	c.lanes.Dequeue(l)
	c.lanes.Remove(l)
	if l.Name.RowID == "" {
		c.recordSpilledLane(l.Name.Outbox, l.Name.Kind, l.Name.Hash(), l.SpilledRows)
	}
}

// evictIdleLane evicts a lane that has nothing in memory and need not be reloaded now.
func (c *core) evictIdleLane(l *lane) {
	if l.State == lanes.Idle && l.HasSpilled && len(l.Rows)+len(l.UnspillableTail) == 0 && l.Spilling == 0 && !c.lanes.IsPool(l) &&
		(c.outcomes.TableLocked(l.Name.Outbox) || !c.needsLanes(l.Receiver)) {
		c.evictLane(l)
	}
}

// restoreSpilled continues a spilled lane in a newly created one.
func (c *core) restoreSpilled(l *lane) {
	if l.Name.RowID != "" || !c.hasSpilledLanes() {
		return
	}
	hash := l.Name.Hash()
	if s := c.spilledLanesOf(l.Name.Outbox, hash.Kind()); s != nil {
		if rows, there := s.lanes.remove(groupOf(hash)); there {
			l.HasSpilled, l.SpilledRows = true, rows
		}
	}
}

// addSpilledLanes registers lanes with spilled rows. It must come before any row, and may
// name a lane again.
func (c *core) addSpilledLanes(lanes []store.SpilledLane) {
	for i := range lanes {
		p := &lanes[i]
		key := store.LaneKey{Outbox: p.Outbox, Kind: p.Kind}
		if c.cfg.Ungrouped == Parallel && p.Hash == key.Hash() { // rows without a group are read as one lane
			if l := c.lane(LaneName{LaneKey: key}); !l.HasSpilled {
				l.HasSpilled, l.SpilledRows = true, p.Rows
				c.copies.rows += p.Rows
				c.wake(l)
			}
			continue
		}
		c.copies.rows += p.Rows - c.recordSpilledLane(p.Outbox, p.Kind, p.Hash, p.Rows)
	}
}

func (c *core) hasSpilledLanes() bool {
	return slices.ContainsFunc(c.spilledLanes, func(s *spilledLaneSet) bool { return s.lanes.n > 0 })
}

// queueSpilledLanes selects spilled lanes to reload, of each kind in turn. Within a kind it
// goes in hash order, from the lane after the last reloaded one.
func (c *core) queueSpilledLanes(limit int) {
	c.reloadTurn++
	for i := range c.spilledLanes {
		s := c.spilledLanes[(c.reloadTurn+i)%len(c.spilledLanes)]
		if c.outcomes.TableLocked(s.outbox) {
			continue
		}
		to := c.lanes.Receiver(s.kind)
		if s.lanes.n > 0 && !c.needsLanes(to) {
			c.rotateProbeLane(to)
		}
		for left := s.lanes.n; left > 0 && len(c.reloading) < limit && c.needsLanes(to); left-- {
			s.lastReloaded = s.lanes.next(s.lastReloaded)
			c.reloading = append(c.reloading, laneReload{spilled: s, hash: s.lastReloaded})
		}
	}
}

// needsLanes reports whether a receiver needs more lanes in memory.
func (c *core) needsLanes(recv *receiver) bool {
	if !recv.Breaker.Open() {
		return true
	}
	n := max(0, len(recv.Untried())+len(recv.Tried())-recv.ReplayLanes) + recv.Breaker.Probes()
	for i := range c.reloading {
		if c.reloadReceiver(&c.reloading[i]) == recv {
			n++
		}
	}
	return n < maxProbeLanes
}

// rotateProbeLane evicts a probed lane to make room for a spilled one, once every lane in
// memory was probed: a spilled lane may be the one that closes the breaker.
func (c *core) rotateProbeLane(recv *receiver) {
	if len(recv.Untried())+recv.Breaker.Probes() > 0 {
		return
	}
	for _, l := range recv.Tried() {
		if l.Probed && l.AllReloaded() && !l.Reloading && !c.shrinking[l] && l.Spilling == 0 {
			recv.Rotated++
			c.shrink(l, 0)
			return
		}
	}
}
