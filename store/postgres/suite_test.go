package postgres_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	whole := servers.Spread(t, servers.Versions())
	for _, version := range servers.Versions() {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			var layouts []string
			if !slices.Contains(whole, version) {
				layouts = storetest.Few()
			}
			storetest.Run(t, &harness{url: servers.Database(t, version)}, layouts...)
		})
	}
}

// harness lets the suite work on one database, cleared by each Setup.
type harness struct{ url string }

func (h *harness) Setup(t *testing.T, outboxes ...store.Outbox) storetest.Database {
	statements := []string{"DROP SCHEMA IF EXISTS sluicebox CASCADE"}
	for i := range outboxes {
		table := postgres.TableName(&outboxes[i])
		statements = append(statements, "DROP TABLE IF EXISTS "+table,
			"CREATE TABLE "+table+" ("+strings.Join(columns(&outboxes[i].Layout), ", ")+")")
	}
	servers.Exec(t, h.url, statements...)
	db := &database{url: h.url, conn: servers.Connect(t, h.url), outboxes: map[string]*store.Outbox{}}
	for _, o := range outboxes {
		db.outboxes[o.Name] = &o
	}
	return db
}

// columns are the columns of a table for a layout, in the types that the
// layouts' own users have.
func columns(l *store.Layout) []string {
	c := &l.Columns
	list := []string{postgres.Ident(c.ID) + " varchar(26) PRIMARY KEY", postgres.Ident(c.Payload) + " text NOT NULL"}
	add := func(name, typ string) {
		if name != "" {
			list = append(list, postgres.Ident(name)+" "+typ)
		}
	}
	status := "varchar(20) NOT NULL"
	if l.State == store.StateNumbers {
		status = "smallint NOT NULL DEFAULT 0"
	}
	add(c.Kind, "varchar(20)")
	group := "varchar(255)"
	if len(l.GroupPath) > 0 {
		group = "jsonb"
	}
	add(c.Group, group)
	add(c.Status, status)
	add(c.RetryCount, "smallint NOT NULL DEFAULT 0")
	add(c.Claimed, "timestamp")
	add(c.Settled, "timestamptz")
	add(c.Delivered, "timestamptz")
	add(c.Failed, "timestamp(3)")
	add(c.Error, "text")
	for _, name := range l.OrderBy {
		add(name, "timestamptz NOT NULL")
	}
	return list
}

type database struct {
	url      string
	conn     *pgx.Conn
	outboxes map[string]*store.Outbox
}

