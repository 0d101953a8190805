package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
	views "github.com/sluicebox/sluicebox/store/internal/view"
)

// fetchSize is the number of rows fetched at a time. Each row is processed as it arrives,
// so that at most one row with a large JSON group column is in memory.
const fetchSize = 1000

// maxHashedIDs is the maximum number of spilled rows excluded by a hash built for the
// query. More are looked up one by one through their index.
const maxHashedIDs = 2000

// Read implements view.Snapshot, by a cursor.
func (v *view) Read(ctx context.Context, o *store.Outbox, q store.UnsettledQuery, to *views.Pages) error {
	return explainOwn(v.read(ctx, o, q, to))
}

func (v *view) read(ctx context.Context, o *store.Outbox, q store.UnsettledQuery, to *views.Pages) error {
	t, err := describe(ctx, v.conn, o)
	if err != nil {
		return err
	}
	if q.After != nil {
		return v.fetch(ctx, "behind "+o.Name, t.behindQuery(&q), t.scanPlaced, to.Add)
	}
	read, left, err := v.unsettled(ctx, t, q)
	if err != nil {
		return err
	}
	return v.fetch(ctx, "unsettled "+o.Name, read, t.scanItem, func(it store.Item) bool {
		if _, out := left[it.Lane()]; out {
			return true
		}
		return to.Add(it)
	})
}

// fetch reads the rows of a statement through a cursor until add returns false. Statements whose
// columns differ need cursors of different names: the server keeps the statement that fetches,
// with its columns.
func (v *view) fetch(ctx context.Context, name string, read *query, scan pgx.RowToFunc[store.Item], add func(store.Item) bool) error {
	cursor := Ident(name)
	if _, err := v.conn.Exec(ctx, "DECLARE "+cursor+" NO SCROLL CURSOR FOR "+read.sql, read.args(nil)...); err != nil {
		return err
	}

	next := fmt.Sprintf("FETCH %d FROM %s", fetchSize, cursor)
	for more := true; more; {
		rows, err := v.conn.Query(ctx, next)
		if err != nil {
			return err
		}
		n := 0
		for more && rows.Next() {
			it, err := scan(rows)
			if err != nil {
				rows.Close()
				return err
			}
			n++
			more = add(it)
		}
		rows.Close() // reads and drops the rest
		if err := rows.Err(); err != nil {
			return err
		}
		more = more && n == fetchSize
	}

	_, err := v.conn.Exec(ctx, "CLOSE "+cursor)
	return err
}

// unsettled returns the statement that reads unsettled rows. If the group is read from
// JSON, only the program knows it: left is then the lanes that the caller must exclude,
// and the statement has no limit.
func (v *view) unsettled(ctx context.Context, t *table, q store.UnsettledQuery) (read *query, left map[store.LaneKey]struct{}, err error) {
	b := &builder{}
	where := ""
	if lanes := q.ExcludedLanes(t.Outbox); len(lanes) > 0 && len(t.Layout.GroupPath) > 0 {
		left = store.LaneSet(lanes)
	} else if len(lanes) > 0 {
		others, err := v.excludeLanes(ctx, t, b, lanes)
		if err != nil {
			return nil, nil, err
		}
		where = " AND " + others
	}

	spilled, err := v.spilledIDs(ctx, t)
	if err != nil {
		return nil, nil, err
	}

	read = unsettledQuery(t, b, &q, where+v.notSpilled(t, b, spilled, q.IncludeSpilled), left == nil)
	return read, left, nil
}

// readSpilledIDs names the order of the index queue_id. Otherwise the server may scan the
// table for the first rows, past those of replays.
const readSpilledIDs = `SELECT p.id FROM sluicebox.queue p WHERE p.queue = '' AND p.name COLLATE "POSIX" = $1 AND p.outbox COLLATE "POSIX" = $2
ORDER BY substr(p.id, 1, 512) LIMIT $3`

