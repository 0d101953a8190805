package storetest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// The FAILED rows of a table that cannot store FAILED are in the relay's own records. Where
// only the log has the rows, the records have their content too.

func recordedTests() []test {
	return []test{
		{"dead letters by record", (*suite).testRecordedLetters, nil},
		{"requeue of a recorded row", (*suite).testRecordedRequeue, nil},
		{"discard of a recorded row", (*suite).testRecordedDiscard, nil},
		{"a recorded row that its table lost", (*suite).testRecordedLost, nil},
		{"a recorded row blocks its lane", (*suite).testRecordedBlock, nil},
		{"an old epoch records nothing", (*suite).testRecordedFence, nil},
	}
}

// failure is a row that fails, as captured, with its outcome.
type failure struct {
	row     store.Item
	outcome store.Outcome
}

// recorded inserts rows, spills them and makes them FAILED, one minute after the other and in
// reverse order.
func (b *bench) recorded(t *testing.T, ids ...string) (all []failure) {
	t.Helper()
	var outcomes []store.Outcome
	at := origin().Add(time.Hour)
	for i, id := range slices.Backward(ids) {
		r := row(id)
		r.Group = store.GroupOf("g " + id)
		b.insert(t, "a", r)
		it := capturedRow(lane("a", "EVENT", r.Group), id, store.NewSeq(b.epoch, int64(i+1)))
		it.Payload = []byte(r.Payload)
		it.PayloadSize, it.Txn, it.RetryCount = len(it.Payload), 0, 3
		it.Attributes = store.Attributes{{Name: store.AttributeKind, Value: "Order"}, {Name: "tenant", Value: "t\u00fc"}}
		b.spill(t, it)
		at = at.Add(time.Minute)
		outcomes = append(outcomes, store.Outcome{
			Ref: it.Ref, Status: store.Failed, RetryCount: 3, Error: "refused " + id, Reason: store.ReasonBadRequest, At: at,
			Row: &it, SpilledSeq: it.Seq,
		})
		all = append(all, failure{it, outcomes[len(outcomes)-1]})
	}
	b.take(t, "a", ids...)
	for i, r := range b.settle(t, outcomes...) {
		if r != store.Written {
			t.Errorf("FAILED of row %s: %d", outcomes[i].ID, r)
		}
	}
	return all
}

// wantFailed checks every reader of the rows of recorded: their table shows none of them.
func (b *bench) wantFailed(t *testing.T, what string, st Store, failed bool, ids ...string) {
	t.Helper()
	var ask []store.ClaimRow
	for _, id := range ids {
		ask = append(ask, store.ClaimRow{Ref: ref("a", id), WantPayload: true})
	}
	settled, err := st.ReadSettled(b.ctx(t), ask)
	if err != nil {
		t.Fatal(err)
	}
	states, err := st.ReadStatuses(b.ctx(t), ask)
	if err != nil {
		t.Fatal(err)
	}
	for i := range ask {
		if settled[i] != failed || (states[i].State == store.RowFailed) != failed {
			t.Errorf("%s: row %s is settled: %t, in state %d; want FAILED: %t", what, ids[i], settled[i], states[i].State, failed)
		}
	}
	v, err := st.View(b.ctx(t), "")
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if b.layout.LogOnly() {
		return
	}
	shown := b.unsettled(t, v, store.UnsettledQuery{Outbox: "a", Limit: 100})
	for _, id := range ids {
		if slices.ContainsFunc(shown, func(it store.Item) bool { return it.ID == id }) == failed {
			t.Errorf("%s: a view shows row %s: %t", what, id, failed)
		}
	}
}

// wantClaims claims rows and compares the results.
func (b *bench) wantClaims(t *testing.T, what string, want store.ClaimResult, ids ...string) {
	t.Helper()
	var rows []store.ClaimRow
	for _, id := range ids {
		rows = append(rows, store.ClaimRow{Ref: ref("a", id)})
	}
	for i, a := range b.claim(t, rows...) {
		if a.Result != want || want == store.Claimed && a.RetryCount != 0 {
			t.Errorf("%s: row %s is %s after %d retries, want %s", what, ids[i], a.Result, a.RetryCount, want)
		}
	}
}

