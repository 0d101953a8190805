package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const testTimeout = rigs.CallTimeout

// flowTable is the first FlowCatalyst table.
const flowTable = `
CREATE TABLE outbox_events (
    id VARCHAR(13) PRIMARY KEY,
    type VARCHAR(20) NOT NULL,
    message_group VARCHAR(255),
    payload TEXT NOT NULL,
    status VARCHAR(20) NOT NULL,
    retry_count INT NOT NULL DEFAULT 0,
    created_at TIMESTAMP NOT NULL,
    processed_at TIMESTAMP,
    error_message TEXT
);
CREATE INDEX idx_outbox_events_status ON outbox_events(status, message_group, created_at);`

var flowBox = rigs.EventsOutbox()

// aVersion runs a test on a database of its own in one server, which the test's name chooses, or in each
// of SLUICEBOX_TEST_VERSIONS, in parallel with other tests, because a test mostly waits.
func aVersion(t *testing.T, test func(t *testing.T, url string)) {
	t.Helper()
	t.Parallel()
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			test(t, servers.Database(t, version))
		})
	}
}

// rig is a leading store, and a connection to inspect and change rows.
type rig struct {
	url   string
	store *postgres.Store
	epoch store.Epoch
	conn  *pgx.Conn
}

func newRig(t *testing.T, url, ddl string, takeover time.Duration, boxes ...store.Outbox) *rig {
	t.Helper()
	servers.Exec(t, url, ddl)
	r := &rig{url: url, conn: servers.Connect(t, url)}
	r.store = openStore(t, url, takeover, boxes...)
	r.install(t)
	return r
}

func openStore(t *testing.T, url string, takeover time.Duration, boxes ...store.Outbox) *postgres.Store {
	t.Helper()
	st, err := postgres.New(postgres.Config{URL: url, Name: "rig", Outboxes: boxes, TakeoverTimeout: takeover})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return st
}

func (r *rig) install(t *testing.T) {
	t.Helper()
	r.epoch = rigs.InstallAndLead(t, r.store)
}

func ctx(t testing.TB) context.Context { return rigs.Context(t) }

func (r *rig) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	if _, err := r.conn.Exec(ctx(t), query, args...); err != nil {
		t.Fatalf("%v, in: %s", err, query)
	}
}

func ask[T any](t *testing.T, conn *pgx.Conn, query string, args ...any) T {
	t.Helper()
	var v T
	if err := conn.QueryRow(ctx(t), query, args...).Scan(&v); err != nil {
		t.Fatalf("%v, in: %s", err, query)
	}
	return v
}

// begin opens a transaction of another session and runs a statement in it.
func (r *rig) begin(t *testing.T, query string, args ...any) pgx.Tx {
	t.Helper()
	tx, err := servers.Connect(t, r.url).Begin(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx(t), query, args...); err != nil {
		t.Fatalf("%v, in: %s", err, query)
	}
	return tx
}

func end(t *testing.T, tx pgx.Tx, commit bool) {
	t.Helper()
	var err error
	if commit {
		err = tx.Commit(ctx(t))
	} else {
		err = tx.Rollback(ctx(t))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// insert inserts pending rows into the FlowCatalyst table.
func (r *rig) insert(t *testing.T, ids ...string) {
	t.Helper()
	r.exec(t, insertFlow, ids)
}

const insertFlow = `
INSERT INTO outbox_events (id, type, message_group, payload, status, created_at)
SELECT id, 'EVENT', 'g', '{}', 'PENDING', now() FROM unnest($1::text[]) id`

func row(id string) store.ClaimRow {
	return store.ClaimRow{Ref: store.Ref{Outbox: "events", ID: id}}
}

func outcome(id string, status store.Status) store.Outcome { return rigs.Outcome(id, status) }

func (r *rig) claim(t testing.TB, rows ...store.ClaimRow) []store.ClaimAnswer {
	t.Helper()
	return rigs.Claim(t, r.store, r.epoch, rows)
}

func (r *rig) status(t *testing.T, id string) string {
	t.Helper()
	return ask[string](t, r.conn, "SELECT status FROM outbox_events WHERE id = $1", id)
}

func (r *rig) claimLater(t *testing.T, rows ...store.ClaimRow) <-chan rigs.Answer[[]store.ClaimAnswer] {
	c := ctx(t)
	return rigs.Async(func() ([]store.ClaimAnswer, error) { return r.store.Claim(c, r.epoch, time.Now(), rows) })
}

// waitBlocked returns when n sessions of the store wait for a lock.
func (r *rig) waitBlocked(t *testing.T, n int) {
	t.Helper()
	const blocked = `
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'sluicebox rig %' AND cardinality(pg_blocking_pids(pid)) > 0`
	deadline := time.Now().Add(testTimeout)
	for ask[int](t, r.conn, blocked) != n {
		if time.Now().After(deadline) {
			t.Fatalf("fewer than %d sessions wait for a lock", n)
		}
	}
}
