package mysql_test

import (
	"cmp"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mysql"
	"github.com/sluicebox/sluicebox/store/storetest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	whole := servers.Spread(t, servers.Flavours())
	eachFlavour(t, func(t *testing.T, url string) {
		var layouts []string
		if !slices.ContainsFunc(whole, func(f servers.Flavour) bool { return strings.HasPrefix(url, strings.ToLower(string(f))+":") }) {
			layouts = storetest.Few()
		}
		storetest.Run(t, &harness{url: url}, layouts...)
	})
}

// eachFlavour runs a test on a database of its own in each kind of server.
func eachFlavour(t *testing.T, test func(t *testing.T, url string)) {
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel() // most of a test is waiting
			test(t, f.Database(t))
		})
	}
}

// harness lets the suite work on one database, cleared by each Setup.
type harness struct{ url string }

func (h *harness) Setup(t *testing.T, outboxes ...store.Outbox) storetest.Database {
	statements := []string{}
	for _, name := range []string{"meta", "leader", "checkpoint", "marker", "parked", "hold"} {
		statements = append(statements, "DROP TABLE IF EXISTS sluicebox_"+name)
	}
	for i := range outboxes {
		table := mysql.TableName(&outboxes[i])
		statements = append(statements, "DROP TABLE IF EXISTS "+table,
			"CREATE TABLE "+table+" ("+strings.Join(columns(&outboxes[i].Layout), ", ")+") DEFAULT CHARSET=utf8mb4")
	}
	servers.ExecMySQL(t, h.url, statements...)
	db := &database{url: h.url, db: servers.OpenMySQL(t, h.url), outboxes: map[string]*store.Outbox{}}
	for _, o := range outboxes {
		db.outboxes[o.Name] = &o
	}
	return db
}

// columns are the columns of a table for a layout, in the types that the layouts' own
// users have, and in the servers' own collations.
func columns(l *store.Layout) []string {
	c := &l.Columns
	list := []string{mysql.Ident(c.ID) + " VARCHAR(26) PRIMARY KEY", mysql.Ident(c.Payload) + " LONGTEXT NOT NULL"}
	add := func(name, typ string) {
		if name != "" {
			list = append(list, mysql.Ident(name)+" "+typ)
		}
	}
	status := "VARCHAR(20) NOT NULL"
	if l.State == store.StateNumbers {
		status = "SMALLINT NOT NULL DEFAULT 0"
	}
	add(c.Kind, "VARCHAR(20)")
	group := "VARCHAR(255)"
	if len(l.GroupPath) > 0 {
		group = "JSON"
	}
	add(c.Group, group)
	add(c.Status, status)
	add(c.RetryCount, "SMALLINT NOT NULL DEFAULT 0")
	add(c.Claimed, "DATETIME(3)")
	add(c.Settled, "TIMESTAMP(6) NULL")
	add(c.Delivered, "DATETIME")
	add(c.Failed, "TIMESTAMP(3) NULL")
	add(c.Error, "TEXT")
	for _, name := range l.OrderBy {
		add(name, "DATETIME(3) NOT NULL")
	}
	return list
}

type database struct {
	url      string
	db       *sql.DB
	outboxes map[string]*store.Outbox
}

