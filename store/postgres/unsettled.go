package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
)

// unsettledPage is how many rows are fetched at a time where the program itself
// has to look at the group of each of them.
const unsettledPage = 1000

func (v *view) read(ctx context.Context, o *store.Outbox, q store.Unsettled) ([]store.Item, error) {
	t, err := describe(ctx, v.conn, o)
	if err != nil {
		return nil, err
	}
	b, values := &builder{}, t.values("", 0)
	values["limit"], values["held"] = q.Limit, arrayLiteral(q.Held)
	left, others := q.Left(o), "true"
	switch {
	case len(left) == 0:
	case len(o.Layout.GroupPath) > 0:
		stmt := unsettledQuery(t, b, "true", false)
		return v.readPages(ctx, t, stmt, stmt.args(values), left, q.Limit)
	default:
		if others, err = v.others(ctx, t, b, left, values); err != nil {
			return nil, err
		}
	}
	stmt := unsettledQuery(t, b, others, true)
	rows, err := v.conn.Query(ctx, stmt.sql, stmt.args(values)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, t.scanItem)
}

// readPages reads rows by a cursor and leaves out those whose group, which only
// the program knows, is not wanted.
func (v *view) readPages(ctx context.Context, t *table, stmt *query, args []any, left []store.LaneKey, limit int) ([]store.Item, error) {
	if _, err := v.conn.Exec(ctx, "DECLARE unsettled NO SCROLL CURSOR FOR "+stmt.sql, args...); err != nil {
		return nil, err
	}
	set := store.LaneSet(left)
	var items []store.Item
	for {
		rows, err := v.conn.Query(ctx, fmt.Sprintf("FETCH %d FROM unsettled", unsettledPage))
		if err != nil {
			return nil, err
		}
		page, err := pgx.CollectRows(rows, t.scanItem)
		if err != nil {
			return nil, err
		}
		for i := range page {
			if _, out := set[page[i].Lane()]; !out && len(items) < limit {
				items = append(items, page[i])
			}
		}
		if len(page) < unsettledPage || len(items) == limit {
			_, err := v.conn.Exec(ctx, "CLOSE unsettled")
			return items, err
		}
	}
}

// scanItem reads a row of unsettledQuery.
func (t *table) scanItem(row pgx.CollectableRow) (store.Item, error) {
	it := store.Item{Ref: store.Ref{Outbox: t.Name}, Kind: t.Kind}
	var kind *string
	var group []byte
	if err := row.Scan(&it.ID, &kind, &group, &it.Payload, &it.RetryCount); err != nil {
		return it, err
	}
	if t.Layout.Columns.Kind != "" {
		it.Kind = deref(kind)
	}
	it.Group = t.Layout.Group(group)
	it.PayloadSize = len(it.Payload)
	return it, nil
}

// unsettledQuery makes the statement that reads unsettled rows in order, of
// those lanes that a condition names.
func unsettledQuery(t *table, b *builder, others string, limited bool) *query {
	c := &t.Layout.Columns
	kind := "NULL::text"
	if c.Kind != "" {
		kind = t.text(c.Kind)
	}
	id := t.col(c.ID)
	lines := []string{
		"SELECT " + t.text(c.ID) + ", " + kind + ", " + t.group() + ", " + t.payload() + ", " + t.retryCount(),
		"FROM " + TableName(t.Outbox) + " AS o",
		"WHERE " + Ident(c.ID) + " IS NOT NULL AND " + t.unsettled(b) + " AND " + others,
		// A hashed subplan, however many ids are held.
		"  AND o." + Ident(id.name) + " NOT IN (SELECT h.id FROM unnest(" + b.arg("held", id.typ+"[]") + ") AS h(id))",
		"ORDER BY " + t.order(),
	}
	if limited {
		lines = append(lines, "LIMIT "+b.arg("limit", "bigint"))
	}
	return b.query(lines...)
}

// others returns the condition that a row o is of none of the lanes left, and
// sets what it binds. Where an index may serve it is made of ranges between the
// groups: a group of a million rows then costs nothing. Otherwise every row is
// looked at, and the lanes are hashed.
func (v *view) others(ctx context.Context, t *table, b *builder, left []store.LaneKey, values map[string]any) (string, error) {
	if t.ranges(left) {
		// The statistics know nothing of rows that are both unsettled and of
		// another group. Too many are expected, and the whole table would be read.
		if _, err := v.conn.Exec(ctx, "SET LOCAL enable_seqscan = off"); err != nil {
			return "", err
		}
		return v.between(ctx, t, b, left, values)
	}
	kind, none, group := "", "true", "''"
	if name := t.Layout.Columns.Kind; name != "" {
		kind = "coalesce(" + t.text(name) + ", '')"
	} else {
		kind, values["kind"] = b.arg("kind", "text"), t.Kind
	}
	if name := t.Layout.Columns.Group; name != "" {
		none, group = "o."+Ident(name)+" IS NULL", "coalesce("+t.text(name)+", '')"
	}
	kinds, nones, groups := make([]string, len(left)), make([]bool, len(left)), make([]string, len(left))
	for i, k := range left {
		kinds[i], nones[i], groups[i] = k.Kind, !k.Group.Valid, k.Group.Name
	}
	values["left kinds"], values["left none"], values["left groups"] = kinds, nones, groups
	return fmt.Sprintf(`((%s) COLLATE "C", %s, (%s) COLLATE "C") NOT IN (SELECT x.kind, x.none, x.name FROM unnest(%s, %s, %s) AS x(kind, none, name))`,
		kind, none, group, b.arg("left kinds", "text[]"), b.arg("left none", "boolean[]"), b.arg("left groups", "text[]")), nil
}

// mostRanges is the most groups that ranges are made of.
const mostRanges = 16

// ranges reports whether lanes can be left out by ranges of the group: they have
// one kind, and the group's column sorts texts that differ as different.
func (t *table) ranges(left []store.LaneKey) bool {
	c := &t.Layout.Columns
	if c.Kind != "" || c.Group == "" || len(left) > mostRanges {
		return false
	}
	group := t.col(c.Group)
	return group.collation != "" && (group.base == pgtype.TextOID || group.base == pgtype.VarcharOID)
}

// between returns the condition that the group of a row o lies between those of
// the lanes left, in the order of its column.
func (v *view) between(ctx context.Context, t *table, b *builder, left []store.LaneKey, values map[string]any) (string, error) {
	group := t.col(t.Layout.Columns.Group)
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
	bound := func(i int) string {
		name := fmt.Sprint("group ", i)
		values[name] = groups[i]
		return b.arg(name, group.typ)
	}
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
