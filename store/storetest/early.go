package storetest

import (
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// testSettleUnclaimed settles rows that were not claimed.
func (s *suite) testSettleUnclaimed(t *testing.T) {
	b := s.start(t, 0)
	txn := b.insert(t, "a", row("done"), row("dead"), row("retried"), row("deleted"))
	b.db.Delete(t, "a", "deleted")
	call := outcomesOf(txn, "done", "dead", "retried")
	gone := store.Outcome{Ref: ref("a", "deleted"), Txn: txn, Status: store.Completed, At: now()}
	want := []store.SettleResult{store.Written, store.Written, store.Written, store.WasGone}
	for i, got := range b.settle(t, append(call, gone)...) {
		if got != want[i] && (s.stateful() || got != store.Written) {
			t.Errorf("outcome %d: %d, want %d", i, got, want[i])
		}
	}
	b.wantOutcomes(t)
}

// outcomesOf returns an outcome of each status for rows inserted by one transaction.
func outcomesOf(txn store.Txn, done, dead, retried string) []store.Outcome {
	return []store.Outcome{
		{Ref: ref("a", done), Txn: txn, Status: store.Completed, At: now()},
		{Ref: ref("a", dead), Txn: txn, Status: store.Failed, RetryCount: 3, Error: "no", At: now()},
		{Ref: ref("a", retried), Txn: txn, Status: store.Pending, RetryCount: 1, Error: "later", At: now()},
	}
}

// wantOutcomes checks the writes of outcomesOf.
func (b *bench) wantOutcomes(t *testing.T) {
	t.Helper()
	if !b.stateful() {
		return
	}
	if got := b.read(t, "a", "done"); got.Exists == b.layout.DeleteDelivered || got.Exists && got.Status != store.Completed {
		t.Errorf("the delivered row: %+v", got)
	}
	dead, retried := b.read(t, "a", "dead"), b.read(t, "a", "retried")
	if dead.Status != store.Failed || retried.Status != store.Pending {
		t.Errorf("the dead row: %+v, the retried one: %+v", dead, retried)
	}
	if b.layout.Columns.RetryCount != "" && (dead.RetryCount != 3 || retried.RetryCount != 1) {
		t.Errorf("the dead row: %+v, the retried one: %+v", dead, retried)
	}
}

// testSettleOpenTxn settles rows before their transaction commits, together with a visible
// row and a deleted row.
func (s *suite) testSettleOpenTxn(t *testing.T) {
	b := s.start(t, 0)
	seen := b.insert(t, "a", row("seen"))
	txn, commit := b.db.Begin(t, "a", row("done"), row("dead"), row("retried"))
	defer commit()
	if txn == 0 {
		t.Skip("this database shows no row before an outcome can see it")
	}
	early := outcomesOf(txn, "done", "dead", "retried")
	others := []store.Outcome{
		{Ref: ref("a", "seen"), Txn: seen, Status: store.Completed, At: now()},
		{Ref: ref("a", "never there"), Txn: seen, Status: store.Completed, At: now()},
		{Ref: ref("a", "read from the table"), Status: store.Failed, At: now()},
	}
	want := []store.SettleResult{store.TooEarly, store.TooEarly, store.TooEarly, store.Written, store.WasGone, store.WasGone}
	for i, got := range b.settle(t, append(early, others...)...) {
		if got != want[i] && (s.stateful() || got != store.Written) {
			t.Errorf("before the commit, outcome %d: %d, want %d", i, got, want[i])
		}
	}
	commit()
	for i, got := range b.settle(t, early...) {
		if got != store.Written {
			t.Errorf("behind the commit, outcome %d: %d", i, got)
		}
	}
	b.wantOutcomes(t)
}

// testSettleOpenTxnParked: an outcome that is too early leaves its row spilled and its lane
// unchanged.
func (s *suite) testSettleOpenTxnParked(t *testing.T) {
	b := s.start(t, 0)
	key := lane("a", "EVENT", store.GroupOf("g"))
	txn, commit := b.db.Begin(t, "a", row("done"), row("dead"))
	defer commit()
	if txn == 0 {
		t.Skip("this database shows no row before an outcome can see it")
	}
	done, dead := parkable(key, "done", 1), parkable(key, "dead", 2)
	b.park(t, done, dead)
	call := outcomesOf(txn, "done", "dead", "")[:2]
	call[0].SpilledSeq, call[1].SpilledSeq = done.Seq, dead.Seq
	held := blocks(&call[1], key)
	for i, got := range b.settle(t, call...) {
		if got != store.TooEarly {
			t.Errorf("before the commit, outcome %d: %d", i, got)
		}
	}
	b.wantLane(t, "before the commit", key, done, dead)
	b.wantHolds(t, "before the commit", b.store)
	commit()
	for i, got := range b.settle(t, call...) {
		if got != store.Written {
			t.Errorf("behind the commit, outcome %d: %d", i, got)
		}
	}
	b.wantLane(t, "behind the commit", key)
	b.wantHolds(t, "behind the commit", b.store, held)
}
