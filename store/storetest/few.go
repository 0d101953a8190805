package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Many tables store fewer statuses than a relay has. Most tests need FAILED rows, so the
// layouts without FAILED have tests of their own.

// lacksFailed selects the layouts that store a state, but not FAILED.
func lacksFailed(l *store.Layout) bool { return keepsState(l) && !l.Stores(store.Failed) }

// twoWords returns a layout that knows only PENDING and COMPLETED, with the time of delivery.
func twoWords() store.Layout {
	return store.Layout{
		Name: "two-words",
		Columns: store.Columns{
			ID: "id", Group: "message_group", Payload: "payload", Status: "status", Delivered: "sent_at",
			RetryCount: "attempts", Error: "last_error",
		},
		State:   store.StateWords,
		Words:   map[store.Status]string{store.Pending: "NEW", store.Completed: "SENT"},
		OrderBy: []string{"created_at"},
	}
}

// booleans returns a layout with a column that is true once a row was delivered.
func booleans() store.Layout {
	return store.Layout{
		Name: "boolean",
		Columns: store.Columns{
			ID: "id", Kind: "type", Group: "message_group", Payload: "payload", Status: "published",
			Claimed: "taken_at", Settled: "ended_at", RetryCount: "attempts", Error: "last_error",
		},
		State:   store.StateBoolean,
		OrderBy: []string{"created_at"},
	}
}

// leases returns a layout whose claims write their end.
func leases() store.Layout {
	return store.Layout{
		Name: "lease",
		Columns: store.Columns{
			ID: "id", Group: "message_group", Payload: "payload", Delivered: "sent_at",
			Claimed: "taken_until", RetryCount: "attempts", Error: "last_error",
		},
		State:   store.StateTimestamps,
		Lease:   true,
		OrderBy: []string{"created_at"},
	}
}

// leasedWords returns a layout whose claims write a word and their end.
func leasedWords() store.Layout {
	l := leases()
	l.Name, l.Columns.Status, l.State = "lease-words", "status", store.StateWords
	l.Words = map[store.Status]string{store.Pending: "NEW", store.Processing: "SENDING", store.Completed: "SENT"}
	return l
}

func fewTests() []test {
	return append(recordedTests(), []test{
		{"claims without a status for them", (*suite).testFewClaims, nil},
		{"a claim and somebody else's", (*suite).testClaimHeld, timesClaims},
		{"a claim at once of a dead predecessor's row", (*suite).testClaimAtOnce, timesClaims},
		{"an outcome of each status", (*suite).testFewOutcomes, nil},
		{"several outcomes of one row", (*suite).testFewTwice, nil},
		{"receipts of deliveries", (*suite).testReceipts, keepsDelivered},
		{"what is read of each row", (*suite).testFewReads, nil},
		{"delivered rows after their retention", (*suite).testFewPrune, prunes},
		{"check names what is missing", (*suite).testCheck, nil},
		{"a diagnosis", (*suite).testDiagnose, nil},
	}...)
}

// testFewClaims: a claim writes what the table can hold and says whether it wrote anything.
func (s *suite) testFewClaims(t *testing.T) {
	b := s.start(t, 0)
	txn := b.insert(t, "a", row("1"), row("sent"), row("deleted"))
	b.db.Set(t, "a", "sent", store.Completed, now())
	b.db.Delete(t, "a", "deleted")
	before, began := b.read(t, "a", "1"), now()
	for range 2 { // the second time as after a lost answer
		answers := b.claim(t,
			store.ClaimRow{Ref: ref("a", "1"), Txn: txn, WantPayload: true},
			store.ClaimRow{Ref: ref("a", "sent"), Txn: txn, WantPayload: true},
			store.ClaimRow{Ref: ref("a", "deleted"), Txn: txn, WantPayload: true},
		)
		for i, want := range []store.ClaimResult{store.Claimed, store.AlreadySettled, store.Gone} {
			if answers[i].Result != want {
				t.Errorf("answer %d is %s, want %s", i, answers[i].Result, want)
			}
		}
		if a := answers[0]; a.Unwritten == s.layout.WritesClaims() || string(a.Payload) != row("1").Payload {
			t.Errorf("a claim answers %+v", a)
		}
	}
	switch after := b.read(t, "a", "1"); {
	case !s.layout.WritesClaims() && after != before:
		t.Errorf("a claim that writes nothing changed %+v into %+v", before, after)
	case s.layout.WritesClaims() && !sinceThen(after.Claimed, began):
		t.Errorf("the row was claimed at %s", after.Claimed)
	}
}

