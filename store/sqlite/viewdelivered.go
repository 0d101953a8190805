package sqlite

import (
	"context"
	"database/sql/driver"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	views "github.com/sluicebox/sluicebox/store/internal/view"
)

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
	return v.conn.Query(ctx, read.sql, read.args(&values{}), func(row []driver.Value) error {
		it, _ := itemHead(o, row)
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
		id, optional(c.Kind), optional(c.Group), t.payloadSize(),
		"+" + Ident(t.Layout.OrderBy[0]), // the plus prevents the driver from parsing it as a time
	}, ", ") + "\nFROM " + TableName(t.Outbox) + "\nWHERE " + "(" + t.delivered(b) + ") IS TRUE AND " + id + " IS NOT NULL"
	if len(ids) > 0 {
		sql += " AND " + t.oneOf(b, ids)
	}
	return &query{sql + "\nORDER BY " + t.order(), b.params}
}
