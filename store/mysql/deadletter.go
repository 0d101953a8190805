package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/deadletter"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// CountFailed implements store.DeadLetters on a session of its own.
func (s *Store) CountFailed(ctx context.Context, f store.DeadLetterFilter) (int, error) {
	n := 0
	err := s.readLettersTx(ctx, f, func(ctx context.Context, c *conn, t *table) error {
		if deadletter.FiltersInProgram(t.Outbox, &f) {
			return eachLetter(ctx, c, t, &f, 0, false, func(store.DeadLetter) { n++ })
		}
		return t.byIDs(&f, func(keys []any) error {
			st := &statement{}
			var some int
			err := c.row(ctx, "SELECT COUNT(*) FROM "+TableName(t.Outbox)+" AS o\n"+t.chosen(st, &f, keys), st.args, &some)
			n += some
			return err
		})
	})
	if err != nil {
		return 0, fmt.Errorf("count FAILED rows: %w", err)
	}

	return n, nil
}

// Failed implements store.DeadLetters on a session of its own.
func (s *Store) Failed(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) ([]store.DeadLetter, error) {
	letters, err := s.readLetters(ctx, f, limit, payload)
	if err != nil {
		return nil, fmt.Errorf("read FAILED rows: %w", err)
	}
	return letters, nil
}

// EachFailed implements store.FailedReader on a session of its own.
func (s *Store) EachFailed(ctx context.Context, f store.DeadLetterFilter, take func(*store.DeadLetter)) error {
	err := s.readLettersTx(ctx, f, func(ctx context.Context, c *conn, t *table) error {
		return eachLetter(ctx, c, t, &f, 0, false, func(d store.DeadLetter) { take(&d) })
	})
	if err != nil {
		return fmt.Errorf("read FAILED rows: %w", err)
	}
	return nil
}

func (s *Store) readLetters(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) ([]store.DeadLetter, error) {
	if limit <= 0 {
		return nil, fmt.Errorf("outbox %s: limit is %d, must be positive", f.Outbox, limit)
	}
	var letters []store.DeadLetter
	err := s.readLettersTx(ctx, f, func(ctx context.Context, c *conn, t *table) error {
		return eachLetter(ctx, c, t, &f, limit, payload, func(d store.DeadLetter) { letters = append(letters, d) })
	})
	return letters, err
}

// readLettersTx runs fn on a session of its own, because reading a large table must delay
// neither the relay's checkpoints nor its outcomes.
func (s *Store) readLettersTx(ctx context.Context, f store.DeadLetterFilter, fn func(context.Context, *conn, *table) error) error {
	o, err := s.outboxes.FindValid(f.Outbox, &f)
	if err != nil {
		return err
	}
	err = s.onNewSession(ctx, func(ctx context.Context, c *conn) error {
		t, err := describe(ctx, c, o)
		if err != nil {
			return err
		}
		return fn(ctx, c, t)
	})
	return Explain(err)
}

// onNewSession runs fn on a new session for reads, without a transaction.
func (s *Store) onNewSession(ctx context.Context, fn func(context.Context, *conn) error) error {
	return s.lifetime.Do(ctx, func(ctx context.Context) error {
		c, err := dial(ctx, s.viewConfig, "READ COMMITTED", readSettings())
		if err != nil {
			return err
		}
		defer c.close()
		return fn(ctx, c)
	})
}

// byIDs calls each with the keys of a filter's ids, at most maxKeys at a time. If the
// filter names no ids it calls each once with nil, which selects all rows.
func (t *table) byIDs(f *store.DeadLetterFilter, each func(keys []any) error) error {
	if len(f.IDs) == 0 {
		return each(nil)
	}
	var all keyBatch
	seen := map[string]bool{}
	for _, id := range f.IDs {
		if key, valid := t.id().key(id); valid && !seen[id] {
			seen[id] = true
			all.add(0, key)
		}
	}
	return all.chunks(func(chunk *keyBatch) error { return each(chunk.keys) })
}

