package poll_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const createTable = `CREATE TABLE outbox_events (
	id text PRIMARY KEY, message_group text, payload text, status text NOT NULL DEFAULT 'PENDING',
	retry_count int NOT NULL DEFAULT 0, created_at timestamptz NOT NULL DEFAULT now(),
	processed_at timestamptz, error_message text)`

func outboxes(name string) []store.Outbox {
	return []store.Outbox{{Name: name, Table: "outbox_events", Layout: store.FlowCatalyst(), Kind: "EVENT"}}
}

const createOdd = `CREATE TABLE "Out ""Box""" (
	"table" timestamptz NOT NULL DEFAULT now(), "Meta 'data'" jsonb, "select" text, "Order" text PRIMARY KEY,
	"größe" timestamp, "deliveredAt" timestamptz, "$1" bigint NOT NULL DEFAULT 0)`

func oddNames(name string) []store.Outbox { return []store.Outbox{capturetest.OddNames(name)} }

type database struct {
	url      string
	views    *pgstore.Store
	outboxes func(name string) []store.Outbox
}

func (d *database) Source(_ *testing.T, o capturetest.Options) capturetest.Source {
	cfg := poll.Config{Interval: 20 * time.Millisecond, BatchSize: o.BatchRows, Outboxes: d.outboxes(o.Outbox)}
	return source{poll.New(cfg, d.views, o.Held)}
}

type source struct{ *poll.Source }

func (source) Close() {}

func (d *database) Viewer(*testing.T) store.Viewer { return d.views }
func (d *database) Unrelated(*testing.T)           {}
func (d *database) Cut(*testing.T)                 {}

func (d *database) Begin(t *testing.T, rows ...capturetest.Row) func(commit bool) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, d.url)
	if err != nil {
		t.Error(err)
		return func(bool) {}
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Error(err)
		return func(bool) {}
	}
	box := &d.outboxes("shop")[0]
	c := box.Layout.Columns
	insert := fmt.Sprintf("INSERT INTO %s (%s, %s, %s) VALUES ($1, $2, $3)",
		pgstore.TableName(box), pgstore.Ident(c.ID), pgstore.Ident(c.Group), pgstore.Ident(c.Payload))
	for _, r := range rows {
		if _, err := tx.Exec(ctx, insert, r.ID, storetest.GroupText(&box.Layout, r.Group), r.Payload); err != nil {
			t.Error(err)
		}
	}
	return func(commit bool) {
		end := tx.Rollback
		if commit {
			end = tx.Commit
		}
		if err := errors.Join(end(ctx), conn.Close(ctx)); err != nil {
			t.Error(err)
		}
	}
}

func TestSuite(t *testing.T) {
	for _, version := range servers.Versions() {
		t.Run("PostgreSQL "+strconv.Itoa(version), func(t *testing.T) {
			capturetest.Run(t, harness(version, createTable, outboxes))
			t.Run("odd names", func(t *testing.T) { capturetest.RunLayout(t, harness(version, createOdd, oddNames)) })
		})
	}
}

func harness(version int, ddl string, outboxes func(name string) []store.Outbox) capturetest.Harness {
	return capturetest.Harness{Setup: func(t *testing.T) capturetest.Database {
		d := &database{url: servers.Database(t, version), outboxes: outboxes}
		servers.Exec(t, d.url, ddl)
		var err error
		d.views, err = pgstore.New(pgstore.Config{URL: d.url, Name: "poll", Outboxes: outboxes("shop")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.views.Close)
		return d
	}}
}

// memory is a table in memory, and its views.
type memory struct {
	mu    sync.Mutex
	rows  []string
	reads []time.Duration // since the first
	began time.Time
	fail  error
}

func (m *memory) View(context.Context, string) (store.View, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.began.IsZero() {
		m.began = time.Now()
	}
	m.reads = append(m.reads, time.Since(m.began))
	return m, m.fail
}

func (m *memory) Position() store.Position { return "" }
func (m *memory) Close()                   {}

func (m *memory) Unsettled(_ context.Context, q store.Unsettled) ([]store.Item, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var items []store.Item
	for _, id := range m.rows {
		if len(items) < q.Limit && !slices.Contains(q.Held, id) {
			items = append(items, store.Item{Ref: store.Ref{Outbox: q.Outbox, ID: id}})
		}
	}
	return items, nil
}

func config(size int) poll.Config {
	return poll.Config{Interval: time.Second, BatchSize: size, Outboxes: outboxes("shop")}
}

// Rows wait in a channel and are not yet held: they are not read again, and a
// full batch is followed by the next at once.
func TestRowsOnTheirWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		for i := range 25 {
			m.rows = append(m.rows, strconv.Itoa(i))
		}
		out := make(chan capture.Batch, 16)
		var held []string // by the receiver, which takes nothing for 5 s
		src := poll.New(config(10), m, func(string) []string {
			m.mu.Lock()
			defer m.mu.Unlock()
			return slices.Clone(held)
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- src.Run(ctx, capture.Span{}, out) }()
		time.Sleep(5 * time.Second) // fake time: five reads more
		synctest.Wait()
		m.mu.Lock()
		if reads := len(m.reads); reads < 5 || m.reads[2] != 0 || m.reads[3] != time.Second {
			t.Errorf("reads at %v, want three at once, then one each second", m.reads)
		}
		for len(out) > 0 {
			b := <-out
			for i := range b.Items {
				held = append(held, b.Items[i].ID)
			}
		}
		m.mu.Unlock()
		time.Sleep(5 * time.Second)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		if len(held) != 25 {
			t.Errorf("%d rows came, want 25, once each", len(held))
		}
		for len(out) > 0 {
			if b := <-out; len(b.Items) > 0 {
				t.Errorf("rows %v came again", b.Items)
			}
		}
	})
}

// A row that is neither held nor on its way any more comes again, though nothing
// else comes.
func TestRequeued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{rows: []string{"a"}}
		out := make(chan capture.Batch)
		src := poll.New(config(10), m, func(string) []string { return nil })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- src.Run(ctx, capture.Span{}, out) }()
		times := 0
		for times < 3 {
			times += len((<-out).Items)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestFailedRead(t *testing.T) {
	m := &memory{fail: errors.New("no server")}
	src := poll.New(config(10), m, func(string) []string { return nil })
	if err := src.Run(t.Context(), capture.Span{}, nil); !errors.Is(err, m.fail) {
		t.Errorf("Run returned %v", err)
	}
}

func TestValidate(t *testing.T) {
	if err := (&poll.Config{}).Validate(); err == nil {
		t.Error("an empty configuration passes")
	}
	if c := config(1); c.Validate() != nil {
		t.Error(c.Validate())
	}
}
