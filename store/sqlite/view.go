package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	views "github.com/sluicebox/sluicebox/store/internal/view"
)

// View implements store.Viewer. A view is a read transaction on its own connection; a store
// may have several. While one is open, SQLite cannot reset the WAL, which grows. There are
// no named snapshots.
func (s *Store) View(ctx context.Context, snapshot string) (store.View, error) {
	if snapshot != "" {
		return nil, fmt.Errorf("open view: SQLite has no named snapshots, got %q", snapshot)
	}
	return views.Open(ctx, s.lifetime, s.outboxes, func(ctx context.Context) (views.Snapshot, error) {
		conn, err := Dial(ctx, s.path)
		return &view{name: s.name, conn: conn}, Explain(err)
	})
}

// view is a read transaction with one snapshot. One statement returns its rows and stays
// open between pages, because SQLite's readers and writers do not block each other.
type view struct {
	name     string // of the relay
	conn     *Conn
	position store.Position
}

// Begin implements view.Snapshot.
func (v *view) Begin(ctx context.Context) error {
	if err := v.conn.pragma(ctx, "query_only=1"); err != nil {
		return Explain(err)
	}
	return Explain(retry(ctx, lockTimeout, func() error {
		if _, err := v.conn.Exec(ctx, "BEGIN"); err != nil {
			return err
		}
		// The first read takes the snapshot, so that the view is as of now.
		n, exists, err := LogCounter(ctx, v.conn, v.name)
		if err != nil {
			_, _ = v.conn.Exec(context.WithoutCancel(ctx), "ROLLBACK") // the retry begins again
			return err
		}
		if exists {
			v.position = store.Position(strconv.FormatInt(n, 10))
		}
		return nil
	}))
}

// LogCounter returns the highest number ever assigned in a relay's log, and whether the log
// exists.
func LogCounter(ctx context.Context, conn *Conn, relay string) (n int64, exists bool, err error) {
	table := LogTable(relay)
	if exists, err = hasTable(ctx, conn, table); err != nil || !exists {
		return 0, false, err
	}
	err = conn.Query(ctx, "SELECT seq FROM sqlite_sequence WHERE name = ?", []any{table},
		func(row []driver.Value) error { n, _ = row[0].(int64); return nil })
	return n, true, err
}

// Position is the position in the relay's log that matches the snapshot, read in the
// snapshot. It is "" if there is no log.
func (v *view) Position() store.Position { return v.position }

// Drop implements view.Snapshot.
func (v *view) Drop() { v.conn.Close() }

// ReadDelivered implements view.Snapshot. SQL cannot compare the times, because the rows of
// a table may have them in several formats.
func (v *view) ReadDelivered(ctx context.Context, o *store.Outbox, to *views.DeliveredRows) error {
	return Explain(v.readDelivered(ctx, o, to))
}

func (v *view) readDelivered(ctx context.Context, o *store.Outbox, to *views.DeliveredRows) error {
	t, err := describe(ctx, v.conn, o)
	if err != nil {
		return err
	}
	read := deliveredQuery(t, to.IDs)
	return v.conn.Query(ctx, read.sql, read.args(nil), func(row []driver.Value) error {
		it, _ := itemHead(o, row)
		it.Attributes = o.Layout.ReadKind(BytesOf(row[5])) // Add selects by it
		it.PayloadSize = int(numberAt(row, 3))
		it.Committed, _ = readTime(row[4])
		if !to.Add(it) {
			return StopIteration()
		}
		return ctx.Err()
	})
}

// deliveredQuery builds the statement that reads delivered rows in order, all of them or
// those with some ids. It skips rows without an id, because the relay cannot process them.
// No index on the status serves.
func deliveredQuery(t *table, ids []string) *query {
	b := &builder{}
	c := &t.Layout.Columns
	id := IDText(Ident(c.ID))
	sql := "SELECT " + strings.Join([]string{
		id, optional(c.Kind), t.group(), t.payloadSize(),
		"+" + Ident(t.Layout.OrderBy[0]), // the plus prevents the driver from parsing it as a time
		t.ownKind(),
	}, ", ") + "\nFROM " + TableName(t.Outbox) + "\nWHERE " + t.state(b).Delivered() + " IS TRUE AND " + id + " IS NOT NULL"
	if len(ids) > 0 {
		sql += " AND " + t.oneOf(b, ids)
	}
	return &query{sql + "\nORDER BY " + t.order(), b.params}
}
