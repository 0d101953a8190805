package postgres_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest"
	"github.com/sluicebox/sluicebox/store/storetest/raced"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
	"github.com/sluicebox/sluicebox/store/storetest/tables"
)

func TestMain(m *testing.M) {
	// With the race detector only the tests with the most going on at once run.
	err := errors.Join(servers.Crowd(), raced.Only(TestAheadOfVisibility, TestHotPathIsFenced,
		TestPartitionsBesideWriters, TestLockReleasedMeanwhile, TestLockSessionEnded, TestLostSessions,
		TestCancelledCall, TestCloseEndsCalls, TestSpillBlocksNoOtherCall, TestBeforeInit))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func TestStore(t *testing.T) {
	t.Parallel()
	whole := servers.Spread(t, servers.Versions())
	for _, version := range servers.Versions() {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			var layouts []string
			if !slices.Contains(whole, version) {
				layouts = []string{storetest.CoreLayout()}
			}
			storetest.Run(t, func(t *testing.T) storetest.Harness {
				url := servers.Database(t, version)
				return &harness{url: url, conn: servers.Connect(t, url+"&default_query_exec_mode=describe_exec")}
			}, layouts...)
		})
	}
}

// Stores that share sessions behave as others do.
func TestStoreBeside(t *testing.T) {
	t.Parallel()
	version := servers.Spread(t, servers.Versions())[0]
	storetest.RunSessions(t, func(t *testing.T) storetest.Harness {
		url := servers.Database(t, version)
		h := &harness{url: url, conn: servers.Connect(t, url+"&default_query_exec_mode=describe_exec")}
		h.beside = true
		return h
	})
}

// harness runs the suite on one database, cleared by each Setup, and on one session
// besides those of the stores, because opening one costs the server 10 ms. It caches no
// statement, because tables change under it.
type harness struct {
	url    string
	conn   *pgx.Conn
	beside bool // each store is beside another one
}

func (h *harness) Setup(t *testing.T, outboxes ...store.Outbox) storetest.Database {
	t.Helper()
	statements, d := []string{"DROP SCHEMA IF EXISTS sluicebox CASCADE"}, dialect()
	for i := range outboxes {
		statements = append(statements, d.Create(&outboxes[i])...)
	}
	return h.database(t, statements, outboxes)
}

// Empty implements storetest.Emptier.
func (h *harness) Empty(t *testing.T, outboxes ...store.Outbox) storetest.Database {
	t.Helper()
	var statements []string
	for _, name := range []string{"leader", "record", "queue"} {
		statements = append(statements, "DELETE FROM sluicebox."+name)
	}
	for i := range outboxes {
		statements = append(statements, "DELETE FROM "+postgres.TableName(&outboxes[i]))
	}
	return h.database(t, statements, outboxes)
}

func (h *harness) database(t *testing.T, statements []string, outboxes []store.Outbox) storetest.Database {
	t.Helper()
	if _, err := h.conn.Exec(t.Context(), strings.Join(statements, ";"), pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%v, in: %s", err, statements)
	}
	return &database{tables.New(dialect(), &opener{querier{h.conn}, func() *pgx.Conn { return servers.Connect(t, h.url) }, nil}, outboxes...), h}
}

func dialect() *tables.Dialect {
	return &tables.Dialect{
		Dialect: outbox.Postgres(),
		Plain:   "%s", Text: "%s::text", Time: "(%s::timestamptz AT TIME ZONE 'UTC')::text", TimePlaceholder: "%s::timestamptz",
		Parse:      func(text string) (time.Time, error) { return time.Parse("2006-01-02 15:04:05", text) },
		Txn:        "SELECT pg_current_xact_id()::text::bigint",
		SetRefused: "UPDATE sluicebox.record SET body = (body::jsonb || jsonb_build_object('refused', %s::bigint))::json WHERE name = 'suite' AND kind = 'job' AND body->>'id' = %s",
		Types: tables.Types{
			ID: "varchar(26) PRIMARY KEY", Payload: "text NOT NULL", Kind: "varchar(20)", Group: "varchar(255)", JSON: "jsonb",
			Word: "varchar(20) NOT NULL", Number: "smallint NOT NULL DEFAULT 0", Boolean: "boolean NOT NULL DEFAULT false", RetryCount: "smallint NOT NULL DEFAULT 0", Error: "text",
			Claimed: "timestamp", Settled: "timestamptz", Delivered: "timestamptz", Failed: "timestamp(3)", Order: "timestamptz NOT NULL",
		},
	}
}

