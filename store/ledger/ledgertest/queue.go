package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// oddLanes returns lanes that a careless key would confuse.
func oddLanes(outbox string) (list []store.LaneKey) {
	long := strings.Repeat("gröup/", 1500)
	for _, g := range []store.Group{
		{}, store.GroupOf(""), store.GroupOf("a"), store.GroupOf("A"), store.GroupOf("a "), store.GroupOf("NULL"), store.GroupOf(`'"\`),
		store.GroupOf("☃ 😀"), store.GroupOf(long), store.GroupOf(long + "x"), store.GroupOf("a\x00"), store.GroupOf("a\xff"), store.GroupOf("a\xfe"),
	} {
		list = append(list, store.LaneKey{Outbox: outbox, Kind: "EVENT", Group: g})
	}
	return append(list, store.LaneKey{Outbox: outbox, Kind: "", Group: store.Group{}}, store.LaneKey{Outbox: outbox, Kind: "event", Group: store.GroupOf("a")},
		store.LaneKey{Outbox: outbox, Kind: long, Group: store.GroupOf("a")}, store.LaneKey{Outbox: outbox, Kind: "a\x00\xff€", Group: store.GroupOf("a")})
}

// oddRows returns four rows of each odd lane in two outboxes, in the order of their numbers.
// Both outboxes have the same ids and numbers.
func oddRows() (keys []store.LaneKey, rows []store.Item) {
	keys = oddLanes("a")
	long := strings.Repeat("\x00\xff'\"\\", 1000)
	for turn, payload := range [][]byte{nil, {}, []byte("\x00\xff{}\xc3("), []byte("{}")} {
		for i, key := range keys {
			n := int64(1)<<55 + int64(turn*len(keys)+i)
			it := store.Item{
				Ref: store.Ref{Outbox: "a", ID: fmt.Sprintf("%d,\"{}\\' ☃\x00\xff %d", i, turn)}, Kind: key.Kind, Group: key.Group, Seq: store.Seq(n),
				RetryCount: turn, PayloadSize: 1<<30 + i, Payload: payload,
			}
			if turn == 1 {
				it.ID += long
			}
			if len(payload) > 0 {
				it.Attributes = store.Attributes{{Name: "kind", Value: "☃ \"'\\\x7f"}, {Name: "", Value: "\n\t"}, {Name: "none", Value: ""}}
			}
			if turn > 0 {
				it.Committed = time.Now().Truncate(time.Millisecond).UTC().AddDate(-10*turn, 0, 0)
			}
			twin := it
			twin.Outbox = "b"
			rows = append(rows, it, twin)
		}
	}
	return append(keys, oddLanes("b")...), rows
}

func ofLane(rows []store.Item, key store.LaneKey) []store.Item {
	return slices.DeleteFunc(slices.Clone(rows), func(it store.Item) bool { return it.Lane() != key })
}

// testRange reads odd rows back, all together and in pages.
func (b *bench) testRange(t *testing.T) {
	keys, rows := oddRows()
	none := store.LaneKey{Outbox: "a", Kind: "EVENT", Group: store.GroupOf("none")}
	mixed := slices.Clone(rows)
	slices.Reverse(mixed)
	for i := range mixed {
		mixed[i].Captured = time.Now()
	}
	b.enqueue(t, "q", len(rows), mixed...)
	b.enqueue(t, "another", 1, row(1, "g"))
	b.enqueue(t, "q", 0)

	from := make([]store.SpilledRange, len(keys))
	for i, key := range keys {
		from[i] = store.SpilledRange{Outbox: key.Outbox, Lane: key.Hash()}
	}
	read := func(each int) (lists [][]store.Item) {
		b.view(t, func(ctx context.Context, r ledger.Reader) (err error) {
			lists, err = r.Range(ctx, "q", append(slices.Clone(from), store.SpilledRange{Outbox: "a", Lane: none.Hash()}), each)
			return err
		})
		if len(lists) != len(keys)+1 || len(lists[len(keys)]) != 0 {
			t.Fatalf("%d answers, and %d rows of a lane without rows", len(lists), len(lists[len(lists)-1]))
		}
		return lists
	}
	for i, list := range read(100)[:len(keys)] {
		wantRows(t, fmt.Sprintf("lane %d", i), list, ofLane(rows, keys[i]), true)
	}
	for page := range 3 {
		for i, list := range read(2)[:len(keys)] {
			want := ofLane(rows, keys[i])
			want = want[min(2*page, len(want)):min(2*page+2, len(want))]
			wantRows(t, fmt.Sprintf("page %d of lane %d", page, i), list, want, true)
			if len(list) > 0 {
				from[i].After = list[len(list)-1].Seq
			}
		}
	}
}

// testEnqueueAgain: a row under the same number is left unchanged, also within one call.
func (b *bench) testEnqueueAgain(t *testing.T) {
	one, two, three := row(1, "g"), row(2, "g"), row(3, "g")
	b.enqueue(t, "q", 2, one, two)
	again := two
	again.RetryCount, again.Payload = 44, []byte("other")
	b.enqueue(t, "q", 1, again, three, one, three)
	b.wantQueue(t, "after a repeat", "q", one, two, three)
	inB := two
	inB.Outbox = "b"
	b.enqueue(t, "q", 1, inB)
	b.enqueue(t, "", 1, two)
	b.wantQueue(t, "in two outboxes", "q", one, two, inB, three)
	b.wantQueue(t, "in the other queue", "", two)
	large := row(4, "g")
	large.Payload = []byte(strings.Repeat("\x00'\\\"\xff{}☃x", 4<<20/11))
	b.enqueue(t, "q", 1, large)
	b.view(t, func(ctx context.Context, r ledger.Reader) error {
		lists, err := r.Range(ctx, "q", []store.SpilledRange{{Outbox: "a", Lane: large.Lane().Hash(), After: 3}}, 1)
		if err == nil {
			wantRows(t, "a large row", lists[0], []store.Item{large}, true)
		}
		return err
	})
}

// testNumberTaken: a row of another id or lane under a number is an error, and none is added.
func (b *bench) testNumberTaken(t *testing.T) {
	one, two := row(1, "g"), row(2, "g")
	b.enqueue(t, "q", 1, one)
	id, group, none, kind := one, one, one, one
	id.ID, group.Group, none.Group, kind.Kind = "other", store.GroupOf("h"), store.Group{}, "event"
	for what, other := range map[string]store.Item{"id": id, "group": group, "no group": none, "kind": kind} {
		err := b.leader.Update(ctx(t), b.epoch, ledger.Full, func(ctx context.Context, tx ledger.Tx) error {
			_, err := tx.Enqueue(ctx, "q", []store.Item{two, one, other})
			return err
		})
		var refused *store.RefusedError
		if !errors.As(err, &refused) {
			t.Errorf("another %s: got %v, want a RefusedError", what, err)
		}
		b.wantQueue(t, what, "q", one)
	}
	b.enqueue(t, "q", 1, two, one)
	b.wantQueue(t, "after all", "q", one, two)
}

// testMany: a database may add many rows in another way than a few. They are read back, they stay,
// and a number of another row is an error, as with a few.
func (b *bench) testMany(t *testing.T) {
	const fillers = 1000
	keys, rows := oddRows()
	for n := range int64(fillers) {
		rows = append(rows, row(n+1, fmt.Sprint("filler ", n%3)))
	}
	b.enqueue(t, "q", len(rows), rows...)
	b.view(t, func(ctx context.Context, r ledger.Reader) error {
		for _, key := range append(keys, rows[len(rows)-1].Lane()) {
			lists, err := r.Range(ctx, "q", []store.SpilledRange{{Outbox: key.Outbox, Lane: key.Hash()}}, fillers)
			if err != nil {
				return err
			}
			wantRows(t, fmt.Sprintf("lane %.50v", key), lists[0], ofLane(rows, key), true)
		}
		return nil
	})

	more := slices.Clone(rows[len(rows)-fillers/2:])
	for i := range more {
		more[i].RetryCount += 7
	}
	for n := range int64(fillers) {
		more = append(more, row(fillers+n+1, "more"))
	}
	b.enqueue(t, "q", fillers, more...)
	fillersNow := append(slices.Clone(rows[len(rows)-fillers:]), more[fillers/2:]...)
	b.wantFirst(t, "after a repeat", "q", fillersNow)

	again := slices.Clone(more)
	again[len(again)-1].ID = "other"
	err := b.leader.Update(ctx(t), b.epoch, ledger.Full, func(ctx context.Context, tx ledger.Tx) error {
		_, err := tx.Enqueue(ctx, "q", append(again, row(2*fillers+1, "more")))
		return err
	})
	var refused *store.RefusedError
	if !errors.As(err, &refused) {
		t.Errorf("number of another row: got %v, want a RefusedError", err)
	}
	b.wantFirst(t, "after a number of another row", "q", fillersNow)
}

// wantFirst compares the first rows of a queue, without payload.
func (b *bench) wantFirst(t *testing.T, what, queue string, want []store.Item) {
	t.Helper()
	b.view(t, func(ctx context.Context, r ledger.Reader) error {
		got, err := r.Scan(ctx, ledger.Scan{Queue: queue, Limit: len(want)})
		wantRows(t, what, got, want, false)
		return err
	})
}

// testQueueNames: queues are separate, whatever their names.
func (b *bench) testQueueNames(t *testing.T) {
	names := []string{"", "%", "_", "a", "A", "a ", "'", "~0", "a/1", "\\", strings.Repeat("k", 99), strings.Repeat("k", 100)}
	for i, name := range names {
		b.enqueue(t, name, 1, row(int64(i+1), "g"))
	}
	first := row(1, "g")
	for i, name := range names {
		b.wantQueue(t, fmt.Sprintf("queue %q", name), name, row(int64(i+1), "g"))
		b.view(t, func(ctx context.Context, r ledger.Reader) error {
			lanes, err := r.Range(ctx, name, []store.SpilledRange{{Outbox: "a", Lane: first.Lane().Hash()}}, 99)
			if err == nil && len(lanes[0]) != 1 {
				t.Errorf("queue %q: %d rows of the lane", name, len(lanes[0]))
			}
			return err
		})
	}
}

// testHugeRows: a payload of more than 16 MB is stored, or only its size.
func (b *bench) testHugeRows(t *testing.T) {
	huge := row(1, "g")
	huge.Payload = []byte(strings.Repeat("12345678", 17<<20/8))
	huge.PayloadSize = len(huge.Payload)
	huge.Attributes = store.Attributes{{Name: "type", Value: "Huge"}}
	b.enqueue(t, "q", 2, huge, row(2, "g"))
	b.view(t, func(ctx context.Context, r ledger.Reader) error {
		lists, err := r.Range(ctx, "q", []store.SpilledRange{{Outbox: "a", Lane: huge.Lane().Hash()}}, 9)
		if err == nil {
			if len(lists[0]) > 0 && lists[0][0].Payload == nil {
				huge.DropContent()
			}
			wantRows(t, "a huge row", lists[0], []store.Item{huge, row(2, "g")}, true)
		}
		return err
	})
}

// testClear removes the first rows of a queue, of some outboxes and behind a number.
func (b *bench) testClear(t *testing.T) {
	var all []store.Item
	for n := range int64(30) {
		it := row(n/2+1, fmt.Sprint(n%5))
		it.Outbox = []string{"a", "b"}[n%2]
		all = append(all, it)
	}
	b.enqueue(t, "q", len(all), all...)
	b.enqueue(t, "another", len(all), all...)
	for _, c := range []struct {
		q       ledger.Scan
		n, last int
		left    func(i int, it store.Item) bool
	}{
		{ledger.Scan{Queue: "none", Limit: 5}, 0, 0, func(i int, _ store.Item) bool { return true }},
		{ledger.Scan{Queue: "q", Outboxes: []string{}, Limit: 5}, 0, 0, func(i int, _ store.Item) bool { return true }},
		{ledger.Scan{Queue: "q", After: 15, Limit: 5}, 0, 0, func(i int, _ store.Item) bool { return true }},
		{ledger.Scan{Queue: "q", Limit: 3}, 3, 2, func(i int, _ store.Item) bool { return i >= 3 }},
		{ledger.Scan{Queue: "q", Outboxes: []string{"b", "c"}, After: 10, Limit: 2}, 2, 12, func(_ int, it store.Item) bool {
			return it.Outbox == "a" || it.Seq <= 10 || it.Seq > 12
		}},
		{ledger.Scan{Queue: "q", After: 11, Limit: 99}, 7, 15, func(_ int, it store.Item) bool { return it.Seq <= 11 }},
	} {
		n, last := 0, int64(0)
		b.update(t, func(ctx context.Context, tx ledger.Tx) (err error) {
			n, last, err = tx.Clear(ctx, c.q)
			return err
		})
		if n != c.n || n > 0 && last != int64(c.last) {
			t.Errorf("%+v: %d rows up to %d, want %d up to %d", c.q, n, last, c.n, c.last)
		}
		var left []store.Item
		for i, it := range all {
			if c.left(i, it) {
				left = append(left, it)
			}
		}
		all = left
		b.wantQueue(t, fmt.Sprintf("after %+v", c.q), "q", all...)
	}
	b.view(t, func(ctx context.Context, r ledger.Reader) error {
		rows, err := r.Scan(ctx, ledger.Scan{Queue: "another", Limit: 99})
		if len(rows) != 30 {
			t.Errorf("%d rows of the other queue are left", len(rows))
		}
		return err
	})
}

func byID(it store.Item) ledger.Ref { return ledger.Ref{Ref: it.Ref, N: int64(it.Seq)} }

func byLane(it store.Item) ledger.Ref {
	return ledger.Ref{Ref: store.Ref{Outbox: it.Outbox, ID: "whatever"}, N: int64(it.Seq), Lane: it.Lane().Hash()}
}

func (b *bench) dequeue(t *testing.T, what string, want int, removed func(int, *store.Item), refs ...ledger.Ref) {
	t.Helper()
	var n int
	b.update(t, func(ctx context.Context, tx ledger.Tx) (err error) {
		n, err = tx.Dequeue(ctx, "q", refs, removed)
		return err
	})
	if n != want {
		t.Errorf("%s: %d rows were removed, want %d", what, n, want)
	}
}

// testDequeue removes rows by id and by lane.
func (b *bench) testDequeue(t *testing.T) {
	keys, rows := oddRows()
	b.enqueue(t, "q", len(rows), rows...)
	b.enqueue(t, "another", len(rows), rows...)
	some, left := rows[:len(keys)], rows[len(keys):]
	var refs []ledger.Ref
	for i, it := range some {
		ref := byID(it)
		if i%3 == 0 {
			ref = byLane(it)
		}
		refs = append(refs, ref, ref)
	}
	got := make([]store.Item, len(refs))
	b.dequeue(t, "each twice", len(some), func(i int, it *store.Item) { got[i] = *it }, refs...)
	removed := 0
	for i := range refs {
		g, w := got[i], some[i/2]
		if g.Seq == 0 {
			continue
		}
		if removed++; g.Ref != w.Ref || g.Lane() != w.Lane() || g.Seq != w.Seq {
			t.Errorf("removed %.300s, want %.300s", fmt.Sprintf("%+v", g), fmt.Sprintf("%+v", w))
		}
	}
	if removed != len(some) {
		t.Errorf("%d removed rows were passed, want %d", removed, len(some))
	}

	b.wantQueue(t, "left", "q", left...)
	b.wantQueue(t, "the other queue", "another", rows...)
	b.dequeue(t, "again", 0, func(int, *store.Item) { t.Error("a removed row was removed again") }, refs...)
	b.dequeue(t, "two more", 2, nil, byID(left[0]), byLane(left[1]))
	b.enqueue(t, "q", 1, rows[0])
	b.wantQueue(t, "added anew", "q", append([]store.Item{rows[0]}, left[2:]...)...)
}

// testDequeueOthers: a ref with another id, lane, number or outbox removes no row.
func (b *bench) testDequeueOthers(t *testing.T) {
	_, rows := oddRows()
	b.enqueue(t, "q", len(rows), rows...)
	refs := []ledger.Ref{{Ref: store.Ref{Outbox: "a"}, N: 5}}
	for i, it := range rows {
		other := rows[(i+2)%len(rows)] // of the same outbox, and of another lane
		id, lane, number, outbox := byID(it), byLane(it), byID(it), byID(it)
		id.ID, lane.Lane, number.N, outbox.Outbox = other.ID, other.Lane().Hash(), int64(other.Seq), "c"
		refs = append(refs, id, lane, number, outbox)
	}
	b.dequeue(t, "refs of no row", 0, nil, refs...)
	b.wantQueue(t, "all left", "q", rows...)
}

// testScan reads a queue in the order of numbers, all of it and the heads of its lanes.
func (b *bench) testScan(t *testing.T) {
	var rows []store.Item
	for n := range int64(300) {
		it := row(n+1, "long")
		if n > 200 {
			it = row(n+1, fmt.Sprint("g", n%7))
		}
		if n > 200 && n%3 == 0 {
			it.Outbox = "b"
		}
		it.Payload = []byte("x")
		rows = append(rows, it)
	}
	b.enqueue(t, "q", len(rows), rows...)
	b.enqueue(t, "", 1, row(5, "long"))
	started := map[store.LaneKey]bool{}
	var heads, inB []store.Item
	for _, it := range rows {
		if !started[it.Lane()] {
			heads = append(heads, it)
		}
		started[it.Lane()] = true
		if it.Outbox == "b" {
			inB = append(inB, it)
		}
	}

	for what, c := range map[string]struct {
		q    ledger.Scan
		want []store.Item
	}{
		"all":                 {ledger.Scan{Queue: "q", Limit: 1000}, rows},
		"limited":             {ledger.Scan{Queue: "q", Limit: 7}, rows[:7]},
		"behind a number":     {ledger.Scan{Queue: "q", After: 42, Limit: 7}, rows[42:49]},
		"behind all":          {ledger.Scan{Queue: "q", After: 300, Limit: 7}, nil},
		"of one outbox":       {ledger.Scan{Queue: "q", Outboxes: []string{"b"}, Limit: 1000}, inB},
		"of it, limited":      {ledger.Scan{Queue: "q", Outboxes: []string{"b", "c"}, After: int64(inB[2].Seq), Limit: 5}, inB[3:8]},
		"of both":             {ledger.Scan{Queue: "q", Outboxes: []string{"b", "a"}, Limit: 1000}, rows},
		"of no outbox":        {ledger.Scan{Queue: "q", Outboxes: []string{}, Limit: 1000}, nil},
		"heads":               {ledger.Scan{Queue: "q", Heads: true, Limit: 1000}, heads},
		"heads, limited":      {ledger.Scan{Queue: "q", Heads: true, Limit: 3}, heads[:3]},
		"heads behind a head": {ledger.Scan{Queue: "q", Heads: true, After: int64(heads[2].Seq), Limit: 2}, heads[3:5]},
		"the spilled rows":    {ledger.Scan{Queue: "", Limit: 10}, []store.Item{row(5, "long")}},
		"an empty queue":      {ledger.Scan{Queue: "none", Limit: 10}, nil},
	} {
		b.update(t, func(ctx context.Context, tx ledger.Tx) error { // a view is the same, see wantQueue
			got, err := tx.Scan(ctx, c.q)
			wantRows(t, what, got, c.want, false)
			return err
		})
	}
}

// testLanes counts the rows of odd lanes.
func (b *bench) testLanes(t *testing.T) {
	keys, rows := oddRows()
	b.enqueue(t, "q", len(rows), rows...)
	b.enqueue(t, "another", 1, row(1, "g"))
	var refs []ledger.Ref
	want := map[store.SpilledLane]bool{}
	for i, key := range keys {
		gone := i % 5
		for _, it := range ofLane(rows, key)[:gone] {
			refs = append(refs, ledger.Ref{Ref: it.Ref, N: int64(it.Seq)})
		}
		if gone < 4 && key.Outbox == "a" {
			want[store.SpilledLane{Outbox: key.Outbox, Kind: key.Kind, Hash: key.Hash(), Rows: 4 - gone}] = true
		}
	}
	b.update(t, func(ctx context.Context, tx ledger.Tx) error {
		_, err := tx.Dequeue(ctx, "q", refs, nil)
		return err
	})
	b.view(t, func(ctx context.Context, r ledger.Reader) error {
		n := 0
		err := r.Lanes(ctx, "q", "a", func(l store.SpilledLane) {
			if n++; !want[l] {
				t.Errorf("unexpected lane %.300s", fmt.Sprintf("%+v", l))
			}
		})
		if n != len(want) {
			t.Errorf("%d lanes, want %d", n, len(want))
		}
		return err
	})
}
