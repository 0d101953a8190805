package sqlite_test

import (
	"cmp"
	"database/sql"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/sqlite"
	"github.com/sluicebox/sluicebox/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestStore runs the suite on tables as a service on SQLite has them, with times
// as text, and on such with times as integers.
func TestStore(t *testing.T) {
	for name, timeType := range map[string]string{"times as text": "DATETIME", "times as integers": "INTEGER"} {
		t.Run(name, func(t *testing.T) { storetest.Run(t, harness{timeType}) })
	}
}

type harness struct{ timeType string }

func (h harness) Setup(t *testing.T, outboxes ...store.Outbox) storetest.Database {
	path := newFile(t)
	db := &database{path: path, db: openSQL(t, path), times: h.timeType, outboxes: map[string]*store.Outbox{}}
	for _, o := range outboxes {
		db.exec(t, "CREATE TABLE "+sqlite.TableName(&o)+" ("+strings.Join(h.columns(&o.Layout), ", ")+")")
		db.outboxes[o.Name] = &o
	}
	return db
}

// newFile makes an empty database, which begins in SQLite's default mode.
func newFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "out box.db") // a name that a URL has to escape
	db := openSQL(t, path)
	if _, err := db.Exec("CREATE TABLE made (x); DROP TABLE made"); err != nil {
		t.Fatal(err)
	}
	return path
}

// openSQL opens a database as a service does, by the pool of database/sql.
func openSQL(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+strings.ReplaceAll(path, " ", "%20")+"?_pragma=busy_timeout(20000)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func urlOf(path string) string { return "sqlite://" + strings.ReplaceAll(path, " ", "%20") }

func (h harness) columns(l *store.Layout) []string {
	c := &l.Columns
	list := []string{sqlite.Ident(c.ID) + " VARCHAR(26) PRIMARY KEY", sqlite.Ident(c.Payload) + " TEXT NOT NULL"}
	add := func(name, typ string) {
		if name != "" {
			list = append(list, sqlite.Ident(name)+" "+typ)
		}
	}
	status := "VARCHAR(20) NOT NULL"
	if l.State == store.StateNumbers {
		status = "SMALLINT NOT NULL DEFAULT 0"
	}
	add(c.Kind, "VARCHAR(20)")
	add(c.Group, "VARCHAR(255)")
	add(c.Status, status)
	add(c.RetryCount, "SMALLINT NOT NULL DEFAULT 0")
	add(c.Claimed, h.timeType)
	add(c.Settled, h.timeType)
	add(c.Delivered, h.timeType)
	add(c.Failed, h.timeType)
	add(c.Error, "TEXT")
	for _, name := range l.OrderBy {
		add(name, h.timeType+" NOT NULL")
	}
	return list
}

type database struct {
	path     string
	db       *sql.DB
	times    string
	outboxes map[string]*store.Outbox
}

func (d *database) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	if _, err := d.db.Exec(query, args...); err != nil {
		t.Fatalf("%v, in: %s", err, query)
	}
}

func (d *database) time(at time.Time) any {
	if d.times == "INTEGER" {
		return at.UnixMilli()
	}
	return at.UTC().Format("2006-01-02 15:04:05.000")
}