// testRecordedLetters: the records tell which rows FAILED, in every process and to the next
// leader, in the order of their failures.
func (s *suite) testRecordedLetters(t *testing.T) {
	b := s.start(t, 0)
	all := b.recorded(t, "1", "2", "3")
	b.insert(t, "a", row("open"))
	b.wantFailed(t, "leader", b.store, true, "1", "2", "3")
	b.wantClaims(t, "leader", store.AlreadySettled, "1", "2", "3")
	b.wantClaims(t, "leader", store.Claimed, "open")
	for _, f := range all {
		b.wantLane(t, "spilled copies", f.row.Lane())
	}
	if got := b.settle(t, all[0].outcome)[0]; got != store.WasSettled {
		t.Errorf("FAILED again: %d", got)
	}

	group := store.GroupOf("g 2")
	for _, c := range []struct {
		filter store.DeadLetterFilter
		want   []string
	}{
		{store.DeadLetterFilter{}, []string{"3", "2", "1"}},
		{store.DeadLetterFilter{IDs: []string{"1", "open", "2", "1"}}, []string{"2", "1"}},
		{store.DeadLetterFilter{Kind: "Order", Group: &group}, []string{"2"}},
		{store.DeadLetterFilter{Kind: "EVENT"}, nil},
		{store.DeadLetterFilter{Error: "refused 3"}, []string{"3"}},
		{store.DeadLetterFilter{Since: all[1].outcome.At, Until: all[2].outcome.At}, []string{"2"}},
	} {
		c.filter.Outbox = "a"
		got := letterIDs(b.failed(t, c.filter, 10, false))
		if n := b.count(t, c.filter); n != len(c.want) || !slices.Equal(got, c.want) && len(c.want) > 0 {
			t.Errorf("%+v selects %q and counts %d, want %q", c.filter, got, n, c.want)
		}
	}
	if got := letterIDs(b.failed(t, store.DeadLetterFilter{Outbox: "a"}, 2, false)); !slices.Equal(got, []string{"3", "2"}) {
		t.Errorf("the first two are %q", got)
	}

	other := b.open(t, 0) // as the command deadletters
	letters, err := other.Failed(b.ctx(t), store.DeadLetterFilter{Outbox: "a"}, 10, true)
	if err != nil || len(letters) != len(all) {
		t.Fatalf("%d rows, %v", len(letters), err)
	}
	for i, d := range letters {
		want := store.DeadLetter{
			Ref: all[i].row.Ref, Kind: "Order", Group: all[i].row.Group, RetryCount: 3, Error: all[i].outcome.Error,
			FailedAt: d.FailedAt, PayloadSize: all[i].row.PayloadSize,
		}
		payload := d.Payload
		if d.Payload = nil; d.Ref != want.Ref || d.Kind != want.Kind || d.Group != want.Group || d.RetryCount != want.RetryCount ||
			d.Error != want.Error || d.PayloadSize != want.PayloadSize || !d.FailedAt.Equal(all[i].outcome.At) || string(payload) != string(all[i].row.Payload) {
			t.Errorf("letter %d is %+v with payload %q, want %+v at %s with %q", i, d, payload, want, all[i].outcome.At, all[i].row.Payload)
		}
	}
	each := 0
	if err := other.EachFailed(b.ctx(t), store.DeadLetterFilter{Outbox: "a"}, func(*store.DeadLetter) { each++ }); err != nil || each != 3 {
		t.Errorf("EachFailed: %d rows, %v", each, err)
	}
	b.epoch, b.store = b.lead(t, other), other
	b.wantFailed(t, "next leader", b.store, true, "1", "2", "3")
	b.wantClaims(t, "next leader", store.AlreadySettled, "1", "2", "3")
}

// testRecordedRequeue: a requeued row is sent like an untried one. A row that only the log has
// is spilled again, with its content.
func (s *suite) testRecordedRequeue(t *testing.T) {
	b := s.start(t, 0)
	all := b.recorded(t, "1", "2", "3")
	items, err := b.store.Requeue(b.ctx(t), b.epoch, store.DeadLetterFilter{Outbox: "a", IDs: []string{"1", "2"}}, 10)
	if err != nil || len(items) != 2 {
		t.Fatalf("requeued %d rows, %v", len(items), err)
	}
	b.wantFailed(t, "requeued", b.store, false, "1", "2")
	b.wantFailed(t, "left", b.store, true, "3")
	b.wantClaims(t, "requeued", store.Claimed, "1", "2")
	if found := b.read(t, "a", "1"); found.RetryCount != 0 || found.Error != "" {
		t.Errorf("the requeued row is %+v", found)
	}
	for i := range items {
		it := &items[i]
		want := all[slices.IndexFunc(all, func(f failure) bool { return f.row.Ref == it.Ref })].row
		if it.Lane() != want.Lane() || it.RetryCount != 0 || it.PayloadSize != want.PayloadSize {
			t.Errorf("the requeued row is %+v, want %+v", it, want)
		}
		if !s.layout.LogOnly() {
			continue
		}
		if it.Seq != want.Seq || string(it.Payload) != string(want.Payload) {
			t.Errorf("the requeued row is %+v, want %+v", it, want)
		}
		want.RetryCount = 0
		b.wantLane(t, "requeued", want.Lane(), want)
		if !slices.Equal(it.Attributes, want.Attributes) {
			t.Errorf("the attributes are %v, want %v", it.Attributes, want.Attributes)
		}
	}

	again := all[slices.IndexFunc(all, func(f failure) bool { return f.row.ID == "1" })]
	if got := b.settle(t, again.outcome)[0]; got != store.Written {
		t.Errorf("FAILED once more: %d", got)
	}
	b.wantFailed(t, "FAILED once more", b.store, true, "1", "3")
	b.wantLane(t, "FAILED once more", again.row.Lane())
	b.epoch = b.lead(t, b.store)
	b.wantFailed(t, "next leader", b.store, true, "1", "3")
	b.wantClaims(t, "next leader", store.Claimed, "2")
}