// querier runs statements on a connection, or in a transaction of it.
type querier struct {
	on interface {
		Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
		QueryRow(ctx context.Context, query string, args ...any) pgx.Row
	}
}

func (q querier) Exec(ctx context.Context, query string, args ...any) error {
	_, err := q.on.Exec(ctx, query, args...)
	return err
}

func (q querier) Row(ctx context.Context, query string, args []any, into ...any) error {
	return q.on.QueryRow(ctx, query, args...).Scan(into...)
}

// opener opens each transaction on a connection of its own, or on that of an ended
// transaction. It is for one goroutine.
type opener struct {
	querier
	connect func() *pgx.Conn
	free    []*pgx.Conn
}

func (o *opener) Begin(ctx context.Context) (tables.Transaction, error) {
	var conn *pgx.Conn
	if last := len(o.free) - 1; last >= 0 {
		conn, o.free = o.free[last], o.free[:last]
	} else {
		conn = o.connect()
	}
	tx, err := conn.Begin(ctx)
	return transaction{querier{tx}, tx, o}, err
}

type transaction struct {
	querier
	tx pgx.Tx
	of *opener
}

func (x transaction) Commit(ctx context.Context) error {
	err := x.tx.Commit(ctx)
	if errors.Is(err, pgx.ErrTxClosed) {
		return nil
	}
	if err == nil {
		x.of.free = append(x.of.free, x.tx.Conn())
	}
	return err
}

type database struct {
	*tables.Database
	*harness
}

// Number implements storetest.Numberer.
func (d *database) Number(t *testing.T, outbox string) {
	table := postgres.TableName(d.Outbox(outbox))
	servers.Exec(t, d.url, "ALTER TABLE "+table+" ADD COLUMN suite_number bigint GENERATED ALWAYS AS IDENTITY")
	t.Cleanup(func() { servers.Exec(t, d.url, "ALTER TABLE "+table+" DROP COLUMN suite_number") })
}

func (d *database) Store(t *testing.T, cfg storetest.Config) storetest.Store {
	of := postgres.Config{
		URL: d.url, Name: cmp.Or(cfg.Name, "suite"), Holder: cfg.Holder, Outboxes: cfg.Outboxes, TakeoverTimeout: cfg.TakeoverTimeout,
	}
	var st ledger.Store
	var err error
	if !d.beside {
		var alone *postgres.Store
		if alone, err = postgres.New(of); err == nil {
			st = ledger.Store{Tables: alone, Ledger: alone.Ledger}
		}
	} else {
		st, err = d.first(t, of).Beside(of)
	}
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// first returns a store that another one is beside. It is closed after that.
func (h *harness) first(t *testing.T, of postgres.Config) *postgres.Store {
	t.Helper()
	of.Name = "first"
	st, err := postgres.New(of)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return st
}

// LockRows implements storetest.Locking.
func (d *database) LockRows(t *testing.T, outbox string, ids ...string) func() {
	o := d.Outbox(outbox)
	return d.lock(t, "SELECT FROM "+postgres.TableName(o)+" WHERE "+postgres.Ident(o.Layout.Columns.ID)+" = ANY ($1) FOR UPDATE", ids)
}

// LockTable implements storetest.Locking, with the lock of CREATE INDEX.
func (d *database) LockTable(t *testing.T, outbox string) func() {
	return d.lock(t, "LOCK TABLE "+postgres.TableName(d.Outbox(outbox))+" IN SHARE MODE")
}

// lock runs a statement in a transaction of its own.
func (d *database) lock(t *testing.T, statement string, args ...any) (end func()) {
	t.Helper()
	conn := servers.Connect(t, d.url)
	tx, err := conn.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), statement, args...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(context.Background()); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			t.Error(err)
		}
	}
}
