package storetest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

func (b *bench) requeue(t *testing.T, f store.DeadLetterFilter, limit int) []store.Item {
	t.Helper()
	items, err := b.store.Requeue(b.ctx(t), b.epoch, f, limit)
	if err != nil {
		t.Fatal(err)
	}
	return items
}

// testRequeue requeues the same rows with every filter in turn, and compares the result
// with the count.
func (s *suite) testRequeue(t *testing.T) {
	b := s.start(t, 0)
	letters := oddLetters()
	b.fail(t, "a", letters...)
	b.failOthers(t)
	before := map[string]RowContent{}
	for _, id := range []string{"pending", "taken", "completed"} { // not FAILED
		before[id] = b.read(t, "a", id)
	}
	for _, l := range letters {
		before[l.ID] = b.read(t, "a", l.ID)
	}

	for _, f := range s.filters() {
		f.filter.Outbox = "a"
		var want []letterRow
		for _, l := range letters {
			if f.chosen(l) {
				want = append(want, l)
			}
		}

		counted := b.count(t, f.filter)
		began := time.Now()
		items := b.requeue(t, f.filter, 1<<20)
		if len(items) != counted || len(items) != len(want) {
			t.Fatalf("%+v: %d requeued, %d counted, want %d", f.filter, len(items), counted, len(want))
		}

		b.checkRequeued(t, want, items, before, began)
		b.refail(t, letters, items)
		for _, it := range items {
			before[it.ID] = b.read(t, "a", it.ID)
		}
	}

	for id, was := range before {
		if after := b.read(t, "a", id); after != was {
			t.Errorf("row %s changed without being chosen, from %+v to %+v", id, was, after)
		}
	}

	if b.read(t, "b", "id z").Status != store.Failed {
		t.Error("a row of the other outbox was requeued")
	}
}

func (b *bench) checkRequeued(t *testing.T, want []letterRow, items []store.Item, before map[string]RowContent, began time.Time) {
	t.Helper()
	for i, l := range want {
		it, kind := items[i], "EVENT"
		if b.layout.Columns.Kind != "" {
			kind = l.Kind
		}
		if it.Captured.Before(began) || it.Captured.After(time.Now()) {
			t.Errorf("row %s was captured at %s", it.ID, it.Captured)
		}
		it.Captured = time.Time{}
		whole := store.Item{Ref: ref("a", l.ID), Kind: kind, Group: l.Group, PayloadSize: len(l.Payload)}
		if it.Payload != nil || fmt.Sprintf("%+v", it) != fmt.Sprintf("%+v", whole) {
			t.Errorf("requeued %+v, want %+v", it, whole)
		}
		got := b.read(t, "a", l.ID)
		if got.Status != store.Pending || got.RetryCount != 0 || got.Error != "" || !got.Settled.IsZero() {
			t.Errorf("row %s was %+v and is %+v", l.ID, before[l.ID], got)
		}
	}
}

// refail makes requeued rows FAILED again with their original errors.
func (b *bench) refail(t *testing.T, letters []letterRow, items []store.Item) {
	t.Helper()
	b.take(t, "a", ids(items)...) // an earlier claim must not hold the rows
	var outcomes []store.Outcome
	for _, it := range items {
		l := letters[slices.IndexFunc(letters, func(l letterRow) bool { return l.ID == it.ID })]
		outcomes = append(outcomes, store.Outcome{Ref: it.Ref, Status: store.Failed, RetryCount: 2, Error: l.text, At: l.at})
	}
	b.settle(t, outcomes...)
}

// testRequeueTakeover: an old claim does not hold a requeued row.
func (s *suite) testRequeueTakeover(t *testing.T) {
	b := s.start(t, time.Hour)
	b.fail(t, "a", letterRow{row("1"), "x", now()})
	b.epoch = b.lead(t, b.store)
	b.requeue(t, store.DeadLetterFilter{Outbox: "a"}, 1)
	b.take(t, "a", "1")
}

// testDiscard deletes only the selected rows.
func (s *suite) testDiscard(t *testing.T) {
	b := s.start(t, 0)
	letters := oddLetters()
	b.fail(t, "a", letters...)
	b.failOthers(t)
	group := store.GroupOf("a")
	for _, c := range []struct {
		filter store.DeadLetterFilter
		limit  int
		want   []string
	}{
		{store.DeadLetterFilter{Outbox: "a", IDs: []string{"id x", "pending", "taken", "completed", "none"}}, 9, []string{"id x"}},
		{store.DeadLetterFilter{Outbox: "a", Group: &group}, 9, []string{"id w", "id t"}},
		{store.DeadLetterFilter{Outbox: "a"}, 2, []string{"id z", "id y"}},
		{store.DeadLetterFilter{Outbox: "a"}, 100, []string{"id v", "id u", "id s", "id r", "id q", "id p", "id o"}},
		{store.DeadLetterFilter{Outbox: "a"}, 100, nil},
	} {
		refs, err := b.store.Discard(b.ctx(t), b.epoch, c.filter, c.limit)
		if err != nil {
			t.Fatal(err)
		}
		var want []store.Ref
		for _, id := range c.want {
			want = append(want, ref("a", id))
		}
		if !slices.Equal(refs, want) {
			t.Errorf("%+v: discarded %v, want %v", c.filter, refs, want)
		}
		for _, r := range refs {
			if b.read(t, "a", r.ID).Exists {
				t.Errorf("row %s is still there", r.ID)
			}
		}
	}

	for _, id := range []string{"pending", "taken"} {
		if !b.read(t, "a", id).Exists {
			t.Errorf("row %s was not FAILED and is gone", id)
		}
	}

	if b.count(t, store.DeadLetterFilter{Outbox: "b"}) != 1 {
		t.Error("a row of the other outbox is gone")
	}
}

