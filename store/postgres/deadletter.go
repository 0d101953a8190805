package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/deadletter"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// letterPageSize is the number of rows read at a time where the program itself filters
// them.
const letterPageSize = 1000

// CountFailed implements store.DeadLetters, on a session of its own.
func (s *Store) CountFailed(ctx context.Context, f store.DeadLetterFilter) (int, error) {
	n := 0
	err := s.readOnlyTx(ctx, f, func(ctx context.Context, conn *pgx.Conn, t *table) error {
		if deadletter.FiltersInProgram(t.Outbox, &f) {
			return eachLetter(ctx, conn, t, &f, 0, false, func(store.DeadLetter) { n++ })
		}
		b := &builder{}
		count := b.query("SELECT count(*) FROM "+TableName(t.Outbox)+" AS o", t.filterCondition(b, &f))
		return conn.QueryRow(ctx, count.sql, count.args(nil)...).Scan(&n)
	})
	if err != nil {
		return 0, fmt.Errorf("count FAILED rows: %w", err)
	}
	return n, nil
}

// Failed implements store.DeadLetters, on a session of its own.
func (s *Store) Failed(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) ([]store.DeadLetter, error) {
	letters, err := s.readLetters(ctx, f, limit, payload)
	if err != nil {
		return nil, fmt.Errorf("read FAILED rows: %w", err)
	}
	return letters, nil
}

// EachFailed implements store.FailedReader, on a session of its own.
func (s *Store) EachFailed(ctx context.Context, f store.DeadLetterFilter, take func(*store.DeadLetter)) error {
	err := s.readOnlyTx(ctx, f, func(ctx context.Context, conn *pgx.Conn, t *table) error {
		return eachLetter(ctx, conn, t, &f, 0, false, func(d store.DeadLetter) { take(&d) })
	})
	if err != nil {
		return fmt.Errorf("read FAILED rows: %w", err)
	}
	return nil
}

func (s *Store) readLetters(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) ([]store.DeadLetter, error) {
	if limit <= 0 {
		return nil, fmt.Errorf("outbox %s: limit %d must be positive", f.Outbox, limit)
	}
	var letters []store.DeadLetter
	err := s.readOnlyTx(ctx, f, func(ctx context.Context, conn *pgx.Conn, t *table) error {
		return eachLetter(ctx, conn, t, &f, limit, payload, func(d store.DeadLetter) { letters = append(letters, d) })
	})
	return letters, err
}

// readOnlyTx runs fn in a read-only transaction on a session of its own, because reading
// a large table must not delay the relay's checkpoints or outcomes.
func (s *Store) readOnlyTx(ctx context.Context, f store.DeadLetterFilter, fn func(context.Context, *pgx.Conn, *table) error) error {
	o, err := s.outboxes.FindValid(f.Outbox, &f)
	if err != nil {
		return err
	}
	return s.lifetime.Do(ctx, func(ctx context.Context) error {
		conn, err := connect(ctx, s.viewConfig)
		if err != nil {
			return err
		}
		defer discard(s.lifetime, conn)
		return Explain(pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(pgx.Tx) error {
			t, err := describe(ctx, conn, o)
			if err != nil {
				return err
			}
			return fn(ctx, conn, t)
		}))
	})
}

// eachLetter calls each for the matching rows in order, at most limit of them; 0 is no
// limit.
func eachLetter(ctx context.Context, conn *pgx.Conn, t *table, f *store.DeadLetterFilter, limit int, payload bool, each func(store.DeadLetter)) error {
	read := lettersQuery(t, f, limit, payload)
	if !deadletter.FiltersInProgram(t.Outbox, f) {
		rows, err := conn.Query(ctx, read.sql, read.args(nil)...)
		if err != nil {
			return err
		}
		_, err = scanLetters(rows, t, func(d store.DeadLetter) { each(d) })
		return err
	}
	if _, err := conn.Exec(ctx, "DECLARE letters NO SCROLL CURSOR FOR "+read.sql, read.args(nil)...); err != nil {
		return err
	}

	for given := 0; ; {
		rows, err := conn.Query(ctx, fmt.Sprintf("FETCH %d FROM letters", letterPageSize))
		if err != nil {
			return err
		}
		n, err := scanLetters(rows, t, func(d store.DeadLetter) {
			if d.Group == *f.Group && (limit == 0 || given < limit) {
				given++
				each(d)
			}
		})
		if err != nil || n < letterPageSize || limit > 0 && given == limit {
			return err
		}
	}
}

