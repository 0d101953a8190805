package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// view opens a view that is closed when the test ends.
func (b *bench) view(t *testing.T) store.View {
	t.Helper()
	v, err := b.store.View(b.ctx(t), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v
}

func (b *bench) unsettled(t *testing.T, v store.View, q store.Unsettled) []store.Item {
	t.Helper()
	items, err := v.Unsettled(b.ctx(t), q)
	if err != nil {
		t.Fatal(err)
	}
	return items
}

func ids(items []store.Item) []string {
	list := []string{}
	for i := range items {
		list = append(list, items[i].ID)
	}
	return list
}

func (s *suite) testViewOrder(t *testing.T) {
	b := s.start(t, 0)
	mk := func(id string, after int, g store.Group, payload string) Row {
		return Row{ID: id, Kind: "KIND-" + id, Group: g, Payload: payload, Created: origin().Add(time.Duration(after) * time.Second)}
	}
	b.insert(t, "a",
		mk("third", 3, store.GroupOf(""), "3"),
		mk("first", 1, store.Group{}, `{"a": [1, "ü"]}`),
		mk("same-a", 2, store.GroupOf("g"), "222"),
		mk("same-b", 2, store.GroupOf("g"), "22"),
		mk("completed", 0, store.GroupOf("g"), "0"),
		mk("failed", 0, store.GroupOf("g"), "0"),
		mk("taken", 4, store.GroupOf("h"), "4"),
	)
	v := b.view(t)
	if !s.stateful() {
		if got := b.unsettled(t, v, store.Unsettled{Outbox: "a", Limit: 10}); len(got) != 0 {
			t.Errorf("a table without state shows %v as unsettled", ids(got))
		}
		return
	}
	v.Close()
	b.take(t, "a", "completed", "failed", "taken")
	b.settle(t,
		store.Outcome{Ref: ref("a", "completed"), Status: store.Completed, At: now()},
		store.Outcome{Ref: ref("a", "failed"), Status: store.Failed, At: now()},
		store.Outcome{Ref: ref("a", "third"), Status: store.Pending, RetryCount: 2, At: now()},
	)
	v = b.view(t)
	for _, c := range []struct {
		limit int
		held  []string
		want  []string
	}{
		{10, nil, []string{"first", "same-a", "same-b", "third", "taken"}},
		{2, nil, []string{"first", "same-a"}},
		{2, []string{"first", "same-b", "no such row", `"quoted",{}\`}, []string{"same-a", "third"}},
		{10, []string{"first", "same-a", "same-b", "third", "taken"}, []string{}},
	} {
		got := b.unsettled(t, v, store.Unsettled{Outbox: "a", Limit: c.limit, Held: c.held})
		if !slices.Equal(ids(got), c.want) {
			t.Errorf("limit %d without %v: %v, want %v", c.limit, c.held, ids(got), c.want)
		}
	}
	b.checkItems(t, b.unsettled(t, v, store.Unsettled{Outbox: "a", Limit: 10}))
	if got := b.unsettled(t, v, store.Unsettled{Outbox: "b", Limit: 10}); len(got) != 0 {
		t.Errorf("the empty outbox has %v", ids(got))
	}
	for _, q := range []store.Unsettled{{Outbox: "a"}, {Outbox: "a", Limit: -1}, {Outbox: "c", Limit: 1}} {
		if _, err := v.Unsettled(b.ctx(t), q); err == nil {
			t.Errorf("%+v is read", q)
		}
	}
}

// testTies reads rows that are equal in order-by: they come as they were inserted, whatever
// their ids, whether a few or all are asked for, and also those that were claimed and not
// settled, which a claim may have moved.
func (s *suite) testTies(t *testing.T) {
	b := s.start(t, 0)
	if db, ok := b.db.(Numberer); ok {
		db.Number(t, "a")
	}
	const n, batch, few = 300, 60, 45
	list := rows(n)
	want := make([]string, n)
	for i := range list {
		list[i].Created = origin().Add(time.Duration(i/batch) * time.Second)
		want[i] = list[i].ID
	}
	for some := range slices.Chunk(list, batch/2) {
		b.insert(t, "a", some...)
	}
	b.take(t, "a", want[:7]...)
	v := b.view(t)
	if got := ids(b.unsettled(t, v, store.Unsettled{Outbox: "a", Limit: n})); !slices.Equal(got, want) {
		t.Errorf("all of them come as\n%v, want\n%v", got, want)
	}
	var polled []string
	for len(polled) < n {
		got := ids(b.unsettled(t, v, store.Unsettled{Outbox: "a", Limit: few, Held: polled}))
		if len(got) == 0 {
			break
		}
		polled = append(polled, got...)
	}
	if !slices.Equal(polled, want) {
		t.Errorf("%d at a time they come as\n%v, want\n%v", few, polled, want)
	}
	var paged []string
	err := v.Pages(b.ctx(t), store.Unsettled{Outbox: "a", Limit: n, NoPayload: true}, few, func(page []store.Item) error {
		paged = append(paged, ids(page)...)
		return nil
	})
	if err != nil || !slices.Equal(paged, want) {
		t.Errorf("by pages (%v) they come as\n%v, want\n%v", err, paged, want)
	}
}

// checkItems checks the five rows that testViewOrder left unsettled.
func (b *bench) checkItems(t *testing.T, items []store.Item) {
	t.Helper()
	groups := []store.Group{{}, store.GroupOf("g"), store.GroupOf("g"), store.GroupOf(""), store.GroupOf("h")}
	payloads := []string{`{"a": [1, "ü"]}`, "222", "22", "3", "4"}
	for i, it := range items {
		kind := "EVENT"
		if b.layout.Columns.Kind != "" {
			kind = "KIND-" + it.ID
		}
		if it.Outbox != "a" || it.Kind != kind || it.Group != groups[i] {
			t.Errorf("row %s: outbox %q, kind %q, group %v", it.ID, it.Outbox, it.Kind, it.Group)
		}
		if string(it.Payload) != payloads[i] || it.PayloadSize != len(payloads[i]) {
			t.Errorf("row %s: payload %q of %d bytes", it.ID, it.Payload, it.PayloadSize)
		}
		retries := 0
		if it.ID == "third" && b.layout.Columns.RetryCount != "" {
			retries = 2
		}
		if it.RetryCount != retries {
			t.Errorf("row %s: retry count %d", it.ID, it.RetryCount)
		}
		if it.Txn != 0 || it.Seq != 0 || !it.Committed.IsZero() {
			t.Errorf("row %s carries what only the log knows: %+v", it.ID, it)
		}
	}
}

// testViewMoment: a view shows all tables as they were when it was opened.
func (s *suite) testViewMoment(t *testing.T) {
	b := s.start(t, 0)
	const n = 200
	b.insert(t, "a", rows(n)...)
	v := b.view(t)
	b.insert(t, "a", row("later"))
	b.insert(t, "b", row("later"))
	var outcomes []store.Outcome
	for _, r := range rows(n) {
		outcomes = append(outcomes, store.Outcome{Ref: ref("a", r.ID), Status: store.Completed, At: now()})
	}
	b.settle(t, outcomes...)
	var got []string
	for len(got) <= n { // page by page
		page := ids(b.unsettled(t, v, store.Unsettled{Outbox: "a", Limit: 30, Held: got}))
		if len(page) == 0 {
			break
		}
		got = append(got, page...)
	}
	var want []string
	for _, r := range rows(n) {
		want = append(want, r.ID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the view shows %d rows, want the %d that were there", len(got), n)
	}
	if other := b.unsettled(t, v, store.Unsettled{Outbox: "b", Limit: 1}); len(other) != 0 {
		t.Errorf("the view shows a row that came later: %v", ids(other))
	}
	v.Close()
	if fresh := ids(b.unsettled(t, b.view(t), store.Unsettled{Outbox: "a", Limit: n})); fmt.Sprint(fresh) != "[later]" {
		t.Errorf("a new view shows %v", fresh)
	}
}
