package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/deadletter"
)

// letterPageSize is the number of rows read at a time where the program itself filters
// them.
const letterPageSize = 1000

// letters implements deadletter.Database. It reads on sessions of their own, because reading
// a large table must not delay the relay's checkpoints or outcomes.
type letters struct{ *Store }

// CountLetters implements deadletter.Database.
func (l letters) CountLetters(ctx context.Context, r *deadletter.Read) (n int, err error) {
	err = l.readTable(ctx, r.Outbox, func(ctx context.Context, conn *pgx.Conn, t *table) error {
		b := &builder{}
		count := b.query("SELECT count(*) FROM "+TableName(t.Outbox)+" AS o", t.filterCondition(b, r.Filter))
		return conn.QueryRow(ctx, count.sql, count.args(nil)...).Scan(&n)
	})
	return n, err
}

// EachLetter implements deadletter.Database.
func (l letters) EachLetter(ctx context.Context, r *deadletter.Read) error {
	return l.readTable(ctx, r.Outbox, func(ctx context.Context, conn *pgx.Conn, t *table) error { return eachLetter(ctx, conn, t, r) })
}

// readTable runs read in a read-only transaction.
func (l letters) readTable(ctx context.Context, o *store.Outbox, read func(context.Context, *pgx.Conn, *table) error) error {
	return l.lifetime.Do(ctx, func(ctx context.Context) error {
		conn, err := connect(ctx, l.viewConfig)
		if err != nil {
			return err
		}
		defer discard(l.lifetime, conn)
		return Explain(pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(pgx.Tx) error {
			t, err := describe(ctx, conn, o)
			if err != nil {
				return err
			}
			return read(ctx, conn, t)
		}))
	})
}

func eachLetter(ctx context.Context, conn *pgx.Conn, t *table, r *deadletter.Read) error {
	read := lettersQuery(t, r)
	if !r.FiltersInProgram() {
		rows, err := conn.Query(ctx, read.sql, read.args(nil)...)
		if err != nil {
			return err
		}
		_, err = scanLetters(rows, t, r.Take)
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
		n, err := scanLetters(rows, t, func(d *store.DeadLetter) {
			if d.Group == *r.Filter.Group && (r.Limit == 0 || given < r.Limit) {
				given++
				r.Take(d)
			}
		})
		if err != nil || n < letterPageSize || r.Limit > 0 && given == r.Limit {
			return err
		}
	}
}

