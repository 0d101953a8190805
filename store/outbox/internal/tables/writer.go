// Package tables writes rows into the tables of SQL databases, in transactions of its own.
package tables

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/outbox/internal/batch"
)

// Server is what differs between databases.
type Server struct {
	*outbox.Dialect
	// Open returns a pool, which opens no connection.
	Open func() (*sql.DB, error)
	// Options are the options of a transaction.
	Options *sql.TxOptions
	// MaxRows and MaxBytes bound a statement, by its rows and their payloads.
	MaxRows, MaxBytes int
	// OnConflict is the end of an INSERT that leaves out the rows that are there, with %s for the
	// id's column. If it is "", such a row fails the statement, and leaves the transaction as it
	// was; Duplicate then recognises the error.
	OnConflict string
	Duplicate  func(err error) bool
	// Shared reports whether the table takes several rows of an id, because no unique index is on
	// the id alone. Then Lock, a statement in the transaction, ends the writes of other writers,
	// and Unlock follows the transaction's end, unless it is nil.
	// Shared is nil if the database has no such tables.
	Shared func(ctx context.Context, db *sql.DB, o *store.Outbox) (bool, error)
	Lock   func(ctx context.Context, tx *sql.Tx, o *store.Outbox) error
	Unlock func(ctx context.Context, c *sql.Conn, o *store.Outbox) error
	// Mine is the condition that the transaction itself inserted a row, o.
	Mine string
	// Columns is the query for the name, the type and the default of each column, and for the digits
	// of a time's fraction, whose parameters are Table and Schema. The default is an expression, or
	// NULL; the digits of another type are NULL.
	Columns func(o *store.Outbox) (query string, args []any)
	// Text is the format of a column's text.
	Text string
	// Typed: a list of VALUES has the types of Columns, so that many rows are compared by a join.
	Typed bool
	// Same is the condition that a column of a type has the value of a placeholder, and
	// SameAs that it has that of an expression.
	Same   func(column, typ, placeholder string) string
	SameAs func(column, expression string) string
	// Classify returns the error of a statement as batch.Attempt does.
	Classify func(o *store.Outbox, err error) error
}

// Writer implements outbox.Writer.
type Writer struct {
	server *Server
	clock  batch.Clock

	mu     sync.Mutex
	db     *sql.DB // nil until the first call
	closed bool
	facts  map[string]facts // by the table
}

// facts are what a writer knows of a table. A table may change while its rows are written, so they are
// asked for again after factsAge.
type facts struct {
	shared bool          // see Shared
	unit   time.Duration // of the times of rows
	at     time.Time
}

const factsAge = time.Minute

var _ outbox.Writer = (*Writer)(nil)

// NewWriter returns a writer. It opens no connection.
func NewWriter(s *Server) *Writer { return &Writer{server: s, facts: map[string]facts{}} }

// Write implements outbox.Writer.
func (w *Writer) Write(ctx context.Context, of *store.Outbox, rows []outbox.Row) ([]outbox.Written, error) {
	o, err := batch.Prepare(of)
	if err != nil {
		return nil, err
	}
	all, err := w.write(ctx, o, rows)
	if err != nil {
		return nil, fmt.Errorf("write into outbox %s: %w", of.Name, err)
	}
	return all, nil
}

func (w *Writer) write(ctx context.Context, o *outbox.Outbox, rows []outbox.Row) ([]outbox.Written, error) {
	db, err := w.pool()
	if err != nil {
		return nil, err
	}
	known, err := w.factsOf(ctx, db, o.Outbox())
	if err != nil {
		return nil, w.server.Classify(o.Outbox(), err)
	}
	timed := slices.Clone(rows)
	for i := range timed { // as the table stores it, so that a repeat tells the same time
		if timed[i].Created.IsZero() {
			timed[i].Created = w.clock.Now()
		}
		timed[i].Created = timed[i].Created.Truncate(known.unit)
	}
	return batch.Write(ctx, o, &w.clock, timed, func(ctx context.Context, rows []batch.Row) ([]outbox.Written, error) {
		t := &transaction{Server: w.server, o: o.Outbox(), locked: known.shared}
		if t.locked {
			written, err := t.runLocked(ctx, db, rows)
			return written, w.server.Classify(o.Outbox(), err)
		}
		written, err := t.run(ctx, db, rows)
		return written, w.server.Classify(o.Outbox(), err)
	})
}

// factsOf returns what is known of the table of an outbox.
func (w *Writer) factsOf(ctx context.Context, db *sql.DB, o *store.Outbox) (facts, error) {
	table := w.server.Table(o)
	w.mu.Lock()
	known, ok := w.facts[table]
	w.mu.Unlock()
	if ok && time.Since(known.at) < factsAge {
		return known, nil
	}
	known = facts{unit: time.Microsecond, at: time.Now()}
	columns, err := w.server.describe(ctx, db, o)
	if err == nil && w.server.Shared != nil {
		known.shared, err = w.server.Shared(ctx, db, o)
	}
	if err != nil {
		return facts{}, err
	}
	if names := outbox.TimeColumns(&o.Layout); len(names) > 0 {
		known.unit = unitOf(o, names[0], columns[names[0]])
	}
	if len(columns) > 0 { // else there is no table yet
		w.mu.Lock()
		w.facts[table] = known
		w.mu.Unlock()
	}
	return known, nil
}

