package capturetest

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// writerRows is the number of rows in a transaction of writers.
const writerRows = 2

// writers commits transactions of several rows from several goroutines and returns the ids
// in commit order. A commit holds a lock, an insert does not. each is called after each
// commit, under the lock.
func writers(t *testing.T, db Database, n, transactions int, each func(committed int)) []string {
	t.Helper()
	return writersUntil(t, db, n, transactions, func() bool { return true }, each)
}

// writersUntil is writers, continued until enough returns true. Each writer then commits
// once more.
func writersUntil(t *testing.T, db Database, n, transactions int, enough func() bool, each func(committed int)) []string {
	t.Helper()
	var mu sync.Mutex
	var order []string
	var all sync.WaitGroup
	for w := range n {
		all.Go(func() {
			for i, last := 0, false; !last; i++ {
				last = i+1 >= transactions && enough()
				rows := rowsOf(fmt.Sprintf("w%d-%03d", w, i), writerRows)
				end := db.Begin(t, rows...)
				mu.Lock()
				end(true)
				order = append(order, idsOf(rows)...)
				each(len(order))
				mu.Unlock()
			}
		})
	}

	all.Wait()
	return order
}

func none(int) {}

func testAllRows(t *testing.T, db Database) {
	r, _ := follow(t, db, store.Checkpoint{})
	order := writers(t, db, 4, 10, none)
	r.rows(len(order))
	r.expectAny(order)
}

func testCommitOrder(t *testing.T, db Database) {
	r, _ := follow(t, db, store.Checkpoint{})
	const n, transactions = 8, 25
	done := make(chan []string, 1)
	var all sync.WaitGroup
	t.Cleanup(all.Wait) // a failed test must not end before its writers do
	all.Go(func() { done <- writers(t, db, n, transactions, none) })
	r.rows(n * transactions * writerRows)
	r.expect(<-done)
}

func testRolledBack(t *testing.T, db Database) {
	r, _ := follow(t, db, store.Checkpoint{})
	lost := db.Begin(t, rowsOf("rolled-back", 5)...)
	commit(t, db, rowsOf("before", 2)...)
	lost(false)
	commit(t, db, rowsOf("after", 2)...)
	r.rows(4)
	r.expectAny(append(idsOf(rowsOf("before", 2)), idsOf(rowsOf("after", 2))...))
}

func testLargeTransaction(t *testing.T, db Database, fine bool) {
	r, _ := follow(t, db, store.Checkpoint{})
	rows := rowsOf("large", 3*batchRows+7)
	commit(t, db, rows...)
	r.until("the end of the transaction", func() bool {
		return len(r.ids) >= len(rows) && r.batches[len(r.batches)-1].Position != ""
	})

	r.expect(idsOf(rows))
	var parts, positions int
	txns := map[store.Txn]bool{}
	for _, b := range r.batches {
		if len(b.Items) == 0 {
			continue
		}
		if len(b.Items) > batchRows {
			t.Errorf("batch of %d rows, the limit is %d", len(b.Items), batchRows)
		}
		parts++
		if b.Position != "" {
			positions++
		}
		for i := range b.Items {
			txns[b.Items[i].Txn] = true
			if b.Items[i].Committed.IsZero() {
				t.Errorf("row %s has no commit time", b.Items[i].ID)
			}
		}
	}

	want := 1
	if fine {
		want = parts
	}
	if positions != want || len(txns) != 1 {
		t.Errorf("one transaction: got %d parts with %d positions, want %d, and %d transaction ids", parts, positions, want, len(txns))
	}
}

func testMarks(t *testing.T, db Database) {
	r, _ := follow(t, db, store.Checkpoint{})
	commit(t, db, rowsOf("before", 3)...)
	if err := r.src.Mark(t.Context(), "mark-1"); err != nil {
		t.Fatal(err)
	}
	if err := r.src.Mark(t.Context(), "mark-2"); err != nil {
		t.Fatal(err)
	}
	r.until("the marks", func() bool { return slices.Contains(r.marks, "mark-2") })
	if !slices.Equal(r.marks, []string{"mark-1", "mark-2"}) {
		t.Errorf("got marks %q", r.marks)
	}
	r.expectAny(idsOf(rowsOf("before", 3))) // every row committed before the marker
}

// testSnapshot opens a source beside writers. The view and the stream together must bring every
// row exactly once.
func testSnapshot(t *testing.T, db Database) {
	src := db.Source(t, Options{Outbox: outbox, BatchRows: batchRows})
	begun := make(chan struct{})
	done := make(chan []string, 1)
	var opened atomic.Bool
	defer opened.Store(true)
	go func() {
		done <- writersUntil(t, db, 4, 40, opened.Load, func(n int) {
			if n >= 30 {
				select {
				case <-begun:
				default:
					close(begun)
				}
			}
		})
	}()
	<-begun
	opening, err := src.Open(t.Context(), store.Checkpoint{}, &Tables{Viewer: db.Viewer(t)})
	opened.Store(true)
	if err != nil {
		t.Fatal(err)
	}
	if opening.View == nil || opening.SnapshotReason == "" || opening.Origin == "" || opening.From == "" {
		t.Fatalf("snapshot is incomplete: %+v", opening)
	}

	items, err := opening.View.Unsettled(t.Context(), store.UnsettledQuery{Outbox: outbox, Limit: 100000})
	if err != nil {
		t.Fatal(err)
	}

	opening.View.Close()
	opening.View.Close() // a second Close is allowed
	r := newReader(t, src)
	for i := range items {
		r.ids = append(r.ids, items[i].ID)
	}

	inView := len(items)
	r.start(opening.From)
	order := <-done
	r.rows(len(order))
	t.Logf("%d rows in the view, %d in the log", inView, len(r.ids)-inView)
	if inView == 0 || inView == len(order) {
		t.Error("the snapshot did not fall between the writers' commits; the test proved nothing")
	}

	r.expectAny(order)
	sameOrder(t, r.ids[inView:], order[inView:])
}
