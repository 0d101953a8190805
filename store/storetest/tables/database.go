package tables

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/storetest"
)

// Session runs statements.
type Session interface {
	// Exec runs one statement.
	Exec(ctx context.Context, query string, args ...any) error
	// Row scans the single row of a query. It returns sql.ErrNoRows if there is none.
	Row(ctx context.Context, query string, args []any, into ...any) error
}

// Transaction is an open transaction.
type Transaction interface {
	Session
	// Commit commits the transaction unless it is already committed.
	Commit(ctx context.Context) error
}

// Opener is a session that opens transactions in other sessions.
type Opener interface {
	Session
	Begin(ctx context.Context) (Transaction, error)
}

// Database implements the row operations of storetest.Database. Its methods fail the test
// on an error.
type Database struct {
	dialect  *Dialect
	session  Opener
	outboxes map[string]*store.Outbox
}

// New returns a database whose session reaches the tables of the outboxes.
func New(d *Dialect, session Opener, outboxes ...store.Outbox) *Database {
	db := &Database{dialect: d, session: session, outboxes: map[string]*store.Outbox{}}
	for _, o := range outboxes {
		db.outboxes[o.Name] = &o
	}
	return db
}

// insertRows is the number of rows per INSERT.
const insertRows = 500

// Begin implements storetest.Database.
func (db *Database) Begin(t *testing.T, name string, rows ...storetest.Row) (store.Txn, func()) {
	ctx := context.Background() // the commit may come after the test
	tx, err := db.session.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}

	for part := range slices.Chunk(rows, insertRows) {
		query, args := db.insert(t, db.outboxes[name], part)
		if err := tx.Exec(ctx, query, args...); err != nil {
			t.Fatal(err)
		}
	}

	var txn int64
	if query := db.dialect.Txn; query != "" {
		if err := tx.Row(ctx, query, nil, &txn); err != nil {
			t.Fatal(err)
		}
	}

	return store.Txn(uint32(txn)), func() {
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// insert returns the statement that inserts pending rows, with its parameters.
func (db *Database) insert(t *testing.T, of *store.Outbox, rows []storetest.Row) (query string, args []any) {
	t.Helper()
	o, err := outbox.New(*of)
	if err != nil {
		t.Fatal(err)
	}
	fields := make([][]outbox.Field, len(rows))
	for i := range rows {
		r, c := &rows[i], &of.Layout.Columns
		row := outbox.Row{ID: r.ID, Payload: []byte(r.Payload), Created: r.Created}
		if c.Kind != "" {
			row.Kind = r.Kind
		}
		if c.Group != "" && r.Group.Valid {
			row.Group = []string{r.Group.Name}
		}
		if fields[i], err = o.Fields(&row); err != nil {
			t.Fatal(err)
		}
	}
	s := db.dialect.Insert(of, fields...)
	return s.SQL.String(), s.Args
}

// stored returns the value of a status in the status column.
func stored(l *store.Layout, status store.Status) any {
	switch l.State {
	case store.StateNumbers:
		return l.Numbers[status]
	case store.StateBoolean:
		return status == store.Completed
	}
	return l.Words[status]
}

// Set implements storetest.Database.
func (db *Database) Set(t *testing.T, outbox, id string, status store.Status, at time.Time) {
	t.Helper()
	s, o := &statement{Dialect: db.dialect}, db.outboxes[outbox]
	c := &o.Layout.Columns
	var set []string
	assign := func(name, place string) { set = append(set, s.Ident(name)+" = "+place) }
	switch {
	case o.Layout.State == store.StateNone:
	case o.Layout.State != store.StateTimestamps:
		assign(c.Status, s.arg(stored(&o.Layout, status)))
	case status == store.Completed:
		assign(c.Delivered, s.at(at))
	case status == store.Failed:
		assign(c.Failed, s.at(at))
	case c.Failed != "":
		assign(c.Failed, s.at(nil))
	}

	if c.Claimed != "" {
		assign(c.Claimed, s.at(at))
	}
	if len(set) > 0 {
		db.exec(t, "UPDATE "+s.Table(o)+" SET "+strings.Join(set, ", ")+" WHERE "+s.Ident(c.ID)+" = "+s.arg(id), s.args...)
	}
}

// Delete implements storetest.Database.
func (db *Database) Delete(t *testing.T, outbox, id string) {
	t.Helper()
	o := db.outboxes[outbox]
	db.exec(t, "DELETE FROM "+db.dialect.Table(o)+" WHERE "+db.dialect.Ident(o.Layout.Columns.ID)+" = "+db.dialect.Placeholder(1), id)
}

// SetRefused implements storetest.Database.
func (db *Database) SetRefused(t *testing.T, job string, n int64) {
	t.Helper()
	s := &statement{Dialect: db.dialect}
	statement := fmt.Sprintf(s.SetRefused, s.arg(n), s.arg(job))
	db.exec(t, statement, s.args...)
}

func (db *Database) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	if err := db.session.Exec(context.Background(), query, args...); err != nil {
		t.Fatalf("%v, in: %s", err, query)
	}
}

