package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

func contextDone(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}

// testClaimAnswers claims rows with every result in one call, in another order than in the
// table.
func (s *suite) testClaimAnswers(t *testing.T) {
	b := s.start(t, 0)
	txn := b.insert(t, "a", row("free"), row("with payload"), row("completed"), row("failed"), row("deleted"))
	b.db.Delete(t, "a", "deleted")
	want := []struct {
		claim  store.ClaimRow
		result store.ClaimResult
	}{
		{store.ClaimRow{Ref: ref("a", "with payload"), Txn: txn, WantPayload: true}, store.Claimed},
		{store.ClaimRow{Ref: ref("a", "deleted"), Txn: txn, WantPayload: true}, store.Gone},
		{store.ClaimRow{Ref: ref("a", "never there"), WantPayload: true}, store.Gone},
		{store.ClaimRow{Ref: ref("a", "free"), Txn: txn}, store.Claimed},
	}
	if s.stateful() {
		b.db.Set(t, "a", "failed", store.Failed, now())
		want = append(want, struct {
			claim  store.ClaimRow
			result store.ClaimResult
		}{store.ClaimRow{Ref: ref("a", "failed"), Txn: txn, WantPayload: true}, store.AlreadySettled})
		if !s.layout.DeleteDelivered {
			b.db.Set(t, "a", "completed", store.Completed, now())
			want = slices.Insert(want, 0, struct {
				claim  store.ClaimRow
				result store.ClaimResult
			}{store.ClaimRow{Ref: ref("a", "completed")}, store.AlreadySettled})
		}
	}

	var claims []store.ClaimRow
	for _, w := range want {
		claims = append(claims, w.claim)
	}

	began := now()
	for i, a := range b.claim(t, claims...) {
		if a.Result != want[i].result {
			t.Errorf("row %q is %s, want %s", claims[i].ID, a.Result, want[i].result)
		}
		if a.Result == store.Claimed && a.Unwritten == s.claimWrites() {
			t.Errorf("row %q: want claim written %v, answer says %v", claims[i].ID, s.claimWrites(), !a.Unwritten)
		}
		payload := ""
		if a.Result == store.Claimed && claims[i].WantPayload {
			payload = row(claims[i].ID).Payload
		}
		if string(a.Payload) != payload {
			t.Errorf("row %q has payload %q, want %q", claims[i].ID, a.Payload, payload)
		}
	}

	if s.claimWrites() {
		for _, id := range []string{"free", "with payload"} {
			got := b.read(t, "a", id)
			if got.Status != store.Processing {
				t.Errorf("row %q is %s after its claim", id, got.Status)
			}
			if s.layout.Columns.Claimed != "" && !sinceThen(got.Claimed, began) {
				t.Errorf("row %q was claimed at %s", id, got.Claimed)
			}
		}
	}
}

func (s *suite) testClaimOutboxes(t *testing.T) {
	b := s.start(t, 0)
	other := row("same id")
	other.Payload = `"the other outbox"`
	b.insert(t, "a", row("same id"), row("only a"))
	b.insert(t, "b", other)
	answers := b.claim(t,
		store.ClaimRow{Ref: ref("b", "same id"), WantPayload: true},
		store.ClaimRow{Ref: ref("a", "only a"), WantPayload: true},
		store.ClaimRow{Ref: ref("b", "only a"), WantPayload: true},
		store.ClaimRow{Ref: ref("a", "same id"), WantPayload: true},
	)

	for i, want := range []string{other.Payload, row("only a").Payload, "", row("same id").Payload} {
		if string(answers[i].Payload) != want {
			t.Errorf("answer %d is %s with %q, want %q", i, answers[i].Result, answers[i].Payload, want)
		}
	}

	if answers[2].Result != store.Gone {
		t.Errorf("row of the other outbox: got %s, want gone", answers[2].Result)
	}

	_, err := b.store.Claim(b.ctx(t), b.epoch, now(), []store.ClaimRow{{Ref: ref("c", "1")}})
	if err == nil {
		t.Error("claim of an unknown outbox succeeded")
	}
}