func scanLetters(rows pgx.Rows, t *table, each func(*store.DeadLetter)) (n int, err error) {
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
		if kind != nil || t.Layout.Columns.Kind != "" {
			d.Kind = deref(kind)
		}
		d.Group, d.Error = t.Layout.Group(group), deref(text)
		if at.Valid && at.InfinityModifier == pgtype.Finite {
			d.FailedAt = at.Time.UTC()
		}
		each(&d)
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
func lettersQuery(t *table, r *deadletter.Read) *query {
	b := &builder{}
	c := &t.Layout.Columns
	text, at, content := "NULL::text", "NULL::timestamptz", "NULL::bytea"
	if c.Error != "" {
		text = t.text(c.Error)
	}
	if name := t.Layout.FailedTime(); name != "" {
		at = "o." + Ident(name) + "::timestamptz"
	}
	if r.Payload {
		content = t.payload()
	}

	lines := []string{
		"SELECT " + t.text(c.ID) + ", " + t.ownKind() + ", " + t.group() + ", " + t.retryCount() + ", " + text + ", " + at +
			", " + t.payloadSize() + ", " + content,
		"FROM " + TableName(t.Outbox) + " AS o",
		t.filterCondition(b, r.Filter),
		"ORDER BY " + t.order(),
	}
	if r.Limit > 0 && !r.FiltersInProgram() {
		lines = append(lines, "LIMIT "+b.bind("limit", "bigint", r.Limit))
	}
	return b.query(lines...)
}

// filterCondition returns the WHERE clause for the rows o that match a filter. It leaves
// out a group that is read from JSON; the program compares that one.
func (t *table) filterCondition(b *builder, f *store.DeadLetterFilter) string {
	c := &t.Layout.Columns
	where := "WHERE o." + Ident(c.ID) + " IS NOT NULL AND " + t.state(b).DeadLetter(len(f.IDs) > 0)
	if len(f.IDs) > 0 {
		where += " AND o." + Ident(c.ID) + " = ANY (" + b.bind("ids", t.MustColumn(c.ID).typ+"[]", arrayLiteral(f.IDs)) + ")"
	}
	if f.Kind != "" {
		column := t.Layout.KindColumn()
		is := t.textEquals(b, "kind", column, f.Kind, f.Kind == t.Kind)
		if column != t.Layout.Columns.Kind && f.Kind == t.Kind { // a row without the attribute
			is = "(" + is + " OR o." + Ident(column) + " IS NULL)"
		}
		where += " AND " + is
	}

	switch {
	case f.Group == nil || deadletter.FiltersInProgram(t.Outbox, f):
	case len(t.Layout.GroupRest) > 0 && f.Group.Valid:
		where += " AND (" + t.group() + `) COLLATE "C" = ` + b.bind("group", "text", f.Group.Name)
	case len(t.Layout.GroupRest) > 0:
		where += " AND (" + t.group() + ") IS NULL"
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
	if c := t.MustColumn(name); c.base != pgtype.JSONOID { // json has no equality operator
		return "o." + Ident(name) + " = " + b.bind(param, c.typ, text) + " AND " + same
	}
	return same
}

// ResolveLetters implements deadletter.Database.
func (l letters) ResolveLetters(ctx context.Context, epoch store.Epoch, o *store.Outbox, a deadletter.Action, all []store.DeadLetter) (done []store.DeadLetter, err error) {
	err = l.operator.do(ctx, func(ctx context.Context, sess *session) error {
		t, err := sess.tableToCopy(ctx, o, a == deadletter.Discard && o.FailedArchive != "")
		if err != nil {
			return err
		}
		ids := make([]string, len(all))
		for i := range all {
			ids[i] = all[i].ID
		}
		write := resolveQuery(t, a, ids).with(l.fenced(epoch))

		tx := newTransaction(sess.conn, l.name)
		tx.exec("BEGIN")
		err = tx.run(ctx, func() error {
			var leaderEpoch *int64
			var ords []int64
			var gone, kept int64
			err := tx.read(ctx, write, func(rows pgx.Rows) error { return rows.Scan(&leaderEpoch, &ords, &gone, &kept) })
			if err != nil {
				return err
			}
			if leaderEpoch == nil {
				return store.ErrNotLeader
			}
			if err := columns.CheckCopied(o.FailedArchive, kept, gone); err != nil {
				return err
			}
			slices.Sort(ords)
			for _, ord := range slices.Compact(ords) { // several rows may have the id
				done = append(done, all[ord-1])
			}
			return l.AfterResolve(ctx, tx, store.Refs(done)...)
		})
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "42501" && strings.Contains(pg.Message, o.Table) { // insufficient_privilege
			// A relay whose layout deletes nothing runs without DELETE until an operator
			// discards a row.
			return &store.SetupError{
				Problem: fmt.Sprintf("outbox %s: %s", o.Name, pg.Message),
				Remedy:  fmt.Sprintf("GRANT %s ON %s TO %s;", a.Right(), TableName(o), roleName(ctx, sess.conn)),
			}
		}
		return err
	})
	if err != nil {
		return nil, asRefused(explainOwn(err))
	}
	return done, nil
}

// resolveQuery returns the statement of an action. It returns one row: the epoch, NULL if
// it is stale, the indexes of the rows that were changed, and how many rows were moved and are
// kept in the table for them.
func resolveQuery(t *table, a deadletter.Action, ids []string) *query {
	b, moved := &builder{}, "0, 0"
	var write string
	switch {
	case a == deadletter.Requeue:
		write = "done AS (" + requeueSQL(t, b) + ")"
	case t.FailedArchive == "":
		write = "done AS (" + discardSQL(t, b) + " RETURNING w.ord)"
	default:
		moved = "(SELECT count(*) FROM gone), (SELECT count(*) FROM kept)"
		write = "gone AS (" + discardSQL(t, b) + " RETURNING o.*), kept AS (" + t.copyInto(t.FailedArchiveTable()) + " SELECT * FROM gone RETURNING 1),\n" +
			"done AS (SELECT w.ord FROM want w JOIN gone ON gone." + Ident(t.Layout.Columns.ID) + " = w.id)"
	}
	return b.query(
		"WITH "+b.leader()+",",
		"want AS MATERIALIZED (",
		"  SELECT * FROM unnest("+b.bind("ids", t.MustColumn(t.Layout.Columns.ID).typ+"[]", arrayLiteral(ids))+") WITH ORDINALITY AS u(id, ord)",
		"),",
		write,
		"SELECT (SELECT epoch FROM leader), ARRAY(SELECT ord FROM done), "+moved,
	)
}

// stillFailed is the condition that a row o is wanted and still FAILED.
func (t *table) stillFailed(b *builder) string {
	return "o." + Ident(t.Layout.Columns.ID) + " = w.id AND " + t.state(b).DeadLetter(true) + " IS TRUE AND EXISTS (SELECT FROM leader)"
}

func discardSQL(t *table, b *builder) string {
	return "DELETE FROM " + TableName(t.Outbox) + " AS o USING want w WHERE " + t.stillFailed(b)
}

func requeueSQL(t *table, b *builder) string {
	set := columns.SetList(t.Requeue(), ident, func(columns.Assignment) string { return t.bindStatus(b, columns.Stored(&t.Layout, store.Pending)) })
	return "UPDATE " + TableName(t.Outbox) + " AS o SET " + set +
		" FROM want w WHERE " + t.stillFailed(b) + " RETURNING w.ord"
}