// eachLetter calls each for the selected rows in order, for at most limit rows unless
// limit is 0.
func eachLetter(ctx context.Context, c *conn, t *table, f *store.DeadLetterFilter, limit int, payload bool, each func(store.DeadLetter)) error {
	var keys []any
	if err := t.byIDs(f, func(some []any) error { keys = append(keys, some...); return nil }); err != nil {
		return err
	}

	if len(keys) == 0 && len(f.IDs) > 0 {
		return nil
	}
	if len(keys) > maxBoundValues {
		return fmt.Errorf("outbox %s: %d ids given, at most %d per call", f.Outbox, len(keys), maxBoundValues)
	}

	st := &statement{}
	text := t.lettersText(st, f, keys, payload)
	if limit > 0 && !deadletter.FiltersInProgram(t.Outbox, f) {
		text += "\nLIMIT " + st.arg(limit)
	}

	given := 0
	err := c.query(ctx, text, st.args, func(rows *sql.Rows) error {
		d, err := t.scanLetter(rows)
		if err != nil || deadletter.FiltersInProgram(t.Outbox, f) && d.Group != *f.Group {
			return err
		}
		each(d)
		if given++; given == limit {
			return errStopIteration
		}
		return nil
	})

	if errors.Is(err, errStopIteration) {
		return nil
	}
	return err
}

func (t *table) scanLetter(rows *sql.Rows) (store.DeadLetter, error) {
	d := store.DeadLetter{Ref: store.Ref{Outbox: t.Name}, Kind: t.Kind}
	var kind, text, at sql.NullString
	var group []byte
	if err := rows.Scan(&d.ID, &kind, &group, &d.RetryCount, &text, &at, &d.PayloadSize, &d.Payload); err != nil {
		return d, err
	}
	if t.Layout.Columns.Kind != "" {
		d.Kind = kind.String
	}
	d.Group, d.Error = t.Layout.Group(group), text.String
	d.FailedAt, _ = readTime(at.String)
	return d, nil
}

// lettersText returns the statement that reads FAILED rows in order.
func (t *table) lettersText(s *statement, f *store.DeadLetterFilter, keys []any, payload bool) string {
	c := &t.Layout.Columns
	at, content := "NULL", "NULL"
	if name := t.Layout.FailedTime(); name != "" {
		at = "o." + Ident(name)
	}
	if payload {
		content = t.payload()
	}
	return "SELECT " + strings.Join([]string{
		t.id().textOf(), t.optional(c.Kind), t.group(), t.retryCount(), t.optional(c.Error), at, t.payloadSize(), content,
	}, ", ") + "\nFROM " + TableName(t.Outbox) + " AS o\n" + t.chosen(s, f, keys) + "\nORDER BY " + t.order()
}

// chosen returns the WHERE clause for the rows o that a filter selects. It cannot filter
// by a group inside JSON; the program does that. Texts compare byte for byte.
func (t *table) chosen(s *statement, f *store.DeadLetterFilter, keys []any) string {
	c := &t.Layout.Columns
	where := "WHERE o." + Ident(c.ID) + " IS NOT NULL AND " + t.state(s).Failed()
	if len(keys) > 0 {
		where += " AND " + t.idOneOf(s, keys)
	}

	if f.Kind != "" {
		where += " AND " + t.textEquals(s, c.Kind, f.Kind, f.Kind == t.Kind)
	}
	switch {
	case f.Group == nil || deadletter.FiltersInProgram(t.Outbox, f):
	case f.Group.Valid:
		where += " AND " + t.textEquals(s, c.Group, f.Group.Name, false)
	case c.Group != "":
		where += " AND o." + Ident(c.Group) + " IS NULL"
	}

	if f.Error != "" {
		where += " AND LOCATE(" + s.arg([]byte(f.Error)) + ", " + t.mustColumn(c.Error).bytesOf() + ") > 0"
	}
	if !f.Since.IsZero() {
		where += " AND o." + Ident(t.Layout.FailedTime()) + " >= " + s.arg(timeBound(f.Since))
	}

	if !f.Until.IsZero() {
		where += " AND o." + Ident(t.Layout.FailedTime()) + " < " + s.arg(timeBound(f.Until))
	}
	return where
}

// timeBound returns a time to compare a column with.
func timeBound(t time.Time) string { return t.UTC().Truncate(time.Microsecond).Format(ownTime) }

// textEquals returns the condition that a column equals a text. Without a column,
// otherwise decides.
func (t *table) textEquals(s *statement, name, text string, otherwise bool) string {
	switch {
	case name != "":
		return t.mustColumn(name).bytesOf() + " = " + s.arg([]byte(text))
	case otherwise:
		return "TRUE"
	}
	return "FALSE"
}

// resolveAction is an operator's action on FAILED rows.
type resolveAction struct {
	// verb returns the statement for rows o, up to its WHERE.
	verb  func(t *table, s *statement) string
	right string // privilege that the account needs
}

