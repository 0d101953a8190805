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
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/finding"
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
// transaction, after it has copied them into the archive, if there is one.
func (s *Store) prune(ctx context.Context, o *store.Outbox, old []deliveredRow) (n int, err error) {
	t, err := s.writer.tableToCopy(ctx, o, o.Archive != "")
	if err != nil {
		return 0, err
	}
	if t.prune == nil {
		t.prune = t.prunedRow("DELETE")
	}
	var move *query
	if o.Archive != "" {
		move = t.prunedRow(t.copyInto(o.ArchiveTable()) + " SELECT *")
	}
	copied := int64(0)
	for i := range old {
		row := &values{key: old[i].key, settled: old[i].settled}
		if move != nil {
			rows, err := s.writer.conn.Exec(ctx, move.sql, move.args(row)...)
			if err != nil {
				return 0, err
			}
			copied += rows
		}
		deleted, err := s.writer.conn.Exec(ctx, t.prune.sql, t.prune.args(row)...)
		if err != nil {
			return 0, err
		}
		n += int(deleted)
	}
	if move != nil {
		err = columns.CheckCopied(TableName(o.ArchiveTable()), copied, int64(n))
	}
	return n, err
}

// tableToCopy describes the table of an outbox. If rows are copied from it, it is read anew, so
// that a column that was added since is copied too.
func (s *session) tableToCopy(ctx context.Context, o *store.Outbox, copies bool) (*table, error) {
	if copies {
		return describe(ctx, s.conn, o)
	}
	return s.table(ctx, o)
}

// prunedRow builds a statement about a row that has not changed since it was read. begin is
// the statement up to its FROM.
func (t *table) prunedRow(begin string) *query {
	b := &builder{}
	return &query{begin + " FROM " + TableName(t.Outbox) + "\nWHERE " + Ident(t.Layout.Columns.ID) + " = " + b.key() +
		" AND " + t.state(b).Delivered() + " AND +" + Ident(t.Layout.DeliveredTime()) + " IS " + b.arg(func(v *values) any { return v.settled }), b.params}
}

// copyInto begins the statement that copies rows into an archive.
func (t *table) copyInto(archive *store.Outbox) string { return t.CopyInto(TableName(archive), Ident) }

// archives checks that rows can be moved into the outbox's archives.
func (c *checker) archives(ctx context.Context, t *table) error {
	for _, to := range t.ArchiveTables() {
		if err := c.archive(ctx, t, to); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) archive(ctx context.Context, t *table, to *store.Outbox) error {
	name, from := TableName(to), TableName(t.Outbox)
	a, err := readTable(ctx, c.conn, to)
	if errors.As(err, new(*store.SetupError)) {
		c.AddNoArchive(name, fmt.Sprintf("CREATE TABLE %s AS SELECT * FROM %s WHERE 0;", name, from))
		return nil
	}
	if err != nil {
		return err
	}
	before := c.CountFaults()
	c.AddArchive(&finding.Archive{Outbox: from, Name: name, Have: a.archived(), Want: t.archived(), Same: t.Same, Ident: Ident})
	if c.CountFaults() > before {
		return nil
	}

	probe := "EXPLAIN " + t.copyInto(to) + " SELECT * FROM " + from + " WHERE 0"
	err = c.conn.Query(ctx, probe, nil, func([]driver.Value) error { return nil })
	if resultCode(err) == 1 {
		c.AddFault(fmt.Sprintf("archive %s cannot take rows of %s: %v", name, from, err), "make its columns plain ones: a generated column takes no value")
		return nil
	}
	return err
}

// archived returns the columns as the shared checks of an archive see them. A column takes
// values of any type.
func (t *table) archived() []finding.ArchiveColumn {
	list := make([]finding.ArchiveColumn, len(t.Columns))
	for i, c := range t.Columns {
		list[i] = finding.ArchiveColumn{Name: c.name}
	}
	return list
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
