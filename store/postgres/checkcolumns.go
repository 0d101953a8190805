package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
)

// types checks that the columns can hold the values that the relay writes.
func (c *checker) types(t *table) {
	l := &t.Layout
	if len(l.GroupPath) > 0 && !t.mustColumn(l.Columns.Group).json() {
		c.reportWrongType(t, l.Columns.Group, "JSON or a text for the group-path", "text")
	}
	if l.State == store.StateNone {
		return
	}

	want := func(name, what, typ string, oids ...uint32) {
		if name != "" && !slices.Contains(oids, t.mustColumn(name).base) {
			c.reportWrongType(t, name, what, typ)
		}
	}

	for _, name := range []string{l.Columns.Claimed, l.Columns.Settled, l.Columns.Delivered, l.Columns.Failed} {
		want(name, "a timestamp", "timestamptz", pgtype.TimestampOID, pgtype.TimestamptzOID)
	}

	want(l.Columns.RetryCount, "an integer", "integer", pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID)
	if name := l.Columns.Error; name != "" && t.mustColumn(name).category != categoryText {
		c.reportWrongType(t, name, "a text", "text")
	}

	switch l.State {
	case store.StateNumbers:
		want(l.Columns.Status, "an integer", "integer", pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID)
		c.numbers(t)
	case store.StateWords:
		c.words(t)
	case store.StateTimestamps:
		c.nullable(t)
	}
}

// Type categories, from the documentation of pg_type.typcategory.
const (
	categoryText = "S"
	categoryEnum = "E"
)

// json reports whether the column may hold JSON from which a group is read.
func (c column) json() bool {
	return c.category == categoryText || slices.Contains([]uint32{pgtype.JSONOID, pgtype.JSONBOID, pgtype.ByteaOID}, c.base)
}

// reportWrongType reports a column whose type does not fit the layout; typ is a type that
// does.
func (c *checker) reportWrongType(t *table, name, what, typ string) {
	c.AddFault(fmt.Sprintf("column %s (%s) of %s is of type %s, and layout %s needs %s",
		name, t.Layout.ConfigKey(name), TableName(t.Outbox), t.mustColumn(name).full, t.Layout.Name, what),
		fmt.Sprintf("-- or name another column in layout %s; this locks the table while it is rewritten", t.Layout.Name), t.retypeStatement(name, typ))
}

// retypeStatement returns the statement that changes a column's type.
func (t *table) retypeStatement(name, typ string) string {
	return fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %[2]s TYPE %[3]s USING %[2]s::%[3]s;", TableName(t.Outbox), Ident(name), typ)
}

// addStatements returns the statements that add missing columns of a known type. The
// types of id and payload are up to the services.
func (t *table) addStatements(missing []string) (statements []string) {
	c := &t.Layout.Columns
	types := map[string]string{
		c.Kind: "text", c.Group: "text", c.RetryCount: "integer NOT NULL DEFAULT 0", c.Error: "text",
		c.Claimed: "timestamptz", c.Settled: "timestamptz", c.Delivered: "timestamptz", c.Failed: "timestamptz",
	}
	for _, name := range missing {
		if typ := types[name]; typ != "" {
			statements = append(statements, fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s;", TableName(t.Outbox), Ident(name), typ))
		}
	}
	return statements
}

// numbers checks that the status column can hold the layout's numbers.
func (c *checker) numbers(t *table) {
	l := &t.Layout
	status := t.mustColumn(l.Columns.Status)
	maxValue := map[uint32]int{pgtype.Int2OID: math.MaxInt16, pgtype.Int4OID: math.MaxInt32}[status.base]
	all := append([]int{l.Numbers[store.Pending], l.Numbers[store.Processing]}, l.SettledNumbers()...)
	for _, n := range all {
		if maxValue > 0 && (n > maxValue || n < -maxValue-1) {
			c.AddFault(fmt.Sprintf("column %s (columns.status) of %s, of type %s, cannot hold %d, which layout %s names",
				status.name, TableName(t.Outbox), status.full, n, l.Name),
				fmt.Sprintf("name the table's own numbers in layout %s", l.Name))
		}
	}
}

// nullable checks that the columns of a timestamp layout allow NULL, because NULL marks
// an unsettled row.
func (c *checker) nullable(t *table) {
	for _, name := range []string{t.Layout.Columns.Delivered, t.Layout.Columns.Failed} {
		if t.mustColumn(name).notNull {
			c.AddFault(fmt.Sprintf("column %s (%s) of %s is NOT NULL, but NULL marks an unsettled row",
				name, t.Layout.ConfigKey(name), TableName(t.Outbox)),
				"-- or name a column that the services leave NULL", fmt.Sprintf("ALTER TABLE %s ALTER %s DROP NOT NULL;", TableName(t.Outbox), Ident(name)))
		}
	}
}

// words checks that the status column can hold the layout's words.
func (c *checker) words(t *table) {
	l := &t.Layout
	status := t.mustColumn(l.Columns.Status)
	if status.category != categoryText && status.category != categoryEnum {
		c.reportWrongType(t, status.name, "a text or an enumeration", "text")
		return
	}

	for s := store.Pending; s <= store.Failed; s++ {
		word := l.Words[s]
		if s == store.Completed && l.DeleteDelivered {
			continue
		}
		short := status.limit > 0 && len([]rune(word)) > status.limit
		remedy := []string{fmt.Sprintf("name the table's own words in layout %s", l.Name)}
		if short {
			remedy = []string{"-- or name the table's own words in layout " + l.Name, t.retypeStatement(status.name, "text")}
		}
		if short || len(status.labels) > 0 && !slices.Contains(status.labels, word) {
			c.AddFault(fmt.Sprintf("column %s (columns.status) of %s, of type %s, cannot hold %q, which layout %s names for %s",
				status.name, TableName(t.Outbox), status.full, word, l.Name, s),
				remedy...)
		}
	}
}

// constraintTimeout bounds the evaluation of a constraint, because it may call any
// function.
const constraintTimeout = "1s"

// constraint is a check constraint on the status column alone.
type constraint struct{ Name, Expression string }

// statusConstraints checks that the constraints of the status column allow the values
// that the relay writes. Constraints that include other columns are skipped, because they
// depend on the row.
func (c *checker) statusConstraints(ctx context.Context, t *table) error {
	values := t.written()
	if len(values) == 0 || c.typeFaults(t) {
		return nil
	}

	// NOT ENFORCED constraints exist since version 18.
	rows, err := c.conn.Query(ctx, `
SELECT k.conname::text, pg_catalog.pg_get_expr(k.conbin, k.conrelid) FROM pg_catalog.pg_constraint k
WHERE k.conrelid = $1 AND k.contype = 'c' AND k.conkey = ARRAY[$2::int2]
  AND coalesce((to_jsonb(k) ->> 'conenforced')::bool, true) ORDER BY k.conname`, t.oid, t.mustColumn(t.Layout.Columns.Status).num)
	if err != nil {
		return err
	}

	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[constraint])
	if err != nil {
		return err
	}

	for i := range list {
		refused, err := c.refusedValues(ctx, t, list[i].Expression, values)
		if err != nil {
			return err
		}
		if len(refused) > 0 {
			c.reportRefused(t, &list[i], refused)
		}
	}

	return nil
}

