package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	views "github.com/sluicebox/sluicebox/store/internal/view"
)

// Read implements view.Snapshot.
func (v *view) Read(ctx context.Context, o *store.Outbox, q store.UnsettledQuery, to *views.Pages) error {
	return Explain(v.read(ctx, o, q, to))
}

func (v *view) read(ctx context.Context, o *store.Outbox, q store.UnsettledQuery, to *views.Pages) error {
	t, err := describe(ctx, v.conn, o)
	if err != nil {
		return err
	}

	// SQL does not evaluate the group path in a JSON value, so rows of excluded lanes are
	// skipped here.
	excluded := q.ExcludedLanes(o)
	byPath := len(o.Layout.GroupPath) > 0 && len(excluded) > 0
	set := store.LaneSet(excluded)
	if byPath {
		excluded, q.Limit = nil, -1
	}

	hasSpilled, err := hasTable(ctx, v.conn, "sluicebox_queue") // a view does not require the relay's tables
	if err != nil {
		return err
	}

	spilledOf := ""
	if hasSpilled {
		spilledOf = v.name
	}
	stmt := unsettledQuery(t, &q, spilledOf, excluded)
	return v.conn.Query(ctx, stmt.sql, stmt.args(nil), func(row []driver.Value) error {
		it, err := unsettledItem(o, row)
		if err != nil {
			return err
		}
		if _, out := set[it.Lane()]; byPath && out {
			return ctx.Err()
		}
		if !to.Add(it) {
			return StopIteration()
		}
		return ctx.Err()
	})
}

func unsettledItem(o *store.Outbox, row []driver.Value) (store.Item, error) {
	it, ok := itemHead(o, row)
	if !ok {
		return it, noIDError(o)
	}
	size, _ := row[4].(int64)
	it.Payload, it.PayloadSize = BytesOf(row[3]), int(size)
	if it.Payload != nil {
		it.PayloadSize = len(it.Payload) // the file may have it in another encoding
	}
	retries, _ := row[5].(int64)
	it.RetryCount = int(retries)
	var err error
	it.Attributes, err = ReadAttributes(&o.Layout, row[6])
	return it, err
}

// itemHead returns the item of a row that begins with its id, kind and group. It is false if
// there is no id.
func itemHead(o *store.Outbox, row []driver.Value) (it store.Item, ok bool) {
	it = store.Item{Ref: store.Ref{Outbox: o.Name}, Kind: o.Kind}
	it.ID, ok = textOf(row[0])
	if o.Layout.Columns.Kind != "" {
		it.Kind, _ = textOf(row[1])
	}
	if group, ok := textOf(row[2]); ok {
		it.Group = o.Layout.Group([]byte(group))
	}
	return it, ok
}

// noIDError reports a row that cannot be claimed for lack of an id.
func noIDError(o *store.Outbox) error {
	return &store.SetupError{
		Problem: fmt.Sprintf("outbox %s: table %s has an unsettled row without a usable id: column %s is NULL or a REAL number",
			o.Name, TableName(o), o.Layout.Columns.ID),
		Remedy: fmt.Sprintf("give it an INTEGER, TEXT or BLOB id; SELECT * FROM %s WHERE typeof(%s) IN ('null', 'real') finds it",
			TableName(o), Ident(o.Layout.Columns.ID)),
	}
}

// unsettledQuery builds the statement that reads unsettled rows in order, without the
// excluded lanes and the spilled rows of a relay; "" if no row can be spilled.
func unsettledQuery(t *table, q *store.UnsettledQuery, relay string, excluded []store.LaneKey) *query {
	b := &builder{}
	c := &t.Layout.Columns
	id := IDText(TableName(t.Outbox) + "." + Ident(c.ID)) // qualified, because the spilled rows have an id column too
	size := t.payloadSize()
	within := func(content string) string {
		return "CASE WHEN " + size + " <= " + b.bind(q.MaxInlinePayload()) + " THEN " + content + " END"
	}
	payload, attributes := within(t.payload()), t.attributes()
	if !t.KeepsAttributes() {
		attributes = within(attributes)
	}
	sql := "SELECT " + strings.Join([]string{
		id, optional(c.Kind), t.group(), payload, size, t.retryCount(), attributes,
	}, ", ") + "\nFROM " + TableName(t.Outbox) +
		"\nWHERE " + t.state(b).Unsettled() +
		// A row without an id must not be skipped silently.
		"\n  AND (" + id + " IS NULL OR " + id + " NOT IN (SELECT value FROM json_each(" + b.bind(jsonArray(q.ExcludeIDs)) + ")))"
	if relay != "" {
		sql += "\n  AND (" + id + " IN (SELECT value FROM json_each(" + b.bind(jsonArray(q.IncludeSpilled)) + ")) OR TRUE"
		for _, name := range t.SpilledAs() {
			sql += "\n  AND NOT EXISTS (SELECT 1 FROM sluicebox_queue AS spilled INDEXED BY sluicebox_queue_id WHERE spilled.queue = '' AND spilled.name = " +
				b.bind(relay) + " AND spilled.outbox = " + b.bind(name) + " AND spilled.id = " + id + ")"
		}
		sql += ")"
	}
	if len(excluded) > 0 {
		sql += "\n  AND " + t.excludeLanes(b, excluded)
	}

	sql += "\nORDER BY " + t.order() +
		"\nLIMIT " + b.bind(q.Limit)
	return &query{sql, b.params}
}

// optional is an expression for the text of a column that the layout may lack.
func optional(name string) string {
	if name == "" {
		return "NULL"
	}
	return TextOf(Ident(name))
}

// excludeLanes is the condition that a row belongs to none of the excluded lanes. It
// compares byte for byte, because the columns may have other collations.
func (t *table) excludeLanes(b *builder, lanes []store.LaneKey) string {
	c := &t.Layout.Columns
	kind, none, group := "", "1", "''"
	if c.Kind != "" {
		kind = "coalesce(" + TextOf(Ident(c.Kind)) + ", '')"
	} else {
		kind = b.bind(t.Kind)
	}
	if c.Group != "" {
		none, group = "("+t.group()+") IS NULL", "coalesce("+t.group()+", '')"
	}
	return "(" + kind + " COLLATE BINARY, " + none + ", " + group + " COLLATE BINARY) NOT IN " +
		"(SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(" + b.bind(jsonLanes(lanes)) + "))"
}

// jsonLanes returns lanes as JSON. Each is an array of its kind, 1 if it has no group, and
// the group.
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

// jsonArray returns strings as a JSON array. It keeps invalid UTF-8 unchanged, which SQLite
// accepts.
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
