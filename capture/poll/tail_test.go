package poll_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// events is a table of events by position, on PostgreSQL.
type events struct {
	url    string
	store  *pgstore.Store
	outbox []store.Outbox
	saved  store.Checkpoint
}

const createEvents = `CREATE TABLE events (
	type text NOT NULL, tags text[] NOT NULL DEFAULT '{}', data jsonb NOT NULL DEFAULT '{}', correlation_id uuid, causation_id bigint,
	transaction_id xid8 NOT NULL DEFAULT pg_current_xact_id(), position bigserial PRIMARY KEY, occurred_at timestamptz NOT NULL DEFAULT now()
); CREATE INDEX ON events (transaction_id, position)`

func newEvents(t *testing.T, version int) *events {
	t.Helper()
	preset, _ := layouts.Named("crablet")
	e := &events{url: servers.Database(t, version), outbox: []store.Outbox{{Name: "events", Table: "events", Layout: *preset.Tables}}}
	servers.Exec(t, e.url, createEvents)
	var err error
	if e.store, err = pgstore.New(pgstore.Config{URL: e.url, Name: "tail", Outboxes: e.outbox}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.store.Close)
	if err := e.store.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.store.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
}

// View, ClearCheckpoint and Keep implement capture.Tables.
func (e *events) View(ctx context.Context, snapshot string) (store.View, error) {
	return e.store.View(ctx, snapshot)
}
func (e *events) ClearCheckpoint(context.Context) error { e.saved = store.Checkpoint{}; return nil }
func (e *events) Keep(_ context.Context, at store.Checkpoint, _ []store.Item) error {
	e.saved = at
	return nil
}

func (e *events) open(t *testing.T) (*poll.Tail, capture.OpenResult) {
	t.Helper()
	src := poll.NewTail(poll.Config{Interval: 10 * time.Millisecond, BatchSize: 20, Backoff: poll.DefaultBackoff(), Outboxes: e.outbox}, e.store)
	opened, err := src.Open(t.Context(), e.saved, e)
	if err != nil {
		t.Fatal(err)
	}
	return src, opened
}

// read runs a source until take returns false, and hands it the batches.
func (e *events) read(t *testing.T, src *poll.Tail, from store.Position, take func(capture.Batch) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, done := make(chan capture.Batch), make(chan error, 1)
	go func() { done <- capture.Follow(ctx, src, from, out, watch{}) }()
	for {
		select {
		case err := <-done:
			t.Fatalf("the source ends: %v", err)
		case b := <-out:
			if take(b) {
				continue
			}
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("the source ends with %v", err)
			}
			return
		}
	}
}

// append writes events in one transaction, and commits it, or rolls it back, after a pause. It
// returns their positions.
func (e *events) append(ctx context.Context, conn *pgx.Conn, n int, pause time.Duration, commit bool) (ids []string, err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, err
	}
	for range n {
		var id string
		if err := tx.QueryRow(ctx, "INSERT INTO events (type) VALUES ('Paid') RETURNING position::text").Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
		time.Sleep(pause / time.Duration(n)) // transactions interleave
	}
	if !commit {
		return nil, tx.Rollback(ctx)
	}
	return ids, tx.Commit(ctx)
}

// TestEventsOutOfOrder: positions are committed in another order than they were given out, by
// writers whose transactions overlap, some for long and some rolled back. The source is replaced
// again and again, as by a crash, and goes on where the last batch ended. Every committed event
// comes exactly once, in the order of its transaction and its position.
func TestEventsOutOfOrder(t *testing.T) {
	t.Parallel()
	for _, version := range servers.Versions() {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			e := newEvents(t, version)
			_, opened := e.open(t)
			if opened.SnapshotReason == "" || e.saved.Position != opened.From {
				t.Fatalf("first start: got %+v with checkpoint %+v, want a saved start", opened, e.saved)
			}

			const writers, transactions = 8, 40
			var mu sync.Mutex
			committed := map[string]bool{}
			var work errgroup.Group
			for range writers {
				work.Go(func() error {
					conn, err := pgx.Connect(t.Context(), e.url)
					if err != nil {
						return err
					}
					defer func() { _ = conn.Close(context.Background()) }()
					for i := range transactions {
						ids, err := e.append(t.Context(), conn, 1+rand.N(4), rand.N(40*time.Millisecond), i%5 != 0)
						if err != nil {
							return err
						}
						mu.Lock()
						for _, id := range ids {
							committed[id] = true
						}
						mu.Unlock()
					}
					return nil
				})
			}
			var ended atomic.Bool
			written := make(chan error, 1)
			go func() {
				defer ended.Store(true)
				written <- work.Wait()
			}()

			var got []store.Item
			for over := false; !over; {
				src, opened := e.open(t)
				if opened.SnapshotReason != "" || opened.From != e.saved.Position {
					t.Fatalf("restart: got %+v, want to go on at %q", opened, e.saved.Position)
				}
				final, batches := ended.Load(), 1+rand.N(6)
				if final {
					if err := src.Mark(t.Context(), "end"); err != nil {
						t.Fatal(err)
					}
				}
				e.read(t, src, opened.From, func(b capture.Batch) bool {
					got = append(got, b.Items...)
					e.saved.Position = b.Position
					if over = slices.Contains(b.Marks, "end"); final {
						return !over
					}
					if len(b.Items) > 0 {
						batches--
					}
					return batches > 0 && !ended.Load()
				})
			}
			if err := <-written; err != nil {
				t.Fatal(err)
			}
			checkEvents(t, got, committed)
		})
	}
}

