package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// capturedRow returns a captured row of a lane, without a transaction.
func capturedRow(key store.LaneKey, id string, seq store.Seq) store.Item {
	payload := `{"of":"` + id + `"}`
	return store.Item{
		Ref: ref(key.Outbox, id), Kind: key.Kind, Group: key.Group, Payload: []byte(payload), PayloadSize: len(payload),
		RetryCount: int(seq % 5), Seq: seq, Committed: now(), Captured: now(),
	}
}

func (b *bench) spill(t *testing.T, items ...store.Item) {
	t.Helper()
	if err := b.store.Spill(b.ctx(t), b.epoch, items); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) deleteSpilled(t *testing.T, rows ...store.SpilledRef) {
	t.Helper()
	if err := b.store.DeleteSpilled(b.ctx(t), b.epoch, rows); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) deleteSpilledAfter(t *testing.T, after store.Seq, want int) {
	t.Helper()
	n, err := b.store.DeleteSpilledAfter(b.ctx(t), b.epoch, store.Checkpoint{Seq: after})
	if err != nil || n != want {
		t.Fatalf("%d rows behind %d are deleted, %v; want %d", n, after, err, want)
	}
}

// readSpilled reads spilled rows of lanes.
func (b *bench) readSpilled(t *testing.T, st Store, each int, from ...store.SpilledRange) [][]store.Item {
	t.Helper()
	lists, err := st.ReadSpilled(b.ctx(t), from, each)
	if err != nil {
		t.Fatal(err)
	}
	if len(lists) != len(from) {
		t.Fatalf("%d answers for %d lanes", len(lists), len(from))
	}
	return lists
}

func spilledAfter(key store.LaneKey, after store.Seq) store.SpilledRange {
	return store.SpilledRange{Outbox: key.Outbox, Lane: key.Hash(), After: after}
}

func spilledRef(it *store.Item) store.SpilledRef { return store.SpilledRef{Ref: it.Ref, Seq: it.Seq} }

// wantSpilled compares reloaded rows with the spilled ones.
func (b *bench) wantSpilled(t *testing.T, what string, got []store.Item, want ...store.Item) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %q are spilled, want %q", what, ids(got), ids(want))
		return
	}

	for i := range got {
		g, w := got[i], want[i]
		if b.stateful() {
			w.Payload = nil
		}
		if !bytes.Equal(g.Payload, w.Payload) || (g.Payload == nil) != (w.Payload == nil) {
			t.Errorf("%s: row %q has payload %q, want %q", what, g.ID, g.Payload, w.Payload)
		}
		if g.Ref != w.Ref || g.Lane() != w.Lane() || g.Seq != w.Seq || g.PayloadSize != w.PayloadSize || g.RetryCount != w.RetryCount ||
			!g.Committed.Equal(w.Committed) || !g.Captured.IsZero() || g.Txn != 0 {
			t.Errorf("%s: got %.300s, want %.300s", what, fmt.Sprintf("%+v", g), fmt.Sprintf("%+v", w))
		}
	}
}

// wantLane compares all spilled rows of a lane.
func (b *bench) wantLane(t *testing.T, what string, key store.LaneKey, want ...store.Item) {
	t.Helper()
	b.wantSpilled(t, what, b.readSpilled(t, b.store, 100, spilledAfter(key, 0))[0], want...)
}

// spillOddLanes spills three rows of every odd lane of two outboxes, in reverse order, and
// returns the lanes with their rows.
func (b *bench) spillOddLanes(t *testing.T) (keys []store.LaneKey, lanes [][]store.Item) {
	t.Helper()
	keys = append(oddLanes("a"), oddLanes("b")...)
	lanes = make([][]store.Item, len(keys))
	var all []store.Item
	for turn := range 3 {
		for i, key := range keys {
			// Both outboxes have the same ids.
			it := capturedRow(key, fmt.Sprintf(`%d,"{}\' ☃ %d`, i%(len(keys)/2), turn), store.NewSeq(b.epoch, int64(1+turn*len(keys)+i)))
			if turn == 1 {
				it.Committed, it.Payload = now().AddDate(-20, 0, 0), nil // dropped from memory
			}
			if turn == 2 {
				it.Payload = []byte{}
			}
			lanes[i] = append(lanes[i], it)
			all = append(all, it)
		}
	}

	slices.Reverse(all)
	b.spill(t, all[:10]...)
	b.spill(t, all[10:]...)
	return keys, lanes
}

