package storetest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

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
