package checkpoint

import (
	"cmp"
	"maps"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// byText orders the positions of tests.
func byText(a, b store.Position) int { return cmp.Compare(a, b) }

func TestTheCheckpointIsTheLeastMark(t *testing.T) {
	tr := NewTrackers(store.Checkpoint{Origin: "o", Position: "p1", Seq: 1, Legs: map[string]store.LegMark{"a": {Position: "p1", Seq: 1}, "b": {Position: "p1", Seq: 1}}}, byText)
	expect := func(when string, least store.Position, seq store.Seq, a, b store.LegMark) {
		t.Helper()
		cp, _ := tr.Watermark()
		if want := map[string]store.LegMark{"a": a, "b": b}; cp.Origin != "o" || cp.Position != least || cp.Seq != seq || !maps.Equal(cp.Legs, want) {
			t.Errorf("%s: got %+v, want %s, %d and %v", when, cp, least, seq, want)
		}
	}
	begin := func(at store.Position, seq store.Seq, a, b int) (ofA, ofB *Ticket) {
		tr.Rest().Begin(at, seq, 0)
		return tr.Leg("a").Begin(at, seq, a), tr.Leg("b").Begin(at, seq, b)
	}
	a2, b2 := begin("p2", 2, 1, 1)
	_, b3 := begin("p3", 3, 0, 1)
	expect("nothing is done", "p1", 1, store.LegMark{Position: "p1", Seq: 1}, store.LegMark{Position: "p1", Seq: 1})
	a2.Done(1)
	expect("leg a is done", "p1", 1, store.LegMark{Position: "p3", Seq: 3}, store.LegMark{Position: "p1", Seq: 1})
	b2.Done(1)
	expect("leg b has one row", "p2", 2, store.LegMark{Position: "p3", Seq: 3}, store.LegMark{Position: "p2", Seq: 2})
	b3.Done(1)
	expect("all is done", "p3", 3, store.LegMark{Position: "p3", Seq: 3}, store.LegMark{Position: "p3", Seq: 3})
	select {
	case <-tr.Changed():
	default:
		t.Error("no signal, although marks moved")
	}
	if _, settled := tr.Watermark(); settled != 3 {
		t.Errorf("%d rows are settled, want 3", settled)
	}
}

// A leg that is ahead of the checkpoint keeps its mark while the log is read again, and its mark
// gets the seqs of this epoch.
func TestALegAheadKeepsItsMark(t *testing.T) {
	tr := NewTrackers(store.Checkpoint{Position: "p1", Seq: 1, Legs: map[string]store.LegMark{"ahead": {Position: "p3", Seq: 3}, "behind": {Position: "p1", Seq: 1}}}, byText)
	tr.Rest().Begin("p2", 102, 0)
	tr.Leg("ahead").Passed(102)
	tr.Leg("behind").Begin("p2", 102, 1).Done(1)
	cp, _ := tr.Watermark()
	if want := map[string]store.LegMark{"ahead": {Position: "p3", Seq: 102}, "behind": {Position: "p2", Seq: 102}}; cp.Position != "p2" || cp.Seq != 102 || !maps.Equal(cp.Legs, want) {
		t.Errorf("got %+v", cp)
	}
}

// The saver writes whenever a mark moves, also if the least one does not.
func TestTheSaverSavesEveryMark(t *testing.T) {
	j := &recorder{}
	start := store.Checkpoint{Position: "p1", Legs: map[string]store.LegMark{"a": {Position: "p1"}, "b": {Position: "p1"}}}
	tr := NewTrackers(start, byText)
	k := &Saver{Config: DefaultSaverConfig(), Tracker: tr, Store: j, Source: j, Epoch: 1, Observer: j}
	advance := func() {
		t.Helper()
		if err := k.Advance(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	advance()
	j.expect(t, "save p1", "ack p1")
	tr.Rest().Begin("p2", 2, 0)
	tr.Leg("b").Begin("p2", 2, 1)
	tr.Leg("a").Begin("p2", 2, 1).Done(1)
	advance()
	j.expect(t, "save p1", "ack p1")
	advance()
	j.expect(t)
}

func TestMarksOfAStart(t *testing.T) {
	boxes := []store.Outbox{{Name: "plain"}, {Name: "orders", Routes: []store.Route{{Name: "bus"}, {Name: "hooks"}}}}
	saved := store.LegMark{Position: "p9", Seq: 9}
	for name, c := range map[string]struct {
		at        store.Checkpoint
		bus, hook store.LegMark
	}{
		"a new leg starts at the checkpoint": {
			store.Checkpoint{Position: "p1", Seq: 1, Legs: map[string]store.LegMark{"orders/bus": saved}}, saved, store.LegMark{Position: "p1", Seq: 1},
		},
		"no mark holds without a position": {
			store.Checkpoint{Seq: 1, Legs: map[string]store.LegMark{"orders/bus": saved}}, store.LegMark{Seq: 1}, store.LegMark{Seq: 1},
		},
	} {
		if got, want := marks(boxes, c.at), map[string]store.LegMark{"orders/bus": c.bus, "orders/hooks": c.hook}; !maps.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	if got := marks(boxes[:1], store.Checkpoint{Position: "p1"}); got != nil {
		t.Errorf("without routes: got %v", got)
	}
}