// testFewOutcomes: a FAILED row stays PENDING in its table, with its error and retry count.
func (s *suite) testFewOutcomes(t *testing.T) {
	b := s.start(t, 0)
	b.insert(t, "a", row("done"), row("retried"), row("dead"))
	b.take(t, "a", "done", "retried", "dead")
	claimed := b.read(t, "a", "dead")
	at := now().Add(time.Hour)
	outcomes := []store.Outcome{
		{Ref: ref("a", "dead"), Status: store.Failed, RetryCount: 4, Error: "given up", Reason: store.ReasonBadRequest, At: at},
		{Ref: ref("a", "done"), Status: store.Completed, RetryCount: 9, At: at},
		{Ref: ref("a", "retried"), Status: store.Pending, RetryCount: 2, Error: "try later", At: at},
	}
	for i, r := range b.settle(t, outcomes...) {
		if r != store.Written {
			t.Errorf("outcome %d: %d", i, r)
		}
	}

	unsettled := func(id, text string, retries int) {
		t.Helper()
		want := claimed
		want.RetryCount, want.Error = retries, text
		want.Status, want.Claimed = store.Pending, givenBackAt(&s.layout, want.Claimed)
		if got := b.read(t, "a", id); got != want {
			t.Errorf("row %s is %+v, want %+v", id, got, want)
		}
	}
	unsettled("dead", "given up", 4)
	unsettled("retried", "try later", 2)
	done, c := b.read(t, "a", "done"), &s.layout.Columns
	if done.Status != store.Completed || done.RetryCount != 0 || done.Error != "" ||
		c.Delivered != "" && !near(done.Delivered, at) || c.Settled != "" && !near(done.Settled, at) || s.layout.Lease && !done.Claimed.IsZero() {
		t.Errorf("the delivered row is %+v", done)
	}

	// The record tells a FAILED row from one that is to be sent.
	for i, want := range []store.SettleResult{store.WasSettled, store.WasSettled, store.Written} {
		outcomes[i].At = at.Add(time.Minute) // not the same outcome once more
		if got := b.settle(t, outcomes[i])[0]; got != want {
			t.Errorf("outcome %d again: %d, want %d", i, got, want)
		}
	}
	if a := b.claim(t, store.ClaimRow{Ref: ref("a", "dead")})[0]; a.Result != store.AlreadySettled {
		t.Errorf("the FAILED row is %s", a.Result)
	}
}

// testFewTwice settles one row several times in one call.
func (s *suite) testFewTwice(t *testing.T) {
	b := s.start(t, 0)
	b.insert(t, "a", row("1"))
	b.take(t, "a", "1")
	got := b.settle(t,
		store.Outcome{Ref: ref("a", "1"), Status: store.Failed, RetryCount: 1, At: now()},
		store.Outcome{Ref: ref("a", "1"), Status: store.Pending, RetryCount: 2, At: now()},
		store.Outcome{Ref: ref("a", "1"), Status: store.Completed, At: now()},
		store.Outcome{Ref: ref("a", "1"), Status: store.Failed, RetryCount: 3, At: now()},
	)
	if want := []store.SettleResult{store.Written, store.Written, store.Written, store.WasSettled}; !slices.Equal(got, want) {
		t.Errorf("the outcomes were %d, want %d", got, want)
	}
	if found := b.read(t, "a", "1"); found.Status != store.Completed || found.RetryCount != 2 {
		t.Errorf("the row is %+v", found)
	}
}

// testFewReads: views and statuses tell delivered rows from all others.
func (s *suite) testFewReads(t *testing.T) {
	b := s.start(t, 0)
	all := rows(4)
	b.insert(t, "a", all...)
	open, taken, sent, set := all[0].ID, all[1].ID, all[2].ID, all[3].ID
	b.take(t, "a", taken, sent)
	b.settle(t, store.Outcome{Ref: ref("a", sent), Status: store.Completed, At: now()})
	b.db.Set(t, "a", set, store.Completed, now())

	if got, want := ids(b.unsettled(t, b.view(t), store.UnsettledQuery{Outbox: "a", Limit: 10})), []string{open, taken}; !slices.Equal(got, want) {
		t.Errorf("unsettled are %q, want %q", got, want)
	}
	if got, want := ids(b.delivered(t, b.view(t), store.DeliveredQuery{Outbox: "a"}, 10)), []string{sent, set}; !slices.Equal(got, want) {
		t.Errorf("delivered are %q, want %q", got, want)
	}

	ask := make([]store.ClaimRow, len(all))
	for i := range all {
		ask[i] = store.ClaimRow{Ref: ref("a", all[i].ID), WantPayload: true}
	}
	states, err := b.store.ReadStatuses(b.ctx(t), ask)
	if err != nil {
		t.Fatal(err)
	}
	settled, err := b.store.ReadSettled(b.ctx(t), ask)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []store.RowState{store.RowUnsettled, store.RowUnsettled, store.RowCompleted, store.RowCompleted} {
		payload := ""
		if want == store.RowCompleted {
			payload = all[i].Payload
		}
		if states[i].State != want || string(states[i].Payload) != payload || settled[i] != (want == store.RowCompleted) {
			t.Errorf("row %d: state %d, settled %t, payload %q; want state %d", i, states[i].State, settled[i], states[i].Payload, want)
		}
	}
}

