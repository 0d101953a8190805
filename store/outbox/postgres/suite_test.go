package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/goleak"

	capture "github.com/sluicebox/sluicebox/capture/postgres"
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

// TestPartitionedWriter writes into tables that are partitioned by their time, which take several rows of
// an id.
func TestPartitionedWriter(t *testing.T) {
	for _, version := range servers.Spread(t, servers.Versions()) {
		outboxtest.Run(t, &database{url: servers.Database(t, version), partitioned: true}, "outbox-messages", "postbox")
	}
}

// TestRelay relays the rows of a service from a table without a state, from one whose ids the
// database makes, and from the WAL alone.
func TestRelay(t *testing.T) {
	version := servers.Spread(t, servers.Versions())[0]
	kept, _ := layouts.Named("debezium")
	numbered, _ := layouts.Named("catbox")
	members := store.Layout{
		Name: "members", State: store.StateNone,
		Columns:    store.Columns{ID: "id", Group: "order", Payload: "body", Kind: "kind"},
		Attributes: []store.AttributeColumn{{Column: "type", Name: store.AttributeType}, {Column: "more", Spread: true}},
	}
	payload, typ := []byte("{ \"a\": 1, \"b\": [\"é\\u0000\"] }"), store.Attribute{Name: store.AttributeType, Value: "OrderPaid"}
	for _, c := range []struct {
		name string
		box  store.Outbox
		rows []outbox.Row
	}{
		{"kept", store.Outbox{Table: "outbox", Layout: *kept.Tables}, []outbox.Row{
			{Kind: "order", Group: []string{"order", "7"}, Payload: []byte("{\"n\": 1}"), Attributes: store.Attributes{typ}},
			{Kind: "order", Group: []string{"order", "7"}, Payload: []byte("{\"n\": 2}"), Attributes: store.Attributes{typ}},
		}},
		{"numbered", store.Outbox{Table: "outbox_events", Layout: *numbered.Tables}, []outbox.Row{
			{Kind: "order", Group: []string{"order", "7"}, Payload: payload, Attributes: store.Attributes{typ}},
			{Kind: "order", Group: []string{"order", "7"}, Payload: []byte(""), Attributes: store.Attributes{typ}},
		}},
		{"messages", store.Outbox{MessagePrefix: "shop", Layout: members}, []outbox.Row{
			{Kind: "order", Group: []string{"7"}, Payload: payload, Attributes: store.Attributes{typ, {Name: "x", Value: "<1>"}}},
			{Kind: "order", Group: []string{"7"}, Payload: []byte(""), Attributes: store.Attributes{typ}},
		}},
		{"whole messages", store.Outbox{MessagePrefix: "shop", Layout: store.Layout{Name: "whole", State: store.StateNone}}, []outbox.Row{{Payload: payload}, {Payload: []byte("x")}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := &database{url: servers.Database(t, version)}
			for _, p := range []layouts.Preset{kept, numbered} {
				if d, err := p.Define(layouts.Postgres, c.box.Table); err != nil {
					t.Fatal(err)
				} else if p.Name == c.box.Layout.Name {
					db.Create(t, d)
				}
			}
			c.box.Name = "box"
			outboxtest.RunRelay(t, capture.Database{URL: db.url}, c.box, db.Service, c.rows...)
		})
	}
}

type database struct {
	url         string
	sql         bool // services use database/sql
	partitioned bool
}

func (*database) Kind() layouts.Database { return layouts.Postgres }

func (d *database) Create(t *testing.T, of *layouts.Definition) {
	servers.Exec(t, d.url, strings.Join(of.Statements, "\n"))
	if d.partitioned {
		servers.Exec(t, d.url, strings.NewReplacer("TABLE", of.Table).Replace(`
ALTER table TABLE RENAME TO whole;
CREATE table TABLE (LIKE whole INCLUDING DEFAULTS, PRIMARY KEY (id, created_at)) PARTITION BY HASH (created_at);
CREATE table TABLE_0 PARTITION OF TABLE FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE table TABLE_1 PARTITION OF TABLE FOR VALUES WITH (MODULUS 2, REMAINDER 1);
DROP table whole;`))
	}
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