// testSpill reloads spilled rows from another store.
func (s *suite) testSpill(t *testing.T) {
	b := s.start(t, 0)
	keys, lanes := b.spillOddLanes(t)
	b.store.Close()
	b.store = b.open(t, 0)
	var all, two, last, none []store.SpilledRange
	for i, key := range keys {
		all = append(all, spilledAfter(key, 0))
		two = append(two, spilledAfter(key, lanes[i][0].Seq-1))
		last = append(last, spilledAfter(key, lanes[i][1].Seq))
		none = append(none, spilledAfter(key, lanes[i][2].Seq))
	}

	for i, got := range b.readSpilled(t, b.store, 10, all...) {
		b.wantSpilled(t, "all of "+keys[i].Kind, got, lanes[i]...)
	}

	for i, got := range b.readSpilled(t, b.store, 2, two...) {
		b.wantSpilled(t, "two of "+keys[i].Kind, got, lanes[i][:2]...)
	}

	for i, got := range b.readSpilled(t, b.store, 2, last...) {
		b.wantSpilled(t, "the last of "+keys[i].Kind, got, lanes[i][2])
	}

	for i, got := range b.readSpilled(t, b.store, 2, none...) {
		b.wantSpilled(t, "none of "+keys[i].Kind, got)
	}

	mixed := b.readSpilled(t, b.store, 1, all[4], spilledAfter(lane("a", "EVENT", store.GroupOf("none has it")), 0), last[4], all[4])
	b.wantSpilled(t, "one lane from its beginning", mixed[0], lanes[4][0])
	b.wantSpilled(t, "a lane without rows", mixed[1])
	b.wantSpilled(t, "the same lane from its middle", mixed[2], lanes[4][2])
	b.wantSpilled(t, "the same lane once more", mixed[3], lanes[4][0])
}

// testSpillAgain: a row that is already spilled under its Seq is unchanged.
func (s *suite) testSpillAgain(t *testing.T) {
	b := s.start(t, 0)
	key := lane("a", "EVENT", store.GroupOf("g"))
	first, second, third := capturedRow(key, "1", 11), capturedRow(key, "2", 12), capturedRow(key, "3", 13)
	b.spill(t, first, second)
	again := second
	again.RetryCount, again.Payload, again.PayloadSize = 44, []byte("other"), 5
	b.spill(t, again, third, first, third)
	b.wantLane(t, "after a repeat", key, first, second, third)
	b.spill(t, first, second, third)
	b.wantLane(t, "after one more", key, first, second, third)
	later := first
	later.Seq = 14
	b.spill(t, later)
	b.wantLane(t, "a row under two seqs", key, first, second, third, later)
	b.deleteSpilled(t, spilledRef(&first))
	b.wantLane(t, "deleted under one of them", key, second, third, later)
}

// testSpillRefused: invalid rows and ranges are rejected, and nothing of the call is
// written.
func (s *suite) testSpillRefused(t *testing.T) {
	b := s.start(t, 0)
	key, other := lane("a", "EVENT", store.GroupOf("g")), lane("c", "EVENT", store.GroupOf("g"))
	good, unnumbered := capturedRow(key, "1", 1), capturedRow(key, "2", 0)
	stranger := capturedRow(other, "3", 3)
	for what, items := range map[string][]store.Item{"no seq": {good, unnumbered}, "an outbox that is not configured": {good, stranger}} {
		if err := b.store.Spill(b.ctx(t), b.epoch, items); err == nil {
			t.Errorf("%s: spilled, want an error", what)
		}
	}

	b.wantLane(t, "after refused calls", key)
	if err := b.store.DeleteSpilled(b.ctx(t), b.epoch, []store.SpilledRef{spilledRef(&stranger)}); err == nil {
		t.Error("deletion in an unknown outbox succeeded")
	}

	for what, ask := range map[string]func() error{
		"no rows": func() error {
			return second(b.store.ReadSpilled(b.ctx(t), []store.SpilledRange{spilledAfter(key, 0)}, 0))
		},
		"less than none": func() error {
			return second(b.store.ReadSpilled(b.ctx(t), []store.SpilledRange{spilledAfter(key, 0)}, -1))
		},
		"an outbox not configured": func() error {
			return second(b.store.ReadSpilled(b.ctx(t), []store.SpilledRange{spilledAfter(other, 0)}, 1))
		},
		"the same behind a good one": func() error {
			return second(b.store.ReadSpilled(b.ctx(t), []store.SpilledRange{spilledAfter(key, 0), spilledAfter(other, 0)}, 1))
		},
	} {
		if ask() == nil {
			t.Errorf("%s: read, want an error", what)
		}
	}

	if lists := b.readSpilled(t, b.store, 1); len(lists) != 0 {
		t.Errorf("no lanes: %v", lists)
	}

	b.spill(t)
	b.deleteSpilled(t)
	b.store.Close()
	for what, err := range map[string]error{
		"spill": b.store.Spill(b.ctx(t), b.epoch, []store.Item{good}), "delete spilled": b.store.DeleteSpilled(b.ctx(t), b.epoch, []store.SpilledRef{spilledRef(&good)}),
		"read": second(b.store.ReadSpilled(b.ctx(t), []store.SpilledRange{spilledAfter(key, 0)}, 1)), "lanes": b.store.SpilledLanes(b.ctx(t), func(store.SpilledLane) {}),
		"delete after": second(b.store.DeleteSpilledAfter(b.ctx(t), b.epoch, store.Checkpoint{Seq: 0})),
	} {
		if err == nil || errors.Is(err, store.ErrNotLeader) {
			t.Errorf("%s on a closed store: %v", what, err)
		}
	}
}