// Requeue implements store.DeadLetters. It sets the times of claim and settlement to NULL
// where they are part of the state and nullable; otherwise they keep their values, as on
// a retry.
func (s *Store) Requeue(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Item, error) {
	letters, err := s.resolveFailed(ctx, epoch, f, limit, resolveAction{requeueVerb, "UPDATE"})
	if err != nil {
		return nil, fmt.Errorf("requeue: %w", err)
	}
	return store.RequeuedItems(letters, time.Now()), nil
}

// Discard implements store.DeadLetters.
func (s *Store) Discard(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Ref, error) {
	letters, err := s.resolveFailed(ctx, epoch, f, limit, resolveAction{discardVerb, "DELETE"})
	if err != nil {
		return nil, fmt.Errorf("discard: %w", err)
	}
	return store.Refs(letters), nil
}

func requeueVerb(t *table, s *statement) string {
	set := columns.Requeue(&t.Layout, func(name string) bool { return t.mustColumn(name).notNull })
	return "UPDATE " + t.from() + " SET " + t.assign(s, set, func(column, columns.Value) any { return t.status(store.Pending) })
}

func discardVerb(t *table, _ *statement) string { return "DELETE o FROM " + t.from() }

func (s *Store) resolveFailed(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int, m resolveAction) ([]store.DeadLetter, error) {
	return deadletter.Resolve(f.Outbox,
		func() ([]store.DeadLetter, error) { return s.readLetters(ctx, f, limit, false) },
		func(letters []store.DeadLetter) (done []store.DeadLetter, err error) {
			err = s.operator.do(ctx, func(ctx context.Context, c *conn) error {
				t, err := c.table(ctx, s.outboxes.Lookup(f.Outbox))
				if err != nil {
					return err
				}
				return s.runAsLeader(ctx, c, epoch, func() (err error) {
					done, err = s.resolveRows(ctx, c, t, letters, m)
					return err
				})
			})
			if err != nil {
				return nil, m.explain(err, s.outboxes.Lookup(f.Outbox))
			}
			return done, nil
		})
}

// resolveRows locks the rows that are still FAILED, writes them, and deletes the blocks
// that they hold, in the call's transaction. It returns these rows in their order.
func (s *Store) resolveRows(ctx context.Context, c *conn, t *table, letters []store.DeadLetter, m resolveAction) (done []store.DeadLetter, err error) {
	var batch keyBatch
	for i := range letters {
		key, _ := t.id().key(letters[i].ID) // the id of an existing row is valid
		batch.add(i, key)
	}

	failed := map[string]bool{}
	err = batch.chunks(func(chunk *keyBatch) error {
		st := &statement{}
		text := "SELECT " + t.id().textOf() + " FROM " + t.from() + "\nWHERE " + t.idIn(st, chunk.keys) + " AND " + t.state(st).Failed() + "\nFOR UPDATE"
		return c.query(ctx, text, st.args, func(rows *sql.Rows) error {
			var id string
			err := rows.Scan(&id)
			failed[id] = true
			return err
		})
	})
	if err != nil {
		return nil, err
	}

	var write keyBatch
	for k, i := range batch.at {
		if failed[letters[i].ID] {
			write.add(i, batch.keys[k])
			done = append(done, letters[i])
		}
	}

	if err := write.chunks(func(chunk *keyBatch) error { return resolveChunk(ctx, c, t, chunk, m) }); err != nil {
		return nil, err
	}
	return done, ledger.Unblock(ctx, s.tx(c), store.Refs(done)...)
}

func resolveChunk(ctx context.Context, c *conn, t *table, chunk *keyBatch, m resolveAction) error {
	st := &statement{}
	text := m.verb(t, st)
	text += "\nWHERE " + t.lockedIDIn(st, chunk.keys) + " AND " + t.state(st).Failed()
	n, err := c.exec(ctx, text, st.args...)
	if err != nil {
		return err
	}

	if n < int64(len(chunk.at)) {
		return &store.RefusedError{Err: fmt.Errorf("outbox %s: change of FAILED rows had no effect; check triggers on the table", t.Name)}
	}
	return nil
}

// explain names the missing grant. A relay whose layout deletes nothing needs DELETE only
// when someone discards a row.
func (m resolveAction) explain(err error, o *store.Outbox) error {
	if n := code(err); n == codeTableDenied || n == codeColumnDenied {
		return &store.SetupError{
			Problem: fmt.Sprintf("outbox %s: %s", o.Name, err),
			Remedy:  fmt.Sprintf("GRANT %s ON %s TO the relay's account", m.right, TableName(o)),
		}
	}
	return asRefused(err)
}
