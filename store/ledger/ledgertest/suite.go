// Package ledgertest is the test suite of ledger.Backend.
package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// Backend is a backend of a store that can lead.
type Backend interface {
	ledger.Backend
	// AcquireLeadership is the method of store.Leadership.
	AcquireLeadership(ctx context.Context) (store.Epoch, error)
}

// Database is an empty database. Open returns the backend of a new store of a relay on it;
// the relays are first and second.
type Database interface {
	Open(t testing.TB, relay string) Backend
}

// Run runs the suite, each test on its own database.
func Run(t *testing.T, open func(t *testing.T) Database) {
	for _, test := range []struct {
		name string
		run  func(*bench, *testing.T)
	}{
		{"records", (*bench).testRecords},
		{"records of two relays", (*bench).testRelays},
		{"only the leader updates", (*bench).testFence},
		{"a second term", (*bench).testSecondTerm},
		{"a failed transaction writes nothing", (*bench).testRollback},
		{"a canceled call writes nothing", (*bench).testCanceled},
		{"requests are counted", (*bench).testRequests},
		{"requests beside updates", (*bench).testRequestsBesideUpdates},
		{"a view is one snapshot", (*bench).testSnapshot},
		{"rows are read back", (*bench).testRange},
		{"rows in a queue stay", (*bench).testEnqueueAgain},
		{"a number of another row", (*bench).testNumberTaken},
		{"many rows", (*bench).testMany},
		{"names of queues", (*bench).testQueueNames},
		{"huge rows", (*bench).testHugeRows},
		{"rows are removed", (*bench).testDequeue},
		{"rows are cleared", (*bench).testClear},
		{"other rows are not removed", (*bench).testDequeueOthers},
		{"rows by number", (*bench).testScan},
		{"lanes", (*bench).testLanes},
		{"records of legs", (*bench).testLegRows},
		{"FAILED legs", (*bench).testLegFailed},
		{"FAILED legs are opened", (*bench).testReopenLegs},
		{"legs behind their marks", (*bench).testLegsAfter},
		{"copies of missing legs", (*bench).testAdoptLegs},
		{"rows of a leg for others", (*bench).testReroute},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &bench{db: open(t)}
			b.lead(t)
			test.run(b, t)
		})
	}
}

// bench is a database with a leader.
type bench struct {
	db     Database
	leader Backend
	epoch  store.Epoch
}

// callTimeout limits every call of a test.
const callTimeout = time.Minute

func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(t.Context(), callTimeout)
	t.Cleanup(cancel)
	return c
}

// lead makes a new backend the leader.
func (b *bench) lead(t *testing.T) {
	t.Helper()
	b.leader = b.db.Open(t, "first")
	var err error
	if b.epoch, err = b.leader.AcquireLeadership(ctx(t)); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) update(t *testing.T, do func(context.Context, ledger.Tx) error) {
	t.Helper()
	if err := b.leader.Update(ctx(t), b.epoch, ledger.Full, do); err != nil {
		t.Fatal(err)
	}
}

// view reads from a backend that never led.
func (b *bench) view(t *testing.T, do func(context.Context, ledger.Reader) error) {
	t.Helper()
	if err := b.db.Open(t, "first").View(ctx(t), do); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) put(t *testing.T, kind, key, body string) {
	t.Helper()
	b.update(t, func(ctx context.Context, tx ledger.Tx) error {
		return tx.Put(ctx, kind, ledger.Record{Key: key, Body: []byte(body)})
	})
}

// wantRecords compares the records of a kind with "KEY BODY" each.
func (b *bench) wantRecords(t *testing.T, what, kind, prefix string, limit int, want ...string) {
	t.Helper()
	b.view(t, func(ctx context.Context, r ledger.Reader) error {
		var got []string
		err := r.List(ctx, kind, prefix, limit, func(rec ledger.Record) error {
			got = append(got, rec.Key+" "+string(rec.Body))
			return nil
		})
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %.300q, want %.300q", what, got, want)
		}
		return err
	})
}

func get(t *testing.T, ctx context.Context, r ledger.RecordReader, kind, key string) string {
	t.Helper()
	bodies, err := r.Get(ctx, kind, key)
	if err != nil || len(bodies) != 1 {
		t.Errorf("%d bodies, %v", len(bodies), err)
		return ""
	}
	return string(bodies[0])
}

// row returns a row of outbox a under a number.
func row(n int64, group string) store.Item {
	return store.Item{
		Ref: store.Ref{Outbox: "a", ID: fmt.Sprint("id ", n)}, Kind: "EVENT", Group: store.GroupOf(group), Seq: store.Seq(n),
		PayloadSize: 7, RetryCount: 2, Committed: time.Date(2024, 2, 29, 12, 0, 0, 5e6, time.UTC),
	}
}

func (b *bench) enqueue(t *testing.T, queue string, want int, rows ...store.Item) {
	t.Helper()
	var n int
	b.update(t, func(ctx context.Context, tx ledger.Tx) (err error) {
		n, err = tx.Enqueue(ctx, queue, rows)
		return err
	})
	if n != want {
		t.Errorf("%d rows were added, want %d", n, want)
	}
}

// wantQueue compares the rows of a queue, without payload.
func (b *bench) wantQueue(t *testing.T, what, queue string, want ...store.Item) {
	t.Helper()
	b.view(t, func(ctx context.Context, r ledger.Reader) error {
		got, err := r.Scan(ctx, ledger.Scan{Queue: queue, Limit: len(want) + 1})
		wantRows(t, what, got, want, false)
		return err
	})
}

func wantRows(t *testing.T, what string, got, want []store.Item, payload bool) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d rows, want %d", what, len(got), len(want))
		return
	}
	for i := range got {
		g, w := got[i], want[i]
		if !payload {
			w.DropContent()
		}
		same := g.Ref == w.Ref && g.Kind == w.Kind && g.Group == w.Group && g.Seq == w.Seq && g.RetryCount == w.RetryCount &&
			g.PayloadSize == w.PayloadSize && g.Committed.Equal(w.Committed) && string(g.Payload) == string(w.Payload) && (g.Payload == nil) == (w.Payload == nil) &&
			slices.Equal(g.Attributes, w.Attributes)
		if !same || g.Txn != 0 || !g.Captured.IsZero() {
			t.Errorf("%s: row %d is\n%.300s, want\n%.300s", what, i, fmt.Sprintf("%+v", g), fmt.Sprintf("%+v", w))
		}
	}
}

var errNo = errors.New("no")