// testSpillFence: an old leader spills and deletes nothing.
func (s *suite) testSpillFence(t *testing.T) {
	b := s.start(t, 0)
	key := lane("a", "EVENT", store.GroupOf("g"))
	b.insert(t, "a", row("1"), row("2"))
	b.take(t, "a", "1", "2")
	first, late := capturedRow(key, "1", 1), capturedRow(key, "2", 2)
	b.spill(t, first)
	before := b.read(t, "a", "1")
	rival := b.open(t, 0)
	b.lead(t, rival)
	absent := capturedRow(lane("b", "EVENT", store.Group{}), "none", 9)
	for _, epoch := range []store.Epoch{0, b.epoch, b.epoch + 1, b.epoch + 2} {
		done := store.Outcome{Ref: first.Ref, Status: store.Completed, At: now(), SpilledSeq: first.Seq}
		for what, err := range map[string]error{
			"spill":                  b.store.Spill(b.ctx(t), epoch, []store.Item{late}),
			"spill again":            b.store.Spill(b.ctx(t), epoch, []store.Item{first}),
			"delete spilled":         b.store.DeleteSpilled(b.ctx(t), epoch, []store.SpilledRef{spilledRef(&first)}),
			"delete nothing spilled": b.store.DeleteSpilled(b.ctx(t), epoch, []store.SpilledRef{spilledRef(&absent)}),
			"delete after":           second(b.store.DeleteSpilledAfter(b.ctx(t), epoch, store.Checkpoint{Seq: 0})),
			"delete nothing after":   second(b.store.DeleteSpilledAfter(b.ctx(t), epoch, store.Checkpoint{Seq: 100})),
			"settle":                 second(b.store.Settle(b.ctx(t), epoch, []store.Outcome{done})),
		} {
			if !errors.Is(err, store.ErrNotLeader) {
				t.Errorf("%s with epoch %d: %v", what, epoch, err)
			}
		}
	}

	b.wantLane(t, "after the old leader", key, first)
	if after := b.read(t, "a", "1"); after != before {
		t.Errorf("an outcome changed %+v into %+v", before, after)
	}

	b.epoch = b.lead(t, b.store)
	b.spill(t, late)
	b.wantLane(t, "under the new epoch", key, first, late)
}

// testDeleteSpilled deletes rows by id and Seq, in one outbox only.
func (s *suite) testDeleteSpilled(t *testing.T) {
	b := s.start(t, 0)
	keys, lanes := b.spillOddLanes(t)
	half := len(keys) / 2
	var gone []store.SpilledRef
	for i := range half {
		wrong := spilledRef(&lanes[i][1])
		wrong.Seq++
		gone = append(gone, spilledRef(&lanes[i][0]), spilledRef(&lanes[i][2]), wrong)
	}

	gone = append(gone, store.SpilledRef{Ref: ref("a", "never there"), Seq: 5})
	for range 2 { // as after a lost answer
		b.deleteSpilled(t, gone...)
		for i, key := range keys {
			want := lanes[i]
			if i < half {
				want = want[1:2]
			}
			b.wantLane(t, "after rows were deleted", key, want...)
		}
	}
}

