package sqlite_test

import (
	"database/sql"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	capture "github.com/sluicebox/sluicebox/capture/sqlite"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/outbox/outboxtest"
	"github.com/sluicebox/sluicebox/store/outbox/sqlite"
	relay "github.com/sluicebox/sluicebox/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWriter(t *testing.T) { outboxtest.Run(t, open(t)) }

// TestRelay relays the rows of a service.
func TestRelay(t *testing.T) {
	db := open(t)
	outboxtest.RunRelays(t, db, capture.Database{URL: "sqlite://" + db.path}, "outbox-messages")
}

func open(t *testing.T) *database {
	t.Helper()
	path := filepath.Join(t.TempDir(), "outbox.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(20000)&_txlock=immediate&_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return &database{path, db}
}

type database struct {
	path string
	db   *sql.DB
}

func (*database) Kind() layouts.Database { return layouts.SQLite }

func (d *database) Create(t *testing.T, of *layouts.Definition) {
	for _, statement := range of.Statements {
		if _, err := d.db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
}

func (d *database) Writer(t *testing.T) outbox.Writer {
	t.Helper()
	w, err := sqlite.NewWriter("sqlite://" + d.path)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (d *database) Store(t *testing.T, o store.Outbox) store.Tables {
	t.Helper()
	st, err := relay.New(relay.Config{URL: "sqlite://" + d.path, Name: "suite", Outboxes: []store.Outbox{o}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return ledger.Store{Tables: st, Ledger: st.Ledger}
}

func (d *database) Service(t *testing.T, o *outbox.Outbox, commit bool, rows ...outbox.Row) ([]string, error) {
	return outboxtest.WriteSQL(t, d.db, outbox.SQLite(), o, commit, rows)
}
