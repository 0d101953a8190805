package sqlite_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/sqlite"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
)

// flowTable is a FlowCatalyst table as a service on SQLite creates it.
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

func flowBox() store.Outbox { return rigs.EventsOutbox() }

// rig is a leading store with a separate connection of a service, to inspect and change the
// tables.
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
	r.epoch = rigs.InstallAndLead(t, r.store)
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

func ctx(t testing.TB) context.Context { return rigs.Context(t) }

func (r *rig) exec(t testing.TB, query string, args ...any) {
	t.Helper()
	rigs.Exec(t, r.db, query, args...)
}

func ask[T any](t testing.TB, db *sql.DB, query string, args ...any) T {
	t.Helper()
	return rigs.QueryValue[T](t, db, query, args...)
}

func row(id string) store.ClaimRow { return rigs.Row(id) }

func outcome(id string, status store.Status) store.Outcome { return rigs.Outcome(id, status) }

func (r *rig) claim(t testing.TB, rows ...store.ClaimRow) []store.ClaimAnswer {
	t.Helper()
	return rigs.Claim(t, r.store, r.epoch, rows)
}

func (r *rig) settle(t testing.TB, outcomes ...store.Outcome) []store.SettleResult {
	t.Helper()
	return rigs.Settle(t, r.store, r.epoch, outcomes)
}
