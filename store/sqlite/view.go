package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/lifetime"
)

// View implements store.Viewer. A view is a connection of its own in a read
// transaction; a store may have several. While one is open the WAL cannot be
// begun anew and grows. There are no named snapshots.
func (s *Store) View(ctx context.Context, snapshot string) (store.View, error) {
	if snapshot != "" {
		return nil, fmt.Errorf("open a view: SQLite has no named snapshots, so none is named %q", snapshot)
	}
	if !s.life.Begin() {
		return nil, lifetime.ErrClosed
	}
	defer s.life.Done()
	ctx, cancel := s.life.Bind(ctx)
	defer cancel()
	v := &view{store: s}
	if err := v.open(ctx); err != nil {
		v.drop()
		return nil, fmt.Errorf("open a view: %w", Explain(err))
	}
	if !s.life.Add(v) {
		v.drop()
		return nil, lifetime.ErrClosed
	}
	return v, nil
}

// view is a read transaction that sees one snapshot.
type view struct {
	store    *Store
	position store.Position

	mu   sync.Mutex
	conn *Conn
}

func (v *view) open(ctx context.Context) (err error) {
	if v.conn, err = Dial(ctx, v.store.path); err != nil {
		return err
	}
	if err = v.conn.pragma(ctx, "query_only=1"); err != nil {
		return err
	}
	return retry(ctx, patience, func() error {
		if _, err := v.conn.Exec(ctx, "BEGIN"); err != nil {
			return err
		}
		// The first read takes the snapshot; the view is of now.
		n, there, err := LogCounter(ctx, v.conn, v.store.name)
		if err != nil {
			_, _ = v.conn.Exec(context.WithoutCancel(ctx), "ROLLBACK") // BEGIN again
			return err
		}
		if there {
			v.position = store.Position(strconv.FormatInt(n, 10))
		}
		return nil
	})
}

// LogCounter returns the highest number that a row of a relay's log ever had, and
// whether the log is there.
func LogCounter(ctx context.Context, conn *Conn, relay string) (n int64, there bool, err error) {
	table := LogTable(relay)
	err = conn.Query(ctx, "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", []any{table},
		func([]driver.Value) error { there = true; return nil })
	if err != nil || !there {
		return 0, false, err
	}
	err = conn.Query(ctx, "SELECT seq FROM sqlite_sequence WHERE name = ?", []any{table},
		func(row []driver.Value) error { n, _ = row[0].(int64); return nil })
	return n, true, err
}

// Position implements store.View: the place in the relay's log that matches the
// snapshot, read in it; "" if there is no log.
func (v *view) Position() store.Position { return v.position }

// Unsettled implements store.View.
func (v *view) Unsettled(ctx context.Context, q store.Unsettled) ([]store.Item, error) {
	o, err := v.store.outbox(q.Outbox)
	if err != nil {
		return nil, fmt.Errorf("read unsettled rows: %w", err)
	}
	if q.Limit <= 0 {
		return nil, fmt.Errorf("read unsettled rows of outbox %s: the limit is %d, must be positive", q.Outbox, q.Limit)
	}
	if o.Layout.State == store.StateNone {
		return nil, nil // nothing tells a settled row from another
	}
	ctx, cancel := v.store.life.Bind(ctx)
	defer cancel()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.conn == nil {
		return nil, errors.New("read unsettled rows: the view is closed")
	}
	items, err := v.read(ctx, o, q)
	if err != nil {
		v.drop() // an interrupted statement may have ended the transaction
		return nil, fmt.Errorf("read unsettled rows of outbox %s: %w", q.Outbox, Explain(err))
	}
	return items, nil
}

func (v *view) read(ctx context.Context, o *store.Outbox, q store.Unsettled) ([]store.Item, error) {
	t, err := describe(ctx, v.conn, o)
	if err != nil {
		return nil, err
	}
	// A group that stands in JSON is known to the program alone.
	left, limit := q.Left(o), q.Limit
	byPath := len(o.Layout.GroupPath) > 0 && len(left) > 0
	set := store.LaneSet(left)
	if byPath {
		limit = -1
	}
	stmt := unsettledQuery(t, len(left) > 0 && !byPath)
	args := stmt.args(&values{limit: limit, held: jsonArray(q.Held), left: jsonLanes(left)})
	var items []store.Item
	err = v.conn.Query(ctx, stmt.sql, args, func(row []driver.Value) error {
		it := store.Item{Ref: store.Ref{Outbox: o.Name}, Kind: o.Kind}
		var ok bool
		if it.ID, ok = textOf(row[0]); !ok {
			return noID(o)
		}
		if o.Layout.Columns.Kind != "" {
			it.Kind, _ = textOf(row[1])
		}
		if group, ok := textOf(row[2]); ok {
			it.Group = o.Layout.Group([]byte(group))
		}
		it.Payload = bytesOf(row[3])
		it.PayloadSize = len(it.Payload)
		retries, _ := row[4].(int64)
		it.RetryCount = int(retries)
		if _, out := set[it.Lane()]; byPath && out {
			return ctx.Err()
		}
		if items = append(items, it); len(items) == q.Limit {
			return Enough()
		}
		return ctx.Err()
	})
	return items, err
}