func (d *database) Store(t *testing.T, cfg storetest.Config) store.Store {
	st, err := sqlite.New(sqlite.Config{
		URL: urlOf(d.path), Name: cmp.Or(cfg.Name, "suite"), Holder: cfg.Holder, Outboxes: cfg.Outboxes, TakeoverTimeout: cfg.TakeoverTimeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func (d *database) Begin(t *testing.T, outbox string, rows ...storetest.Row) (store.Txn, func()) {
	tx, err := d.db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	o := d.outboxes[outbox]
	c := &o.Layout.Columns
	names := []string{c.ID, c.Payload}
	for _, name := range append([]string{c.Kind, c.Group, c.Status}, o.Layout.OrderBy...) {
		if name != "" {
			names = append(names, name)
		}
	}
	for i, name := range names {
		names[i] = sqlite.Ident(name)
	}
	insert := "INSERT INTO " + sqlite.TableName(o) + " (" + strings.Join(names, ", ") + ") VALUES (?" + strings.Repeat(", ?", len(names)-1) + ")"
	stmt, err := tx.Prepare(insert)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		args := []any{r.ID, r.Payload}
		if c.Kind != "" {
			args = append(args, r.Kind)
		}
		if c.Group != "" {
			args = append(args, storetest.GroupText(&o.Layout, r.Group))
		}
		switch o.Layout.State {
		case store.StateWords:
			args = append(args, o.Layout.Words[store.Pending])
		case store.StateNumbers:
			args = append(args, o.Layout.Numbers[store.Pending])
		}
		for range o.Layout.OrderBy {
			args = append(args, d.time(r.Created))
		}
		if _, err := stmt.Exec(args...); err != nil {
			t.Fatal(err)
		}
	}
	return 0, func() {
		if err := tx.Commit(); err != nil && err != sql.ErrTxDone {
			t.Fatal(err)
		}
	}
}

func (d *database) Set(t *testing.T, outbox, id string, status store.Status, at time.Time) {
	o := d.outboxes[outbox]
	c := &o.Layout.Columns
	var set []string
	var args []any
	assign := func(name string, value any) { set, args = append(set, sqlite.Ident(name)+" = ?"), append(args, value) }
	switch o.Layout.State {
	case store.StateWords:
		assign(c.Status, o.Layout.Words[status])
	case store.StateNumbers:
		assign(c.Status, o.Layout.Numbers[status])
	case store.StateTimestamps:
		switch status {
		case store.Completed:
			assign(c.Delivered, d.time(at))
		case store.Failed:
			assign(c.Failed, d.time(at))
		default:
			assign(c.Failed, nil)
		}
	}
	if c.Claimed != "" {
		assign(c.Claimed, d.time(at))
	}
	if len(set) > 0 {
		d.exec(t, "UPDATE "+sqlite.TableName(o)+" SET "+strings.Join(set, ", ")+" WHERE "+sqlite.Ident(c.ID)+" = ?", append(args, id)...)
	}
}

func (d *database) Delete(t *testing.T, outbox, id string) {
	o := d.outboxes[outbox]
	d.exec(t, "DELETE FROM "+sqlite.TableName(o)+" WHERE "+sqlite.Ident(o.Layout.Columns.ID)+" = ?", id)
}

func (d *database) Read(t *testing.T, outbox, id string) storetest.Found {
	t.Helper()
	o := d.outboxes[outbox]
	c := &o.Layout.Columns
	pick := func(name, none string) string {
		if name == "" {
			return none
		}
		return "+" + sqlite.Ident(name)
	}
	query := "SELECT " + strings.Join([]string{
		"CAST(" + pick(c.Status, "''") + " AS TEXT)", pick(c.RetryCount, "0"), pick(c.Error, "NULL"),
		"CAST(" + pick(c.Claimed, "NULL") + " AS TEXT)", "CAST(" + pick(c.Settled, "NULL") + " AS TEXT)",
		pick(c.Delivered, "NULL") + " IS NOT NULL", pick(c.Failed, "NULL") + " IS NOT NULL",
	}, ", ") + " FROM " + sqlite.TableName(o) + " WHERE " + sqlite.Ident(c.ID) + " = ?"
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
	found.Claimed, found.Settled = d.parse(t, claimed), d.parse(t, settled)
	found.Status = statusOf(&o.Layout, status, claimed.Valid, delivered, failed)
	if o.Layout.State == store.StateNumbers {
		if found.Code, err = strconv.Atoi(status); err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// parse reads a time in exactly the form that the relay writes.
func (d *database) parse(t *testing.T, text sql.NullString) time.Time {
	t.Helper()
	if !text.Valid {
		return time.Time{}
	}
	if d.times == "INTEGER" {
		ms, err := strconv.ParseInt(text.String, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return time.UnixMilli(ms).UTC()
	}
	at, err := time.Parse("2006-01-02 15:04:05.000", text.String)
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