// spilledIDs returns the ids of the outbox's spilled rows, more than maxHashedIDs if there are
// more, but not all of them then.
// Before the relay's tables are installed there are none.
func (v *view) spilledIDs(ctx context.Context, t *table) (ids [][]byte, err error) {
	var exists bool
	err = v.conn.QueryRow(ctx, "SELECT pg_catalog.to_regclass('sluicebox.queue') IS NOT NULL").Scan(&exists)
	if err != nil || !exists {
		return nil, err
	}
	for _, name := range t.SpilledAs() {
		rows, err := v.conn.Query(ctx, readSpilledIDs, v.name, name, maxHashedIDs+1)
		if err != nil {
			return nil, err
		}
		if ids, err = pgx.AppendRows(ids, rows, pgx.RowTo[[]byte]); err != nil || len(ids) > maxHashedIDs {
			return ids, err
		}
	}
	return ids, nil
}

// notSpilled is the additional condition that a row o is not spilled, or is one of include. Ids are
// compared as bytes of their text, because the column's type may have changed since the row was
// spilled, and the database may not be in UTF-8. OFFSET 0 keeps it a lookup per row:
// pulled up, it could become a join with all spilled rows.
func (v *view) notSpilled(t *table, b *builder, spilled [][]byte, include []string) string {
	id := "textsend(" + t.text(t.Layout.Columns.ID) + ")"
	if len(spilled) > 0 && len(include) > 0 {
		shown := make([][]byte, len(include))
		for i := range include {
			shown[i] = []byte(include[i])
		}
		return " AND (" + id + " IN (SELECT i.id FROM unnest(" + b.bind("include", "bytea[]", shown) + ") AS i(id)) OR true" + v.notSpilled(t, b, spilled, nil) + ")"
	}
	switch {
	case len(spilled) == 0:
		return ""
	case len(spilled) <= maxHashedIDs:
		return " AND " + id + " NOT IN (SELECT p.id FROM unnest(" + b.bind("spilled", "bytea[]", spilled) + ") AS p(id))"
	}
	condition := ""
	for i, name := range t.SpilledAs() {
		outbox := "outbox"
		if i > 0 {
			outbox += strconv.Itoa(i)
		}
		condition += ` AND NOT EXISTS (SELECT FROM sluicebox.queue p WHERE p.queue = '' AND p.name COLLATE "POSIX" = ` + b.bind("name", "text", v.name) +
			` AND p.outbox COLLATE "POSIX" = ` + b.bind(outbox, "text", name) + " AND substr(p.id, 1, 512) = substr(" + id + ", 1, 512) AND p.id = " + id + " OFFSET 0)"
	}
	return condition
}

// behindQuery returns the statement that reads rows behind a place; see store.UnsettledQuery.After.
// The row comparison uses an index on the transaction and the id. A transaction that is not older
// than the snapshot's xmin may be followed by one with an earlier place.
func (t *table) behindQuery(q *store.UnsettledQuery) *query {
	b := &builder{}
	c := &t.Layout.Columns
	txn, id := t.MustColumn(c.Transaction), t.MustColumn(c.ID)
	of, key := "o."+Ident(txn.name), "o."+Ident(id.name)
	behind := of + " >= " + b.bind("txn", txn.typ, strconv.FormatUint(q.After.Txn, 10))
	if q.After.ID != "" {
		behind = "(" + of + ", " + key + ") > (" + b.bind("txn", txn.typ, strconv.FormatUint(q.After.Txn, 10)) + ", " + b.bind("id", id.typ, q.After.ID) + ")"
	}
	values, attributes := t.itemValues(b, q)
	return b.query(
		"SELECT "+values+", "+of+"::text"+attributes,
		"FROM "+TableName(t.Outbox)+" AS o",
		"WHERE "+behind+" AND "+of+" < pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::"+txn.typ,
		"ORDER BY "+of+", "+key,
		"LIMIT "+b.bind("limit", "bigint", q.Limit),
	)
}

