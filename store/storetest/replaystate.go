package storetest

import (
	"fmt"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// testStates reads the states of rows of both outboxes in one call, and checks that it
// changes no row.
func (s *suite) testStates(t *testing.T) {
	b := s.start(t, 0)
	r := b.store
	names := []string{"free", "claimed", "completed", "failed", "requeued", "deleted", "last"}
	txns := map[string]store.Txn{}
	for _, outbox := range []string{"a", "b"} {
		var list []Row
		for _, id := range names {
			list = append(list, row(id))
		}
		txns[outbox] = b.insert(t, outbox, list...)
		b.db.Delete(t, outbox, "deleted")
		if s.stateful() {
			b.db.Set(t, outbox, "completed", store.Completed, now())
			b.db.Set(t, outbox, "failed", store.Failed, now())
			b.db.Set(t, outbox, "requeued", store.Failed, now())
			b.db.Set(t, outbox, "requeued", store.Pending, now())
		}
	}

	b.claim(t, store.ClaimRow{Ref: ref("a", "claimed"), Txn: txns["a"]})
	b.settle(t, store.Outcome{Ref: ref("b", "last"), Status: store.Completed, At: now()})
	want := map[string]store.RowState{
		"free": store.RowUnsettled, "claimed": store.RowUnsettled, "completed": store.RowCompleted, "failed": store.RowFailed,
		"requeued": store.RowUnsettled, "deleted": store.RowAbsent, "last": store.RowUnsettled, "never there": store.RowAbsent,
	}
	var rows []store.ClaimRow
	for i, id := range append(names, "never there", "completed", "deleted", "free") { // some ids twice
		for k, outbox := range []string{"b", "a"} {
			rows = append(rows, store.ClaimRow{Ref: ref(outbox, id), WantPayload: (i+k)%2 == 0, Txn: txns[outbox] * store.Txn((i+k)%3&1)})
		}
	}

	before := map[store.Ref]RowContent{}
	for _, row := range rows {
		before[row.Ref] = b.read(t, row.Outbox, row.ID)
	}

	states, err := r.ReadStatuses(b.ctx(t), rows)
	if err != nil || len(states) != len(rows) {
		t.Fatalf("%d states of %d rows, %v", len(states), len(rows), err)
	}

	b.wantStates(t, rows, states, want)
	for ref, found := range before {
		if after := b.read(t, ref.Outbox, ref.ID); after != found {
			t.Errorf("row %+v was %+v and is %+v", ref, found, after)
		}
	}

	if _, err := r.ReadStatuses(b.ctx(t), []store.ClaimRow{{Ref: ref("c", "1")}}); err == nil {
		t.Error("read of an unknown outbox succeeded")
	}
}

func (b *bench) wantStates(t *testing.T, rows []store.ClaimRow, states []store.RowStatus, want map[string]store.RowState) {
	t.Helper()
	twice := map[store.Ref]int{}
	for i := range rows {
		state, got := want[rows[i].ID], states[i]
		switch {
		case !b.stateful():
			state = store.RowAbsent
		case rows[i].ID == "last" && rows[i].Outbox == "b":
			state = store.RowCompleted
			if b.layout.DeleteDelivered {
				state = store.RowAbsent
			}
		}

		if j, again := twice[rows[i].Ref]; again && state == store.RowAbsent && b.stateful() && rows[i].Txn != rows[j].Txn {
			state = store.RowUnsettled // the other transaction may still insert it
		}

		twice[rows[i].Ref] = i
		if got.State != state {
			t.Errorf("row %d, %q of outbox %s, has the state %d, want %d", i, rows[i].ID, rows[i].Outbox, got.State, state)
		}

		payload := ""
		if state == store.RowCompleted && b.stateful() && (rows[i].WantPayload || b.wantedElsewhere(rows, i)) {
			payload = row(rows[i].ID).Payload
		}
		if string(got.Payload) != payload {
			t.Errorf("row %d, %q of outbox %s, has the payload %q, want %q", i, rows[i].ID, rows[i].Outbox, got.Payload, payload)
		}
	}
}

// wantedElsewhere reports whether another occurrence of the row requests its payload,
// because all occurrences get the same answer.
func (b *bench) wantedElsewhere(rows []store.ClaimRow, i int) bool {
	for j := range rows {
		if rows[j].Ref == rows[i].Ref && rows[j].WantPayload {
			return true
		}
	}
	return false
}

// testStatesOpenTxn reads the state of a row before its transaction commits: it must not be
// RowAbsent.
func (s *suite) testStatesOpenTxn(t *testing.T) {
	b := s.start(t, 0)
	txn, commit := b.db.Begin(t, "a", row("1"))
	defer commit()
	if txn == 0 {
		t.Skip("this database captures no row before a claim can see it")
	}

	ask := []store.ClaimRow{{Ref: ref("a", "1"), Txn: txn, WantPayload: true}, {Ref: ref("a", "1")}, {Ref: ref("b", "1")}}
	check := func(what string, want ...store.RowState) {
		t.Helper()
		states, err := b.store.ReadStatuses(b.ctx(t), ask)
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if !s.stateful() {
				want[i] = store.RowAbsent
			}
			if states[i].State != want[i] || states[i].Payload != nil {
				t.Errorf("%s: row %d is %s, want state %d", what, i, fmt.Sprintf("%+v", states[i]), want[i])
			}
		}
	}

	check("before the commit", store.RowUnsettled, store.RowUnsettled, store.RowAbsent)
	commit()
	check("behind the commit", store.RowUnsettled, store.RowUnsettled, store.RowAbsent)
}
