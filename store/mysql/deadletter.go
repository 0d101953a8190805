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
)

// letters implements deadletter.Database. It reads on sessions of their own, because reading
// a large table must delay neither the relay's checkpoints nor its outcomes.
type letters struct{ *Store }

// CountLetters implements deadletter.Database.
func (l letters) CountLetters(ctx context.Context, r *deadletter.Read) (n int, err error) {
	err = l.readTable(ctx, r.Outbox, func(ctx context.Context, c *conn, t *table) error {
		return t.byIDs(r.Filter, func(keys []any) error {
			st := &statement{}
			var some int
			err := c.row(ctx, "SELECT COUNT(*) FROM "+TableName(t.Outbox)+" AS o\n"+t.chosen(st, r.Filter, keys), st.args, &some)
			n += some
			return err
		})
	})
	return n, err
}

// EachLetter implements deadletter.Database.
func (l letters) EachLetter(ctx context.Context, r *deadletter.Read) error {
	return l.readTable(ctx, r.Outbox, func(ctx context.Context, c *conn, t *table) error { return eachLetter(ctx, c, t, r) })
}

func (l letters) readTable(ctx context.Context, o *store.Outbox, read func(context.Context, *conn, *table) error) error {
	return Explain(l.onNewSession(ctx, func(ctx context.Context, c *conn) error {
		t, err := describe(ctx, c, o)
		if err != nil {
			return err
		}
		return read(ctx, c, t)
	}))
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

func eachLetter(ctx context.Context, c *conn, t *table, r *deadletter.Read) error {
	f, inProgram := r.Filter, r.FiltersInProgram()
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
	row := &letterRow{rowReader: t.newRowReader()}
	text := row.lettersText(st, f, keys, r.Payload)
	if r.Limit > 0 && !inProgram {
		text += "\nLIMIT " + st.arg(r.Limit)
	}

	given := 0
	err := c.query(ctx, text, st.args, func(rows *sql.Rows) error {
		d, err := row.letter(rows)
		if err != nil || inProgram && d.Group != *f.Group {
			return err
		}
		r.Take(&d)
		if given++; given == r.Limit {
			return errStopIteration
		}
		return nil
	})

	if errors.Is(err, errStopIteration) {
		return nil
	}
	return err
}

// letterRow reads FAILED rows.
type letterRow struct {
	*rowReader
	text, at sql.NullString
}

// letter returns the current row.
func (r *letterRow) letter(rows *sql.Rows) (store.DeadLetter, error) {
	if err := r.scan(rows); err != nil {
		return store.DeadLetter{}, err
	}
	it := r.item()
	it.Attributes = r.kindAttributes()
	d := store.DeadLetter{Ref: it.Ref, Kind: it.OwnKind(), Group: it.Group, RetryCount: it.RetryCount, Error: r.text.String, PayloadSize: it.PayloadSize, Payload: r.payload}
	d.FailedAt, _ = readTime(r.at.String)
	return d, nil
}

// lettersText returns the statement that reads FAILED rows in order.
func (r *letterRow) lettersText(s *statement, f *store.DeadLetterFilter, keys []any, payload bool) string {
	t := r.table
	r.addLane()
	r.addOwnKind()
	r.add(t.retryCount(), &r.retries)
	r.add(t.optional(t.Layout.Columns.Error), &r.text)
	if name := t.Layout.FailedTime(); name != "" {
		r.add("o."+Ident(name), &r.at)
	}
	r.add(t.payloadSize(), &r.size)
	if payload {
		r.add(t.payload(), &r.payload)
	}
	return "SELECT " + r.list() + "\nFROM " + TableName(t.Outbox) + " AS o\n" + t.chosen(s, f, keys) + "\nORDER BY " + t.order()
}

// chosen returns the WHERE clause for the rows o that a filter selects. It cannot filter
// by a group inside JSON; the program does that. Texts compare byte for byte.
func (t *table) chosen(s *statement, f *store.DeadLetterFilter, keys []any) string {
	c := &t.Layout.Columns
	where := "WHERE o." + Ident(c.ID) + " IS NOT NULL AND " + t.state(s).DeadLetter(len(f.IDs) > 0)
	if len(keys) > 0 {
		where += " AND " + t.idOneOf(s, keys)
	}

	switch {
	case f.Kind == "":
	case t.Layout.KindColumn() != "":
		where += " AND " + t.ownKindBytes(s) + " = " + s.arg([]byte(f.Kind))
	case f.Kind != t.Kind:
		where += " AND FALSE"
	}
	if f.Group != nil && !deadletter.FiltersInProgram(t.Outbox, f) {
		where += " AND " + t.inGroup(s, *f.Group)
	}

	if f.Error != "" {
		where += " AND LOCATE(" + s.arg([]byte(f.Error)) + ", " + t.MustColumn(c.Error).bytesOf() + ") > 0"
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

// ownKindBytes returns an expression for the bytes of a row's own kind, for a layout with a
// column for it.
func (t *table) ownKindBytes(s *statement) string {
	kind := t.MustColumn(t.Layout.KindColumn()).bytesOf()
	if t.kindIsAttribute() {
		return "COALESCE(" + kind + ", " + s.arg([]byte(t.Kind)) + ")"
	}
	return kind
}

// inGroup returns the condition that a row o belongs to a group that is not inside JSON. It
// names the columns one by one, so that an index on one of them can be used.
func (t *table) inGroup(s *statement, g store.Group) string {
	list := t.groupColumns()
	parts, possible := t.Layout.GroupParts(g)
	if !possible || len(list) == 0 && g.Valid {
		return "FALSE"
	}
	conditions := []string{"TRUE"}
	for i, c := range list {
		if parts[i].Valid {
			conditions = append(conditions, c.bytesOf()+" = "+s.arg([]byte(parts[i].Name)))
		} else {
			conditions = append(conditions, "o."+Ident(c.name)+" IS NULL")
		}
	}
	return strings.Join(conditions[min(1, len(list)):], " AND ")
}

// ResolveLetters implements deadletter.Database.
func (l letters) ResolveLetters(ctx context.Context, epoch store.Epoch, o *store.Outbox, a deadletter.Action, all []store.DeadLetter) (done []store.DeadLetter, err error) {
	err = l.operator.do(ctx, func(ctx context.Context, c *conn) error {
		t, err := c.tableToCopy(ctx, o, a == deadletter.Discard && o.FailedArchive != "")
		if err != nil {
			return err
		}
		err = l.runAsLeader(ctx, c, epoch, func() (err error) {
			done, err = l.resolveRows(ctx, c, t, all, a)
			return err
		})
		if n := code(err); n == codeTableDenied || n == codeColumnDenied {
			// A relay whose layout deletes nothing needs DELETE only when someone discards a row.
			return &store.SetupError{
				Problem: fmt.Sprintf("outbox %s: %s", o.Name, err),
				Remedy:  fmt.Sprintf("GRANT %s ON %s TO %s;", a.Right(), qualifiedName(o, &c.server), Account(c.server.account)),
			}
		}
		return err
	})
	if err != nil {
		return nil, asRefused(err)
	}
	return done, nil
}

// resolveRows locks the rows that are still FAILED, writes them, and deletes the blocks
// that they hold, in the call's transaction. It returns these rows in their order.
func (l letters) resolveRows(ctx context.Context, c *conn, t *table, letters []store.DeadLetter, a deadletter.Action) (done []store.DeadLetter, err error) {
	var batch keyBatch
	for i := range letters {
		key, _ := t.id().key(letters[i].ID) // the id of an existing row is valid
		batch.add(i, key)
	}

	failed := map[string]bool{}
	err = batch.chunks(func(chunk *keyBatch) error {
		st := &statement{}
		text := "SELECT " + t.id().textOf() + " FROM " + t.from() + "\nWHERE " + t.idIn(st, chunk.keys) + " AND " + t.state(st).DeadLetter(true) + "\nFOR UPDATE"
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

	if err := write.chunks(func(chunk *keyBatch) error { return resolveChunk(ctx, c, t, chunk, a) }); err != nil {
		return nil, err
	}
	return done, l.AfterResolve(ctx, l.tx(c), store.Refs(done)...)
}

func resolveChunk(ctx context.Context, c *conn, t *table, chunk *keyBatch, a deadletter.Action) error {
	st, text := &statement{}, "DELETE o FROM "+t.from()
	if a == deadletter.Requeue {
		set := t.Requeue()
		text = "UPDATE " + t.from() + " SET " + t.assign(st, set, func(column, columns.Assignment) any { return t.status(store.Pending) })
	}
	copied := int64(0)
	if to := t.FailedArchiveTable(); to != nil && a == deadletter.Discard {
		st := &statement{}
		text := t.copyInto(to) + "\nSELECT o.* FROM " + t.from() + "\nWHERE " + t.lockedIDIn(st, chunk.keys) + " AND " + t.state(st).DeadLetter(true)
		var err error
		if copied, err = c.exec(ctx, text, st.args...); err != nil {
			return err
		}
	}
	text += "\nWHERE " + t.lockedIDIn(st, chunk.keys) + " AND " + t.state(st).DeadLetter(true)
	n, err := c.exec(ctx, text, st.args...)
	if err == nil && t.FailedArchive != "" && a == deadletter.Discard {
		err = columns.CheckCopied(TableName(t.FailedArchiveTable()), copied, n)
	}
	if err != nil {
		return err
	}

	if n < int64(len(chunk.at)) {
		return &store.RefusedError{Err: fmt.Errorf("outbox %s: change of FAILED rows had no effect; check triggers on the table", t.Name)}
	}
	return nil
}
