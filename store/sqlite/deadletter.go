package sqlite

import (
	"context"
	"database/sql/driver"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/deadletter"
)

// letters implements deadletter.Database. It reads on connections of their own.
type letters struct{ *Store }

// CountLetters implements deadletter.Database.
func (l letters) CountLetters(ctx context.Context, r *deadletter.Read) (n int, err error) {
	counting := *r
	counting.Begin, counting.Take = func() { n = 0 }, func(*store.DeadLetter) { n++ }
	err = l.EachLetter(ctx, &counting)
	return n, err
}

// EachLetter implements deadletter.Database. It starts over if the database was locked.
func (l letters) EachLetter(ctx context.Context, r *deadletter.Read) error {
	return Explain(l.readTx(ctx, func(ctx context.Context, conn *Conn) error {
		r.Begin()
		t, err := describe(ctx, conn, r.Outbox)
		if err != nil {
			return err
		}
		read, ids, given := lettersQuery(t, r.Filter, r.Payload), idSet(r.Filter.IDs), 0
		return conn.Query(ctx, read.sql, read.args(nil), func(row []driver.Value) error {
			d := scanLetter(t, row)
			// SQL cannot decide this: other writers may use other time formats, and the collation
			// of a column may treat two lanes as equal.
			if _, named := ids[d.ID]; len(ids) > 0 && !named || !r.Filter.Matches(&d) {
				return ctx.Err()
			}
			r.Take(&d)
			if given++; given == r.Limit {
				return StopIteration()
			}
			return ctx.Err()
		})
	}))
}

func scanLetter(t *table, row []driver.Value) store.DeadLetter {
	d := store.DeadLetter{Ref: store.Ref{Outbox: t.Name}, Kind: t.Kind}
	d.ID, _ = textOf(row[0])
	if kind, ok := textOf(row[1]); ok || t.Layout.Columns.Kind != "" {
		d.Kind = kind
	}
	if group, ok := textOf(row[2]); ok {
		d.Group = t.Layout.Group([]byte(group))
	}
	n, _ := row[3].(int64)
	d.RetryCount = int(n)
	d.Error, _ = textOf(row[4])
	d.FailedAt, _ = readTime(row[5])
	size, _ := row[6].(int64)
	d.PayloadSize = int(size)
	d.Payload = BytesOf(row[7])
	return d
}

func idSet(ids []string) map[string]struct{} {
	set := make(map[string]struct{}, len(ids))
	for _, id := range ids {
		set[id] = struct{}{}
	}
	return set
}

// lettersQuery builds the statement that reads FAILED rows in order. It skips rows without
// an id, because the relay cannot process them.
func lettersQuery(t *table, f *store.DeadLetterFilter, payload bool) *query {
	b := &builder{}
	c := &t.Layout.Columns
	at, content := "NULL", "NULL"
	if name := t.Layout.FailedTime(); name != "" {
		at = "+" + Ident(name) // the plus prevents the driver from parsing it as a time
	}
	if payload {
		content = PayloadOf(Ident(c.Payload))
	}
	id := IDText(Ident(c.ID))
	sql := "SELECT " + strings.Join([]string{
		id, t.ownKind(), t.group(), t.retryCount(), optional(c.Error), at,
		t.payloadSize(), content,
	}, ", ") + "\nFROM " + TableName(t.Outbox) + "\nWHERE " + t.state(b).DeadLetter(len(f.IDs) > 0) + " AND " + id + " IS NOT NULL"
	if len(f.IDs) > 0 {
		sql += " AND " + t.oneOf(b, f.IDs)
	}
	return &query{sql + "\nORDER BY " + t.order(), b.params}
}

// oneOf builds the condition that the id is in a list. It compares in the type of the
// column, so that its index serves.
func (t *table) oneOf(b *builder, ids []string) string {
	var plain, blobs []string // in JSON, which has no byte strings
	for _, id := range ids {
		for _, key := range t.keys(id) {
			switch x := key.(type) {
			case []byte:
				blobs = append(blobs, quoteJSON(hex.EncodeToString(x)))
			case int64:
				plain = append(plain, strconv.FormatInt(x, 10))
			case string:
				plain = append(plain, quoteJSON(x))
			}
		}
	}
	list := func(of []string) string {
		return b.bind("[" + strings.Join(of, ",") + "]")
	}
	return "(" + Ident(t.Layout.Columns.ID) + " IN (SELECT value FROM json_each(" + list(plain) +
		") UNION ALL SELECT unhex(value) FROM json_each(" + list(blobs) + ")))"
}

// ResolveLetters implements deadletter.Database.
func (l letters) ResolveLetters(ctx context.Context, epoch store.Epoch, o *store.Outbox, a deadletter.Action, all []store.DeadLetter) (done []store.DeadLetter, err error) {
	w := l.writer
	err = w.do(ctx, func(ctx context.Context) error {
		return w.runAsLeader(ctx, epoch, Full, lockTimeout, func(ctx context.Context) error {
			t, err := w.tableToCopy(ctx, o, a == deadletter.Discard && o.FailedArchive != "")
			if err != nil {
				return err
			}
			done = nil // the transaction may be retried
			write, keep := discardQuery(t, "DELETE"), (*query)(nil)
			if a == deadletter.Requeue {
				write = requeueQuery(t)
			} else if to := o.FailedArchiveTable(); to != nil {
				keep = discardQuery(t, t.copyInto(to)+" SELECT *")
			}
			for i := range all {
				kept := keep == nil
				if !kept {
					if kept, err = l.resolveRow(ctx, t, keep, all[i].ID); err != nil {
						return err
					}
				}
				wrote, err := l.resolveRow(ctx, t, write, all[i].ID)
				if err != nil {
					return err
				}
				if wrote && !kept {
					return columns.CheckCopied(TableName(o.FailedArchiveTable()), 0, 1)
				}
				if wrote {
					done = append(done, all[i])
				}
			}
			return l.AfterResolve(ctx, w.tx(), store.Refs(done)...)
		})
	})
	if err != nil {
		return nil, asRefused(err)
	}
	return done, nil
}

// resolveRow writes one row, in the call's transaction.
func (s *Store) resolveRow(ctx context.Context, t *table, write *query, id string) (bool, error) {
	for _, key := range t.keys(id) {
		n, err := s.writer.conn.Exec(ctx, write.sql, write.args(&values{key: key})...)
		if err != nil || n > 0 {
			return n > 0, err
		}
	}
	return false, nil
}

// discardQuery builds a statement about a dead letter. begin is the statement up to its FROM.
func discardQuery(t *table, begin string) *query {
	b := &builder{}
	sql := begin + " FROM " + TableName(t.Outbox) + "\nWHERE " + Ident(t.Layout.Columns.ID) + " = " + b.key() + " AND " + t.state(b).DeadLetter(true)
	return &query{sql, b.params}
}

func requeueQuery(t *table) *query {
	b := &builder{}
	set := columns.SetList(t.Requeue(), Ident, func(columns.Assignment) string { return b.bind(columns.Stored(&t.Layout, store.Pending)) })
	sql := "UPDATE " + TableName(t.Outbox) + " SET " + set +
		"\nWHERE " + Ident(t.Layout.Columns.ID) + " = " + b.key() + " AND " + t.state(b).DeadLetter(true)
	return &query{sql, b.params}
}