// unitOf returns the unit in which a column has the time of a row.
func unitOf(o *store.Outbox, name string, c column) time.Duration {
	if slices.Contains(o.Layout.Filled, store.FilledColumn{Column: name, Fill: store.FillMillis}) {
		return time.Millisecond
	}
	unit := time.Microsecond
	if c.digits.Valid {
		for range 6 - min(c.digits.Int64, 6) {
			unit *= 10
		}
	}
	return unit
}

// pool returns the pool, which it opens once.
func (w *Writer) pool() (*sql.DB, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, errors.New("writer closed")
	}
	if w.db == nil {
		db, err := w.server.Open()
		if err != nil {
			return nil, err
		}
		w.db = db
	}
	return w.db, nil
}

// Close implements outbox.Writer.
func (w *Writer) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed = true; w.db != nil {
		_ = w.db.Close() // what is committed stays
	}
}

// transaction writes a batch in one transaction.
type transaction struct {
	*Server
	o      *store.Outbox
	tx     *sql.Tx
	locked bool // no other writer writes
}

// runLocked is run while no other writer writes.
func (t *transaction) runLocked(ctx context.Context, db *sql.DB, rows []batch.Row) (_ []outbox.Written, err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if t.Unlock != nil && t.Unlock(context.WithoutCancel(ctx), conn, t.o) != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // the server unlocks at the session's end
		}
		_ = conn.Close() // to the pool
	}()
	return t.run(ctx, conn, rows)
}

// beginner is a pool or a session.
type beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

func (t *transaction) run(ctx context.Context, db beginner, rows []batch.Row) (all []outbox.Written, err error) {
	if t.tx, err = db.BeginTx(ctx, t.Options); err != nil {
		return nil, err
	}
	defer func() { _ = t.tx.Rollback() }() // after a commit it does nothing
	if t.locked {
		if err := t.Lock(ctx, t.tx, t.o); err != nil {
			return nil, err
		}
	}
	for len(rows) > 0 {
		n := t.fitting(rows)
		written, err := t.write(ctx, rows[:n])
		if err != nil {
			return nil, err
		}
		all, rows = append(all, written...), rows[n:]
	}
	return all, t.tx.Commit()
}

// fitting returns how many rows fit into a statement, at least one.
func (t *transaction) fitting(rows []batch.Row) int {
	n, bytes := 0, 0
	for n < len(rows) && n < t.MaxRows && (n == 0 || bytes <= t.MaxBytes) {
		bytes += len(rows[n].Payload)
		n++
	}
	if n > 1 && bytes > t.MaxBytes {
		n--
	}
	return n
}

// write inserts rows, and compares those that are there.
func (t *transaction) write(ctx context.Context, rows []batch.Row) ([]outbox.Written, error) {
	written := make([]outbox.Written, len(rows))
	for i := range rows {
		if len(outbox.TimeColumns(&t.o.Layout)) > 0 {
			written[i].Created = rows[i].Created
		}
	}
	if t.locked && rows[0].ID != "" {
		rest, err := t.compare(ctx, rows, written)
		if err == nil && len(rest) > 0 {
			_, err = t.insert(ctx, rest)
		}
		return written, err
	}
	n, err := t.insert(ctx, rows)
	if err == nil && n == len(rows) {
		return written, nil
	}
	if err != nil && (t.Duplicate == nil || !t.Duplicate(err)) {
		return nil, err
	}
	rest, cause := t.compare(ctx, rows, written)
	switch {
	case cause != nil:
		return nil, cause
	case err == nil && len(rest) > 0:
		return nil, batch.ErrAgain // a row that was there has been deleted since
	case err != nil && len(rest) == len(rows):
		return nil, err // a duplicate of another unique index
	case len(rest) > 0:
		_, err = t.insert(ctx, rest)
		return written, err
	}
	return written, nil
}

// compare compares rows with those of their ids, and returns the rows that the table has not.
func (t *transaction) compare(ctx context.Context, rows []batch.Row, written []outbox.Written) (rest []batch.Row, err error) {
	found, err := t.find(ctx, rows)
	if err != nil {
		return nil, err
	}
	for i := range rows {
		switch f := found[i]; {
		case !f.exists:
			rest = append(rest, rows[i])
		case f.mine && f.same:
		case f.same:
			written[i].Created, written[i].Repeated = f.created, true
		default:
			written[i].Created, written[i].Conflict = f.created, true
		}
	}
	return rest, nil
}

// insert returns how many rows it inserted.
func (t *transaction) insert(ctx context.Context, rows []batch.Row) (int, error) {
	fields := make([][]outbox.Field, len(rows))
	for i := range rows {
		fields[i] = rows[i].Fields
	}
	s := t.Insert(t.o, fields...)
	if t.OnConflict != "" && rows[0].ID != "" && !t.locked {
		fmt.Fprintf(&s.SQL, t.OnConflict, t.Ident(t.o.Layout.Columns.ID))
	}
	done, err := t.tx.ExecContext(ctx, s.SQL.String(), s.Args...)
	if err != nil {
		return 0, err
	}
	n, err := done.RowsAffected()
	return int(n), err
}
