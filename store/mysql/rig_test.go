package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mysql"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const patience = 30 * time.Second

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

func flowBox() store.Outbox {
	return store.Outbox{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.FlowCatalyst()}
}

// rig is a leading store, and sessions to look and meddle with.
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
	if err := r.store.Install(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if err := r.store.Check(ctx(t)); err != nil {
		t.Fatal(err)
	}
	r.lead(t)
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
	if r.epoch, err = r.store.Lead(ctx(t)); err != nil {
		t.Fatal(err)
	}
}

func ctx(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return c
}

func (r *rig) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	if _, err := r.db.ExecContext(ctx(t), query, args...); err != nil {
		t.Fatalf("%v, in: %s", err, query)
	}
}

func ask[T any](t *testing.T, db *sql.DB, query string, args ...any) T {
	t.Helper()
	var v T
	if err := db.QueryRowContext(ctx(t), query, args...).Scan(&v); err != nil {
		t.Fatalf("%v, in: %s", err, query)
	}
	return v
}

// begin opens a transaction of somebody else's and runs a statement in it.
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

func row(id string) store.ClaimRow {
	return store.ClaimRow{Ref: store.Ref{Outbox: "events", ID: id}, WantPayload: true}
}

func outcome(id string, status store.Status) store.Outcome {
	return store.Outcome{Ref: store.Ref{Outbox: "events", ID: id}, Status: status, At: time.Now()}
}

func (r *rig) claim(t *testing.T, rows ...store.ClaimRow) []store.ClaimAnswer {
	t.Helper()
	answers, err := r.store.Claim(ctx(t), r.epoch, time.Now(), rows)
	if err != nil {
		t.Fatal(err)
	}
	return answers
}

func (r *rig) settle(t *testing.T, outcomes ...store.Outcome) []store.SettleResult {
	t.Helper()
	results, err := r.store.Settle(ctx(t), r.epoch, outcomes)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

func (r *rig) status(t *testing.T, id string) string {
	t.Helper()
	return ask[string](t, r.db, "SELECT status FROM outbox_events WHERE id = ?", id)
}

// later runs a call beside the test.
func later[T any](call func() (T, error)) <-chan answer[T] {
	c := make(chan answer[T], 1)
	go func() {
		v, err := call()
		c <- answer[T]{v, err}
	}()
	return c
}

type answer[T any] struct {
	value T
	err   error
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
