package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/sqlite"
)

const patience = 30 * time.Second

// flowTable is a FlowCatalyst table as a service on SQLite makes it.
const flowTable = `
CREATE TABLE outbox_events (
    id VARCHAR(13) PRIMARY KEY,
    type VARCHAR(20) NOT NULL DEFAULT 'EVENT',
    message_group VARCHAR(255),
    payload TEXT NOT NULL DEFAULT '{}',
    status VARCHAR(20) NOT NULL DEFAULT 'PENDING',
    retry_count INT NOT NULL DEFAULT 0,
    created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    processed_at TIMESTAMP,
    error_message TEXT
);
CREATE INDEX idx_outbox_events_status ON outbox_events(status, message_group, created_at);`

func flowBox() store.Outbox {
	return store.Outbox{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.FlowCatalyst()}
}

// rig is a leading store, and a service's connections to look and meddle with.
type rig struct {
	path  string
	db    *sql.DB
	store *sqlite.Store
	epoch store.Epoch
}

func newRig(t testing.TB, ddl string, takeover time.Duration, boxes ...store.Outbox) *rig {
	t.Helper()
	r := &rig{path: newFile(t)}
	r.db = openSQL(t, r.path)
	r.exec(t, ddl)
	r.store = openStore(t, r.path, "rig", takeover, boxes...)
	if err := r.store.Install(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if err := r.store.Check(ctx(t)); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.epoch, err = r.store.Lead(ctx(t)); err != nil {
		t.Fatal(err)
	}
	return r
}

func openStore(t testing.TB, path, name string, takeover time.Duration, boxes ...store.Outbox) *sqlite.Store {
	t.Helper()
	st, err := sqlite.New(sqlite.Config{URL: urlOf(path), Name: name, Outboxes: boxes, TakeoverTimeout: takeover})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return st
}

func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return c
}

func (r *rig) exec(t testing.TB, query string, args ...any) {
	t.Helper()
	if _, err := r.db.Exec(query, args...); err != nil {
		t.Fatalf("%v, in: %s", err, query)
	}
}

func ask[T any](t testing.TB, db *sql.DB, query string, args ...any) T {
	t.Helper()
	var v T
	if err := db.QueryRow(query, args...).Scan(&v); err != nil {
		t.Fatalf("%v, in: %s", err, query)
	}
	return v
}

func row(id string) store.ClaimRow {
	return store.ClaimRow{Ref: store.Ref{Outbox: "events", ID: id}, WantPayload: true}
}

func outcome(id string, status store.Status) store.Outcome {
	return store.Outcome{Ref: store.Ref{Outbox: "events", ID: id}, Status: status, At: time.Now()}
}

func (r *rig) claim(t testing.TB, rows ...store.ClaimRow) []store.ClaimAnswer {
	t.Helper()
	answers, err := r.store.Claim(ctx(t), r.epoch, time.Now(), rows)
	if err != nil {
		t.Fatal(err)
	}
	return answers
}

func (r *rig) settle(t testing.TB, outcomes ...store.Outcome) []store.SettleResult {
	t.Helper()
	results, err := r.store.Settle(ctx(t), r.epoch, outcomes)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// wantSetup checks that an error is a setup error that says something.
func wantSetup(t *testing.T, what string, err error, parts ...string) {
	t.Helper()
	var setup *store.SetupError
	if !errors.As(err, &setup) || setup.Remedy == "" {
		t.Errorf("%s: %v, want a setup error with a remedy", what, err)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s does not say %q: %v", what, part, err)
		}
	}
}
