package mysql_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mysql"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// flowTable is the first FlowCatalyst table, as on MySQL.
const flowTable = `
CREATE TABLE outbox_events (
    id VARCHAR(13) PRIMARY KEY,
    type VARCHAR(20) NOT NULL DEFAULT 'EVENT',
    message_group VARCHAR(255),
    payload LONGTEXT NOT NULL,
    status VARCHAR(20) NOT NULL DEFAULT 'PENDING',
    retry_count INT NOT NULL DEFAULT 0,
    created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    processed_at TIMESTAMP NULL,
    error_message TEXT,
    INDEX idx_outbox_events_status (status, message_group, created_at)
) DEFAULT CHARSET=utf8mb4`

func flowBox() store.Outbox { return rigs.EventsOutbox() }

// rig is a leading store, with sessions to inspect and change the tables.
type rig struct {
	url   string
	db    *sql.DB
	store *mysql.Store
	epoch store.Epoch
}

func newRig(t *testing.T, url, ddl string, takeover time.Duration, boxes ...store.Outbox) *rig {
	t.Helper()
	servers.ExecMySQL(t, url, strings.Split(ddl, ";\n")...)
	r := &rig{url: url, db: servers.OpenMySQL(t, url)}
	r.store = openStore(t, url, takeover, boxes...)
	r.epoch = rigs.InstallAndLead(t, r.store)
	return r
}

func openStore(t *testing.T, url string, takeover time.Duration, boxes ...store.Outbox) *mysql.Store {
	t.Helper()
	st, err := mysql.New(mysql.Config{URL: url, Name: "rig", Outboxes: boxes, TakeoverTimeout: takeover})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return st
}

func (r *rig) lead(t *testing.T) {
	t.Helper()
	var err error
	if r.epoch, err = r.store.AcquireLeadership(ctx(t)); err != nil {
		t.Fatal(err)
	}
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

// begin opens another session's transaction and runs a statement in it.
func (r *rig) begin(t *testing.T, query string, args ...any) *sql.Tx {
	t.Helper()
	tx, err := r.db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() }) // it may have ended
	if _, err := tx.Exec(query, args...); err != nil {
		t.Fatalf("%v, in: %s", err, query)
	}
	return tx
}

// insert inserts pending rows into the FlowCatalyst table.
func (r *rig) insert(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		r.exec(t, "INSERT INTO outbox_events (id, payload) VALUES (?, '{}')", id)
	}
}

func row(id string) store.ClaimRow { return rigs.Row(id) }

// fresh returns the claim of a row that came from the binlog with its payload.
func fresh(id string) store.ClaimRow { return store.ClaimRow{Ref: rigs.Row(id).Ref} }

func outcome(id string, status store.Status) store.Outcome { return rigs.Outcome(id, status) }

func (r *rig) claim(t testing.TB, rows ...store.ClaimRow) []store.ClaimAnswer {
	t.Helper()
	return rigs.Claim(t, r.store, r.epoch, rows)
}

func (r *rig) settle(t testing.TB, outcomes ...store.Outcome) []store.SettleResult {
	t.Helper()
	return rigs.Settle(t, r.store, r.epoch, outcomes)
}

func (r *rig) status(t *testing.T, id string) string {
	t.Helper()
	return ask[string](t, r.db, "SELECT status FROM outbox_events WHERE id = ?", id)
}
