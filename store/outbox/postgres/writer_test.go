package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/outbox/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestContents: which contents of a repeated row are the same, by the type of the column.
func TestContents(t *testing.T) {
	db := &database{url: servers.Database(t, 15)} // the other server has no ICU
	layout := store.Layout{
		Name: "custom", State: store.StateNone, Columns: store.Columns{ID: "id", Payload: "payload"},
		Attributes: []store.AttributeColumn{{Column: "extra", Name: "extra"}, {Column: "given", Name: "given"}},
	}
	w := db.Writer(t)
	defer w.Close()
	for i, c := range []struct {
		typ, first, second, result string
	}{
		{"text", `{"a":1}`, `{"a": 1}`, "c"},
		{"text", "x", "X", "c"},
		{"json", `{"a":1}`, `{"a": 1}`, "c"},
		{"json", `{"a":1}`, `{"a":1}`, "r"},
		{"jsonb", `{"a":1,"b":2}`, `{ "b": 2, "a": 1 }`, "r"},
		{"jsonb", `{"a":1}`, `{"a":1.0}`, "c"},
		{"jsonb", `{"a":1}`, `{"a":`, "x"},
		{"bytea", "\x00\xff\\", "\x00\xff\\", "r"},
		{"bytea", "\x00\xff\\", "\x00\xff\\\\", "c"},
		{"text", "a\x00", "a\x00", "x"},
		{"uuid", "11111111-2222-3333-4444-5555555555AA", "11111111-2222-3333-4444-5555555555aa", "r"},
		{"varchar(3)", "abc", "abcd", "x"},
		{"varchar(3)", "abcd", "abc", "x"},
		{"char(5)", "abc", "abc", "r"},
		{`text COLLATE "folded"`, "x", "X", "c"},
	} {
		table := fmt.Sprintf("t%d", i)
		servers.Exec(t, db.url, `CREATE COLLATION IF NOT EXISTS "folded" (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`,
			fmt.Sprintf("CREATE TABLE %s (id bigint PRIMARY KEY, payload %s, extra numeric DEFAULT 1.50, given text NOT NULL DEFAULT 'all')", table, c.typ))
		box := store.Outbox{Name: "box", Table: table, Layout: layout}
		write := func(payload string, attributes ...store.Attribute) string {
			all, err := w.Write(rigs.Context(t), &box, []outbox.Row{{ID: "07", Payload: []byte(payload), Attributes: attributes}})
			if err != nil {
				t.Fatalf("%s: %v", c.typ, err)
			}
			switch r := all[0]; {
			case r.Err != nil:
				return "x"
			case r.Conflict:
				return "c"
			case r.Repeated:
				return "r"
			}
			return "n"
		}
		first := write(c.first)
		if got := write(c.second); got != c.result && first != "x" || first == "x" && c.result != "x" {
			t.Errorf("%s %q, %q: %s and %s, want %s", c.typ, c.first, c.second, first, got, c.result)
		}
		if c.result == "r" {
			if got := write(c.second, store.Attribute{Name: "extra", Value: "1.50"}) + write(c.second, store.Attribute{Name: "extra", Value: "1.5"}); got != "rc" {
				t.Errorf("%s: the default of a column, and another form of it: %s, want rc", c.typ, got)
			}
		}
	}
}

// TestFaults: faults of the table are those of the whole call, and name the remedy. A duplicate of
// another unique index is the row's own.
func TestFaults(t *testing.T) {
	db := &database{url: servers.Database(t, servers.Spread(t, servers.Versions())[0])}
	layout := store.Layout{
		Name: "custom", State: store.StateNone, Columns: store.Columns{ID: "id", Payload: "payload"},
		Attributes: []store.AttributeColumn{{Column: "extra", Name: "extra"}},
	}
	box := store.Outbox{Name: "box", Table: "t", Layout: layout}
	w := db.Writer(t)
	defer w.Close()
	row := outbox.Row{ID: "1", Attributes: store.Attributes{{Name: "extra", Value: "x"}}}
	fails := func(parts ...string) {
		t.Helper()
		_, err := w.Write(rigs.Context(t), &box, []outbox.Row{row})
		rigs.WantSetup(t, "write", err, parts...)
	}
	fails(`relation "t" does not exist`)
	servers.Exec(t, db.url, "CREATE TABLE t (id text, payload text, extra text UNIQUE)")
	fails("no unique index on id alone", `CREATE UNIQUE INDEX CONCURRENTLY ON "t" ("id");`)
	servers.Exec(t, db.url, "ALTER TABLE t ADD PRIMARY KEY (id)")
	box.Layout.Columns.Payload = "body"
	fails(`column "body"`, "name another in layout custom")
	box.Layout = layout
	second := row
	second.ID = "2"
	all, err := w.Write(rigs.Context(t), &box, []outbox.Row{row, second})
	if err != nil || all[0].Err != nil || !errors.As(all[1].Err, new(*outbox.RowError)) || !strings.Contains(all[1].Err.Error(), "t_extra_key") {
		t.Errorf("a duplicate of another index: %+v, %v", all, err)
	}
	w.Close()
	if _, err := w.Write(rigs.Context(t), &box, []outbox.Row{row}); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("a closed writer: %v", err)
	}
}

// TestOpenTransaction: a row whose id an open transaction has waits for its end. A session that is
// lost meanwhile fails the call, and writing again finds out.
func TestOpenTransaction(t *testing.T) {
	db := &database{url: servers.Database(t, servers.Spread(t, servers.Versions())[0])}
	servers.Exec(t, db.url, "CREATE TABLE t (id text PRIMARY KEY, payload text)")
	layout := store.Layout{Name: "custom", State: store.StateNone, Columns: store.Columns{ID: "id", Payload: "payload"}}
	box := store.Outbox{Name: "box", Table: "t", Layout: layout}
	o, err := outbox.New(box)
	if err != nil {
		t.Fatal(err)
	}
	w := db.Writer(t)
	defer w.Close()
	row, ctx := outbox.Row{ID: "1", Payload: []byte("x")}, rigs.Context(t)
	conn := servers.Connect(t, db.url)
	const waiting = `SELECT pid FROM pg_stat_activity WHERE application_name = 'suite' AND datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0`
	for _, end := range []string{"terminate", "commit"} {
		tx, err := servers.Connect(t, db.url).Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := postgres.Write(ctx, tx, o, row); err != nil {
			t.Fatal(err)
		}
		written := rigs.Async(func() ([]outbox.Written, error) { return w.Write(ctx, &box, []outbox.Row{row}) })
		var pid int
		for conn.QueryRow(ctx, waiting).Scan(&pid) != nil && ctx.Err() == nil { // until it waits
		}
		if end == "terminate" {
			if _, err := conn.Exec(ctx, "SELECT pg_terminate_backend($1)", pid); err != nil {
				t.Fatal(err)
			}
			if a := <-written; a.Err == nil || errors.As(a.Err, new(*outbox.RowError)) || errors.As(a.Err, new(*store.SetupError)) {
				t.Errorf("a lost session: %v, want an error that a retry may fix", a.Err)
			}
			if err := tx.Rollback(ctx); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if a := <-written; a.Err != nil || !a.Value[0].Repeated {
			t.Errorf("after the commit: %+v, %v, want a repeated row", a.Value, a.Err)
		}
	}
}