// noID is the error for a row that cannot be named.
func noID(o *store.Outbox) error {
	return &store.SetupError{
		Problem: fmt.Sprintf("outbox %s: table %s has an unsettled row whose id, column %s, is NULL or a REAL number; a row is claimed and settled by its id",
			o.Name, TableName(o), o.Layout.Columns.ID),
		Remedy: fmt.Sprintf("give it another id; SELECT * FROM %s WHERE typeof(%s) IN ('null', 'real') finds it",
			TableName(o), Ident(o.Layout.Columns.ID)),
	}
}

// unsettledQuery makes the statement that reads unsettled rows in order.
func unsettledQuery(t *table, except bool) *query {
	b := &builder{}
	c := &t.Layout.Columns
	optional := func(name string) string {
		if name == "" {
			return "NULL"
		}
		return TextOf(Ident(name))
	}
	id := IDText(Ident(c.ID))
	sql := "SELECT " + strings.Join([]string{
		id, optional(c.Kind), optional(c.Group), "coalesce(" + PayloadOf(Ident(c.Payload)) + ", '')", t.retryCount(),
	}, ", ") + "\nFROM " + TableName(t.Outbox) +
		"\nWHERE " + t.unsettled(b) +
		// A row without an id is not to be left out in silence.
		"\n  AND (" + id + " IS NULL OR " + id + " NOT IN (SELECT value FROM json_each(" + b.arg(func(v *values) any { return v.held }) + ")))"
	if except {
		sql += "\n  AND " + t.others(b)
	}
	sql += "\nORDER BY " + t.order() +
		"\nLIMIT " + b.arg(func(v *values) any { return v.limit })
	return &query{sql, b.params}
}

// others is the condition that a row is of none of the lanes to leave out, byte
// for byte: the columns may have collations of their own.
func (t *table) others(b *builder) string {
	c := &t.Layout.Columns
	kind, none, group := "", "1", "''"
	if c.Kind != "" {
		kind = "coalesce(" + TextOf(Ident(c.Kind)) + ", '')"
	} else {
		kind = b.arg(func(*values) any { return t.Kind })
	}
	if c.Group != "" {
		none, group = Ident(c.Group)+" IS NULL", "coalesce("+TextOf(Ident(c.Group))+", '')"
	}
	return "(" + kind + " COLLATE BINARY, " + none + ", " + group + " COLLATE BINARY) NOT IN " +
		"(SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(" + b.arg(func(v *values) any { return v.left }) + "))"
}

// jsonLanes is the JSON of lanes: of each its kind, 1 if it has no group, and the
// group.
func jsonLanes(lanes []store.LaneKey) string {
	var sb strings.Builder
	sb.WriteByte('[')
	for i, k := range lanes {
		if i > 0 {
			sb.WriteByte(',')
		}
		sb.WriteByte('[')
		writeJSON(&sb, k.Kind)
		if k.Group.Valid {
			sb.WriteString(",0,")
		} else {
			sb.WriteString(",1,")
		}
		writeJSON(&sb, k.Group.Name)
		sb.WriteByte(']')
	}
	sb.WriteByte(']')
	return sb.String()
}

// jsonArray is the JSON text of some strings. Bytes that are no UTF-8 stay as
// they are: SQLite does not mind.
func jsonArray(list []string) string {
	var sb strings.Builder
	sb.WriteByte('[')
	for i, s := range list {
		if i > 0 {
			sb.WriteByte(',')
		}
		writeJSON(&sb, s)
	}
	sb.WriteByte(']')
	return sb.String()
}

func writeJSON(sb *strings.Builder, s string) {
	sb.WriteByte('"')
	for j := range len(s) {
		switch ch := s[j]; {
		case ch == '"' || ch == '\\':
			sb.WriteByte('\\')
			sb.WriteByte(ch)
		case ch < 0x20:
			fmt.Fprintf(sb, `\u%04x`, ch)
		default:
			sb.WriteByte(ch)
		}
	}
	sb.WriteByte('"')
}

func quoteJSON(s string) string {
	var sb strings.Builder
	writeJSON(&sb, s)
	return sb.String()
}

// Close implements store.View. It waits for a read that is under way.
func (v *view) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drop()
	v.store.life.Remove(v)
}

func (v *view) drop() {
	if v.conn != nil {
		v.conn.Close()
		v.conn = nil
	}
}
