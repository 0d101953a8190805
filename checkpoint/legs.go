package checkpoint

import "github.com/sluicebox/sluicebox/store"

// Watermarks are what a Saver saves; see Tracker and Trackers.
type Watermarks interface {
	// Watermark returns the watermark and the number of rows that are done since the start.
	Watermark() (cp store.Checkpoint, settled int64)

	// Changed returns a channel that receives a signal after the watermark moved. It has one
	// receiver.
	Changed() <-chan struct{}
}

// Trackers compute the watermarks of a relay whose outboxes have routes: one for each leg, and
// one for the rows of all outboxes without routes. Each is to get every batch. The checkpoint is
// the least of them, because the log is read again from there for all.
type Trackers struct {
	compare func(a, b store.Position) int
	rest    *Tracker
	legs    map[string]*Tracker // fixed
}

// NewTrackers returns trackers that start at a checkpoint, each leg of its Legs at its mark.
// compare orders positions; see capture.Source.
func NewTrackers(start store.Checkpoint, compare func(a, b store.Position) int) *Trackers {
	marks := start.Legs
	start.Legs = nil
	t := &Trackers{compare: compare, rest: NewTracker(start), legs: make(map[string]*Tracker, len(marks))}
	for name, mark := range marks {
		leg := NewTracker(store.Checkpoint{Origin: start.Origin, Position: mark.Position, Seq: mark.Seq})
		leg.changed = t.rest.changed
		t.legs[name] = leg
	}
	return t
}

// Rest returns the tracker of the outboxes without routes.
func (t *Trackers) Rest() *Tracker { return t.rest }

// Leg returns the tracker of a leg that the checkpoint names.
func (t *Trackers) Leg(name string) *Tracker { return t.legs[name] }

// Watermark implements Watermarks.
func (t *Trackers) Watermark() (cp store.Checkpoint, settled int64) {
	cp, settled = t.rest.Watermark()
	if len(t.legs) == 0 {
		return cp, settled
	}
	least := cp
	cp.Legs = make(map[string]store.LegMark, len(t.legs))
	for name, leg := range t.legs {
		at, n := leg.Watermark()
		settled += n
		cp.Legs[name] = store.LegMark{Position: at.Position, Seq: at.Seq}
		if t.compare(at.Position, least.Position) < 0 {
			least = at
		}
	}
	cp.Position, cp.Seq = least.Position, least.Seq
	return cp, settled
}

// Changed implements Watermarks.
func (t *Trackers) Changed() <-chan struct{} { return t.rest.Changed() }

// marks returns the marks from which the legs of outboxes start: the saved ones, and for a leg
// that the checkpoint does not know the checkpoint's own. Without a position, as after a
// snapshot, no mark holds.
func marks(outboxes []store.Outbox, at store.Checkpoint) map[string]store.LegMark {
	var all map[string]store.LegMark
	for i := range outboxes {
		for _, r := range outboxes[i].Routes {
			name := store.LegName(outboxes[i].Name, r.Name)
			mark, saved := at.Legs[name]
			if !saved || at.Position == "" {
				mark = store.LegMark{Position: at.Position, Seq: at.Seq}
			}
			if all == nil {
				all = map[string]store.LegMark{}
			}
			all[name] = mark
		}
	}
	return all
}
