package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

func deliveredTests() []test {
	return []test{
		{"delivered rows in order", (*suite).testDelivered, all(keepsDelivered, writesClaims)},
		{"delivered rows of a time", (*suite).testDeliveredBounds, isFlow},
		{"1001 delivered rows", (*suite).testDeliveredMany, isFlow},
		{"delivered rows that cannot be told", (*suite).testDeliveredRefused, func(l *store.Layout) bool { return isFlow(l) || !keepsDelivered(l) }},
	}
}

// isFlow selects one layout that keeps delivered rows; the time format does not matter.
func isFlow(l *store.Layout) bool {
	return keepsDelivered(l) && l.State == store.StateWords && !l.Unclaimed && l.Name != oddNames().Name
}

func keepsDelivered(l *store.Layout) bool { return keepsState(l) && !l.DeleteDelivered }

// delivered reads delivered rows in pages and checks the page sizes.
func (b *bench) delivered(t *testing.T, v store.View, q store.DeliveredQuery, page int) (items []store.Item) {
	t.Helper()
	undated, err := v.Delivered(b.ctx(t), q, page, func(some []store.Item) error {
		if len(some) == 0 || len(some) > page {
			t.Errorf("a page of %d rows", len(some))
		}
		items = append(items, some...)
		return nil
	})
	if err != nil || undated != 0 {
		t.Fatalf("%+v: %d rows without a time, %v", q, undated, err)
	}
	return items
}

// after returns the time ms milliseconds after origin.
func after(ms int) time.Time { return origin().Add(time.Duration(ms) * time.Millisecond) }

// testDelivered: COMPLETED rows come in order-by, including spilled rows and rows that
// another program settled, and the query matches byte for byte.
func (s *suite) testDelivered(t *testing.T) {
	b := s.start(t, 0)
	mk := func(id string, ms int, kind string, g store.Group) Row {
		return Row{ID: id, Kind: kind, Group: g, Payload: `{"of": "` + id + `"}`, Created: after(ms)}
	}
	sent := []Row{ // in order
		mk("none", 1, "A", store.Group{}), mk("empty", 2, "A", store.GroupOf("")), mk("same-a", 3, "a", store.GroupOf("g")),
		mk("same-b", 3, "B", store.GroupOf("g")), mk("G", 4, "B", store.GroupOf("G")), mk("spilled", 5, "A", store.GroupOf("g ")),
	}
	open := []Row{mk("pending", 2, "A", store.GroupOf("g")), mk("taken", 2, "A", store.Group{}), mk("failed", 2, "A", store.GroupOf(""))}
	for _, i := range []int{5, 4, 2, 3, 1, 0} { // for equal times, the lower id first
		b.insert(t, "a", sent[i])
	}

	b.insert(t, "a", open...)
	b.insert(t, "b", mk("elsewhere", 2, "A", store.GroupOf("g")))
	b.spill(t, capturedRow(lane("a", "A", store.GroupOf("g ")), "spilled", 1))
	for _, r := range sent {
		b.db.Set(t, "a", r.ID, store.Completed, now())
	}

	b.db.Set(t, "a", "failed", store.Failed, now())
	b.take(t, "a", "taken")
	v := b.view(t)
	got := b.delivered(t, v, store.DeliveredQuery{Outbox: "a"}, 4)
	if !slices.Equal(ids(got), idsOf(sent)) {
		t.Fatalf("all are %q, want %q", ids(got), idsOf(sent))
	}
	for i, it := range got {
		r := sent[i]
		if s.layout.Columns.Kind == "" {
			r.Kind = "EVENT"
		}
		want := store.Item{Ref: ref("a", r.ID), Kind: r.Kind, Group: r.Group, PayloadSize: len(r.Payload), Committed: r.Created}
		if fmt.Sprintf("%+v", it) != fmt.Sprintf("%+v", want) {
			t.Errorf("%+v, want %+v", it, want)
		}
	}

	if got := b.delivered(t, v, store.DeliveredQuery{Outbox: "b"}, 5); len(got) != 0 {
		t.Errorf("no rows delivered, got %q", ids(got))
	}

	for _, q := range []store.DeliveredQuery{
		{IDs: []string{"same-b", "none", "pending", "no such row", "None", `"quoted",{}\'`, "same-b"}}, {IDs: []string{"no such row"}},
		{Kinds: []string{"A"}}, {Kinds: []string{"B", "a"}}, {Kinds: []string{"EVENT"}},
		{Groups: []store.Group{{}}}, {Groups: []store.Group{store.GroupOf("")}}, {Groups: []store.Group{store.GroupOf("g")}},
		{Groups: []store.Group{store.GroupOf("G"), {}, store.GroupOf("no such")}}, {Groups: []store.Group{store.GroupOf("no such")}},
		{IDs: []string{"same-a", "G"}, Kinds: []string{"B", "EVENT"}, Groups: []store.Group{store.GroupOf("G"), store.GroupOf("g")}},
	} {
		q.Outbox = "a"
		var want []string
		for i := range got {
			if matches(&q, &got[i]) {
				want = append(want, got[i].ID)
			}
		}
		if some := ids(b.delivered(t, v, q, 2)); !slices.Equal(some, want) {
			t.Errorf("%+v: %q, want %q", q, some, want)
		}
	}
}

// matches reports whether the lists of a query match a row.
func matches(q *store.DeliveredQuery, it *store.Item) bool {
	return (len(q.IDs) == 0 || slices.Contains(q.IDs, it.ID)) && (len(q.Kinds) == 0 || slices.Contains(q.Kinds, it.Kind)) &&
		(len(q.Groups) == 0 || slices.Contains(q.Groups, it.Group))
}

