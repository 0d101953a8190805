package sqlite

import (
	"context"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Prune implements store.Pruner. It walks a table by its ids, because most kinds of ids grow
// with time and tables rarely have an index on the time of settlement. It searches old rows
// on its own connection. Only if it found some does it wait for the write lock, as long as a
// claim does.
func (s *Store) Prune(ctx context.Context, epoch store.Epoch, p store.PruneRequest) (store.PruneResult, error) {
	o, err := s.outboxes.FindValid(p.Outbox, &p)
	if err != nil {
		return store.PruneResult{}, fmt.Errorf("prune: %w", err)
	}

	from, err := parseKey(p.From)
	if err != nil {
		return store.PruneResult{}, fmt.Errorf("prune outbox %s: %w", p.Outbox, err)
	}

	old, next, err := s.deliveredBefore(ctx, o, p, from)
	if err != nil {
		return store.PruneResult{}, fmt.Errorf("prune outbox %s: %w", p.Outbox, Explain(err))
	}

	done := store.PruneResult{Next: next}
	if len(old) == 0 {
		return done, nil
	}

	err = s.writer.do(ctx, func(ctx context.Context) error {
		return s.writer.runAsLeader(ctx, epoch, Normal, claimTimeout, func(ctx context.Context) (err error) {
			done.Rows, err = s.prune(ctx, o, old)
			return err
		})
	})
	if err == nil {
		return done, nil
	}

	err = asRefused(err)
	var refused *store.RefusedError
	if !errors.As(err, &refused) {
		next = ""
	}
	return store.PruneResult{Next: next}, fmt.Errorf("prune outbox %s: %w", p.Outbox, err)
}

// Clock implements store.Pruner. SQLite has no clock of its own, so it is the clock of this
// machine.
func (s *Store) Clock(context.Context) (time.Time, error) { return time.Now(), nil }

// deliveredRow is a delivered row as it was read.
type deliveredRow struct{ key, settled any }

// deliveredBefore returns the rows to delete among the rows after an id, and the cursor to
// continue from.
func (s *Store) deliveredBefore(ctx context.Context, o *store.Outbox, p store.PruneRequest, from any) (old []deliveredRow, next string, err error) {
	err = s.readTx(ctx, func(ctx context.Context, conn *Conn) error {
		old, next = nil, ""
		t, err := describe(ctx, conn, o)
		if err != nil {
			return err
		}
		walk := walkQuery(t, from != nil, p.ScanRows())
		seen, last := 0, ""
		err = conn.Query(ctx, walk.sql, walk.args(&values{key: from}), func(row []driver.Value) error {
			if len(old) == p.Limit {
				next = last
				return StopIteration()
			}
			seen++
			last = keyText(row[0])
			if at, ok := readTime(row[2]); ok && row[1] == int64(1) && at.Before(p.Before) {
				old = append(old, deliveredRow{row[0], row[2]})
			}
			return ctx.Err()
		})
		if err == nil && seen == p.ScanRows() {
			next = last
		}
		return err
	})
	return old, next, err
}

// walkQuery builds the statement that reads rows in the order of their ids, with the time of
// settlement and whether each is COMPLETED.
func walkQuery(t *table, on bool, limit int) *query {
	b := &builder{}
	id := Ident(t.Layout.Columns.ID)
	sql := "SELECT +" + id + ", " + t.state(b).Delivered() + " IS TRUE, +" + Ident(t.Layout.DeliveredTime()) +
		"\nFROM " + TableName(t.Outbox) + " WHERE " + id + " IS NOT NULL"
	if on {
		sql += " AND " + id + " > " + b.key()
	}
	return &query{sql + "\nORDER BY " + id + " LIMIT " + strconv.Itoa(limit), b.params}
}

// prune deletes the rows that have not changed since they were read, in the call's
// transaction.
func (s *Store) prune(ctx context.Context, o *store.Outbox, old []deliveredRow) (n int, err error) {
	t, err := s.writer.table(ctx, o)
	if err != nil {
		return 0, err
	}
	if t.prune == nil {
		b := &builder{}
		t.prune = &query{"DELETE FROM " + TableName(o) + "\nWHERE " + Ident(o.Layout.Columns.ID) + " = " + b.key() +
			" AND " + t.state(b).Delivered() + " AND +" + Ident(o.Layout.DeliveredTime()) + " IS " + b.arg(func(v *values) any { return v.settled }), b.params}
	}
	for i := range old {
		deleted, err := s.writer.conn.Exec(ctx, t.prune.sql, t.prune.args(&values{key: old[i].key, settled: old[i].settled})...)
		if err != nil {
			return 0, err
		}
		n += int(deleted)
	}
	return n, nil
}

// keyText returns an id with its type, as text.
func keyText(key driver.Value) string {
	switch x := key.(type) {
	case int64:
		return "i" + strconv.FormatInt(x, 10)
	case float64:
		return "r" + strconv.FormatFloat(x, 'g', -1, 64)
	case []byte:
		return "b" + hex.EncodeToString(x)
	case string:
		return "t" + x
	}
	panic(fmt.Sprintf("sqlite: unexpected column value of type %T", key))
}

// parseKey parses a text of keyText. It is nil for "".
func parseKey(text string) (key any, err error) {
	if text == "" {
		return nil, nil
	}
	switch rest := text[1:]; text[0] {
	case 'i':
		key, err = strconv.ParseInt(rest, 10, 64)
	case 'r':
		key, err = strconv.ParseFloat(rest, 64)
	case 'b':
		key, err = hex.DecodeString(rest)
	case 't':
		key = rest
	default:
		err = errors.New("no type")
	}
	if err != nil {
		return nil, fmt.Errorf("invalid prune cursor %q", text)
	}
	return key, nil
}
