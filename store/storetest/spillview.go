package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// testViewWithoutSpilled: a view excludes the rows that this relay had spilled when the view was
// opened.
func (s *suite) testViewWithoutSpilled(t *testing.T) {
	b := s.start(t, 0)
	b.insert(t, "a", rows(20)...)
	b.insert(t, "b", rows(20)...)
	key := lane("a", "EVENT", store.GroupOf("g"))
	var items []store.Item
	var names []string
	for i, r := range rows(20) {
		items = append(items, capturedRow(key, r.ID, store.Seq(i+1)))
		names = append(names, r.ID)
	}

	early := b.view(t)
	b.spill(t, items[:5]...)
	b.spill(t, items[10:12]...)
	check := func(what string, v store.View, q store.UnsettledQuery, want ...string) {
		t.Helper()
		if got := ids(b.unsettled(t, v, q)); !slices.Equal(got, want) && len(got)+len(want) > 0 {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}

	q := store.UnsettledQuery{Outbox: "a", Limit: 100}
	check("a view from before", early, q, names...)
	v := b.view(t)
	check("a view of now", v, q, slices.Concat(names[5:10], names[12:])...)
	check("at most six", v, store.UnsettledQuery{Outbox: "a", Limit: 6}, slices.Concat(names[5:10], names[12:13])...)
	held := store.UnsettledQuery{Outbox: "a", Limit: 6, ExcludeIDs: slices.Concat(names[:2], names[6:9], names[11:14])}
	check("beside held ones", v, held, names[5], names[9], names[14], names[15], names[16], names[17])
	left := q
	left.ExcludeLanes = []store.LaneKey{key}
	check("without the lane", v, left)
	check("the other outbox", v, store.UnsettledQuery{Outbox: "b", Limit: 100}, names...)
	b.deleteSpilled(t, spilledRef(&items[0]), spilledRef(&items[11]))
	check("the view from before", v, q, slices.Concat(names[5:10], names[12:])...)
	check("with two that are not spilled any more", b.view(t), q, slices.Concat(names[:1], names[5:10], names[11:])...)
	b.deleteSpilledAfter(t, 0, 5)
	check("with none spilled", b.view(t), q, names...)
}

// routed opens a store for which the outbox a has the routes bus and hooks.
func (b *bench) routed(t *testing.T) Store {
	t.Helper()
	boxes := slices.Clone(b.boxes)
	boxes[0].Routes = []store.Route{{Name: "bus"}, {Name: "hooks", Optional: true}}
	st := b.db.Store(t, Config{Outboxes: boxes})
	t.Cleanup(st.Close)
	b.epoch = b.lead(t, st)
	return st
}

// testViewWithoutLegs: a view excludes the rows that any leg of the outbox has spilled. There are
// so few of them that a store may read them at once, or so many that it may not.
func (s *suite) testViewWithoutLegs(t *testing.T) {
	b := s.start(t, 0)
	const n = 2600
	list := rows(n)
	b.insert(t, "a", list...)
	st := b.routed(t)
	spill := func(leg string, from, to int) {
		t.Helper()
		var items []store.Item
		var records []store.LegRow
		for i, r := range list[from:to] {
			items = append(items, capturedRow(lane("a/"+leg, "EVENT", store.GroupOf("g")), r.ID, store.Seq(from+i+1)))
			records = append(records, store.LegRow{Ref: ref("a", r.ID), Matched: []string{"bus", "hooks"}, Spilled: []string{leg}})
		}
		if err := st.SpillLegs(b.ctx(t), b.epoch, items, records); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, want []Row, include ...string) {
		t.Helper()
		v, err := st.View(b.ctx(t), "")
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		got := b.unsettled(t, v, store.UnsettledQuery{Outbox: "a", Limit: 2 * n, IncludeSpilled: include})
		if !slices.EqualFunc(got, want, func(it store.Item, r Row) bool { return it.ID == r.ID }) {
			t.Errorf("%s: %d rows, want %d", what, len(got), len(want))
		}
	}
	spill("bus", 0, 2)
	spill("hooks", 1, 5)
	check("few", list[5:])
	check("few, with two of them", slices.Concat(list[1:2], list[4:]), list[1].ID, list[4].ID, list[9].ID, "none")
	spill("bus", 0, 1300)
	spill("hooks", 1200, 2500)
	check("many", list[2500:])
	var more []string
	for i := range 1000 {
		more = append(more, list[2*i].ID)
	}
	var shown []Row
	for i := range list {
		if i < 2000 && i%2 == 0 || i >= 2500 {
			shown = append(shown, list[i])
		}
	}
	check("many, with half of them", shown, more...)
}

// testPages: pages contain the rows of Unsettled and stop at the limit.
func (s *suite) testPages(t *testing.T) {
	b := s.start(t, 0)
	const n = 2500
	list := rows(n)
	for i := range list {
		list[i].Group = store.GroupOf(fmt.Sprint("group ", i%5))
	}

	b.insert(t, "a", list...)
	key := func(g int) store.LaneKey { return lane("a", "EVENT", store.GroupOf(fmt.Sprint("group ", g))) }
	var held []string
	for i := 0; i < n; i += 10 {
		held = append(held, list[i].ID)
	}

	if s.stateful() {
		b.spill(t, capturedRow(key(1), list[1].ID, 1), capturedRow(key(2), list[1702].ID, 2))
	}

	v := b.view(t)
	for what, q := range map[string]store.UnsettledQuery{
		"all":              {Outbox: "a", Limit: 2 * n},
		"limited":          {Outbox: "a", Limit: 333},
		"held":             {Outbox: "a", Limit: 2 * n, ExcludeIDs: held},
		"without a lane":   {Outbox: "a", Limit: 2 * n, ExcludeLanes: []store.LaneKey{key(3)}},
		"without payload":  {Outbox: "a", Limit: 20, NoPayload: true},
		"all at once":      {Outbox: "a", Limit: 444, ExcludeIDs: held, ExcludeLanes: []store.LaneKey{key(1), key(4)}, NoPayload: true},
		"the empty outbox": {Outbox: "b", Limit: 5},
	} {
		want := b.unsettled(t, v, q)
		if s.stateful() && q.Outbox == "a" && len(want) == 0 || len(want) > q.Limit {
			t.Errorf("%s: %d rows at once", what, len(want))
		}
		for _, page := range []int{7, 1000, 5000} {
			b.checkPages(t, fmt.Sprintf("%s by %d", what, page), v, q, page, want)
		}
	}

	b.checkPageEnds(t, v)
}

func (b *bench) checkPages(t *testing.T, what string, v store.View, q store.UnsettledQuery, page int, want []store.Item) {
	t.Helper()
	var got []store.Item
	err := v.Pages(b.ctx(t), q, page, func(items []store.Item) error {
		if len(items) == 0 || len(items) > page {
			t.Errorf("%s: a page of %d rows", what, len(items))
		}
		got = append(got, items...)
		return nil
	})
	if err != nil || !slices.Equal(ids(got), ids(want)) {
		t.Errorf("%s: pages have %d rows, %v; Unsettled has %d", what, len(got), err, len(want))
		return
	}

	for i := range got {
		g := got[i]
		payload := row(g.ID).Payload
		if g.PayloadSize != len(payload) || q.NoPayload != (g.Payload == nil) || !q.NoPayload && string(g.Payload) != payload {
			t.Errorf("%s: row %q has payload %q of %d bytes", what, g.ID, g.Payload, g.PayloadSize)
		}
		if w := want[i]; g.Lane() != w.Lane() || string(g.Payload) != string(w.Payload) || g.PayloadSize != w.PayloadSize {
			t.Errorf("%s: %+v, by Unsettled %+v", what, g, w)
		}
	}
}

// checkPageEnds: the reader's first error ends the pages, the view remains usable, and
// invalid queries are rejected.
func (b *bench) checkPageEnds(t *testing.T, v store.View) {
	t.Helper()
	enough, calls := errors.New("enough"), 0
	err := v.Pages(b.ctx(t), store.UnsettledQuery{Outbox: "a", Limit: 100}, 10, func([]store.Item) error {
		if calls++; calls == 3 {
			return enough
		}
		return nil
	})
	if b.stateful() && (!errors.Is(err, enough) || calls != 3) || !b.stateful() && (err != nil || calls != 0) {
		t.Errorf("%d pages, %v", calls, err)
	}

	want := b.unsettled(t, v, store.UnsettledQuery{Outbox: "a", Limit: 25})
	b.checkPages(t, "after an end", v, store.UnsettledQuery{Outbox: "a", Limit: 25}, 10, want)
	for _, c := range []struct {
		q    store.UnsettledQuery
		page int
	}{
		{store.UnsettledQuery{Outbox: "a", Limit: 5}, 0}, {store.UnsettledQuery{Outbox: "a", Limit: 5}, -1},
		{store.UnsettledQuery{Outbox: "a"}, 5}, {store.UnsettledQuery{Outbox: "c", Limit: 5}, 5},
	} {
		if err := v.Pages(b.ctx(t), c.q, c.page, func([]store.Item) error { return nil }); err == nil {
			t.Errorf("%+v with page size %d is valid, want an error", c.q, c.page)
		}
	}

	v.Close()
	if err := v.Pages(b.ctx(t), store.UnsettledQuery{Outbox: "a", Limit: 5}, 5, func([]store.Item) error { return nil }); b.stateful() && err == nil {
		t.Error("pages of a closed view succeeded")
	}
}