// testClaimOpenTxn claims a row before its transaction commits.
func (s *suite) testClaimOpenTxn(t *testing.T) {
	b := s.start(t, 0)
	txn, commit := b.db.Begin(t, "a", row("1"))
	defer commit()
	if txn == 0 {
		t.Skip("this database captures no row before a claim can see it")
	}

	claim := store.ClaimRow{Ref: ref("a", "1"), Txn: txn, WantPayload: true}
	if a := b.claim(t, claim)[0]; a.Result != store.NotYetVisible {
		t.Fatalf("row of an open transaction: got %s, want not_yet_visible", a.Result)
	}

	if claim.WantPayload = false; !s.claimReadsRows() {
		// The captured row is enough.
		if a := b.claim(t, claim)[0]; a.Result != store.Claimed {
			t.Fatalf("without reading the row: got %s, want claimed", a.Result)
		}
	}

	commit()
	claim.WantPayload = true
	if a := b.claim(t, claim)[0]; a.Result != store.Claimed || string(a.Payload) != row("1").Payload {
		t.Fatalf("committed row: got %s with %q", a.Result, a.Payload)
	}
}

func (s *suite) testClaimTwice(t *testing.T) {
	b := s.start(t, 0)
	b.insert(t, "a", row("1"))
	// A repeated claim is the leader's own, for example after a lost answer.
	for range 2 {
		answers := b.claim(t,
			store.ClaimRow{Ref: ref("a", "1")},
			store.ClaimRow{Ref: ref("a", "1"), WantPayload: true},
		)
		if answers[0].Result != store.Claimed || answers[1].Result != store.Claimed {
			t.Fatalf("one row twice in a call: got %s and %s, want claimed", answers[0].Result, answers[1].Result)
		}
		if string(answers[1].Payload) != row("1").Payload {
			t.Fatalf("the payload is %q", answers[1].Payload)
		}
	}
}

func (s *suite) testClaimMany(t *testing.T) {
	b := s.start(t, 0)
	const n = 5000
	list := rows(n)
	txn := b.insert(t, "a", list...)
	claims := make([]store.ClaimRow, 0, n+n/10)
	for i, r := range list {
		claims = append(claims, store.ClaimRow{Ref: ref("a", r.ID), Txn: txn, WantPayload: true})
		if i%10 == 0 {
			claims = append(claims, store.ClaimRow{Ref: ref("a", fmt.Sprintf("no%d", i)), Txn: txn, WantPayload: true})
		}
	}

	started := time.Now()
	answers := b.claim(t, claims...)
	t.Logf("%d rows claimed in %s", len(claims), time.Since(started))
	for i, a := range answers {
		want, payload := store.Claimed, row(claims[i].ID).Payload
		if claims[i].ID[0] == 'n' {
			want, payload = store.Gone, ""
		}
		if a.Result != want || string(a.Payload) != payload {
			t.Fatalf("row %q is %s with %q", claims[i].ID, a.Result, a.Payload)
		}
	}

	outcomes := make([]store.Outcome, n)
	for i, r := range list {
		outcomes[i] = store.Outcome{Ref: ref("a", r.ID), Status: store.Completed, At: now()}
	}

	started = time.Now()
	for i, result := range b.settle(t, outcomes...) {
		if result != store.Written {
			t.Fatalf("the outcome of row %q: %d", outcomes[i].ID, result)
		}
	}

	t.Logf("%d rows settled in %s", n, time.Since(started))
}

