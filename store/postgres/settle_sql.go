package postgres

import (
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// settleQuery returns the statement that writes outcomes of one status. It returns one
// row: the epoch, NULL if it is stale, and the indexes of the outcomes written. With
// skip, it skips rows locked by another session.
func settleQuery(t *table, to store.Status, skip bool) *query {
	b := &builder{}
	lines := []string{"WITH " + b.leader() + ",", b.outcomes(t, to) + ","}
	if skip = skip && !t.Layout.LogOnly(); skip {
		strength := "NO KEY UPDATE"
		if to == store.Completed && t.Layout.DeleteDelivered {
			strength = "UPDATE"
		}
		lines = append(lines, "locked AS MATERIALIZED (",
			"  SELECT w.ord FROM want w, "+TableName(t.Outbox)+" AS o WHERE o."+Ident(t.Layout.Columns.ID)+" = w.id",
			"    AND EXISTS (SELECT FROM leader) FOR "+strength+" OF o SKIP LOCKED", "),")
	}

	lines = append(lines, "done AS (", "  "+t.writeOutcomes(b, to, skip), ")",
		"SELECT (SELECT epoch FROM leader), ARRAY(SELECT ord FROM done)")
	return b.query(lines...)
}

// writeOutcomes returns the part that writes, and returns the indexes that it wrote.
func (t *table) writeOutcomes(b *builder, to store.Status, skip bool) string {
	if t.Layout.LogOnly() {
		// Only the fence matters: every outcome counts as written.
		return "SELECT ord FROM want"
	}

	name := TableName(t.Outbox)
	where := " WHERE o." + Ident(t.Layout.Columns.ID) + " = w.id AND " + t.open(b) + " AND EXISTS (SELECT FROM leader)"
	if skip {
		where += " AND (w.ord IN (SELECT ord FROM locked)) IS TRUE" // hashed
	}
	if to == store.Completed && t.Layout.DeleteDelivered {
		return "DELETE FROM " + name + " AS o USING want w" + where + " RETURNING w.ord"
	}

	set := t.outcomeAssignments(b, to, func() string { return "w.at" }, func(i int) string { return "w." + receiptName(i) })
	if set == "" {
		return "SELECT w.ord FROM want w, " + name + " AS o" + where
	}
	return "UPDATE " + name + " AS o SET " + set + " FROM want w" + where + " RETURNING w.ord"
}

// outcomes returns the CTE of the outcomes to write, with the values that differ from row
// to row.
func (b *builder) outcomes(t *table, to store.Status) string {
	c := &t.Layout.Columns
	params := []string{b.arg("ids", t.MustColumn(c.ID).typ+"[]")}
	names := []string{"id"}
	add := func(param, typ, name string) {
		params = append(params, b.arg(param, typ+"[]"))
		names = append(names, name)
	}
	if t.Layout.State != store.StateNone {
		if to.Settled() {
			add("times", "timestamptz", "at")
		}
		if to != store.Completed {
			add("retries", "bigint", "retry")
			add("texts", "text", "error")
		}
		if to == store.Failed && t.Layout.State == store.StateNumbers {
			add("numbers", t.MustColumn(c.Status).typ, "number")
		}
		for i := range t.receipts(to) {
			params, names = append(params, t.receiptsArg(b, i)), append(names, receiptName(i))
		}
	}
	return "want AS MATERIALIZED (\n  SELECT * FROM unnest(" + strings.Join(params, ", ") +
		") WITH ORDINALITY AS u(" + strings.Join(names, ", ") + ", ord)\n)"
}

// outcomeAssignments returns the assignments of an outcome. It calls at for the time, and
// only if the table keeps one: a parameter that no statement names has no type. receipt returns
// the value of a column for receipts.
func (t *table) outcomeAssignments(b *builder, to store.Status, at func() string, receipt func(i int) string) string {
	return columns.SetList(t.Outcome(to), ident, func(a columns.Assignment) string {
		switch {
		case a.Value == columns.Time:
			return at()
		case a.Value == columns.Retries:
			return "w.retry"
		case a.Value == columns.Error:
			return t.errorValue()
		case a.Value == columns.Receipt:
			return receipt(a.Record)
		case to == store.Failed && t.Layout.State == store.StateNumbers:
			return "w.number"
		}
		return t.bindStatus(b, columns.Stored(&t.Layout, to))
	})
}

// receipts returns the columns for receipts that an outcome writes.
func (t *table) receipts(to store.Status) []store.RecordColumn {
	if to != store.Completed {
		return nil
	}
	return t.Layout.Record
}

// receiptsArg returns the parameter for the values of a column for receipts.
func (t *table) receiptsArg(b *builder, i int) string {
	return b.arg(receiptName(i), t.MustColumn(t.Layout.Record[i].Column).typ+"[]")
}

// receiptName is the name of a receipt in the CTE of outcomes, and of its parameter.
func receiptName(i int) string { return "receipt" + strconv.Itoa(i) }

// errorValue keeps the row's text if an outcome brings none.
func (t *table) errorValue() string {
	c := t.MustColumn(t.Layout.Columns.Error)
	keep := "coalesce(nullif(w.error, ''), o." + Ident(c.name) + "::text)"
	switch c.base {
	case pgtype.JSONOID, pgtype.JSONBOID:
		return "coalesce(to_json(nullif(w.error, ''))::" + c.typ + ", o." + Ident(c.name) + ")"
	}
	return keep
}

// rowStatesQuery returns the statement that looks up rows. It returns whether a row is
// unsettled, NULL if there is no such row, and then whether its transaction is not
// visible yet.
func rowStatesQuery(t *table) *query {
	b := &builder{}
	id := t.MustColumn(t.Layout.Columns.ID)
	return b.query(
		"WITH "+snapshotCTE,
		"SELECT w.ord, o.open, CASE WHEN o.open IS NULL AND w.txn <> 0 THEN NOT "+visible+" ELSE false END",
		"FROM snap CROSS JOIN unnest("+b.arg("ids", id.typ+"[]")+", "+b.arg("txns", "bigint[]")+") WITH ORDINALITY AS w(id, txn, ord)",
		"LEFT JOIN LATERAL (",
		"  SELECT "+t.open(b)+" AS open FROM "+TableName(t.Outbox)+" AS o WHERE o."+Ident(id.name)+" = w.id OFFSET 0",
		") o ON true",
	)
}
