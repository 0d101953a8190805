package sqlite_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

func (r *rig) view(t *testing.T) store.View {
	t.Helper()
	v, err := r.store.View(ctx(t), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v
}

// fillPending inserts rows with ids from 000001.
func (r *rig) fillPending(t *testing.T, n int) {
	r.exec(t, `WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < ?)
		INSERT INTO outbox_events (id, created_at) SELECT printf('%06d', i), 0 FROM c`, n)
}

// TestViewWithoutRelayTables: a view works without the relay's tables; no row is spilled then.
func TestViewWithoutRelayTables(t *testing.T) {
	r := &rig{path: newFile(t)}
	r.db = openSQL(t, r.path)
	r.exec(t, flowTable)
	r.store = openStore(t, r.path, "rig", 0, flowBox())
	r.fillPending(t, 2)
	wantIDs(t, "the view", r.unsettled(t, nil), "000001", "000002")
}

// TestPageErrorEndsRead: an error of take ends the read and does not break the view; the end of the
// context does.
func TestPageErrorEndsRead(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	r.fillPending(t, 20)
	v := r.view(t)
	q := store.UnsettledQuery{Outbox: "events", Limit: 100}
	enough := errors.New("enough of it")
	for _, page := range []int{3, 19, 1000} {
		for last := range min(20/page+1, 3) {
			taken := 0
			err := v.Pages(ctx(t), q, page, func([]store.Item) error {
				if taken++; taken > last {
					return enough
				}
				return nil
			})
			if err != enough || taken != last+1 {
				t.Errorf("pages of %d: %d pages were taken, %v", page, taken, err)
			}
		}
	}
	if items, err := v.Unsettled(ctx(t), q); err != nil || len(items) != 20 {
		t.Errorf("the view then shows %d rows, %v", len(items), err)
	}
	c, cancel := context.WithCancel(ctx(t))
	err := v.Pages(c, q, 3, func([]store.Item) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	if err := v.Pages(ctx(t), q, 3, func([]store.Item) error { return nil }); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("a view that was interrupted: %v", err)
	}
	v = r.view(t)
	err = v.Pages(ctx(t), q, 3, func([]store.Item) error { go r.store.Close(); <-closed(r.store); return nil })
	if err == nil {
		t.Error("the store was closed, and the pages went on")
	}
}

// closed returns a channel that is closed once the store's calls fail.
func closed(st store.SpillStore) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for err := error(nil); err == nil; {
			err = st.SpilledLanes(context.Background(), func(store.SpilledLane) {})
		}
	}()
	return done
}

// TestViewKeepsSnapshotWhileRowsAreSpilled: while a view is read, take spills its rows, services insert and the relay
// claims. The view keeps its snapshot, and the next view shows the rows that are left.
func TestViewKeepsSnapshotWhileRowsAreSpilled(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	const n, page = 3000, 400
	r.fillPending(t, n)
	v := r.view(t)
	var got []string
	seq := int64(0)
	err := v.Pages(ctx(t), store.UnsettledQuery{Outbox: "events", Limit: n + 1, NoPayload: true}, page, func(items []store.Item) error {
		for i := range items {
			seq++
			items[i].Seq = store.NewSeq(r.epoch, seq)
			got = append(got, items[i].ID)
		}
		r.spill(t, items...)
		r.exec(t, "INSERT INTO outbox_events (id, created_at) VALUES (?, 1)", "new "+items[0].ID)
		if a := r.claim(t, row("new "+items[0].ID))[0]; a.Result != store.Claimed {
			t.Errorf("a row that came meanwhile is %s", a.Result)
		}
		r.settle(t, outcome(items[len(items)-1].ID, store.Completed))
		return nil
	})
	if err != nil || len(got) != n || !slices.IsSorted(got) {
		t.Fatalf("%d rows, %v", len(got), err)
	}
	for _, id := range r.unsettled(t, nil) {
		if !strings.HasPrefix(id, "new ") {
			t.Errorf("row %s is spilled, but the view shows it", id)
		}
	}
	if items, err := v.Unsettled(ctx(t), store.UnsettledQuery{Outbox: "events", Limit: n}); err != nil || len(items) != n {
		t.Errorf("the old view shows %d rows, %v", len(items), err)
	}
	if left := len(r.unsettled(t, nil)); left != (n+page-1)/page {
		t.Errorf("the view shows %d rows", left)
	}
}