// scanPlaced reads a row of behindQuery.
func (t *table) scanPlaced(row pgx.CollectableRow) (it store.Item, err error) {
	var txn string
	if it, err = t.scanItemWith(row, &txn); err != nil {
		return it, err
	}
	n, err := strconv.ParseUint(txn, 10, 64)
	it.Txn = store.Txn(n)
	return it, err
}

// scanItem reads a row of unsettledQuery.
func (t *table) scanItem(row pgx.CollectableRow) (store.Item, error) { return t.scanItemWith(row) }

// scanItemWith reads a row with more values between those of itemValues and the attributes.
func (t *table) scanItemWith(row pgx.CollectableRow, more ...any) (store.Item, error) {
	it := store.Item{Ref: store.Ref{Outbox: t.Name}, Kind: t.Kind}
	var kind *string
	var group []byte
	var attributes []*string
	into := append([]any{&it.ID, &kind, &group, &it.Payload, &it.PayloadSize, &it.RetryCount}, more...)
	if len(t.Layout.Attributes) > 0 {
		into = append(into, &attributes)
	}
	if err := row.Scan(into...); err != nil {
		return it, err
	}
	t.setLane(&it, kind, group)
	it.Attributes = readAttributes(&t.Layout, attributes)
	return it, nil
}

// setLane sets an item's kind and group from its row.
func (t *table) setLane(it *store.Item, kind *string, group []byte) {
	if t.Layout.Columns.Kind != "" {
		it.Kind = deref(kind)
	}
	it.Group = t.Layout.Group(group)
}

// kind returns an expression for the kind of a row's lane.
func (t *table) kind() string { return t.optional(t.Layout.Columns.Kind) }

// ownKind returns an expression for the kind of a row itself.
func (t *table) ownKind() string { return t.optional(t.Layout.KindColumn()) }

// optional returns an expression for the text of a column that the layout may lack.
func (t *table) optional(name string) string {
	if name == "" {
		return "NULL::text"
	}
	return t.text(name)
}

// payloadSize returns an expression for the length of the payload in bytes.
func (t *table) payloadSize() string { return "coalesce(octet_length(" + t.payload() + "), 0)" }

// unsettledQuery returns the statement that reads unsettled rows in order, with an
// optional additional condition.
func unsettledQuery(t *table, b *builder, q *store.UnsettledQuery, where string, limited bool) *query {
	c := &t.Layout.Columns
	id := t.MustColumn(c.ID)
	values, attributes := t.itemValues(b, q)
	lines := []string{
		"SELECT " + values + attributes,
		"FROM " + TableName(t.Outbox) + " AS o",
		"WHERE " + Ident(c.ID) + " IS NOT NULL AND " + t.state(b).Unsettled() + where,
		// A hashed subplan for any number of held ids.
		"  AND o." + Ident(id.name) + " NOT IN (SELECT h.id FROM unnest(" + b.bind("held", id.typ+"[]", arrayLiteral(q.ExcludeIDs)) + ") AS h(id))",
		"ORDER BY " + t.order(),
	}
	if limited {
		lines = append(lines, "LIMIT "+b.bind("limit", "bigint", q.Limit))
	}
	return b.query(lines...)
}

// itemValues returns the expressions for the values of a row o, and those for its attributes with
// a comma before them.
func (t *table) itemValues(b *builder, q *store.UnsettledQuery) (values, attributes string) {
	size := t.payloadSize()
	within := "CASE WHEN " + size + " <= " + b.bind("inline", "integer", q.MaxInlinePayload()) + " THEN "
	if attributes = t.attributes(); attributes != "" && !t.KeepsAttributes() {
		attributes = within + attributes + " END"
	}
	if attributes != "" {
		attributes = ", " + attributes
	}
	return t.text(t.Layout.Columns.ID) + ", " + t.kind() + ", " + t.group() + ", " + within + t.payload() + " END, " + size + ", " + t.retryCount(), attributes
}

