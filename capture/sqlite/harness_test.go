package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/sqlite"
	"github.com/sluicebox/sluicebox/store"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const createTable = `CREATE TABLE outbox_events (
	id TEXT PRIMARY KEY, message_group TEXT, payload TEXT, status TEXT NOT NULL DEFAULT 'PENDING',
	retry_count INT NOT NULL DEFAULT 0, created_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP,
	processed_at DATETIME, error_message TEXT)`

func outboxes(name string) []store.Outbox {
	return []store.Outbox{{Name: name, Table: "outbox_events", Layout: store.FlowCatalyst(), Kind: "EVENT"}}
}

// database is one file for a test.
type database struct {
	path  string
	db    *sql.DB // a service's
	views *sqlitestore.Store

	mu   sync.Mutex
	last *cuttable
}

func newDatabase(t testing.TB) *database { return newDatabaseOf(t, createTable, outboxes("shop")...) }

func newDatabaseOf(t testing.TB, ddl string, boxes ...store.Outbox) *database {
	t.Helper()
	d := &database{path: filepath.Join(t.TempDir(), "shop.db")}
	var err error
	if d.db, err = sql.Open("sqlite", "file:"+d.path+"?_pragma=busy_timeout(20000)&_txlock=immediate"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.db.Close(); err != nil {
			t.Error(err)
		}
	})
	d.exec(t, "PRAGMA journal_mode = WAL")
	d.exec(t, ddl)
	d.exec(t, "CREATE TABLE unrelated (n INT)")
	d.views = d.store(t, boxes...)
	return d
}

func (d *database) store(t testing.TB, boxes ...store.Outbox) *sqlitestore.Store {
	t.Helper()
	st, err := sqlitestore.New(sqlitestore.Config{URL: d.url(), Name: "relay", Outboxes: boxes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return st
}

func (d *database) url() string { return "sqlite://" + d.path }

func (d *database) exec(t testing.TB, query string, args ...any) {
	t.Helper()
	if _, err := d.db.Exec(query, args...); err != nil {
		t.Fatalf("%v, in: %s", err, query)
	}
}

func ask[T any](t testing.TB, d *database, query string, args ...any) T {
	t.Helper()
	var v T
	if err := d.db.QueryRow(query, args...).Scan(&v); err != nil {
		t.Fatalf("%v, in: %s", err, query)
	}
	return v
}

func (d *database) config() sqlite.Config {
	return sqlite.Config{URL: d.url(), Name: "relay", Outboxes: outboxes("shop")}
}

func newSource(t testing.TB, cfg sqlite.Config) *sqlite.Source {
	t.Helper()
	src, err := sqlite.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func (d *database) Source(t *testing.T, o capturetest.Options) capturetest.Source {
	cfg := d.config()
	cfg.Outboxes = outboxes(o.Outbox)
	cfg.MaxBatchRows = o.BatchRows
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = &cuttable{Source: newSource(t, cfg)}
	return d.last
}

func (d *database) Viewer(*testing.T) store.Viewer { return d.views }

// Begin inserts the rows when their transaction ends: SQLite has one writer at a
// time, and the suite begins several transactions before it ends one.
func (d *database) Begin(t *testing.T, rows ...capturetest.Row) func(commit bool) {
	t.Helper()
	return func(commit bool) {
		if err := d.insert(commit, rows...); err != nil {
			t.Error(err)
		}
	}
}

func (d *database) insert(commit bool, rows ...capturetest.Row) error {
	tx, err := d.db.Begin()
	if err != nil {
		return err
	}
	stmt, err := tx.Prepare("INSERT INTO outbox_events (id, message_group, payload) VALUES (?, ?, ?)")
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	for _, r := range rows {
		group := sql.NullString{String: r.Group.Name, Valid: r.Group.Valid}
		if _, err := stmt.Exec(r.ID, group, r.Payload); err != nil {
			return errors.Join(err, tx.Rollback())
		}
	}
	if commit {
		return tx.Commit()
	}
	return tx.Rollback()
}

func (d *database) Unrelated(t *testing.T) {
	t.Helper()
	d.exec(t, "INSERT INTO unrelated VALUES (1)")
}

func (d *database) Cut(t *testing.T) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last.cut()
}

// cuttable is a source that loses its connection when it is told to. SQLite has
// none that another process could cut.
type cuttable struct {
	*sqlite.Source
	mu   sync.Mutex
	lose context.CancelCauseFunc
}

var errCut = errors.New("the connection was cut")

func (c *cuttable) Run(ctx context.Context, span capture.Span, out chan<- capture.Batch) error {
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	c.mu.Lock()
	c.lose = lose
	c.mu.Unlock()
	err := c.Source.Run(ctx, span, out)
	if context.Cause(ctx) == errCut {
		return errCut
	}
	return err
}

func (c *cuttable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lose != nil {
		c.lose(errCut)
	}
}

// differs are tests of the suite on what SQLite's log does otherwise; tests here
// stand in for them.
func differs() map[string]string {
	return map[string]string{
		"larger_than_a_batch":        "every number of the log is a position: see TestPartsHavePositions",
		"cut_inside_a_transaction":   "every number of the log is a position: see TestCutInside",
		"span_with_an_end":           "a batch may hold rows of several transactions: see TestSpanEnds",
		"position_of_an_idle_outbox": "nothing is kept for an idle outbox, so no position moves: see TestIdle",
	}
}

func TestSuite(t *testing.T) {
	capturetest.Run(t, capturetest.Harness{
		Log: true,
		Setup: func(t *testing.T) capturetest.Database {
			if why := differs()[t.Name()[strings.LastIndexByte(t.Name(), '/')+1:]]; why != "" {
				t.Skip(why)
			}
			return newDatabase(t)
		},
	})
}