// Read implements storetest.Database.
func (db *Database) Read(t *testing.T, outbox, id string) storetest.RowContent {
	t.Helper()
	d, o := db.dialect, db.outboxes[outbox]
	c := &o.Layout.Columns
	query := "SELECT " + strings.Join([]string{
		d.pick(c.Status, d.Text, "''"), d.pick(c.RetryCount, d.Plain, "0"), d.pick(c.Error, d.Plain, "NULL"),
		d.pick(c.Claimed, d.Time, "NULL"), d.pick(c.Settled, d.Time, "NULL"),
		d.pick(c.Delivered, d.Time, "NULL"), d.pick(c.Failed, d.Plain+" IS NOT NULL", "FALSE"),
	}, ", ") + " FROM " + d.Table(o) + " WHERE " + d.Ident(c.ID) + " = " + d.Placeholder(1)
	var (
		found                             storetest.RowContent
		status                            string
		text, claimed, settled, delivered sql.NullString
		failed                            bool
	)

	err := db.session.Row(context.Background(), query, []any{id}, &status, &found.RetryCount, &text, &claimed, &settled, &delivered, &failed)
	if errors.Is(err, sql.ErrNoRows) {
		return found
	}
	if err != nil {
		t.Fatalf("%v, in: %s", err, query)
	}

	found.Exists, found.Error = true, text.String
	found.Claimed, found.Settled, found.Delivered = d.parse(t, claimed), d.parse(t, settled), d.parse(t, delivered)
	found.Status = statusOf(&o.Layout, status, claimed.Valid, delivered.Valid, failed)
	if o.Layout.State == store.StateNumbers {
		if found.Code, err = strconv.Atoi(status); err != nil {
			t.Fatal(err)
		}
	}
	found.Receipt = db.readReceipt(t, o, id)
	return found
}

// readReceipt returns the columns for receipts of a row.
func (db *Database) readReceipt(t *testing.T, o *store.Outbox, id string) string {
	t.Helper()
	var texts []string
	for i := range o.Layout.Record {
		query := "SELECT " + db.dialect.pick(o.Layout.Record[i].Column, db.dialect.Text, "") + " FROM " + db.dialect.Table(o) +
			" WHERE " + db.dialect.Ident(o.Layout.Columns.ID) + " = " + db.dialect.Placeholder(1)
		text := sql.NullString{}
		if err := db.session.Row(context.Background(), query, []any{id}, &text); err != nil {
			t.Fatalf("%v, in: %s", err, query)
		}
		if !text.Valid {
			text.String = "~"
		}
		texts = append(texts, text.String)
	}
	return strings.Join(texts, ",")
}

func (d *Dialect) parse(t *testing.T, text sql.NullString) time.Time {
	t.Helper()
	if !text.Valid {
		return time.Time{}
	}
	at, err := d.Parse(text.String)
	if err != nil {
		t.Fatal(err)
	}
	return at.UTC()
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
	case store.StateBoolean, store.StateTimestamps:
		switch {
		case delivered && l.State == store.StateTimestamps, text == "1", text == "true":
			return store.Completed
		case failed:
			return store.Failed
		case claimed:
			return store.Processing
		}
	}

	return store.Pending
}

// Outbox returns the outbox with the given name.
func (db *Database) Outbox(name string) *store.Outbox { return db.outboxes[name] }