func scanLetters(rows pgx.Rows, t *table, each func(store.DeadLetter)) (n int, err error) {
	defer rows.Close()
	for rows.Next() {
		d := store.DeadLetter{Ref: store.Ref{Outbox: t.Name}, Kind: t.Kind}
		var kind, text *string
		var group []byte
		var at pgtype.Timestamptz
		if err := rows.Scan(&d.ID, &kind, &group, &d.RetryCount, &text, &at, &d.PayloadSize, &d.Payload); err != nil {
			return n, err
		}
		releaseMessage(rows)
		n++
		if t.Layout.Columns.Kind != "" {
			d.Kind = deref(kind)
		}
		d.Group, d.Error = t.Layout.Group(group), deref(text)
		if at.Valid && at.InfinityModifier == pgtype.Finite {
			d.FailedAt = at.Time.UTC()
		}
		each(d)
	}

	return n, rows.Err()
}

func deref(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

// lettersQuery returns the statement that reads FAILED rows in order.
func lettersQuery(t *table, f *store.DeadLetterFilter, limit int, payload bool) *query {
	b := &builder{}
	c := &t.Layout.Columns
	text, at, content := "NULL::text", "NULL::timestamptz", "NULL::bytea"
	if c.Error != "" {
		text = t.text(c.Error)
	}
	if name := t.Layout.FailedTime(); name != "" {
		at = "o." + Ident(name) + "::timestamptz"
	}
	if payload {
		content = t.payload()
	}

	lines := []string{
		"SELECT " + t.text(c.ID) + ", " + t.kind() + ", " + t.group() + ", " + t.retryCount() + ", " + text + ", " + at +
			", " + t.payloadSize() + ", " + content,
		"FROM " + TableName(t.Outbox) + " AS o",
		t.filterCondition(b, f),
		"ORDER BY " + t.order(),
	}
	if limit > 0 && !deadletter.FiltersInProgram(t.Outbox, f) {
		lines = append(lines, "LIMIT "+b.bind("limit", "bigint", limit))
	}
	return b.query(lines...)
}

// filterCondition returns the WHERE clause for the rows o that match a filter. It leaves
// out a group that is read from JSON; the program compares that one.
func (t *table) filterCondition(b *builder, f *store.DeadLetterFilter) string {
	c := &t.Layout.Columns
	where := "WHERE o." + Ident(c.ID) + " IS NOT NULL AND " + t.state(b).Failed()
	if len(f.IDs) > 0 {
		where += " AND o." + Ident(c.ID) + " = ANY (" + b.bind("ids", t.mustColumn(c.ID).typ+"[]", arrayLiteral(f.IDs)) + ")"
	}
	if f.Kind != "" {
		where += " AND " + t.textEquals(b, "kind", c.Kind, f.Kind, f.Kind == t.Kind)
	}

	switch {
	case f.Group == nil || deadletter.FiltersInProgram(t.Outbox, f):
	case f.Group.Valid:
		where += " AND " + t.textEquals(b, "group", c.Group, f.Group.Name, false)
	case c.Group != "":
		where += " AND o." + Ident(c.Group) + " IS NULL"
	}

	if f.Error != "" {
		where += " AND strpos((" + t.text(c.Error) + `) COLLATE "C", ` + b.bind("error", "text", f.Error) + ") > 0"
	}

	at := "o." + Ident(t.Layout.FailedTime())
	if !f.Since.IsZero() {
		where += " AND " + at + " >= " + b.bind("since", "timestamptz", f.Since)
	}
	if !f.Until.IsZero() {
		where += " AND " + at + " < " + b.bind("until", "timestamptz", f.Until)
	}
	return where
}

// textEquals returns the condition that a column equals a text. It compares twice:
// in the column's type, so that an index applies, and byte for byte, because a type or
// collation may treat two lanes as equal. Without a column the condition is otherwise.
func (t *table) textEquals(b *builder, param, name, text string, otherwise bool) string {
	if name == "" {
		return fmt.Sprint(otherwise)
	}
	same := "(" + t.text(name) + `) COLLATE "C" = ` + b.bind(param+" text", "text", text)
	if c := t.mustColumn(name); c.base != pgtype.JSONOID { // json has no equality operator
		return "o." + Ident(name) + " = " + b.bind(param, c.typ, text) + " AND " + same
	}
	return same
}

// resolveAction is an action on FAILED rows.
type resolveAction struct {
	// write returns the part of a statement that applies the action to the rows w.id and
	// returns w.ord of the rows it changed.
	write func(t *table, b *builder) string
	right string // the privilege that it needs
}

// Requeue implements store.DeadLetters. It clears the claim and settlement times
// where they are part of the state and may be NULL; otherwise they stay, as after a
// retry.
func (s *Store) Requeue(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Item, error) {
	letters, err := s.resolveFailed(ctx, epoch, f, limit, resolveAction{requeueSQL, "UPDATE"})
	if err != nil {
		return nil, fmt.Errorf("requeue: %w", err)
	}
	return store.RequeuedItems(letters, time.Now()), nil
}

// Discard implements store.DeadLetters.
func (s *Store) Discard(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) ([]store.Ref, error) {
	letters, err := s.resolveFailed(ctx, epoch, f, limit, resolveAction{discardSQL, "DELETE"})
	if err != nil {
		return nil, fmt.Errorf("discard: %w", err)
	}
	return store.Refs(letters), nil
}

func (s *Store) resolveFailed(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int, m resolveAction) ([]store.DeadLetter, error) {
	return deadletter.Resolve(f.Outbox,
		func() ([]store.DeadLetter, error) { return s.readLetters(ctx, f, limit, false) },
		func(letters []store.DeadLetter) ([]store.DeadLetter, error) {
			return s.resolveRows(ctx, epoch, f.Outbox, letters, m)
		})
}

// resolveRows returns the rows that it changed, in their order. It deletes the blocks that
// they caused: a row that is requeued or deleted no longer blocks its lane.
func (s *Store) resolveRows(ctx context.Context, epoch store.Epoch, outbox string, letters []store.DeadLetter, m resolveAction) (done []store.DeadLetter, err error) {
	err = s.operator.do(ctx, func(ctx context.Context, sess *session) error {
		t, err := sess.table(ctx, s.outboxes.Lookup(outbox))
		if err != nil {
			return err
		}
		ids := make([]string, len(letters))
		for i := range letters {
			ids[i] = letters[i].ID
		}
		write, values := resolveQuery(t, m), s.fenced(epoch)
		values["ids"] = arrayLiteral(ids)

		tx := newTransaction(sess.conn, s.name)
		tx.exec("BEGIN")
		return tx.run(ctx, func() error {
			var leaderEpoch *int64
			var ords []int64
			err := tx.read(ctx, write, values, func(rows pgx.Rows) error { return rows.Scan(&leaderEpoch, &ords) })
			if err != nil {
				return err
			}
			if leaderEpoch == nil {
				return store.ErrNotLeader
			}
			slices.Sort(ords)
			for _, ord := range slices.Compact(ords) { // several rows may have the id
				done = append(done, letters[ord-1])
			}
			return ledger.Unblock(ctx, tx, store.Refs(done)...)
		})
	})
	if err != nil {
		return nil, m.explain(err, s.outboxes.Lookup(outbox))
	}
	return done, nil
}

// explain names the missing grant, because a relay whose layout deletes nothing runs
// without DELETE until an operator discards a row.
func (m resolveAction) explain(err error, o *store.Outbox) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" && strings.Contains(pg.Message, o.Table) { // insufficient_privilege
		return &store.SetupError{
			Problem: fmt.Sprintf("outbox %s: %s", o.Name, pg.Message),
			Remedy:  fmt.Sprintf("GRANT %s ON %s TO the relay's role", m.right, TableName(o)),
		}
	}
	return asRefused(explainOwn(err))
}

