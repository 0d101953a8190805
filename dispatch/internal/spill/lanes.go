package spill

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// kindSet is the set of spilled lanes of a kind. A spilled lane has all its rows in the
// store and none in memory.
type kindSet struct {
	outbox, kind string
	hash         store.KindHash
	lanes        laneSet
	lastReloaded groupHash // last lane reloaded
}

func (s *kindSet) laneHash(group groupHash) (h store.LaneHash) {
	copy(h[copy(h[:], s.hash[:]):], group[:])
	return h
}

// kinds are the spilled lanes of a sink.
type kinds struct {
	sets []*kindSet
	turn int // counts reloads, so that each kind comes first in turn
}

// of returns the spilled lanes of a kind; nil if there were never any.
func (k *kinds) of(outbox string, kind store.KindHash) *kindSet {
	for _, s := range k.sets {
		if s.hash == kind && s.outbox == outbox {
			return s
		}
	}
	return nil
}

// record records a spilled lane and its row count. It returns the previous count.
func (k *kinds) record(outbox, kind string, hash store.LaneHash, rows int) (before int) {
	s := k.of(outbox, hash.Kind())
	if s == nil {
		s = &kindSet{outbox: outbox, kind: kind, hash: hash.Kind()}
		k.sets = append(k.sets, s)
		slices.SortFunc(k.sets, func(a, b *kindSet) int { // independent of the order of arrival
			return cmp.Or(strings.Compare(a.outbox, b.outbox), strings.Compare(a.kind, b.kind), bytes.Compare(a.hash[:], b.hash[:]))
		})
	}
	return s.lanes.put(groupOf(hash), rows)
}

// remove removes a spilled lane and returns its row count.
func (k *kinds) remove(outbox string, hash store.LaneHash) (rows int, there bool) {
	if s := k.of(outbox, hash.Kind()); s != nil {
		return s.lanes.remove(groupOf(hash))
	}
	return 0, false
}

// count is the number of spilled lanes.
func (k *kinds) count() (n int) {
	for _, s := range k.sets {
		n += s.lanes.n
	}
	return n
}

// evictLane removes a lane whose rows are all spilled. A lane on hold or with a timer
// stays.
func (sp *Spiller) evictLane(l *lane.Lane) {
	if l.OnHold() || len(l.UnspillableTail) > 0 || l.Name.RowID == "" && l.State != lane.Idle && l.State != lane.Ready {
		return
	}
	sp.lanes.Dequeue(l)
	sp.lanes.Remove(l)
	if l.Name.RowID == "" {
		sp.kinds.record(l.Name.Outbox, l.Name.Kind, l.Name.Hash(), l.SpilledRows)
	}
}

// evictIdleLane evicts a lane that has nothing in memory and need not be reloaded now.
func (sp *Spiller) evictIdleLane(l *lane.Lane) {
	if l.State == lane.Idle && l.HasSpilled && len(l.Rows)+len(l.UnspillableTail) == 0 && l.Spilling == 0 && !sp.lanes.IsPool(l) &&
		(sp.lanes.IsAside(l.Name.Outbox) || !sp.Reloads.needsLanes(l.Receiver)) {
		sp.evictLane(l)
	}
}

// restore continues a spilled lane in a newly created one.
func (sp *Spiller) restore(l *lane.Lane) {
	if l.Name.RowID != "" || sp.kinds.count() == 0 {
		return
	}
	if rows, there := sp.kinds.remove(l.Name.Outbox, l.Name.Hash()); there {
		l.HasSpilled, l.SpilledRows = true, rows
	}
}

// AddLanes registers lanes with spilled rows. It must come before any row, and may name a
// lane again.
func (sp *Spiller) AddLanes(lanes []store.SpilledLane) {
	for i := range lanes {
		p := &lanes[i]
		key := store.LaneKey{Outbox: p.Outbox, Kind: p.Kind}
		if sp.lanes.HasRowLanes(key) && p.Hash == key.Hash() { // rows without a group are read as one lane
			if l := sp.Lane(lane.Name{LaneKey: key}); !l.HasSpilled {
				l.HasSpilled, l.SpilledRows = true, p.Rows
				sp.copies.rows += p.Rows
				sp.core.Wake(l)
			}
			continue
		}
		sp.copies.rows += p.Rows - sp.kinds.record(p.Outbox, p.Kind, p.Hash, p.Rows)
	}
}

// AddCopy records that a row which enters memory is among the spilled rows of the store.
func (sp *Spiller) AddCopy(rw *lane.Row) {
	sp.spills.setCopy(rw, lane.CopyStored)
	sp.copies.rows++
}

// OutboxRows is the number of rows in the spilled lanes of an outbox, and the kinds of these.
func (sp *Spiller) OutboxRows(outbox string) (rows int, of []string) {
	for _, s := range sp.kinds.sets {
		if s.outbox != outbox || s.lanes.n == 0 {
			continue
		}
		of = append(of, s.kind)
		for _, page := range s.lanes.pages {
			for i := range page {
				rows += int(page[i].rows)
			}
		}
	}
	return rows, of
}

// LanesOf is the number of spilled lanes of a receiver whose outbox is not paused.
func (sp *Spiller) LanesOf(recv *lane.Receiver) (n int) {
	for _, s := range sp.kinds.sets {
		if s.lanes.n > 0 && sp.lanes.OutboxPause(s.outbox) == nil && sp.lanes.Endpoints.Of(s.kind) == recv {
			n += s.lanes.n
		}
	}
	return n
}