// testClaimHeld: with a takeover timeout, a recent claim of another processor holds the
// row, an expired one does not, and the leader recognizes its own claim.
func (s *suite) testClaimHeld(t *testing.T) {
	const timeout = time.Hour
	b := s.start(t, timeout)
	b.insert(t, "a", row("fresh"), row("expired"), row("mine"), row("free"))
	theirs := now()
	written := func(at time.Time) time.Time {
		if s.layout.Lease {
			return at.Add(timeout)
		}
		return at
	}
	b.db.Set(t, "a", "fresh", store.Processing, written(theirs))
	b.db.Set(t, "a", "expired", store.Processing, written(theirs.Add(-timeout-time.Minute)))

	mine := time.Now().Add(-time.Minute) // full resolution
	first, err := b.store.Claim(b.ctx(t), b.epoch, mine, []store.ClaimRow{{Ref: ref("a", "mine")}})
	if err != nil || first[0].Result != store.Claimed {
		t.Fatalf("the first claim: %v, %v", first, err)
	}
	if got := b.read(t, "a", "mine"); !near(got.Claimed, written(mine)) {
		t.Errorf("claim time is %s, want %s", got.Claimed, written(mine))
	}

	answers := b.claim(t,
		store.ClaimRow{Ref: ref("a", "fresh")},
		store.ClaimRow{Ref: ref("a", "expired")},
		store.ClaimRow{Ref: ref("a", "mine"), OwnClaimAt: mine},
		store.ClaimRow{Ref: ref("a", "free")},
		store.ClaimRow{Ref: ref("b", "absent")},
	)

	for i, want := range []store.ClaimResult{store.Held, store.Claimed, store.Claimed, store.Claimed, store.Gone} {
		if answers[i].Result != want {
			t.Errorf("answer %d is %s, want %s", i, answers[i].Result, want)
		}
	}

	if until := answers[0].Until; until.Sub(theirs.Add(timeout)).Abs() > 10*time.Second {
		t.Errorf("held until %s, want %s", until, theirs.Add(timeout))
	}
	if got := b.read(t, "a", "fresh"); !near(got.Claimed, written(theirs)) {
		t.Errorf("other processor's claim time changed to %s", got.Claimed)
	}

	// A new leader does not know the claims of this one. A row that was given back is free.
	b.settle(t, store.Outcome{Ref: ref("a", "free"), Status: store.Pending, At: now()})
	b.epoch = b.lead(t, b.store)
	for id, want := range map[string]store.ClaimResult{"mine": store.Held, "free": store.Claimed} {
		if a := b.claim(t, store.ClaimRow{Ref: ref("a", id)})[0]; a.Result != want {
			t.Errorf("old leader's row %q: got %s, want %s", id, a.Result, want)
		}
	}
}

func (s *suite) testClaimAtOnce(t *testing.T) {
	b := s.start(t, 0)
	b.insert(t, "a", row("1"))
	b.db.Set(t, "a", "1", store.Processing, now())
	b.take(t, "a", "1")
}

// testClaimUnwritten: without written claims, Claim trusts the log for captured rows and
// reads the table for rows that came from it.
func (s *suite) testClaimUnwritten(t *testing.T) {
	b := s.start(t, 0)
	txn := b.insert(t, "a", row("free"), row("cancelled"))
	b.db.Set(t, "a", "cancelled", store.Failed, now())
	before := b.read(t, "a", "free")
	for range 2 { // as after a lost answer
		answers := b.claim(t,
			store.ClaimRow{Ref: ref("a", "free"), Txn: txn},
			store.ClaimRow{Ref: ref("a", "free"), Txn: txn, WantPayload: true},
			store.ClaimRow{Ref: ref("a", "cancelled"), Txn: txn, WantPayload: true},
			store.ClaimRow{Ref: ref("a", "cancelled")},
			store.ClaimRow{Ref: ref("b", "never there")},
		)
		for i, want := range []store.ClaimResult{store.Claimed, store.Claimed, store.AlreadySettled, store.AlreadySettled, store.Gone} {
			if answers[i].Result != want {
				t.Errorf("answer %d is %s, want %s", i, answers[i].Result, want)
			}
		}
		if txn == 0 {
			continue // no row is known to come from the log
		}
		if a := b.claim(t, store.ClaimRow{Ref: ref("a", "cancelled"), Txn: txn})[0]; a.Result != store.Claimed {
			t.Errorf("captured row: got %s, want claimed", a.Result)
		}
	}

	if after := b.read(t, "a", "free"); after != before {
		t.Errorf("a claim changed %+v into %+v", before, after)
	}
}