// testFewPrune: rows are pruned by the time of their delivery, and only delivered ones.
func (s *suite) testFewPrune(t *testing.T) {
	b := s.start(t, 0)
	old := origin()
	b.insert(t, "a", row("old"), row("young"), row("failed"), row("pending"))
	b.take(t, "a", "old", "young", "failed")
	b.settle(t,
		store.Outcome{Ref: ref("a", "old"), Status: store.Completed, At: old},
		store.Outcome{Ref: ref("a", "young"), Status: store.Completed, At: old.Add(2 * time.Hour)},
		store.Outcome{Ref: ref("a", "failed"), Status: store.Failed, Error: "x", At: old},
	)
	if n := b.prune(t, "a", old.Add(time.Hour), 10); n != 1 || b.read(t, "a", "old").Exists {
		t.Errorf("%d rows were deleted", n)
	}
}

// deletes returns a layout without a state, whose delivered rows the relay deletes.
func deletes() store.Layout {
	l := stateless()
	l.Name, l.DeleteDelivered = "deleted", true
	return l
}

func deletedTests() []test {
	return append(recordedTests(), []test{
		{"a row is to be sent as long as it exists", (*suite).testDeleted, nil},
		{"check names what is missing", (*suite).testCheck, nil},
		{"a diagnosis", (*suite).testDiagnose, nil},
	}...)
}

// testDeleted: claims, outcomes and reads look a row up, because its existence is its state.
func (s *suite) testDeleted(t *testing.T) {
	b := s.start(t, 0)
	if err := b.store.Check(b.ctx(t)); err != nil {
		t.Error(err)
	}
	txn := b.insert(t, "a", row("1"), row("2"), row("3"))
	b.db.Delete(t, "a", "3")
	answers := b.claim(t,
		store.ClaimRow{Ref: ref("a", "1"), Txn: txn},
		store.ClaimRow{Ref: ref("a", "2"), Txn: txn, WantPayload: true},
		store.ClaimRow{Ref: ref("a", "3"), Txn: txn},
	)
	for i, want := range []store.ClaimResult{store.Claimed, store.Claimed, store.Gone} {
		if a := answers[i]; a.Result != want || want == store.Claimed && !a.Unwritten || i == 1 && string(a.Payload) != row("2").Payload {
			t.Errorf("claim %d: %+v, want %s", i, a, want)
		}
	}

	got := b.settle(t,
		store.Outcome{Ref: ref("a", "1"), Status: store.Completed, At: now()},
		store.Outcome{Ref: ref("a", "2"), Status: store.Failed, Error: "no", At: now()},
		store.Outcome{Ref: ref("a", "2"), Status: store.Pending, At: now()},
		store.Outcome{Ref: ref("a", "3"), Status: store.Completed, At: now()},
	)
	if want := []store.SettleResult{store.Written, store.Written, store.Written, store.WasGone}; !slices.Equal(got, want) {
		t.Errorf("outcomes %d, want %d", got, want)
	}
	if got := ids(b.unsettled(t, b.view(t), store.UnsettledQuery{Outbox: "a", Limit: 10})); !slices.Equal(got, []string{"2"}) {
		t.Errorf("rows %q are to be sent, want 2", got)
	}

	ask := []store.ClaimRow{{Ref: ref("a", "1")}, {Ref: ref("a", "2")}}
	states, err := b.store.ReadStatuses(b.ctx(t), ask)
	if err != nil || states[0].State != store.RowAbsent || states[1].State != store.RowUnsettled {
		t.Errorf("states %+v, %v", states, err)
	}
	settled, err := b.store.ReadSettled(b.ctx(t), ask)
	if err != nil || !slices.Equal(settled, []bool{true, false}) {
		t.Errorf("settled %v, %v", settled, err)
	}
}
