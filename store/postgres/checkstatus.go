package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/store"
)

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