// testReadSettled reads which rows of both outboxes need no delivery, in one call, and checks that
// it changes no row.
func (s *suite) testReadSettled(t *testing.T) {
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

	if s.claimWrites() {
		if got := b.read(t, "a", "free"); got.Status != store.Pending {
			t.Errorf("row after ReadSettled: got %s, want PENDING", got.Status)
		}
	}

	if _, err := b.store.ReadSettled(b.ctx(t), []store.ClaimRow{{Ref: ref("c", "1")}}); err == nil {
		t.Error("read of an unknown outbox succeeded")
	}
	if settled, err := b.store.ReadSettled(b.ctx(t), nil); err != nil || len(settled) != 0 {
		t.Errorf("no rows: %v, %v", settled, err)
	}
}

// testReadSettledOpenTxn reads a row before its transaction commits: it must not be reported as
// gone.
func (s *suite) testReadSettledOpenTxn(t *testing.T) {
	b := s.start(t, 0)
	txn, commit := b.db.Begin(t, "a", row("1"))
	defer commit()
	if txn == 0 {
		t.Skip("this database captures no row before a claim can see it")
	}
	settled, err := b.store.ReadSettled(b.ctx(t), []store.ClaimRow{{Ref: ref("a", "1"), Txn: txn}})
	if err != nil || settled[0] {
		t.Fatalf("the row of an open transaction: settled %v, %v", settled, err)
	}
}

// testReadUntried reads which rows of both outboxes nobody tried, in one call.
func (s *suite) testReadUntried(t *testing.T) {
	b := s.start(t, 0)
	b.insert(t, "a", row("free"), row("claimed"), row("retried"), row("completed"), row("failed"), row("deleted"))
	b.insert(t, "b", row("free"))
	b.db.Delete(t, "a", "deleted")
	rows := []store.ClaimRow{
		{Ref: ref("b", "free")}, {Ref: ref("a", "free")}, {Ref: ref("a", "deleted")}, {Ref: ref("a", "absent")}, {Ref: ref("a", "free")},
	}
	want := []bool{s.claimWrites(), s.claimWrites(), false, false, false}
	if s.claimWrites() {
		b.claim(t, store.ClaimRow{Ref: ref("a", "claimed")}, store.ClaimRow{Ref: ref("a", "retried")})
		b.settle(t, store.Outcome{Ref: ref("a", "retried"), Status: store.Pending, RetryCount: 1, At: now(), Error: "later"})
		b.db.Set(t, "a", "failed", store.Failed, now())
		rows = append(rows, store.ClaimRow{Ref: ref("a", "claimed")}, store.ClaimRow{Ref: ref("a", "retried")}, store.ClaimRow{Ref: ref("a", "failed")})
		want = append(want, true, s.layout.Columns.RetryCount == "", false)
		if !s.layout.DeleteDelivered {
			b.db.Set(t, "a", "completed", store.Completed, now())
			rows, want = append(rows, store.ClaimRow{Ref: ref("a", "completed")}), append(want, false)
		}
	}
	untried, err := b.store.ReadUntried(b.ctx(t), rows)
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		if untried[i] != want[i] {
			t.Errorf("row %q of outbox %s: untried %v, want %v", rows[i].ID, rows[i].Outbox, untried[i], want[i])
		}
	}
	if s.claimWrites() {
		if got := b.read(t, "a", "free"); got.Status != store.Pending {
			t.Errorf("row after ReadUntried: got %s, want PENDING", got.Status)
		}
	}
	if _, err := b.store.ReadUntried(b.ctx(t), []store.ClaimRow{{Ref: ref("c", "1")}}); err == nil {
		t.Error("rows of an unknown outbox: no error")
	}
	if untried, err := b.store.ReadUntried(b.ctx(t), nil); err != nil || len(untried) != 0 {
		t.Errorf("no rows: %v, %v", untried, err)
	}
}
