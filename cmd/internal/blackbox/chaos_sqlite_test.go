package blackbox

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/ddl"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// sqliteName is the host of a file. It has no server, no network and no sessions to end.
const sqliteName = "sqlite"

func onSQLite(name string) bool { return name == sqliteName }

// sqliteChaos is a file on a disk of its own, if one can be mounted.
type sqliteChaos struct {
	sqlChaos
	disk *servers.Disk // nil: it cannot be filled
}

func newSQLiteChaos(t *testing.T) (*scene, chaosStore) {
	t.Helper()
	dir := t.TempDir()
	disk, err := servers.MountDisk(t, dir, chaosDisk)
	if err != nil {
		t.Logf("the disk is never full: %v", err)
	}
	path := filepath.Join(dir, "outbox.db")
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path, RawQuery: "_txlock=immediate&_pragma=busy_timeout(4000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)"}).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for _, table := range seedCollections() {
		if _, err := db.ExecContext(t.Context(), ddl.SQLite().FlowCatalyst(table)); err != nil {
			t.Fatal(err)
		}
	}
	to, one := sinktest.NewReceiver(t), &conn{DB: db, kind: &kind{}}
	store := sqliteChaos{sqlChaos{conn: one, time: func(at time.Time) any { return at.UTC().Format("2006-01-02 15:04:05.000") }}, disk}
	return &scene{t: t, kind: one.kind, database: "sqlite://" + path, conn: one, to: to}, store
}

func walSize(database string) (int64, error) {
	info, err := os.Stat(strings.TrimPrefix(database, "sqlite://") + "-wal")
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// sqliteKinds are the faults that only SQLite has. The file's one write lock takes the place of locked rows
// and tables.
func sqliteKinds() []chaosKind {
	const short, long = 300 * time.Millisecond, 4 * time.Second
	kind := func(name string, inject func(c *chaos, r *rand.Rand) func()) chaosKind {
		return chaosKind{name: "file " + name, least: short, most: long, on: onSQLite, inject: inject}
	}
	return []chaosKind{
		kind("locked by a writer", func(c *chaos, _ *rand.Rand) func() { return c.hold("BEGIN IMMEDIATE") }),
		kind("locked, again and again", func(c *chaos, _ *rand.Rand) func() {
			return c.meanwhile(func(one *sql.Conn) {
				end := c.holdOn(one, "BEGIN IMMEDIATE")
				time.Sleep(50 * time.Millisecond)
				end()
			})
		}),
		kind("read for long, so that its WAL grows", func(c *chaos, _ *rand.Rand) func() { return c.hold("BEGIN", "SELECT count(*) FROM outbox_events") }),
		kind("checkpointed and its WAL truncated", func(c *chaos, _ *rand.Rand) func() {
			return c.meanwhile(func(one *sql.Conn) {
				_, _ = one.ExecContext(context.Background(), "PRAGMA wal_checkpoint(TRUNCATE)") // it is busy at times
				time.Sleep(20 * time.Millisecond)
			})
		}),
		kind("vacuumed", func(c *chaos, _ *rand.Rand) func() {
			_, err := c.conn.exec("VACUUM")
			c.t.Logf("VACUUM: %v", err) // it may be busy
			return func() {}
		}),
		kind("without the log's trigger", func(c *chaos, r *rand.Rand) func() {
			c.dropOf("trigger", aTable(r))
			return func() {}
		}),
		kind("without the log's table", func(c *chaos, _ *rand.Rand) func() {
			for _, table := range seedCollections() {
				c.dropOf("trigger", table) // else it refuses every insert
			}
			c.dropOf("table", "")
			return func() {}
		}),
		kind("gets a column and loses it", func(c *chaos, r *rand.Rand) func() {
			table := aTable(r)
			c.alter("ALTER TABLE " + table + " ADD COLUMN extra text")
			return func() { c.alter("ALTER TABLE " + table + " DROP COLUMN extra") }
		}),
		kind("on a full disk", func(c *chaos, _ *rand.Rand) func() {
			disk := c.store.(sqliteChaos).disk
			if disk == nil {
				return func() {}
			}
			disk.Fill(0)
			return disk.Free
		}),
	}
}

// dropOf drops what the relay has made in the file: the triggers of a table, or its log tables.
func (c *chaos) dropOf(kind, table string) {
	c.t.Helper()
	of := "SELECT name FROM sqlite_schema WHERE type = $1 AND name LIKE 'sluicebox%log%'"
	if kind == "trigger" {
		of = "SELECT name FROM sqlite_schema WHERE type = $1 AND tbl_name = $2"
	}
	names, err := c.conn.texts(strings.ReplaceAll(of, "$2", "'"+table+"'"), kind)
	if err != nil {
		c.t.Logf("%s: %v", kind, err)
	}
	for _, name := range names {
		c.alter("DROP " + kind + ` IF EXISTS "` + name + `"`)
	}
}

// hold runs statements in a session that keeps its transaction until it is ended.
func (c *chaos) hold(statements ...string) (end func()) {
	c.t.Helper()
	one, err := c.conn.Conn(context.Background())
	if err != nil {
		c.t.Fatal(err)
	}
	free := c.holdOn(one, statements...)
	return func() { free(); _ = one.Close() }
}

func (c *chaos) holdOn(one *sql.Conn, statements ...string) (end func()) {
	for _, text := range statements {
		_, _ = one.ExecContext(context.Background(), text) // another may have the lock for long
	}
	return func() { _, _ = one.ExecContext(context.Background(), "ROLLBACK") }
}

// meanwhile repeats an act until it is ended.
func (c *chaos) meanwhile(act func(one *sql.Conn)) (end func()) {
	c.t.Helper()
	one, err := c.conn.Conn(context.Background())
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			act(one)
		}
	}()
	return func() { cancel(); <-done; _ = one.Close() }
}
