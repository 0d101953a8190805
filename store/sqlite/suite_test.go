package sqlite_test

import (
	"cmp"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/sqlite"
	"github.com/sluicebox/sluicebox/store/storetest"
	"github.com/sluicebox/sluicebox/store/storetest/raced"
	"github.com/sluicebox/sluicebox/store/storetest/tables"
)

func TestMain(m *testing.M) {
	// With the race detector only the tests with several sessions run.
	err := raced.Only(TestWriteLockHeldByService, TestServicesInsertDuringClaims, TestReplaced, TestLock,
		TestKilledRelayReleasesLock, TestDurability)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// TestStore runs the suite on tables as services on SQLite create them, with times as text
// and as integers. Two layouts use all time columns.
func TestStore(t *testing.T) {
	t.Run("times as text", func(t *testing.T) {
		storetest.Run(t, func(*testing.T) storetest.Harness { return harness{"DATETIME"} })
	})
	t.Run("times as integers", func(t *testing.T) {
		storetest.Run(t, func(*testing.T) storetest.Harness { return harness{"INTEGER"} }, "words", "timestamps", "lease")
	})
}

type harness struct{ timeType string }

func (h harness) Setup(t *testing.T, outboxes ...store.Outbox) storetest.Database {
	path := newFile(t)
	db, d := openSQL(t, path), dialect(h.timeType)
	for i := range outboxes {
		for _, statement := range d.Create(&outboxes[i]) {
			if _, err := db.Exec(statement); err != nil {
				t.Fatalf("%v, in: %s", err, statement)
			}
		}
	}
	return &database{tables.New(d, tables.NewPool(db), outboxes...), path}
}

// dialect reads times only in the format that the relay writes. There are no transaction
// ids, because uncommitted rows are never visible. The plus prevents the driver from
// converting a value to its column's type.
func dialect(timeType string) *tables.Dialect {
	const form = "2006-01-02 15:04:05.000"
	d := &tables.Dialect{
		Dialect: outbox.SQLite(),
		Plain:   "+%s", Text: "CAST(+%s AS TEXT)", Time: "CAST(+%s AS TEXT)", TimePlaceholder: "%s",
		Parse:      func(text string) (time.Time, error) { return time.Parse(form, text) },
		SetRefused: "UPDATE sluicebox_record SET body = json_set(body, '$.refused', %s) WHERE name = 'suite' AND kind = 'job' AND json_extract(body, '$.id') = %s",
		Types: tables.Types{
			ID: "VARCHAR(26) PRIMARY KEY", Payload: "TEXT NOT NULL", Kind: "VARCHAR(20)", Group: "VARCHAR(255)", JSON: "VARCHAR(255)",
			Word: "VARCHAR(20) NOT NULL", Number: "SMALLINT NOT NULL DEFAULT 0", Boolean: "BOOLEAN NOT NULL DEFAULT FALSE", RetryCount: "SMALLINT NOT NULL DEFAULT 0", Error: "TEXT",
			Claimed: timeType, Settled: timeType, Delivered: timeType, Failed: timeType, Order: timeType + " NOT NULL",
		},
	}
	if timeType == "INTEGER" {
		text := d.Bind
		d.Bind = func(v any) any {
			if at, ok := v.(time.Time); ok {
				return at.UnixMilli()
			}
			return text(v)
		}
		d.Parse = func(text string) (time.Time, error) {
			ms, err := strconv.ParseInt(text, 10, 64)
			return time.UnixMilli(ms), err
		}
	}
	return d
}

type database struct {
	*tables.Database
	path string
}

func (d *database) Store(t *testing.T, cfg storetest.Config) storetest.Store {
	st, err := sqlite.New(sqlite.Config{
		URL: urlOf(d.path), Name: cmp.Or(cfg.Name, "suite"), Holder: cfg.Holder, Outboxes: cfg.Outboxes, TakeoverTimeout: cfg.TakeoverTimeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	return ledger.Store{Tables: st, Ledger: st.Ledger}
}

// newFile creates an empty database, which starts in SQLite's default journal mode.
func newFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "out box.db") // a name that needs escaping in a URL
	db := openSQL(t, path)
	if _, err := db.Exec("CREATE TABLE made (x); DROP TABLE made"); err != nil {
		t.Fatal(err)
	}
	return path
}

// openSQL opens a database as a service does, with the pool of database/sql.
func openSQL(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+strings.ReplaceAll(path, " ", "%20")+"?_pragma=busy_timeout(20000)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func urlOf(path string) string { return "sqlite://" + strings.ReplaceAll(path, " ", "%20") }
