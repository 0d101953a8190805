package storetest

import (
	"slices"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

func failedRow(outbox, id, text string, block *store.Hold) store.Outcome {
	return store.Outcome{Ref: ref(outbox, id), Status: store.Failed, RetryCount: 3, Error: text, At: now(), Block: block}
}

// blockLane makes an outcome block a lane, and returns the expected hold.
func blockLane(o *store.Outcome, key store.LaneKey) store.Hold {
	o.Block = &store.Hold{Lane: key, Since: now(), Reason: "the outcome's is taken", ID: "so is the id", RetryCount: 77}
	return store.Hold{Lane: key, Kind: store.Blocked, ID: o.ID, RetryCount: o.RetryCount, Reason: o.Error, Since: o.Block.Since}
}

// testBlock blocks a lane of every odd name in one call, repeats the call as after a lost
// answer, and restarts.
func (s *suite) testBlock(t *testing.T) {
	b := s.start(t, 0)
	var outcomes []store.Outcome
	var want []store.Hold
	for i, key := range append(oddLanes("a"), oddLanes("b")...) {
		r := row(string(rune('A' + i)))
		b.insert(t, key.Outbox, r)
		b.take(t, key.Outbox, r.ID)
		o := failedRow(key.Outbox, r.ID, "no "+r.ID, nil)
		want = append(want, blockLane(&o, key))
		outcomes = append(outcomes, o)
	}

	b.settle(t, outcomes...)
	b.store.Close()
	b.store = b.open(t, 0)
	b.wantHolds(t, "after a restart", b.store, want...)
	b.epoch = b.lead(t, b.store)
	for i, r := range b.settle(t, outcomes...) { // as after a lost answer
		if r != store.WasSettled {
			t.Errorf("repeated outcome %d: got %d, want WasSettled", i, r)
		}
	}

	b.wantHolds(t, "after a repeat", b.store, want...)
	paused := want[2]
	paused.Kind, paused.ID, paused.RetryCount = store.Paused, "", 0
	b.hold(t, paused)
	b.wantHolds(t, "a lane with both kinds", b.store, append(slices.Clone(want), paused)...)
	if err := b.store.Release(b.ctx(t), b.epoch, want[2].Lane, store.Blocked); err != nil {
		t.Fatal(err)
	}

	before := want[2]
	want[2] = paused
	b.wantHolds(t, "one let go", b.store, want...)
	b.hold(t, before)
	b.wantHolds(t, "one that FAILED before", b.store, append(slices.Clone(want), before)...)
	if b.read(t, "a", outcomes[2].ID).Status != store.Failed {
		t.Error("Release changed the row")
	}
}

// testBlockLostAnswer: a row FAILED without a hold; a later outcome that blocks finds it
// settled.
func (s *suite) testBlockLostAnswer(t *testing.T) {
	b := s.start(t, 0)
	b.insert(t, "a", row("1"), row("2"), row("3"), row("4"))
	b.take(t, "a", "1", "2", "3", "4")
	b.settle(t, failedRow("a", "1", "x", nil))
	b.db.Set(t, "a", "2", store.Completed, now())
	b.db.Delete(t, "a", "3")
	var outcomes []store.Outcome
	var want []store.Hold
	for _, id := range []string{"1", "2", "3", "never there", "4"} {
		o := failedRow("a", id, "later", nil)
		h := blockLane(&o, lane("a", "EVENT", store.GroupOf(id)))
		if id == "1" || id == "4" {
			want = append(want, h)
		}
		outcomes = append(outcomes, o)
	}

	for i, r := range b.settle(t, outcomes...) {
		wants := []store.SettleResult{store.WasSettled, store.WasSettled, store.WasGone, store.WasGone, store.Written}
		if r != wants[i] {
			t.Errorf("row %s: %d, want %d", outcomes[i].ID, r, wants[i])
		}
	}

	b.wantHolds(t, "after the call", b.store, want...)
}

// testBlockOneLane settles several outcomes of one lane, and of one row, in one call.
func (s *suite) testBlockOneLane(t *testing.T) {
	b := s.start(t, 0)
	b.insert(t, "a", row("1"), row("2"), row("3"), row("4"))
	b.insert(t, "b", row("1"))
	b.take(t, "a", "1", "2", "3", "4")
	key := lane("a", "EVENT", store.GroupOf("g"))
	first, second, third := failedRow("a", "2", "first", nil), failedRow("a", "1", "second", nil), failedRow("a", "3", "third", nil)
	inB := failedRow("b", "1", "other outbox", nil)
	blockLane(&first, key)
	wantA := blockLane(&second, key)
	blockLane(&third, key)
	wantB := blockLane(&inB, lane("b", "EVENT", store.GroupOf("g")))
	retry := store.Outcome{Ref: third.Ref, Status: store.Completed, At: now()} // so that the third is not FAILED
	tried := store.Outcome{Ref: second.Ref, Status: store.Pending, RetryCount: 2, Error: "try", At: now()}
	done := store.Outcome{Ref: ref("a", "4"), Status: store.Completed, At: now()}
	call := []store.Outcome{tried, first, done, inB, second, retry, third}
	for range 2 {
		b.settle(t, call...)
		b.wantHolds(t, "the last FAILED row of a lane", b.store, wantA, wantB)
	}

	for _, id := range []string{"1", "2"} {
		if got := b.read(t, "a", id).Status; got != store.Failed {
			t.Errorf("row %s is %s", id, got)
		}
	}

	if got := b.read(t, "a", "4"); got.Exists && got.Status != store.Completed {
		t.Errorf("the delivered row is %s", got.Status)
	}
}

// testBlockEnds: a hold ends once its row is no longer FAILED, for any reason, and does not
// return with the row's next failure.
func (s *suite) testBlockEnds(t *testing.T) {
	b := s.start(t, 0)
	ids := []string{"set back", "deleted", "requeued", "discarded", "stays"}
	var want []store.Hold
	block := func(id, text string) store.Hold {
		o := failedRow("a", id, text, nil)
		h := blockLane(&o, lane("a", "EVENT", store.GroupOf(id)))
		b.take(t, "a", id)
		b.settle(t, o)
		return h
	}

	for _, id := range ids {
		b.insert(t, "a", row(id))
		want = append(want, block(id, "first"))
	}

	b.wantHolds(t, "all blocked", b.store, want...)
	b.db.Set(t, "a", "set back", store.Pending, now())
	b.wantHolds(t, "one set back", b.store, want[1:]...)
	b.db.Delete(t, "a", "deleted")
	b.wantHolds(t, "one deleted", b.store, want[2:]...)
	if _, err := b.store.Requeue(b.ctx(t), b.epoch, store.DeadLetterFilter{Outbox: "a", IDs: ids[2:3]}, 9); err != nil {
		t.Fatal(err)
	}

	b.wantHolds(t, "one requeued", b.store, want[3:]...)
	if _, err := b.store.Discard(b.ctx(t), b.epoch, store.DeadLetterFilter{Outbox: "a", IDs: ids[3:4]}, 9); err != nil {
		t.Fatal(err)
	}

	b.wantHolds(t, "one discarded", b.store, want[4])
	// They fail again without Block, so their lanes are not held.
	b.take(t, "a", "set back", "requeued")
	b.settle(t, failedRow("a", "set back", "again", nil), failedRow("a", "requeued", "again", nil))
	b.insert(t, "a", row("deleted"), row("discarded"))
	b.take(t, "a", "deleted", "discarded")
	b.settle(t, failedRow("a", "deleted", "again", nil), failedRow("a", "discarded", "again", nil))
	b.wantHolds(t, "all FAILED again", b.store, want[4])
	// Another row takes over the hold of the lane.
	b.insert(t, "a", row("next"))
	o := failedRow("a", "next", "worse", nil)
	want[4] = blockLane(&o, want[4].Lane)
	b.settle(t, o)
	b.wantHolds(t, "another row blocks", b.store, want[4])
	b.db.Set(t, "a", "next", store.Processing, now())
	b.wantHolds(t, "not FAILED", b.store)
}

// testBlockRefused: Settle rejects an invalid Block and writes nothing of the call.
func (s *suite) testBlockRefused(t *testing.T) {
	b := s.start(t, 0)
	b.insert(t, "a", row("1"), row("2"))
	key := lane("a", "EVENT", store.GroupOf("g"))
	completed := store.Outcome{Ref: ref("a", "2"), Status: store.Completed, At: now(), Block: &store.Hold{Lane: key}}
	pending := completed
	pending.Status = store.Pending
	calls := map[string]store.Outcome{
		"COMPLETED": completed, "PENDING": pending,
		"another outbox": failedRow("a", "2", "", &store.Hold{Lane: lane("b", "EVENT", store.GroupOf("g"))}),
	}

	before := b.read(t, "a", "1")
	for what, o := range calls {
		_, err := b.store.Settle(b.ctx(t), b.epoch, []store.Outcome{failedRow("a", "1", "x", nil), o})
		if err == nil {
			t.Errorf("%s: %v", what, err)
		}
	}

	if after := b.read(t, "a", "1"); after != before {
		t.Errorf("a rejected call wrote: %+v", after)
	}

	b.wantHolds(t, "after all", b.store)
}
