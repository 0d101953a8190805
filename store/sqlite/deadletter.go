package sqlite

import (
	"context"
	"database/sql/driver"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// CountFailed implements store.DeadLetters, on its own connection.
func (s *Store) CountFailed(ctx context.Context, f store.DeadLetterFilter) (int, error) {
	n := 0
	err := s.eachLetter(ctx, f, 0, false, func() { n = 0 }, func(*store.DeadLetter) { n++ })
	if err != nil {
		return 0, fmt.Errorf("count FAILED rows: %w", err)
	}
	return n, nil
}

// Failed implements store.DeadLetters, on its own connection.
func (s *Store) Failed(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) ([]store.DeadLetter, error) {
	letters, err := s.readLetters(ctx, f, limit, payload)
	if err != nil {
		return nil, fmt.Errorf("read FAILED rows: %w", err)
	}
	return letters, nil
}

// EachFailed implements store.FailedReader, on its own connection.
func (s *Store) EachFailed(ctx context.Context, f store.DeadLetterFilter, take func(*store.DeadLetter)) error {
	if err := s.eachLetter(ctx, f, 0, false, func() {}, take); err != nil {
		return fmt.Errorf("read FAILED rows: %w", err)
	}
	return nil
}

func (s *Store) readLetters(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) (letters []store.DeadLetter, err error) {
	if limit <= 0 {
		return nil, fmt.Errorf("outbox %s: limit %d must be positive", f.Outbox, limit)
	}
	err = s.eachLetter(ctx, f, limit, payload, func() { letters = nil }, func(d *store.DeadLetter) { letters = append(letters, *d) })
	return letters, err
}

// eachLetter calls each for the matching rows in order, at most limit times unless limit is
// 0. It starts over, with a call of begin, if the database was locked.
func (s *Store) eachLetter(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool, begin func(), each func(*store.DeadLetter)) error {
	o, err := s.outboxes.FindValid(f.Outbox, &f)
	if err != nil {
		return err
	}

	err = s.readTx(ctx, func(ctx context.Context, conn *Conn) error {
		begin()
		t, err := describe(ctx, conn, o)
		if err != nil {
			return err
		}
		read, ids, given := lettersQuery(t, &f, payload), idSet(f.IDs), 0
		return conn.Query(ctx, read.sql, read.args(nil), func(row []driver.Value) error {
			d := scanLetter(t, row)
			if !matchesFilter(&f, ids, &d) {
				return ctx.Err()
			}
			each(&d)
			if given++; given == limit {
				return StopIteration()
			}
			return ctx.Err()
		})
	})
	return Explain(err)
}

func scanLetter(t *table, row []driver.Value) store.DeadLetter {
	d := store.DeadLetter{Ref: store.Ref{Outbox: t.Name}, Kind: t.Kind}
	d.ID, _ = textOf(row[0])
	if t.Layout.Columns.Kind != "" {
		d.Kind, _ = textOf(row[1])
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

// matchesFilter reports whether a FAILED row matches the filter. SQL cannot decide that:
// other writers may use other time formats, and the collation of a column may treat two
// lanes as equal.
func matchesFilter(f *store.DeadLetterFilter, ids map[string]struct{}, d *store.DeadLetter) bool {
	_, named := ids[d.ID]
	switch {
	case len(ids) > 0 && !named,
		f.Kind != "" && d.Kind != f.Kind,
		f.Group != nil && d.Group != *f.Group,
		!strings.Contains(d.Error, f.Error):
		return false
	case f.Since.IsZero() && f.Until.IsZero():
		return true
	}
	at := d.FailedAt
	return !at.IsZero() && !at.Before(f.Since) && (f.Until.IsZero() || at.Before(f.Until))
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
		id, optional(c.Kind), optional(c.Group), t.retryCount(), optional(c.Error), at,
		t.payloadSize(), content,
	}, ", ") + "\nFROM " + TableName(t.Outbox) + "\nWHERE " + t.state(b).Failed() + " AND " + id + " IS NOT NULL"
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