// testLettersMany requeues 5000 rows in batches, in order, while another store counts.
func (s *suite) testLettersMany(t *testing.T) {
	b := s.start(t, 0)
	const n, batch = 5000, 700
	var letters []letterRow
	for i, r := range rows(n) {
		r.Group = store.GroupOf(fmt.Sprint(i % 3))
		letters = append(letters, letterRow{r, fmt.Sprintf("error %d", i%10), now()})
	}

	b.fail(t, "a", letters...)
	group := store.GroupOf("1")
	f := store.DeadLetterFilter{Outbox: "a", Group: &group}
	var want, got []string
	for i, l := range letters {
		if i%3 == 1 {
			want = append(want, l.ID)
		}
	}

	other := b.open(t, 0)
	started := time.Now()
	for {
		left, err := other.CountFailed(b.ctx(t), f)
		if err != nil || left != len(want)-len(got) {
			t.Fatalf("%d are left, want %d, %v", left, len(want)-len(got), err)
		}
		items := b.requeue(t, f, batch)
		got = append(got, ids(items)...)
		if len(items) < batch {
			break
		}
	}

	t.Logf("%d of %d rows requeued in %s", len(got), n, time.Since(started))
	if !slices.Equal(got, want) {
		t.Errorf("%d rows were requeued, in another order than the %d wanted", len(got), len(want))
	}

	f = store.DeadLetterFilter{Outbox: "a"}
	f.IDs = want // no longer FAILED
	if items := b.requeue(t, f, n); len(items) != 0 {
		t.Errorf("%d rows were requeued twice", len(items))
	}

	f.IDs = nil
	if refs, err := b.store.Discard(b.ctx(t), b.epoch, f, n); err != nil || len(refs) != n-len(want) {
		t.Errorf("%d were discarded, want %d, %v", len(refs), n-len(want), err)
	}
	if left := b.count(t, f); left != 0 {
		t.Errorf("%d are left", left)
	}

	b.take(t, "a", want...)
}

// testFailedArchive: a discard moves FAILED rows into the table of outbox b, as they are, and no
// others. Rows that it does not take stay dead letters.
func (s *suite) testFailedArchive(t *testing.T) {
	b := s.start(t, 0)
	b.fail(t, "a", letterRow{row("1"), "x", now()}, letterRow{row("2"), "y", now()}, letterRow{row("3"), "z", now()})
	b.insert(t, "a", row("open"))
	box := b.boxes[0]
	box.FailedArchiveSchema, box.FailedArchive = b.boxes[1].Schema, b.boxes[1].Table
	moves := *b
	moves.boxes = []store.Outbox{box}
	moves.store = moves.open(t, 0)
	if err := moves.store.Check(b.ctx(t)); err != nil {
		t.Errorf("check: %v", err)
	}
	moves.epoch = b.lead(t, moves.store)

	all := store.DeadLetterFilter{Outbox: "a"}
	if _, replaces := b.db.(Schemaless); !replaces {
		b.insert(t, "b", row("2"))
		refs, err := moves.store.Discard(b.ctx(t), moves.epoch, all, 10)
		if !errors.As(err, new(*store.RefusedError)) || len(refs) > 0 {
			t.Errorf("discarded %v, %v; want a refusal", refs, err)
		}
		if got := letterIDs(moves.failed(t, all, 10, false)); len(got) != 3 {
			t.Errorf("after a refusal the dead letters are %q, want 3", got)
		}
		b.db.Delete(t, "b", "2")
	}
	before := map[string]RowContent{}
	for _, id := range []string{"1", "2", "3"} {
		before[id] = b.read(t, "a", id)
	}
	for _, f := range []store.DeadLetterFilter{{Outbox: "a", IDs: []string{"3", "open"}}, all} {
		if _, err := moves.store.Discard(b.ctx(t), moves.epoch, f, 10); err != nil {
			t.Fatal(err)
		}
		if f.IDs != nil && (!b.read(t, "a", "1").Exists || b.read(t, "b", "1").Exists) {
			t.Error("a row that was not named has moved")
		}
	}
	for id, was := range before {
		if b.read(t, "a", id).Exists {
			t.Errorf("row %s is still there", id)
		}
		if got := b.read(t, "b", id); !reflect.DeepEqual(got, was) {
			t.Errorf("row %s moved: got %+v, want %+v", id, got, was)
		}
	}
	if got := moves.failed(t, all, 10, false); len(got) > 0 || !b.read(t, "a", "open").Exists || b.read(t, "b", "open").Exists {
		t.Errorf("dead letters are %+v, or the open row moved", got)
	}
}
