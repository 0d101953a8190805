package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	views "github.com/sluicebox/sluicebox/store/internal/view"
)

// View implements store.Viewer. A view is a session of its own with a read-only
// transaction; a store may have several. MySQL and MariaDB have no named snapshots.
// Tables that an open view has read cannot be altered.
func (s *Store) View(ctx context.Context, snapshot string) (store.View, error) {
	if snapshot != "" {
		return nil, fmt.Errorf("open view: MySQL and MariaDB have no named snapshots, got %q", snapshot)
	}
	return views.Open(ctx, s.lifetime, s.outboxes, func(ctx context.Context) (views.Snapshot, error) {
		c, err := dial(ctx, s.viewConfig, "REPEATABLE READ", readSettings())
		return &view{name: s.name, conn: c}, Explain(err)
	})
}

// view is a read-only transaction on one snapshot. Its rows come from a single statement
// that stays open while a page is processed.
type view struct {
	name     string // the relay's name
	conn     *conn
	position store.Position
}

// Begin implements view.Snapshot.
func (v *view) Begin(ctx context.Context) error {
	_, err := v.conn.sqlConn.ExecContext(ctx, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
	if err == nil {
		v.position, err = v.conn.server.snapshotPosition(ctx, v.conn)
	}
	return Explain(err)
}

// Position returns the binlog position of the snapshot as a GTID set. MySQL does not
// report it; there the source reads its position before it opens the view.
func (v *view) Position() store.Position { return v.position }

// Drop implements view.Snapshot.
func (v *view) Drop() { v.conn.close() }

// ReadDelivered implements view.Snapshot. It treats the zero date as no time.
func (v *view) ReadDelivered(ctx context.Context, o *store.Outbox, to *views.DeliveredRows) error {
	return Explain(v.readDelivered(ctx, o, to))
}

func (v *view) readDelivered(ctx context.Context, o *store.Outbox, to *views.DeliveredRows) error {
	t, err := v.conn.table(ctx, o)
	if err != nil {
		return err
	}

	at := t.MustColumn(o.Layout.OrderBy[0])
	if at.family != familyTime && at.typ != "date" {
		return store.OrderTimeError(o, TableName(o), at.full)
	}

	keys, possible := t.deliveredKeys(to.IDs)
	if !possible {
		return nil
	}

	err = v.addDelivered(ctx, t, to, keys, true)
	if err == nil && !at.notNull {
		err = v.addDelivered(ctx, t, to, keys, false)
	}

	if errors.Is(err, errStopIteration) {
		return nil
	}
	return err
}

// deliveredKeys returns the keys to filter by; nil for all rows. It is false if no row
// can have any of the ids.
func (t *table) deliveredKeys(ids []string) (keys []any, possible bool) {
	for _, id := range ids {
		if key, valid := t.id().key(id); valid {
			keys = append(keys, key)
		}
	}
	possible = len(keys) > 0 || len(ids) == 0
	if len(keys) > maxBoundValues/4 { // too many for a statement: each key is bound twice
		keys = nil
	}
	return keys, possible
}

// addDelivered adds rows with a time in range, or, if timed is false, rows without a
// time.
func (v *view) addDelivered(ctx context.Context, t *table, to *views.DeliveredRows, keys []any, timed bool) error {
	s, row := &statement{}, t.newRowReader()
	var at sql.NullString
	text := t.deliveredText(s, row, &at, to, keys, timed)
	return v.conn.query(ctx, text, s.args, func(rows *sql.Rows) error {
		if err := row.scan(rows); err != nil {
			return err
		}
		it := row.item()
		it.Attributes = row.kindAttributes()
		it.Committed, _ = readTime(at.String)
		if !to.Add(it) {
			return errStopIteration
		}
		return nil
	})
}

// deliveredText returns the statement that reads delivered rows in order. It filters by
// kinds and groups only if their number fits beside the keys; the program filters by them
// as well.
func (t *table) deliveredText(s *statement, row *rowReader, time *sql.NullString, q *views.DeliveredRows, keys []any, timed bool) string {
	c := &t.Layout.Columns
	at, from := "o."+Ident(t.Layout.OrderBy[0]), TableName(t.Outbox)+" AS o"
	if len(keys) > 0 {
		from = t.from()
	}

	row.addLane()
	row.addOwnKind()
	row.add(t.payloadSize(), &row.size)
	row.add("CAST("+at+" AS DATETIME(6))", time)
	text := "SELECT " + row.list() + "\nFROM " + from + "\nWHERE o." + Ident(c.ID) + " IS NOT NULL AND " + t.state(s).Delivered()

	if !timed {
		text += " AND " + at + " IS NULL"
	} else {
		text += " AND " + at + " IS NOT NULL"
		if !q.Since.IsZero() {
			text += " AND " + at + " >= CAST(" + s.arg(timeBound(q.Since)) + " AS DATETIME(6))"
		}
		if !q.Until.IsZero() {
			text += " AND " + at + " < CAST(" + s.arg(timeBound(q.Until)) + " AS DATETIME(6))"
		}
	}

	if len(keys) > 0 {
		text += "\n  AND " + t.idOneOf(s, keys)
	}
	if n := len(q.Kinds); n > 0 && n <= maxKeys && t.Layout.KindColumn() != "" {
		text += "\n  AND COALESCE(" + t.ownKindBytes(s) + ", '') IN " + s.list("?", bytesOf(q.Kinds))
	}

	if n := len(q.Groups); n > 0 && n <= maxKeys && c.Group != "" && len(t.Layout.GroupPath) == 0 {
		text += "\n  AND (" + t.inGroups(s, q.Groups) + ")"
	}
	return text + "\nORDER BY " + t.order()
}

// inGroups returns the condition that a row o belongs to one of the groups.
func (t *table) inGroups(s *statement, groups []store.Group) string {
	if len(t.Layout.GroupRest) > 0 {
		conditions := make([]string, len(groups))
		for i, g := range groups {
			conditions[i] = "(" + t.inGroup(s, g) + ")"
		}
		return strings.Join(conditions, " OR ")
	}
	var names []string
	none := "FALSE"
	column := t.MustColumn(t.Layout.Columns.Group)
	for _, g := range groups {
		if g.Valid {
			names = append(names, g.Name)
		} else {
			none = "o." + Ident(column.name) + " IS NULL"
		}
	}

	if len(names) == 0 {
		return none
	}
	return none + " OR " + column.bytesOf() + " IN " + s.list("?", bytesOf(names))
}

func bytesOf(texts []string) []any {
	list := make([]any, len(texts))
	for i, text := range texts {
		list[i] = []byte(text)
	}
	return list
}