// testRecordedDiscard: a discarded row leaves the records, and the table that has it.
func (s *suite) testRecordedDiscard(t *testing.T) {
	b := s.start(t, 0)
	b.recorded(t, "1", "2", "3")
	b.insert(t, "a", row("open"))
	refs, err := b.store.Discard(b.ctx(t), b.epoch, store.DeadLetterFilter{Outbox: "a", IDs: []string{"1", "3", "open"}}, 10)
	if want := []store.Ref{ref("a", "3"), ref("a", "1")}; err != nil || len(refs) != 2 || !slices.Contains(refs, want[0]) || !slices.Contains(refs, want[1]) {
		t.Fatalf("discarded %v, %v; want %v", refs, err, want)
	}
	for id, kept := range map[string]bool{"1": s.layout.LogOnly(), "2": true, "3": s.layout.LogOnly(), "open": true} {
		if b.read(t, "a", id).Exists != kept {
			t.Errorf("row %s is in its table: %t", id, !kept)
		}
	}
	if got := letterIDs(b.failed(t, store.DeadLetterFilter{Outbox: "a"}, 10, false)); !slices.Equal(got, []string{"2"}) {
		t.Errorf("dead letters are %q", got)
	}
	b.wantFailed(t, "left", b.store, true, "2")
}

// testRecordedLost: a row that another program deleted or completed cannot be requeued, and
// its record does not stay. A row that only the log has needs no table.
func (s *suite) testRecordedLost(t *testing.T) {
	b := s.start(t, 0)
	b.recorded(t, "deleted", "sent", "kept")
	b.db.Delete(t, "a", "deleted")
	want := 1
	switch {
	case s.layout.LogOnly():
		want = 2
	case s.stateful():
		b.db.Set(t, "a", "sent", store.Completed, now())
	default:
		b.db.Delete(t, "a", "sent")
	}
	items, err := b.store.Requeue(b.ctx(t), b.epoch, store.DeadLetterFilter{Outbox: "a", IDs: []string{"deleted", "kept"}}, 10)
	if err != nil || len(items) != want {
		t.Errorf("requeued %d rows, %v; want %d", len(items), err, want)
	}
	refs, err := b.store.Discard(b.ctx(t), b.epoch, store.DeadLetterFilter{Outbox: "a"}, 10)
	if err != nil || len(refs) != want-1 {
		t.Errorf("discarded %v, %v; want %d", refs, err, want-1)
	}
	if n := b.count(t, store.DeadLetterFilter{Outbox: "a"}); n != 0 {
		t.Errorf("%d records stayed", n)
	}
}

// testRecordedBlock: a recorded row holds its lane until it is requeued.
func (s *suite) testRecordedBlock(t *testing.T) {
	b := s.start(t, 0)
	b.insert(t, "a", row("1"))
	b.take(t, "a", "1")
	o := store.Outcome{Ref: ref("a", "1"), Status: store.Failed, RetryCount: 3, Error: "refused", At: now(), Row: &store.Item{Ref: ref("a", "1"), Seq: 7}}
	hold := blockLane(&o, lane("a", "EVENT", store.GroupOf("g")))
	for range 2 { // the second time as after a lost answer
		b.settle(t, o)
		b.wantHolds(t, "FAILED", b.store, hold)
	}
	if s.layout.LogOnly() {
		if refs, err := b.store.Discard(b.ctx(t), b.epoch, store.DeadLetterFilter{Outbox: "a"}, 1); err != nil || len(refs) != 1 {
			t.Errorf("discarded %v, %v", refs, err)
		}
	} else if items, err := b.store.Requeue(b.ctx(t), b.epoch, store.DeadLetterFilter{Outbox: "a"}, 1); err != nil || len(items) != 1 {
		t.Errorf("requeued %v, %v", items, err)
	}
	b.wantHolds(t, "resolved", b.store)
}

// testRecordedFence: a deposed leader records, requeues and discards nothing.
func (s *suite) testRecordedFence(t *testing.T) {
	b := s.start(t, 0)
	all := b.recorded(t, "1")
	b.insert(t, "a", row("2"))
	old, epoch := b.store, b.epoch
	b.store = b.open(t, 0)
	b.epoch = b.lead(t, b.store)
	late := all[0].outcome
	late.ID, late.SpilledSeq = "2", 0
	f := store.DeadLetterFilter{Outbox: "a"}
	for what, err := range map[string]error{
		"settle":  second(old.Settle(b.ctx(t), epoch, []store.Outcome{late})),
		"requeue": second(old.Requeue(b.ctx(t), epoch, f, 1)),
		"discard": second(old.Discard(b.ctx(t), epoch, f, 1)),
	} {
		if !errors.Is(err, store.ErrNotLeader) {
			t.Errorf("%s by an old epoch: %v", what, err)
		}
	}
	b.wantFailed(t, "new leader", b.store, true, "1")
	if got := letterIDs(b.failed(t, f, 10, false)); !slices.Equal(got, []string{"1"}) {
		t.Errorf("dead letters are %q", got)
	}
}