func idsOf(rows []Row) (list []string) {
	for _, r := range rows {
		list = append(list, r.ID)
	}
	return list
}

// testDeliveredBounds: Since is inclusive and Until exclusive, to the nanosecond, whatever
// the column's resolution.
func (s *suite) testDeliveredBounds(t *testing.T) {
	b := s.start(t, 0)
	var list []Row
	for i := range 6 {
		r := row(fmt.Sprint(i))
		r.Created = origin().Add(time.Duration(i) * 1001 * time.Microsecond)
		list = append(list, r)
	}

	b.insert(t, "a", list...)
	for _, r := range list {
		b.db.Set(t, "a", r.ID, store.Completed, now())
	}

	v := b.view(t)
	all := b.delivered(t, v, store.DeliveredQuery{Outbox: "a"}, 10)
	if len(all) != len(list) {
		t.Fatalf("%q are delivered", ids(all))
	}

	var times []time.Time
	for i := range all {
		at := all[i].Committed
		if short := list[i].Created.Sub(at); short < 0 || short >= time.Millisecond {
			t.Errorf("row %d is of %s, inserted as of %s", i, at, list[i].Created)
		}
		times = append(times, at.Add(-time.Nanosecond), at, at.Add(time.Nanosecond), at.Add(time.Microsecond))
	}

	times = append(times, time.Time{})
	for i, since := range times {
		for _, until := range []time.Time{times[(i+1)%len(times)], times[(i+5)%len(times)], {}} {
			want := []string{}
			for _, it := range all {
				if !it.Committed.Before(since) && (until.IsZero() || it.Committed.Before(until)) {
					want = append(want, it.ID)
				}
			}
			q := store.DeliveredQuery{Outbox: "a", Since: since.In(time.FixedZone("far", 3600)), Until: until}
			if since.IsZero() {
				q.Since = since
			}
			if got := ids(b.delivered(t, v, q, 10)); !slices.Equal(got, want) {
				t.Errorf("from %s to %s: %q, want %q", since, until, got, want)
			}
		}
	}
}

// testDeliveredMany: pages contain all rows of the view's snapshot and stop at the reader's
// error.
func (s *suite) testDeliveredMany(t *testing.T) {
	b := s.start(t, 0)
	const n = 1001
	list := rows(n)
	b.insert(t, "a", list...)
	var outcomes []store.Outcome
	for _, r := range list {
		outcomes = append(outcomes, store.Outcome{Ref: ref("a", r.ID), Status: store.Completed, At: now()})
	}

	b.settle(t, outcomes...)
	v := b.view(t)
	b.insert(t, "a", row("later"))
	b.db.Set(t, "a", "later", store.Completed, now())
	b.db.Delete(t, "a", list[500].ID)
	for _, page := range []int{1000, 77, 5000} {
		if got := b.delivered(t, v, store.DeliveredQuery{Outbox: "a"}, page); !slices.Equal(ids(got), idsOf(list)) {
			t.Errorf("%d rows by %d", len(got), page)
		}
	}

	part := store.DeliveredQuery{Outbox: "a", Since: list[300].Created, Until: list[700].Created}
	if got := b.delivered(t, v, part, 100); !slices.Equal(ids(got), idsOf(list[300:700])) {
		t.Errorf("%d rows of a part", len(got))
	}

	enough, calls := errors.New("enough"), 0
	_, err := v.Delivered(b.ctx(t), store.DeliveredQuery{Outbox: "a"}, 10, func([]store.Item) error {
		if calls++; calls == 3 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || calls != 3 {
		t.Errorf("%d pages, %v", calls, err)
	}
}

// testDeliveredRefused: layouts without delivered rows are rejected with a remedy, and the
// view remains usable.
func (s *suite) testDeliveredRefused(t *testing.T) {
	b := s.start(t, 0)
	none := func([]store.Item) error { t.Error("rows were read"); return nil }
	v := b.view(t)
	for _, page := range []int{0, -1} {
		if _, err := v.Delivered(b.ctx(t), store.DeliveredQuery{Outbox: "a"}, page, none); err == nil {
			t.Errorf("page size %d is valid, want an error", page)
		}
	}

	if _, err := v.Delivered(b.ctx(t), store.DeliveredQuery{Outbox: "c"}, 5, none); err == nil {
		t.Error("read of an unknown outbox succeeded")
	}

	b.unsettled(t, v, store.UnsettledQuery{Outbox: "a", Limit: 1})
	layouts := []store.Layout{s.layout, s.layout, s.layout}
	layouts[1].OrderBy = nil
	layouts[2].DeleteDelivered = true
	for i := range layouts {
		if i == 0 && keepsDelivered(&s.layout) {
			continue
		}
		box := b.boxes[0]
		box.Layout = layouts[i]
		st := b.db.Store(t, Config{Outboxes: []store.Outbox{box}})
		t.Cleanup(st.Close)
		view, err := st.View(b.ctx(t), "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(view.Close)
		_, err = view.Delivered(b.ctx(t), store.DeliveredQuery{Outbox: "a"}, 5, none)
		var setup *store.SetupError
		if !errors.As(err, &setup) || setup.Remedy == "" {
			t.Errorf("layout %d: %v", i, err)
		}
	}

	v.Close()
	if _, err := v.Delivered(b.ctx(t), store.DeliveredQuery{Outbox: "a"}, 5, none); err == nil {
		t.Error("read of a closed view succeeded")
	}
}