// testDeleteSpilledAfter deletes rows above a Seq, in the store's outboxes only.
func (s *suite) testDeleteSpilledAfter(t *testing.T) {
	b := s.start(t, 0)
	b.deleteSpilledAfter(t, 0, 0)
	inA, inB := lane("a", "EVENT", store.GroupOf("g")), lane("b", "EVENT", store.Group{})
	var a, other []store.Item
	for i := range int64(10) {
		a = append(a, capturedRow(inA, fmt.Sprint(i), store.NewSeq(b.epoch, 2*i+2)))
		other = append(other, capturedRow(inB, fmt.Sprint(i), store.NewSeq(b.epoch, 2*i+3)))
	}

	b.spill(t, append(slices.Clone(a), other...)...)
	b.deleteSpilledAfter(t, other[9].Seq, 0)
	b.deleteSpilledAfter(t, other[7].Seq, 4)
	b.wantLane(t, "below the seq", inA, a[:8]...)
	b.wantLane(t, "up to the seq", inB, other[:8]...)

	one := b.db.Store(t, Config{Outboxes: b.boxes[1:]})
	defer one.Close()
	if n, err := one.DeleteSpilledAfter(b.ctx(t), b.lead(t, one), store.Checkpoint{Seq: a[2].Seq}); err != nil || n != 6 {
		t.Errorf("with one outbox %d rows are deleted, %v", n, err)
	}

	b.epoch = b.lead(t, b.store)
	b.wantLane(t, "an outbox that is not configured", inA, a[:8]...)
	b.wantLane(t, "the one that is", inB, other[:2]...)
	b.spill(t, a[8], other[2])
	b.wantLane(t, "spilled anew", inA, a[:9]...)
	b.deleteSpilledAfter(t, 0, 12)
	b.wantLane(t, "after all", inA)
}

// testSpilledLanes counts the rows of every odd lane.
func (s *suite) testSpilledLanes(t *testing.T) {
	b := s.start(t, 0)
	b.wantSpilledLanes(t, "at first", b.store)
	keys, lanes := b.spillOddLanes(t)
	var want []store.SpilledLane
	var gone []store.SpilledRef
	for i, key := range keys {
		for n := range i % 3 {
			gone = append(gone, spilledRef(&lanes[i][n]))
		}
		want = append(want, store.SpilledLane{Outbox: key.Outbox, Kind: key.Kind, Hash: key.Hash(), Rows: 3 - i%3})
	}

	gone = append(gone, spilledRef(&lanes[2][2]))
	b.deleteSpilled(t, gone...)
	want = slices.Delete(want, 2, 3)
	b.wantSpilledLanes(t, "of two outboxes", b.open(t, 0), want...)
	one := b.db.Store(t, Config{Outboxes: b.boxes[1:]})
	defer one.Close()
	want = slices.DeleteFunc(want, func(l store.SpilledLane) bool { return l.Outbox != "b" })
	b.wantSpilledLanes(t, "of one outbox", one, want...)
}

func (b *bench) wantSpilledLanes(t *testing.T, what string, st Store, want ...store.SpilledLane) {
	t.Helper()
	set := map[store.SpilledLane]bool{}
	for _, l := range b.spilledLanes(t, st) {
		set[l] = true
	}

	for _, l := range want {
		if !set[l] {
			t.Errorf("%s: %.300s is missing", what, fmt.Sprintf("%+v", l))
		}
	}

	if len(set) != len(want) {
		t.Errorf("%s: %d lanes, want %d", what, len(set), len(want))
	}
}

func (b *bench) spilledLanes(t *testing.T, st Store) (lanes []store.SpilledLane) {
	t.Helper()
	if err := st.SpilledLanes(b.ctx(t), func(l store.SpilledLane) { lanes = append(lanes, l) }); err != nil {
		t.Fatal(err)
	}
	return lanes
}

// testSpillOddIDs: ids of any length and any bytes are spilled, distinguished, reloaded and
// deleted.
func (s *suite) testSpillOddIDs(t *testing.T) {
	b := s.start(t, 0)
	key := lane("a", "EVENT", store.GroupOf("g"))
	long := make([]byte, 5000) // incompressible
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range long {
		long[i] = byte(rng.IntN(256))
	}

	odd := []string{"", " ", "a", "A", "a ", "a\x00", "a\xff", "a\xfe", "kunde-€ 😀", string(long), string(long) + "x", strings.Repeat("☃", 30_000)}
	var items []store.Item
	for i, id := range odd {
		items = append(items, capturedRow(key, id, store.Seq(i+1)))
	}

	b.spill(t, items...)
	b.spill(t, items...)
	b.wantLane(t, "spilled", key, items...)
	var gone []store.SpilledRef
	for i := range items {
		wrong := spilledRef(&items[i])
		wrong.Seq = store.Seq(1 + (i+1)%len(items)) // the neighbor's Seq
		gone = append(gone, wrong)
	}

	b.deleteSpilled(t, gone...)
	b.wantLane(t, "rows of these ids and other seqs deleted", key, items...)
	for i := range items {
		b.deleteSpilled(t, spilledRef(&items[i]))
		b.wantLane(t, "one deleted", key, items[i+1:]...)
	}
}

