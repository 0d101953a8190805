package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/outbox/outboxtest"
	"github.com/sluicebox/sluicebox/store/outbox/postgres"
	relay "github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestWriter writes by pgx and by database/sql.
func TestWriter(t *testing.T) {
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) { outboxtest.Run(t, &database{url: servers.Database(t, version)}) })
		t.Run(fmt.Sprintf("pg%d by database-sql", version), func(t *testing.T) {
			outboxtest.Run(t, &database{url: servers.Database(t, version), sql: true}, "postbox", "catbox", "debezium")
		})
	}
}

type database struct {
	url string
	sql bool // services use database/sql
}

func (*database) Kind() layouts.Database { return layouts.Postgres }

func (d *database) Create(t *testing.T, of *layouts.Definition) {
	servers.Exec(t, d.url, strings.Join(of.Statements, "\n"))
}

func (d *database) Writer(t *testing.T) outbox.Writer {
	t.Helper()
	w, err := postgres.NewWriter(d.url, "suite")
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (d *database) Store(t *testing.T, o store.Outbox) store.Tables {
	t.Helper()
	st, err := relay.New(relay.Config{URL: d.url, Name: "suite", Outboxes: []store.Outbox{o}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return ledger.Store{Tables: st, Ledger: st.Ledger}
}

func (d *database) Service(t *testing.T, o *outbox.Outbox, commit bool, rows ...outbox.Row) (ids []string, err error) {
	t.Helper()
	if d.sql {
		cfg, err := pgx.ParseConfig(d.url)
		if err != nil {
			t.Fatal(err)
		}
		db := stdlib.OpenDB(*cfg)
		defer func() { _ = db.Close() }()
		return outboxtest.WriteSQL(t, db, outbox.Postgres(), o, commit, rows)
	}
	tx, err := servers.Connect(t, d.url).Begin(rigs.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(rigs.Context(t)) }() // after a commit it does nothing
	ids, err = postgres.Write(rigs.Context(t), tx, o, rows...)
	if err == nil && commit {
		err = tx.Commit(rigs.Context(t))
	}
	return ids, err
}
