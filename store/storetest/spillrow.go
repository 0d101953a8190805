package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// testSettleSpilled: an outcome that settles a row deletes its spilled copy, whatever the
// result.
func (s *suite) testSettleSpilled(t *testing.T) {
	b := s.start(t, 0)
	key, other := lane("a", "EVENT", store.GroupOf("g")), lane("b", "EVENT", store.GroupOf("g"))
	names := []string{
		"completed", "failed", "retried", "other seq", "no seq", "deleted, completed", "deleted, failed",
		"theirs, completed", "theirs, failed", "tried and completed", "in both",
	}
	items := map[string]store.Item{}
	for i, id := range names {
		b.insert(t, "a", row(id))
		b.take(t, "a", id)
		items[id] = capturedRow(key, id, store.Seq(i+1))
		b.spill(t, items[id])
	}

	b.insert(t, "b", row("in both"))
	twin := capturedRow(other, "in both", items["in both"].Seq)
	b.spill(t, twin)
	for _, id := range []string{"deleted, completed", "deleted, failed"} {
		b.db.Delete(t, "a", id)
	}

	if s.stateful() {
		b.db.Set(t, "a", "theirs, completed", store.Failed, now())
		b.db.Set(t, "a", "theirs, failed", store.Failed, now())
	}
	outcome := func(id string, status store.Status) store.Outcome {
		return store.Outcome{Ref: ref("a", id), Status: status, RetryCount: 1, Error: "x", At: now(), SpilledSeq: items[id].Seq}
	}
	otherSeq, noSeq := outcome("other seq", store.Failed), outcome("no seq", store.Completed)
	otherSeq.SpilledSeq, noSeq.SpilledSeq = 99, 0
	call := []store.Outcome{
		outcome("retried", store.Pending), outcome("completed", store.Completed), outcome("failed", store.Failed), otherSeq, noSeq,
		outcome("deleted, completed", store.Completed), outcome("deleted, failed", store.Failed),
		outcome("theirs, completed", store.Completed), outcome("theirs, failed", store.Failed),
		outcome("tried and completed", store.Pending), outcome("tried and completed", store.Completed), outcome("in both", store.Completed),
	}
	want := []store.SettleResult{
		store.Written, store.Written, store.Written, store.Written, store.Written, store.WasGone, store.WasGone,
		store.WasSettled, store.WasSettled, store.Written, store.Written, store.Written,
	}
	for i, got := range b.settle(t, call...) {
		if s.stateful() && got != want[i] || !s.stateful() && got != store.Written {
			t.Errorf("row %s: %d, want %d", call[i].ID, got, want[i])
		}
	}
	for range 2 {
		b.wantLane(t, "after the outcomes", key, items["retried"], items["other seq"], items["no seq"])
		b.wantLane(t, "the other outbox", other, twin)
		b.settle(t, call...) // as after a lost answer
	}
	otherSeq.SpilledSeq = items["other seq"].Seq
	if s.stateful() { // of a FAILED row, with Block
		wantHold := blockLane(&otherSeq, key)
		b.settle(t, otherSeq)
		b.wantHolds(t, "with the row deleted", b.store, wantHold)
	} else {
		b.settle(t, otherSeq)
	}

	b.wantLane(t, "a lost answer's repeat", key, items["retried"], items["no seq"])
}

