package storetest

import (
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// testLook reads which rows of both outboxes need no delivery, in one call, and checks that
// it changes no row.
func (s *suite) testLook(t *testing.T) {
	b := s.start(t, 0)
	txn := b.insert(t, "a", row("free"), row("claimed"), row("completed"), row("failed"), row("deleted"))
	other := b.insert(t, "b", row("failed"))
	b.db.Delete(t, "a", "deleted")
	b.claim(t, store.ClaimRow{Ref: ref("a", "claimed"), Txn: txn})
	rows := []store.ClaimRow{
		{Ref: ref("b", "failed"), Txn: other},
		{Ref: ref("a", "deleted"), Txn: txn},
		{Ref: ref("a", "free"), Txn: txn},
		{Ref: ref("a", "claimed"), Txn: txn},
		{Ref: ref("a", "failed"), Txn: txn},
	}
	want := []bool{false, s.stateful(), false, false, s.stateful()}
	if s.stateful() {
		b.db.Set(t, "a", "failed", store.Failed, now())
		if !s.layout.DeleteDelivered {
			b.db.Set(t, "a", "completed", store.Completed, now())
			rows = append(rows, store.ClaimRow{Ref: ref("a", "completed"), Txn: txn})
			want = append(want, true)
		}
	}
	for range 2 {
		settled, err := b.store.ReadSettled(b.ctx(t), rows)
		if err != nil {
			t.Fatal(err)
		}
		for i := range rows {
			if settled[i] != want[i] {
				t.Errorf("row %q of outbox %s: settled %v, want %v", rows[i].ID, rows[i].Outbox, settled[i], want[i])
			}
		}
	}
	if s.marks() {
		if got := b.read(t, "a", "free"); got.Status != store.Pending {
			t.Errorf("a row that was looked at is %s", got.Status)
		}
	}
	if _, err := b.store.ReadSettled(b.ctx(t), []store.ClaimRow{{Ref: ref("c", "1")}}); err == nil {
		t.Error("an outbox that is not configured is looked at")
	}
	if settled, err := b.store.ReadSettled(b.ctx(t), nil); err != nil || len(settled) != 0 {
		t.Errorf("no rows: %v, %v", settled, err)
	}
}

// testLookOpenTxn reads a row before its transaction commits: it must not be reported as
// gone.
func (s *suite) testLookOpenTxn(t *testing.T) {
	b := s.start(t, 0)
	txn, commit := b.db.Begin(t, "a", row("1"))
	defer commit()
	if txn == 0 {
		t.Skip("this database shows no row before a claim can see it")
	}
	settled, err := b.store.ReadSettled(b.ctx(t), []store.ClaimRow{{Ref: ref("a", "1"), Txn: txn}})
	if err != nil || settled[0] {
		t.Fatalf("the row of an open transaction: settled %v, %v", settled, err)
	}
}
