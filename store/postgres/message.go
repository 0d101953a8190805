package postgres

import (
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// noTable returns a relation without rows in place of the table of an outbox of messages. The
// statements of a layout that is LogOnly write nothing, so it serves for all of them.
func noTable(o *store.Outbox) string {
	l := store.MessageLayout(o.Layout)
	var list []string
	for _, u := range columns.UsedColumns(&l) {
		list = append(list, "NULL::text AS "+Ident(u.Column))
	}
	return "(SELECT " + strings.Join(list, ", ") + " WHERE false)"
}

// messageTable describes that relation.
func messageTable(o *store.Outbox) *table {
	box := *o
	box.Layout = store.MessageLayout(o.Layout)
	t := &table{Described: columns.Described[column]{Outbox: &box, Quoted: TableName(&box), Same: sameName}}
	for i, u := range columns.UsedColumns(&box.Layout) {
		t.Columns = append(t.Columns, column{name: u.Column, num: int16(i + 1), typ: "text", full: "text", base: pgtype.TextOID})
	}
	return t
}