// testSpillOpenTxn spills a row before its transaction commits: a claim of the reloaded row
// waits for the transaction.
func (s *suite) testSpillOpenTxn(t *testing.T) {
	b := s.start(t, 0)
	key := lane("a", "EVENT", store.GroupOf("g"))
	visible := b.insert(t, "a", row("2"))
	txn, commit := b.db.Begin(t, "a", row("1"))
	defer commit()
	if txn == 0 {
		t.Skip("this database captures no row before a claim can see it")
	}

	open, seen := capturedRow(key, "1", 1), capturedRow(key, "2", 2)
	open.Txn, seen.Txn = txn, visible
	b.spill(t, open, seen)
	read := func() []store.Item {
		t.Helper()
		got := b.readSpilled(t, b.store, 10, spilledAfter(key, 0))[0]
		if len(got) != 2 {
			t.Fatalf("%q are spilled", ids(got))
		}
		return got
	}

	claim := func(it store.Item) store.ClaimAnswer {
		t.Helper()
		return b.claim(t, store.ClaimRow{Ref: it.Ref, Txn: it.Txn, WantPayload: true})[0]
	}
	early := read()
	if early[0].Txn != txn || early[1].Txn != 0 {
		t.Errorf("the transactions are %d and %d, want %d and 0", early[0].Txn, early[1].Txn, txn)
	}
	if a := claim(early[0]); a.Result != store.NotYetVisible {
		t.Errorf("row of an open transaction: got %s, want not_yet_visible", a.Result)
	}
	if a := claim(early[1]); a.Result != store.Claimed {
		t.Errorf("row of a committed transaction: got %s, want claimed", a.Result)
	}

	commit()
	for what, it := range map[string]store.Item{"read before": early[0], "read after": read()[0]} {
		if a := claim(it); a.Result != store.Claimed || string(a.Payload) != row("1").Payload {
			t.Errorf("%s the commit: the row is %s with %q", what, a.Result, a.Payload)
		}
	}

	b.db.Delete(t, "a", "1")
	if a := claim(read()[0]); a.Result != store.Gone {
		t.Errorf("row deleted while it was spilled: got %s, want gone", a.Result)
	}
}

// testSpillMany spills 3000 rows in 100 lanes, reloads them in turns and settles them.
func (s *suite) testSpillMany(t *testing.T) {
	b := s.start(t, 0)
	const n, lanes, each, call = 3000, 100, 9, 750
	list := rows(n + 10)
	b.insert(t, "a", list...)
	keys := make([]store.LaneKey, lanes)
	for i := range keys {
		keys[i] = lane("a", "EVENT", store.GroupOf(fmt.Sprint("group ", i)))
	}

	items := make([]store.Item, n)
	for i := range items {
		items[i] = capturedRow(keys[i*7%lanes], list[i].ID, store.NewSeq(b.epoch, int64(i+1)))
	}

	for part := range slices.Chunk(items, call) {
		started := time.Now()
		b.spill(t, part...)
		t.Logf("%d rows spilled in %s", len(part), time.Since(started))
	}

	if s.stateful() {
		started := time.Now()
		got := b.unsettled(t, b.view(t), store.UnsettledQuery{Outbox: "a", Limit: n})
		t.Logf("%d spilled rows skipped in %s", n, time.Since(started))
		var want []string
		for _, r := range list[n:] {
			want = append(want, r.ID)
		}
		if !slices.Equal(ids(got), want) {
			t.Errorf("%d rows are not spilled, want %q", len(got), want)
		}
	}

	all := b.spilledLanes(t, b.store)
	if len(all) != lanes || all[0].Rows != n/lanes || all[lanes-1].Rows != n/lanes {
		t.Errorf("%d lanes", len(all))
	}

	b.drainSpilled(t, keys, each, n)
	b.deleteSpilledAfter(t, 0, 0)
}

// drainSpilled reloads lanes in turns, each row in Seq order, and settles the rows.
func (b *bench) drainSpilled(t *testing.T, keys []store.LaneKey, each, want int) {
	t.Helper()
	from := make([]store.SpilledRange, len(keys))
	for i, key := range keys {
		from[i] = spilledAfter(key, 0)
	}

	var reading, settling time.Duration
	read := 0
	for {
		started := time.Now()
		lists := b.readSpilled(t, b.store, each, from...)
		reading += time.Since(started)
		var outcomes []store.Outcome
		for i, list := range lists {
			for k := range list {
				if list[k].Seq <= from[i].After || list[k].Lane() != keys[i] {
					t.Fatalf("row after seq %d: got %+v", from[i].After, list[k])
				}
				from[i].After = list[k].Seq
				outcomes = append(outcomes, store.Outcome{Ref: list[k].Ref, Status: store.Completed, At: now(), SpilledSeq: list[k].Seq})
			}
		}

		if len(outcomes) == 0 {
			break
		}

		read += len(outcomes)
		started = time.Now()
		b.settle(t, outcomes...)
		settling += time.Since(started)
	}

	t.Logf("%d rows read back in %s, settled in %s", read, reading, settling)
	if read != want {
		t.Errorf("%d rows were read back, want %d", read, want)
	}
}