// testSettleLeg: with an outcome that a leg brings, the row, the copy of the leg, its hold and the
// row's record change at once.
func (s *suite) testSettleLeg(t *testing.T) {
	b := s.start(t, 0)
	b.insert(t, "a", row("1"), row("2"), row("3"), row("4"))
	st := b.routed(t)
	b.store = st
	b.take(t, "a", "1", "2", "3", "4")
	key := lane("a/hooks", "EVENT", store.GroupOf("g"))
	var items []store.Item
	var records []store.LegRow
	for i, id := range []string{"1", "2", "3", "4"} {
		items = append(items, capturedRow(key, id, store.Seq(i+1)))
		records = append(records, store.LegRow{Ref: ref("a", id), Matched: []string{"bus", "hooks"}, Done: []string{"bus"}, Spilled: []string{"hooks"}})
	}
	if err := st.SpillLegs(b.ctx(t), b.epoch, items, records); err != nil {
		t.Fatal(err)
	}
	bring := func(i int, status store.Status, record *store.LegRow) store.Outcome {
		return broughtByLeg(&items[i], status, record)
	}
	failed := records[1]
	failed.Spilled, failed.Failed = nil, []string{"hooks"}
	_, err := st.Settle(b.ctx(t), b.epoch-1, []store.Outcome{bring(0, store.Completed, nil)})
	if !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("an old epoch: %v", err)
	}
	wantCopies := func(what string, want ...string) {
		t.Helper()
		if got := ids(b.readSpilled(t, st, 100, spilledAfter(key, 0))[0]); !slices.Equal(got, want) {
			t.Errorf("%s: copies of %q, want %q", what, got, want)
		}
	}
	wantCopies("after an old epoch", "1", "2", "3", "4")
	alone := bring(2, store.Completed, nil)
	alone.Leg.Outcome.SpilledSeq = 0
	for _, o := range []store.Outcome{bring(0, store.Completed, nil), bring(1, store.Failed, &failed), alone} {
		for range 2 { // the answer was lost
			if r := b.settle(t, o)[0]; r.NeedsRetry() {
				t.Errorf("row %s: %d", o.ID, r)
			}
		}
	}
	wantCopies("settled", "3", "4")
	s.checkSettledLegs(t, b, st, key, failed.Failed)
}

// checkSettledLegs checks the records, rows and holds that testSettleLeg leaves.
func (s *suite) checkSettledLegs(t *testing.T, b *bench, st Store, key store.LaneKey, failed []string) {
	t.Helper()
	got, err := st.LegRows(b.ctx(t), []store.Ref{ref("a", "1"), ref("a", "2"), ref("a", "3"), ref("a", "4")})
	if err != nil || got[0] != nil || got[1] == nil || !slices.Equal(got[1].Failed, failed) || got[2] != nil || got[3] == nil {
		t.Errorf("records: %+v, %v", got, err)
	}
	settled, err := st.ReadSettled(b.ctx(t), []store.ClaimRow{{Ref: ref("a", "1")}, {Ref: ref("a", "2")}, {Ref: ref("a", "3")}, {Ref: ref("a", "4")}})
	if want := []bool{true, s.layout.Stores(store.Failed), true, false}; err != nil || !slices.Equal(settled, want) {
		t.Errorf("settled %v, %v; want %v", settled, err, want)
	}
	holds, err := st.LoadHolds(b.ctx(t))
	if err != nil || len(holds) != 1 || holds[0].Lane != key || holds[0].ID != "2" || holds[0].Reason != "no" {
		t.Errorf("holds: %+v, %v", holds, err)
	}
}

// broughtByLeg returns the outcome of a row of outbox a that the leg a/hooks brings.
func broughtByLeg(it *store.Item, status store.Status, record *store.LegRow) store.Outcome {
	o := store.Outcome{Ref: ref("a", it.ID), Status: status, At: now()}
	leg := store.Outcome{Ref: it.Ref, Status: status, SpilledSeq: it.Seq, At: o.At}
	if status == store.Failed {
		o.Error = "route hooks: no"
		leg.Error, leg.Row, leg.Block = "no", it, &store.Hold{Lane: it.Lane(), Since: o.At}
	}
	o.Leg = &store.LegEnd{Outcome: leg, Of: o.Ref, Record: record}
	return o
}