func (d *database) Store(t *testing.T, cfg storetest.Config) store.Store {
	st, err := postgres.New(postgres.Config{
		URL: d.url, Name: cmp.Or(cfg.Name, "suite"), Holder: cfg.Holder, Outboxes: cfg.Outboxes, TakeoverTimeout: cfg.TakeoverTimeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func (d *database) Begin(t *testing.T, outbox string, rows ...storetest.Row) (store.Txn, func()) {
	conn, ctx := servers.Connect(t, d.url), context.Background()
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	o := d.outboxes[outbox]
	c := &o.Layout.Columns
	list := [][]any{}
	names := []string{c.ID, c.Payload}
	for _, name := range append([]string{c.Kind, c.Group, c.Status}, o.Layout.OrderBy...) {
		if name != "" {
			names = append(names, name)
		}
	}
	for _, r := range rows {
		values := []any{r.ID, r.Payload}
		if c.Kind != "" {
			values = append(values, r.Kind)
		}
		if c.Group != "" {
			values = append(values, storetest.GroupText(&o.Layout, r.Group))
		}
		switch o.Layout.State {
		case store.StateWords:
			values = append(values, o.Layout.Words[store.Pending])
		case store.StateNumbers:
			values = append(values, o.Layout.Numbers[store.Pending])
		}
		for range o.Layout.OrderBy {
			values = append(values, r.Created)
		}
		list = append(list, values)
	}
	if _, err := tx.CopyFrom(ctx, pgx.Identifier{o.Table}, names, pgx.CopyFromRows(list)); err != nil {
		t.Fatal(err)
	}
	var xid uint64
	if err := tx.QueryRow(ctx, "SELECT pg_current_xact_id()::text::bigint").Scan(&xid); err != nil {
		t.Fatal(err)
	}
	return store.Txn(uint32(xid)), func() {
		if err := tx.Commit(ctx); err != nil && err != pgx.ErrTxClosed {
			t.Fatal(err)
		}
		_ = conn.Close(ctx) // its work is done
	}
}

func (d *database) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	if _, err := d.conn.Exec(t.Context(), query, args...); err != nil {
		t.Fatalf("%v, in: %s", err, query)
	}
}

func (d *database) Set(t *testing.T, outbox, id string, status store.Status, at time.Time) {
	o := d.outboxes[outbox]
	c := &o.Layout.Columns
	var set []string
	args := []any{id, at}
	switch o.Layout.State {
	case store.StateWords:
		args, set = append(args, o.Layout.Words[status]), append(set, postgres.Ident(c.Status)+" = $3")
	case store.StateNumbers:
		args, set = append(args, o.Layout.Numbers[status]), append(set, postgres.Ident(c.Status)+" = $3")
	case store.StateTimestamps:
		switch status {
		case store.Completed:
			set = append(set, postgres.Ident(c.Delivered)+" = $2::timestamptz")
		case store.Failed:
			set = append(set, postgres.Ident(c.Failed)+" = $2::timestamptz")
		default:
			set = append(set, postgres.Ident(c.Failed)+" = NULL")
		}
	}
	if c.Claimed != "" {
		set = append(set, postgres.Ident(c.Claimed)+" = $2::timestamptz")
	}
	if len(set) == 0 {
		return
	}
	query := "UPDATE " + postgres.TableName(o) + " SET " + strings.Join(set, ", ") + " WHERE " + postgres.Ident(c.ID) + " = $1"
	if !strings.Contains(query, "$2") {
		query += " AND $2::timestamptz IS NOT NULL"
	}
	d.exec(t, query, args...)
}

func (d *database) Delete(t *testing.T, outbox, id string) {
	o := d.outboxes[outbox]
	d.exec(t, "DELETE FROM "+postgres.TableName(o)+" WHERE "+postgres.Ident(o.Layout.Columns.ID)+" = $1", id)
}

func (d *database) Read(t *testing.T, outbox, id string) storetest.Found {
	t.Helper()
	o := d.outboxes[outbox]
	c := &o.Layout.Columns
	pick := func(name, cast, none string) string {
		if name == "" {
			return none
		}
		return postgres.Ident(name) + cast
	}
	query := "SELECT " + strings.Join([]string{
		pick(c.Status, "::text", "''"), pick(c.RetryCount, "", "0"), pick(c.Error, "", "NULL::text"),
		pick(c.Claimed, "::timestamptz", "NULL::timestamptz"), pick(c.Settled, "::timestamptz", "NULL::timestamptz"),
		pick(c.Delivered, " IS NOT NULL", "false"), pick(c.Failed, " IS NOT NULL", "false"),
	}, ", ") + " FROM " + postgres.TableName(o) + " WHERE " + postgres.Ident(c.ID) + " = $1"
	var (
		found             storetest.Found
		status            string
		text              *string
		claimed, settled  *time.Time
		delivered, failed bool
	)
	err := d.conn.QueryRow(t.Context(), query, id).Scan(&status, &found.RetryCount, &text, &claimed, &settled, &delivered, &failed)
	if err == pgx.ErrNoRows {
		return found
	}
	if err != nil {
		t.Fatal(err)
	}
	found.Exists = true
	if text != nil {
		found.Error = *text
	}
	if claimed != nil {
		found.Claimed = claimed.UTC()
	}
	if settled != nil {
		found.Settled = settled.UTC()
	}
	found.Status = statusOf(&o.Layout, status, claimed != nil, delivered, failed)
	if o.Layout.State == store.StateNumbers {
		if found.Code, err = strconv.Atoi(status); err != nil {
			t.Fatal(err)
		}
	}
	return found
}

func statusOf(l *store.Layout, text string, claimed, delivered, failed bool) store.Status {
	switch l.State {
	case store.StateWords:
		for s, word := range l.Words {
			if word == text {
				return s
			}
		}
	case store.StateNumbers:
		for s, n := range l.Numbers {
			if fmt.Sprint(n) == text {
				return s
			}
		}
		return store.Failed
	case store.StateTimestamps:
		switch {
		case delivered:
			return store.Completed
		case failed:
			return store.Failed
		case claimed:
			return store.Processing
		}
	}
	return store.Pending
}