// excludeLanes returns the condition that a row o is in none of the lanes left. If an index
// may apply, the condition is ranges between the groups, so that skipping a group of a
// million rows costs nothing. Otherwise every row is read, and the lanes are hashed.
func (v *view) excludeLanes(ctx context.Context, t *table, b *builder, left []store.LaneKey) (string, error) {
	if t.canExcludeByRange(left) {
		// The statistics do not know how unsettled and group correlate. The planner
		// overestimates the rows and would scan the whole table.
		if _, err := v.conn.Exec(ctx, "SET LOCAL enable_seqscan = off"); err != nil {
			return "", err
		}
		return v.excludeRanges(ctx, t, b, left)
	}

	kind, none, group := "", "true", "''"
	if name := t.Layout.Columns.Kind; name != "" {
		kind = "coalesce(" + t.text(name) + ", '')"
	} else {
		kind = b.bind("kind", "text", t.Kind)
	}
	if t.Layout.Columns.Group != "" {
		none, group = "("+t.group()+") IS NULL", "coalesce("+t.group()+", '')"
	}

	kinds, nones, groups := make([]string, len(left)), make([]bool, len(left)), make([]string, len(left))
	for i, k := range left {
		kinds[i], nones[i], groups[i] = k.Kind, !k.Group.Valid, k.Group.Name
	}

	return fmt.Sprintf(`((%s) COLLATE "C", %s, (%s) COLLATE "C") NOT IN (SELECT x.kind, x.none, x.name FROM unnest(%s, %s, %s) AS x(kind, none, name))`,
		kind, none, group, b.bind("left kinds", "text[]", kinds), b.bind("left none", "boolean[]", nones), b.bind("left groups", "text[]", groups)), nil
}

// maxRanges is the maximum number of groups excluded by ranges.
const maxRanges = 16

// canExcludeByRange reports whether lanes can be excluded by ranges of the group: they
// have one kind, and the group column's collation distinguishes different texts.
func (t *table) canExcludeByRange(left []store.LaneKey) bool {
	c := &t.Layout.Columns
	if c.Kind != "" || c.Group == "" || len(t.Layout.GroupRest) > 0 || len(left) > maxRanges {
		return false
	}
	group := t.MustColumn(c.Group)
	return group.collation != "" && (group.base == pgtype.TextOID || group.base == pgtype.VarcharOID)
}

// excludeRanges returns the condition that the group of a row o lies between the excluded
// groups, in the order of its column.
func (v *view) excludeRanges(ctx context.Context, t *table, b *builder, left []store.LaneKey) (string, error) {
	group := t.MustColumn(t.Layout.Columns.Group)
	var groups []string
	null := true
	for _, k := range left {
		if k.Group.Valid {
			groups = append(groups, k.Group.Name)
		} else {
			null = false
		}
	}

	if len(groups) > 1 {
		sorted := "SELECT DISTINCT x COLLATE " + group.collation + " FROM unnest($1::text[]) AS x ORDER BY 1"
		rows, err := v.conn.Query(ctx, sorted, groups)
		if err != nil {
			return "", err
		}
		if groups, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			return "", err
		}
	}

	column := "o." + Ident(group.name)
	bound := func(i int) string { return b.bind(fmt.Sprint("group ", i), group.typ, groups[i]) }

	var parts []string
	for i := 0; i <= len(groups); i++ {
		part := column + " IS NOT NULL"
		switch {
		case len(groups) == 0:
		case i == 0:
			part = column + " < " + bound(0)
		case i == len(groups):
			part = column + " > " + bound(i-1)
		default:
			part = column + " > " + bound(i-1) + " AND " + column + " < " + bound(i)
		}
		parts = append(parts, part)
	}

	if null {
		parts = append(parts, column+" IS NULL")
	}
	return "(" + strings.Join(parts, " OR ") + ")", nil
}