// checkEvents checks that exactly the committed events came, in order. It also checks that the test
// had what it is about: events whose positions are not in the order of their commits.
func checkEvents(t *testing.T, got []store.Item, committed map[string]bool) {
	t.Helper()
	seen, overtaken := map[string]bool{}, 0
	for i, it := range got {
		switch {
		case !committed[it.ID]:
			t.Errorf("event %s was not committed", it.ID)
		case seen[it.ID]:
			t.Errorf("event %s came twice", it.ID)
		}
		seen[it.ID] = true
		if i == 0 {
			continue
		}
		before := got[i-1]
		if it.Txn < before.Txn || it.Txn == before.Txn && len(it.ID) == len(before.ID) && it.ID < before.ID {
			t.Errorf("event %s of transaction %d came after %s of %d", it.ID, it.Txn, before.ID, before.Txn)
		}
		if it.Txn != before.Txn && (len(it.ID) < len(before.ID) || len(it.ID) == len(before.ID) && it.ID < before.ID) {
			overtaken++
		}
	}
	if len(seen) != len(committed) {
		var lost []string
		for id := range committed {
			if !seen[id] {
				lost = append(lost, id)
			}
		}
		t.Errorf("lost %d of %d events: %s", len(lost), len(committed), strings.Join(lost, ", "))
	}
	if overtaken == 0 {
		t.Error("no position overtook another: the test shows nothing")
	}
}

// TestOldTransaction: an open transaction with a low position holds the events of younger
// transactions back, and markers with them. Once it ends, its event comes first.
func TestOldTransaction(t *testing.T) {
	t.Parallel()
	for _, version := range servers.Versions() {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			e := newEvents(t, version)
			src, opened := e.open(t)
			old := begin(t, e.url, "INSERT INTO events (type) VALUES ('Old')")
			servers.Exec(t, e.url, "INSERT INTO events (type) VALUES ('Young')", "INSERT INTO events (type) VALUES ('Young')")
			if err := src.Mark(t.Context(), "young"); err != nil {
				t.Fatal(err)
			}
			var ids []string
			empty := 0
			e.read(t, src, opened.From, func(b capture.Batch) bool {
				for i := range b.Items {
					ids = append(ids, b.Items[i].ID)
				}
				if len(b.Items) == 0 && len(b.Marks) == 0 {
					if empty++; empty == 3 {
						if err := old.Commit(t.Context()); err != nil {
							t.Error(err)
						}
					}
				}
				return len(b.Marks) == 0
			})
			if got, want := fmt.Sprint(ids), "[1 2 3]"; got != want || empty < 3 {
				t.Errorf("got %s after %d reads of nothing, want %s after 3", got, empty, want)
			}
		})
	}
}

// TestCheckpointOfAnotherDatabase: a position whose transaction lies ahead of the database's is not
// continued, because its own transactions would count as read.
func TestCheckpointOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	e := newEvents(t, servers.Versions()[0])
	for _, at := range []store.Checkpoint{{Origin: "position", Position: "99999999999/7"}, {Origin: "position", Position: "7"}, {Origin: "slot", Position: "0/1"}} {
		e.saved = at
		if _, opened := e.open(t); opened.SnapshotReason == "" || opened.From == at.Position || e.saved.Position != opened.From {
			t.Errorf("%+v: got %+v, want a start at the present", at, opened)
		}
	}
}

// TestComparePositions: a transaction comes first, then the id as a number.
func TestComparePositions(t *testing.T) {
	t.Parallel()
	src := poll.NewTail(poll.Config{Outboxes: make([]store.Outbox, 1)}, nil)
	order := []store.Position{"", "9/", "9/2", "9/10", "10/1", "18446744073709551615/1"}
	for i, a := range order {
		for k, b := range order {
			if got := src.Compare(a, b); got < 0 != (i < k) || got > 0 != (i > k) {
				t.Errorf("Compare(%q, %q) is %d", a, b, got)
			}
		}
	}
}
