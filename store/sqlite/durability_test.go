package sqlite_test

import (
	"context"
	"database/sql/driver"
	"fmt"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/sqlite"
)

// TestDurability: exactly the writes that must survive a power failure are committed with
// synchronous=FULL.
func TestDurability(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	want := func(what string, d sqlite.Durability) {
		t.Helper()
		if r.store.LastCommit() != d {
			t.Errorf("%s: durable %t, want %t", what, r.store.LastCommit(), d)
		}
	}
	want("AcquireLeadership", sqlite.Full)
	r.exec(t, "INSERT INTO outbox_events (id) VALUES ('1'), ('2'), ('3')")
	r.claim(t, row("1"), row("2"), row("3"))
	want("Claim", sqlite.Normal)
	r.settle(t, outcome("1", store.Completed), outcome("2", store.Failed))
	want("FAILED", sqlite.Full)
	r.settle(t, outcome("3", store.Completed))
	want("COMPLETED", sqlite.Normal)
	if err := r.store.SaveCheckpoint(ctx(t), r.epoch, store.Checkpoint{Position: "1"}); err != nil {
		t.Fatal(err)
	}
	want("SaveCheckpoint", sqlite.Full)
	pause := store.Hold{Lane: store.LaneKey{Outbox: "events"}, Kind: store.Paused}
	filter := store.DeadLetterFilter{Outbox: "events"}
	r.exec(t, "UPDATE outbox_events SET status = 'FAILED'")
	spilled := func(status store.Status) store.Outcome {
		o := outcome("2", status)
		o.SpilledSeq = 1
		return o
	}
	for _, c := range []struct {
		what string
		call func() error
	}{
		{"Hold", func() error { return r.store.Hold(ctx(t), r.epoch, pause) }},
		{"Release", func() error { return r.store.Release(ctx(t), r.epoch, pause.Lane, pause.Kind) }},
		{"Requeue", func() error { _, err := r.store.Requeue(ctx(t), r.epoch, filter, 1); return err }},
		{"Discard", func() error { _, err := r.store.Discard(ctx(t), r.epoch, filter, 1); return err }},
		{"Spill", func() error { return r.store.Spill(ctx(t), r.epoch, r.manySpillItems(1000, 3)) }},
		{"DeleteSpilledAfter", func() error {
			_, err := r.store.DeleteSpilledAfter(ctx(t), r.epoch, store.Checkpoint{Seq: 0})
			return err
		}},
		{"COMPLETED of a spilled row", func() error { r.settle(t, spilled(store.Completed)); return nil }},
	} {
		r.claim(t, row("1"))
		want("Claim again", sqlite.Normal)
		if err := c.call(); err != nil {
			t.Fatal(err)
		}
		want(c.what, sqlite.Full)
	}
	r.settle(t, spilled(store.Pending))
	want("a retry of a spilled row", sqlite.Normal)
	if err := r.store.DeleteSpilled(ctx(t), r.epoch, refsOf(r.manySpillItems(1, 1))); err != nil {
		t.Fatal(err)
	}
	want("DeleteSpilled", sqlite.Normal)
}

// TestSynchronous: the levels are SQLite's own, and apply inside the transaction.
func TestSynchronous(t *testing.T) {
	conn, err := sqlite.Dial(ctx(t), newFile(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, c := range []struct {
		d     sqlite.Durability
		level int64 // see PRAGMA synchronous
	}{{sqlite.Normal, 1}, {sqlite.Full, 2}, {sqlite.Full, 2}, {sqlite.Normal, 1}} {
		var level driver.Value
		err := conn.Write(ctx(t), c.d, func(ctx context.Context) error {
			return conn.Query(ctx, "SELECT synchronous FROM pragma_synchronous", nil,
				func(row []driver.Value) error { level = row[0]; return nil })
		})
		if err != nil || level != c.level {
			t.Errorf("durable %t: synchronous is %v, %v", c.d, level, err)
		}
	}
}

// BenchmarkRows claims and completes rows, n to a call, in a table with completed rows.
func BenchmarkRows(b *testing.B) {
	r := newRig(b, flowTable, 0, flowBox())
	const settled, pending = 200_000, 100_000
	r.exec(b, `WITH RECURSIVE c(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM c WHERE i < ?)
		INSERT INTO outbox_events (id, message_group, payload, status)
		SELECT printf('%013d', i), i % 1000, printf('%300d', i), CASE WHEN i < ? THEN 'COMPLETED' ELSE 'PENDING' END FROM c`, settled+pending, settled)
	next := 0
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("calls of %d", n), func(b *testing.B) {
			for b.Loop() {
				claims, outcomes := make([]store.ClaimRow, n), make([]store.Outcome, n)
				for i := range n {
					id := fmt.Sprintf("%013d", settled+next%pending)
					next++
					claims[i], outcomes[i] = row(id), outcome(id, store.Pending)
					claims[i].WantPayload = false
				}
				r.claim(b, claims...)
				r.settle(b, outcomes...)
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