// reportRefused reports the values that a constraint refuses.
func (c *checker) reportRefused(t *table, k *constraint, refused []string) {
	l := &t.Layout
	all := make([]string, len(refused))
	for i, value := range refused {
		all[i] = strings.TrimSpace(literal(value))
		if l.State == store.StateNumbers {
			all[i] = value
		}
	}

	list := strings.Join(all, ", ")
	remedies := []string{"name the table's values in layout " + l.Name + ", or let the constraint allow them"}
	if !strings.Contains(k.Expression, "\n") { // a remedy is one line
		remedies = []string{
			fmt.Sprintf("-- or name the table's values in layout %s; this locks the table during a full scan", l.Name),
			fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s, ADD CONSTRAINT %[2]s CHECK ((%s) OR %s IN (%s));",
				TableName(t.Outbox), Ident(k.Name), k.Expression, Ident(l.Columns.Status), list),
		}
	}

	c.AddFault(fmt.Sprintf("constraint %s of %s does not allow %s in column %s (columns.status), which layout %s names",
		k.Name, TableName(t.Outbox), list, l.Columns.Status, l.Name), remedies...)
}

// written lists the values that the relay writes into the status column; none if the
// layout has no status values.
func (t *table) written() (list []string) {
	l := &t.Layout
	add := func(value string, written bool) {
		if written {
			list = append(list, value)
		}
	}
	switch l.State {
	case store.StateWords:
		add(l.Words[store.Pending], true)
		add(l.Words[store.Processing], l.WritesClaims())
		add(l.Words[store.Completed], !l.DeleteDelivered)
		add(l.Words[store.Failed], true)
	case store.StateNumbers:
		add(fmt.Sprint(l.Numbers[store.Pending]), true)
		add(fmt.Sprint(l.Numbers[store.Processing]), l.WritesClaims())
		for _, n := range l.SettledNumbers() {
			add(fmt.Sprint(n), n != l.Numbers[store.Completed] || !l.DeleteDelivered)
		}
	}

	return list
}

// typeFaults reports whether the status column's type has a fault. Its constraints cannot
// be evaluated then.
func (c *checker) typeFaults(t *table) bool {
	part := "column " + t.Layout.Columns.Status + " (columns.status) of "
	return slices.ContainsFunc(c.Findings, func(f store.Finding) bool {
		return f.Grade == store.GradeFault && f.Subject == c.Subject && strings.HasPrefix(f.Text, part)
	})
}

// refusedValues lists the values for which an expression on the status column is false.
// An expression that the server cannot evaluate refuses nothing.
func (c *checker) refusedValues(ctx context.Context, t *table, expression string, values []string) (list []string, err error) {
	status := t.mustColumn(t.Layout.Columns.Status)
	sql := fmt.Sprintf("SELECT coalesce((%s), true) FROM (SELECT $1::%s AS %s) AS o", expression, status.typ, Ident(status.name))
	err = pgx.BeginTxFunc(ctx, c.conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL statement_timeout = '"+constraintTimeout+"'"); err != nil {
			return err
		}
		for _, value := range values {
			var allowed bool
			if err := tx.QueryRow(ctx, sql, value).Scan(&allowed); err != nil {
				return err
			}
			if !allowed {
				list = append(list, value)
			}
		}
		return nil
	})

	var pg *pgconn.PgError
	if errors.As(err, &pg) && !c.conn.IsClosed() {
		return nil, nil
	}
	return list, err
}
