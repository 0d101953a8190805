package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// view opens a view and closes it at the end of the test.
func (b *bench) view(t *testing.T) store.View {
	t.Helper()
	v, err := b.store.View(b.ctx(t), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v
}

func (b *bench) unsettled(t *testing.T, v store.View, q store.UnsettledQuery) []store.Item {
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
		if got := b.unsettled(t, v, store.UnsettledQuery{Outbox: "a", Limit: 10}); len(got) != 0 {
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
		got := b.unsettled(t, v, store.UnsettledQuery{Outbox: "a", Limit: c.limit, ExcludeIDs: c.held})
		if !slices.Equal(ids(got), c.want) {
			t.Errorf("limit %d without %v: %v, want %v", c.limit, c.held, ids(got), c.want)
		}
	}

	b.checkItems(t, b.unsettled(t, v, store.UnsettledQuery{Outbox: "a", Limit: 10}))
	if got := b.unsettled(t, v, store.UnsettledQuery{Outbox: "b", Limit: 10}); len(got) != 0 {
		t.Errorf("the empty outbox has %v", ids(got))
	}

	for _, q := range []store.UnsettledQuery{{Outbox: "a"}, {Outbox: "a", Limit: -1}, {Outbox: "c", Limit: 1}} {
		if _, err := v.Unsettled(b.ctx(t), q); err == nil {
			t.Errorf("%+v is valid, want an error", q)
		}
	}
}

// testTies reads rows that are equal in order-by: they come in insertion order, whatever
// their ids and the limit. Rows that were claimed, or given back since, stay in front; they
// may be ordered by id, because a claim may move a row.
func (s *suite) testTies(t *testing.T) {
	b := s.start(t, 0)
	if db, ok := b.db.(Numberer); ok {
		db.Number(t, "a")
	}

	const n, batch, few, claimed = 300, 60, 45, 7
	list := rows(n)
	want := make([]string, n)
	for i := range list {
		list[i].Created = origin().Add(time.Duration(i/batch) * time.Second)
		want[i] = list[i].ID
	}

	slices.Sort(want[:claimed]) // in id order, in case a claim moves rows
	for i := range claimed {
		list[i].ID = want[i]
	}

	for some := range slices.Chunk(list, batch/2) {
		b.insert(t, "a", some...)
	}

	b.take(t, "a", want[:claimed]...)
	if s.claimWrites() {
		b.settle(t, // given back
			store.Outcome{Ref: ref("a", want[4]), Status: store.Pending, At: now()},
			store.Outcome{Ref: ref("a", want[2]), Status: store.Pending, At: now()},
		)
	}

	v := b.view(t)
	if got := ids(b.unsettled(t, v, store.UnsettledQuery{Outbox: "a", Limit: n})); !slices.Equal(got, want) {
		t.Errorf("all of them come as\n%v, want\n%v", got, want)
	}

	var polled []string
	for len(polled) < n {
		got := ids(b.unsettled(t, v, store.UnsettledQuery{Outbox: "a", Limit: few, ExcludeIDs: polled}))
		if len(got) == 0 {
			break
		}
		polled = append(polled, got...)
	}

	if !slices.Equal(polled, want) {
		t.Errorf("%d at a time they come as\n%v, want\n%v", few, polled, want)
	}

	var paged []string
	err := v.Pages(b.ctx(t), store.UnsettledQuery{Outbox: "a", Limit: n, NoPayload: true}, few, func(page []store.Item) error {
		paged = append(paged, ids(page)...)
		return nil
	})
	if err != nil || !slices.Equal(paged, want) {
		t.Errorf("by pages (%v) they come as\n%v, want\n%v", err, paged, want)
	}
}

// checkItems checks the five unsettled rows of testViewOrder.
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
			t.Errorf("row %s has fields that only the log sets: %+v", it.ID, it)
		}
	}
}

// testViewMoment: a view shows all tables as of its opening.
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
		page := ids(b.unsettled(t, v, store.UnsettledQuery{Outbox: "a", Limit: 30, ExcludeIDs: got}))
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
	if other := b.unsettled(t, v, store.UnsettledQuery{Outbox: "b", Limit: 1}); len(other) != 0 {
		t.Errorf("the view contains a later row: %v", ids(other))
	}

	v.Close()
	if fresh := ids(b.unsettled(t, b.view(t), store.UnsettledQuery{Outbox: "a", Limit: n})); fmt.Sprint(fresh) != "[later]" {
		t.Errorf("a new view shows %v", fresh)
	}
}

