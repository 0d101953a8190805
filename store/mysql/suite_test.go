package mysql_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/mysql"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/storetest"
	"github.com/sluicebox/sluicebox/store/storetest/raced"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
	"github.com/sluicebox/sluicebox/store/storetest/tables"
)

func TestMain(m *testing.M) {
	// With the race detector only the tests with the most going on at once run.
	err := errors.Join(servers.Crowd(), raced.Only(TestInsertsMeetNoLocks, TestFreshClaimsOfMany,
		TestKilledSessions, TestLockOfKilledSession, TestLockBySilence, TestFrozenWriter, TestInterrupted,
		TestRequestsCounted))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func TestStore(t *testing.T) {
	whole := servers.Spread(t, servers.Flavours())
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			var layouts []string
			if !slices.Contains(whole, f) {
				layouts = []string{storetest.CoreLayout()}
			}
			storetest.Run(t, func(t *testing.T) storetest.Harness { return &harness{url: f.Database(t)} }, layouts...)
		})
	}
}

// eachFlavour runs a test on a database of its own on each kind of server.
func eachFlavour(t *testing.T, test func(t *testing.T, url string)) {
	t.Helper()
	t.Parallel()
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel() // most of a test is waiting
			test(t, f.Database(t))
		})
	}
}

// harness runs the suite on one database, which each Setup clears.
type harness struct{ url string }

func (h *harness) Setup(t *testing.T, outboxes ...store.Outbox) storetest.Database {
	statements := []string{"DROP TABLE IF EXISTS sluicebox_meta"}
	for _, name := range ownTables() {
		statements = append(statements, "DROP TABLE IF EXISTS "+name)
	}
	d := dialect()
	for i := range outboxes {
		statements = append(statements, d.Create(&outboxes[i])...)
	}
	servers.ExecMySQL(t, h.url, statements...)
	return h.database(t, outboxes)
}

// Empty implements storetest.Emptier, because creating a table costs 15 ms on these
// servers.
func (h *harness) Empty(t *testing.T, outboxes ...store.Outbox) storetest.Database {
	var statements []string
	for _, name := range ownTables() {
		statements = append(statements, "DELETE FROM "+name)
	}
	for i := range outboxes {
		statements = append(statements, "DELETE FROM "+mysql.TableName(&outboxes[i]))
	}
	servers.ExecMySQL(t, h.url, statements...)
	return h.database(t, outboxes)
}

// ownTables returns the tables of the relay that hold rows.
func ownTables() []string {
	return []string{"sluicebox_leader", "sluicebox_record", "sluicebox_queue", "sluicebox_replay", "sluicebox_marker"}
}

func (h *harness) database(t *testing.T, outboxes []store.Outbox) storetest.Database {
	return &database{tables.New(dialect(), tables.NewPool(servers.OpenMySQL(t, h.url)), outboxes...), h.url}
}

// dialect has the servers' own collations. Transactions have no numbers, because a claim
// waits for them.
func dialect() *tables.Dialect {
	const form = "2006-01-02 15:04:05"
	return &tables.Dialect{
		Dialect: outbox.MySQL(), Options: " DEFAULT CHARSET=utf8mb4",
		Plain: "%s", Text: "CAST(%s AS CHAR)", Time: "CAST(%s AS CHAR)", TimePlaceholder: "%s",
		Parse:      func(text string) (time.Time, error) { return time.ParseInLocation(form, text, time.UTC) },
		SetRefused: "UPDATE sluicebox_record SET body = JSON_SET(body, '$.refused', %s) WHERE name = 'suite' AND kind = 'job' AND record_key = %s",
		Types: tables.Types{
			ID: "VARCHAR(26) PRIMARY KEY", Payload: "LONGTEXT NOT NULL", Kind: "VARCHAR(20)", Group: "VARCHAR(255)", JSON: "JSON",
			Word: "VARCHAR(20) NOT NULL", Number: "SMALLINT NOT NULL DEFAULT 0", Boolean: "BOOLEAN NOT NULL DEFAULT FALSE", RetryCount: "SMALLINT NOT NULL DEFAULT 0", Error: "TEXT",
			Claimed: "DATETIME(3)", Settled: "TIMESTAMP(6) NULL", Delivered: "DATETIME", Failed: "TIMESTAMP(3) NULL", Order: "DATETIME(3) NOT NULL",
		},
	}
}

type database struct {
	*tables.Database
	url string
}

// Number implements storetest.Numberer.
func (d *database) Number(t *testing.T, outbox string) {
	table := mysql.TableName(d.Outbox(outbox))
	servers.ExecMySQL(t, d.url, "ALTER TABLE "+table+" ADD COLUMN suite_number BIGINT NOT NULL AUTO_INCREMENT UNIQUE")
	t.Cleanup(func() { servers.ExecMySQL(t, d.url, "ALTER TABLE "+table+" DROP COLUMN suite_number") })
}

func (d *database) Store(t *testing.T, cfg storetest.Config) storetest.Store {
	st, err := mysql.New(mysql.Config{
		URL: d.url, Name: cmp.Or(cfg.Name, "suite"), Holder: cfg.Holder, Outboxes: cfg.Outboxes, TakeoverTimeout: cfg.TakeoverTimeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	return ledger.Store{Tables: st, Ledger: st.Ledger}
}

// LockRows implements storetest.Locking. At READ COMMITTED no plan locks other rows.
func (d *database) LockRows(t *testing.T, outbox string, ids ...string) func() {
	o := d.Outbox(outbox)
	var texts []string
	for _, id := range ids {
		texts = append(texts, "'"+id+"'")
	}
	return d.lock(t, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "START TRANSACTION", "SELECT 1 FROM "+mysql.TableName(o)+" WHERE "+mysql.Ident(o.Layout.Columns.ID)+
		" IN ("+strings.Join(texts, ", ")+") FOR UPDATE")
}

// LockTable implements storetest.Locking.
func (d *database) LockTable(t *testing.T, outbox string) func() {
	return d.lock(t, "LOCK TABLES "+mysql.TableName(d.Outbox(outbox))+" READ")
}

// lock runs statements on a session of its own.
func (d *database) lock(t *testing.T, statements ...string) (end func()) {
	t.Helper()
	conn, err := servers.OpenMySQL(t, d.url).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	for _, text := range statements {
		if _, err := conn.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}

	return sync.OnceFunc(func() {
		for _, text := range []string{"UNLOCK TABLES", "ROLLBACK"} {
			if _, err := conn.ExecContext(context.Background(), text); err != nil {
				t.Error(err)
			}
		}
		_ = conn.Close()
	})
}