func (d *database) Store(t *testing.T, cfg storetest.Config) store.Store {
	st, err := mysql.New(mysql.Config{
		URL: d.url, Name: cmp.Or(cfg.Name, "suite"), Holder: cfg.Holder, Outboxes: cfg.Outboxes, TakeoverTimeout: cfg.TakeoverTimeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// timeText is a time as a column takes it.
func timeText(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05.000000") }

// Begin's transaction has no name: a claim waits for it.
func (d *database) Begin(t *testing.T, outbox string, rows ...storetest.Row) (store.Txn, func()) {
	tx, err := d.db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	o := d.outboxes[outbox]
	c := &o.Layout.Columns
	var names []string
	for _, name := range append([]string{c.ID, c.Payload, c.Kind, c.Group, c.Status}, o.Layout.OrderBy...) {
		if name != "" {
			names = append(names, mysql.Ident(name))
		}
	}
	row := "(?" + strings.Repeat(", ?", len(names)-1) + ")"
	const most = 500
	for from := 0; from < len(rows); from += most {
		part := rows[from:min(from+most, len(rows))]
		var args []any
		for _, r := range part {
			args = append(args, rowValues(&o.Layout, r)...)
		}
		insert := "INSERT INTO " + mysql.TableName(o) + " (" + strings.Join(names, ", ") + ") VALUES " + row + strings.Repeat(", "+row, len(part)-1)
		if _, err := tx.Exec(insert, args...); err != nil {
			t.Fatal(err)
		}
	}
	return 0, func() {
		if err := tx.Commit(); err != nil && err != sql.ErrTxDone {
			t.Fatal(err)
		}
	}
}

func rowValues(l *store.Layout, r storetest.Row) []any {
	args := []any{r.ID, r.Payload}
	if l.Columns.Kind != "" {
		args = append(args, r.Kind)
	}
	if l.Columns.Group != "" {
		args = append(args, storetest.GroupText(l, r.Group))
	}
	switch l.State {
	case store.StateWords:
		args = append(args, l.Words[store.Pending])
	case store.StateNumbers:
		args = append(args, l.Numbers[store.Pending])
	}
	for range l.OrderBy {
		args = append(args, timeText(r.Created))
	}
	return args
}

func (d *database) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	if _, err := d.db.Exec(query, args...); err != nil {
		t.Fatalf("%v, in: %s", err, query)
	}
}

func (d *database) Set(t *testing.T, outbox, id string, status store.Status, at time.Time) {
	o := d.outboxes[outbox]
	c := &o.Layout.Columns
	var set []string
	var args []any
	assign := func(name string, value any) { set, args = append(set, mysql.Ident(name)+" = ?"), append(args, value) }
	switch o.Layout.State {
	case store.StateWords:
		assign(c.Status, o.Layout.Words[status])
	case store.StateNumbers:
		assign(c.Status, o.Layout.Numbers[status])
	case store.StateTimestamps:
		switch status {
		case store.Completed:
			assign(c.Delivered, timeText(at))
		case store.Failed:
			assign(c.Failed, timeText(at))
		default:
			assign(c.Failed, nil)
		}
	}
	if c.Claimed != "" {
		assign(c.Claimed, timeText(at))
	}
	if len(set) > 0 {
		d.exec(t, "UPDATE "+mysql.TableName(o)+" SET "+strings.Join(set, ", ")+" WHERE "+mysql.Ident(c.ID)+" = ?", append(args, id)...)
	}
}

func (d *database) Delete(t *testing.T, outbox, id string) {
	o := d.outboxes[outbox]
	d.exec(t, "DELETE FROM "+mysql.TableName(o)+" WHERE "+mysql.Ident(o.Layout.Columns.ID)+" = ?", id)
}

func (d *database) Read(t *testing.T, outbox, id string) storetest.Found {
	t.Helper()
	o := d.outboxes[outbox]
	c := &o.Layout.Columns
	pick := func(name, form, none string) string {
		if name == "" {
			return none
		}
		return fmt.Sprintf(form, mysql.Ident(name))
	}
	query := "SELECT " + strings.Join([]string{
		pick(c.Status, "CAST(%s AS CHAR)", "''"), pick(c.RetryCount, "%s", "0"), pick(c.Error, "%s", "NULL"),
		pick(c.Claimed, "CAST(%s AS CHAR)", "NULL"), pick(c.Settled, "CAST(%s AS CHAR)", "NULL"),
		pick(c.Delivered, "%s IS NOT NULL", "FALSE"), pick(c.Failed, "%s IS NOT NULL", "FALSE"),
	}, ", ") + " FROM " + mysql.TableName(o) + " WHERE " + mysql.Ident(c.ID) + " = ?"
	var (
		found                  storetest.Found
		status                 string
		text, claimed, settled sql.NullString
		delivered, failed      bool
	)
	err := d.db.QueryRow(query, id).Scan(&status, &found.RetryCount, &text, &claimed, &settled, &delivered, &failed)
	if err == sql.ErrNoRows {
		return found
	}
	if err != nil {
		t.Fatal(err)
	}
	found.Exists, found.Error = true, text.String
	found.Claimed, found.Settled = parse(t, claimed), parse(t, settled)
	found.Status = statusOf(&o.Layout, status, claimed.Valid, delivered, failed)
	if o.Layout.State == store.StateNumbers {
		if found.Code, err = strconv.Atoi(status); err != nil {
			t.Fatal(err)
		}
	}
	return found
}

func parse(t *testing.T, text sql.NullString) time.Time {
	t.Helper()
	if !text.Valid {
		return time.Time{}
	}
	at, err := time.ParseInLocation("2006-01-02 15:04:05", text.String, time.UTC)
	if err != nil {
		t.Fatal(err)
	}
	return at
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