// testViewBytes: a payload above the limit is not read, but its size and its group are.
// Rows that reach MaxBytes end a read.
func (s *suite) testViewBytes(t *testing.T) {
	b := s.start(t, 0)
	sizes := []int{0, 7, 8, 9, 3000, 5}
	var list []Row
	for i, size := range sizes {
		r := row(fmt.Sprint("row ", i))
		r.Payload, r.Created = strings.Repeat("ü", size/2)+strings.Repeat("x", size%2), origin().Add(time.Duration(i)*time.Second)
		r.Group = store.GroupOf(fmt.Sprintf("group %d", i%4))
		list = append(list, r)
	}

	b.insert(t, "a", list...)
	v := b.view(t)
	for _, most := range []int{0, 8, 2999, 3000} {
		items := b.unsettled(t, v, store.UnsettledQuery{Outbox: "a", Limit: 10, MaxPayload: most})
		if len(items) != len(list) {
			t.Fatalf("payloads up to %d: %v", most, ids(items))
		}
		for i, it := range items {
			want := list[i]
			left := most > 0 && sizes[i] > most
			if it.PayloadSize != sizes[i] || left != (it.Payload == nil) || !left && string(it.Payload) != want.Payload || it.Group != want.Group {
				t.Errorf("payloads up to %d, row of %d: %q of %d bytes in group %v", most, sizes[i], it.Payload, it.PayloadSize, it.Group)
			}
		}
	}

	one := int64(len("row 0") + len("EVENT") + len("group 0"))
	for most, want := range map[int64]int{0: 6, 1: 1, one: 1, one + 1: 2, 3*one + 15: 3, 3*one + 16: 4, 1 << 40: 6} {
		q := store.UnsettledQuery{Outbox: "a", Limit: 6, MaxPayload: 100, MaxBytes: most}
		items := b.unsettled(t, v, q)
		if len(items) != want || !q.MayHaveMore(items) && want < 6 {
			t.Errorf("at most %d bytes: %v", most, ids(items))
		}
		var pages []string
		err := v.Pages(b.ctx(t), q, 100, func(page []store.Item) error {
			if len(pages) == 0 && len(page) != want {
				t.Errorf("pages of %d bytes begin with %v", most, ids(page))
			}
			pages = append(pages, ids(page)...)
			return nil
		})
		if err != nil || len(pages) != len(list) {
			t.Errorf("pages of %d bytes: %v, %v", most, pages, err)
		}
	}
}

// testViewExcept excludes lanes whose groups a careless statement would confuse, one at a
// time and many at once.
func (s *suite) testViewExcept(t *testing.T) {
	b := s.start(t, 0)
	var all []Row
	for _, l := range oddLetters() {
		all = append(all, l.Row)
	}

	b.insert(t, "a", all...)
	lanes := func(outbox string, rows []Row) (list []store.LaneKey) {
		for _, r := range rows {
			k := store.LaneKey{Outbox: outbox, Kind: r.Kind, Group: r.Group}
			if b.layout.Columns.Kind == "" {
				k.Kind = "EVENT"
			}
			list = append(list, k)
		}
		return list
	}

	laneOf := lanes("a", all)
	check := func(v store.View, except []store.LaneKey, limit int, held ...string) {
		t.Helper()
		want := []string{}
		for i, r := range all {
			if !slices.Contains(except, laneOf[i]) && !slices.Contains(held, r.ID) {
				want = append(want, r.ID)
			}
		}
		got := ids(b.unsettled(t, v, store.UnsettledQuery{Outbox: "a", Limit: limit, ExcludeIDs: held, ExcludeLanes: except}))
		if want = want[:min(limit, len(want))]; !slices.Equal(got, want) {
			t.Errorf("limit %d without lanes %q and rows %q: %q, want %q", limit, except, held, got, want)
		}
	}

	v := b.view(t)
	check(v, lanes("b", all), 100) // of another outbox
	strange := []Row{{Kind: "KIND-A", Group: store.GroupOf("none has it")}, {Kind: "no such kind", Group: store.GroupOf("a")}, {Kind: "kind-a", Group: store.GroupOf("NULL")}}
	check(v, lanes("a", strange), 100)
	for i := range all {
		check(v, laneOf[i:i+1], 100)
		check(v, laneOf[i:i+1], 3, "id z", "id v")
		check(v, laneOf[:i], 100) // many
		check(v, append(lanes("a", strange), laneOf[i:]...), 2)
	}

	many := slices.Clone(laneOf[2:4])
	for i := range 5000 {
		many = append(many, store.LaneKey{Outbox: "a", Kind: laneOf[0].Kind, Group: store.GroupOf(fmt.Sprint("lane ", i))})
	}

	check(v, many, 100)
	check(v, nil, 100)
}

// testViewExceptLarge: an excluded lane larger than the limit does not prevent the other
// rows from being read, in order.
func (s *suite) testViewExceptLarge(t *testing.T) {
	b := s.start(t, 0)
	const n, others = 3000, 40
	list := rows(n)
	var want []string
	for i := range list {
		list[i].Group = store.GroupOf("large")
		if i >= n-others {
			list[i].Group = store.GroupOf(fmt.Sprint(i % 4))
			want = append(want, list[i].ID)
		}
	}

	b.insert(t, "a", list...)
	v := b.view(t)
	q := store.UnsettledQuery{Outbox: "a", Limit: 15, ExcludeLanes: []store.LaneKey{{Outbox: "a", Kind: "EVENT", Group: store.GroupOf("large")}}}
	for len(q.ExcludeIDs) < others {
		page := ids(b.unsettled(t, v, q))
		if len(page) == 0 {
			break
		}
		q.ExcludeIDs = append(q.ExcludeIDs, page...)
	}

	if !slices.Equal(q.ExcludeIDs, want) {
		t.Errorf("the others are %q, want %q", q.ExcludeIDs, want)
	}
}