// resolveQuery returns the statement of an action. It returns one row: the epoch, NULL if
// it is stale, and the indexes of the rows that were changed.
func resolveQuery(t *table, m resolveAction) *query {
	b := &builder{}
	return b.query(
		"WITH "+b.leader()+",",
		"want AS MATERIALIZED (",
		"  SELECT * FROM unnest("+b.arg("ids", t.mustColumn(t.Layout.Columns.ID).typ+"[]")+") WITH ORDINALITY AS u(id, ord)",
		"),",
		"done AS ("+m.write(t, b)+")",
		"SELECT (SELECT epoch FROM leader), ARRAY(SELECT ord FROM done)",
	)
}

// stillFailed is the condition that a row o is wanted and still FAILED.
func (t *table) stillFailed(b *builder) string {
	return "o." + Ident(t.Layout.Columns.ID) + " = w.id AND " + t.state(b).Failed() + " IS TRUE AND EXISTS (SELECT FROM leader)"
}

func discardSQL(t *table, b *builder) string {
	return "DELETE FROM " + TableName(t.Outbox) + " AS o USING want w WHERE " + t.stillFailed(b) + " RETURNING w.ord"
}

func requeueSQL(t *table, b *builder) string {
	requeue := columns.Requeue(&t.Layout, func(name string) bool { return t.mustColumn(name).notNull })
	set := columns.SetList(requeue, ident, func(columns.Assignment) string { return t.bindStatus(b, columns.Stored(&t.Layout, store.Pending)) })
	return "UPDATE " + TableName(t.Outbox) + " AS o SET " + set +
		" FROM want w WHERE " + t.stillFailed(b) + " RETURNING w.ord"
}
