package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	"github.com/sluicebox/sluicebox/store/storetest"
	"github.com/sluicebox/sluicebox/store/storetest/ddl"
	"github.com/sluicebox/sluicebox/store/storetest/raced"
)

func TestMain(m *testing.M) {
	// With the race detector only the tests with several sessions run.
	err := raced.Only(TestReconnectInTransaction, TestAcknowledge, TestLastAcknowledgementTakesEffect, TestSeveralOutboxes,
		TestOpenTransactionIsNotSent, TestReplacedFile, TestRetainedDoesNotWaitForWriter)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

const createTable = `CREATE TABLE outbox_events (
	id TEXT PRIMARY KEY, message_group TEXT, payload TEXT, status TEXT NOT NULL DEFAULT 'PENDING',
	retry_count INT NOT NULL DEFAULT 0, created_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP,
	processed_at DATETIME, error_message TEXT)`

func outboxes(name string) []store.Outbox {
	return []store.Outbox{{Name: name, Table: "outbox_events", Layout: store.FlowCatalyst(), Kind: "EVENT"}}
}

// database is the file of a test.
type database struct {
	path  string
	db    *sql.DB // the connection of a service
	views *sqlitestore.Store
	boxes []store.Outbox

	mu   sync.Mutex
	last *disconnectable
}

func newDatabase(t testing.TB) *database { return newDatabaseOf(t, createTable, outboxes("shop")...) }

func newDatabaseOf(t testing.TB, ddl string, boxes ...store.Outbox) *database {
	t.Helper()
	d := &database{path: filepath.Join(t.TempDir(), "shop.db"), boxes: boxes}
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
	cfg.Outboxes = slices.Clone(d.boxes[:1])
	cfg.Outboxes[0].Name = o.Outbox
	cfg.MaxBatchRows = o.BatchRows
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = &disconnectable{Source: newSource(t, cfg)}
	return d.last
}

func (d *database) Viewer(*testing.T) store.Viewer { return d.views }

// Begin inserts the rows when their transaction ends, because SQLite has one writer at a
// time and the suite opens several transactions at once.
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
	box := &d.boxes[0]
	c := box.Layout.Columns
	stmt, err := tx.Prepare(fmt.Sprintf("INSERT INTO %s (%s, %s, %s) VALUES (?, ?, ?)",
		sqlitestore.TableName(box), sqlitestore.Ident(c.ID), sqlitestore.Ident(c.Group), sqlitestore.Ident(c.Payload)))
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	for _, r := range rows {
		if _, err := stmt.Exec(r.ID, storetest.GroupText(&box.Layout, r.Group), r.Payload); err != nil {
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

func (d *database) Disconnect(t *testing.T) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last.cut()
}

// disconnectable is a source that loses its connection on request. SQLite has no connection that
// another process could close.
type disconnectable struct {
	*sqlite.Source
	mu   sync.Mutex
	lose context.CancelCauseFunc
}

var errCut = errors.New("the connection was cut")

func (c *disconnectable) Run(ctx context.Context, span capture.Span, out chan<- capture.Batch) error {
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

func (c *disconnectable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lose != nil {
		c.lose(errCut)
	}
}

// differs lists the tests of the suite that do not apply to SQLite's log, with the tests
// here that replace them.
func differs() map[string]string {
	return map[string]string{
		"larger_than_a_batch":            "every number of the log is a position: see TestEachBatchHasPosition",
		"reconnect_inside_a_transaction": "every number of the log is a position: see TestReconnectInTransaction",
		"span_with_an_end":               "a batch may hold rows of several transactions: see TestSpanEnds",
		"position_of_an_idle_outbox":     "nothing is kept for an idle outbox, so no position moves: see TestIdle",
	}
}

func TestSuite(t *testing.T) {
	h := capturetest.Harness{
		Log: true,
		Setup: func(t *testing.T) capturetest.Database {
			if why := differs()[t.Name()[strings.LastIndexByte(t.Name(), '/')+1:]]; why != "" {
				t.Skip(why)
			}
			return newDatabase(t)
		},
		// Only keys are logged. TestRetained compares the size with the file.
		LogBytes: func(rows []capturetest.Row) (bytes int64) {
			for _, r := range rows {
				bytes += int64(len("shop") + len(r.ID) + 20)
			}
			return bytes
		},
	}
	capturetest.Run(t, h)
	capturetest.RunIsolated(t, h)
	t.Run("odd names", func(t *testing.T) {
		capturetest.RunLayout(t, capturetest.Harness{Log: true, Setup: func(t *testing.T) capturetest.Database {
			return newDatabaseOf(t, ddl.SQLite().Quoted(), capturetest.QuotedNames("shop"))
		}})
	})
}
