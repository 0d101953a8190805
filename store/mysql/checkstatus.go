package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// constraint is a CHECK constraint of a table.
type constraint struct {
	name, expression string
	byName           bool // it can be dropped by name; otherwise it belongs to its column
}

// statusConstraints checks that the constraints of the status column allow the values
// that the relay writes. It skips constraints that also name other columns, because they
// depend on the row.
func (c *checker) statusConstraints(ctx context.Context, t *table) error {
	values := t.written()
	if len(values) == 0 {
		return nil
	}

	srv := &c.conn.server
	var list []constraint
	err := c.conn.query(ctx, srv.findChecks(), []any{t.Schema, t.Table}, func(rows *sql.Rows) error {
		var k constraint
		err := rows.Scan(&k.name, &k.expression, &k.byName)
		k.expression = srv.expression(k.expression)
		list = append(list, k)
		return err
	})
	if err != nil {
		return fmt.Errorf("look up constraints of %s: %w", TableName(t.Outbox), err)
	}

	for i := range list {
		refused, err := c.refusedValues(ctx, t, list[i].expression, values)
		if err != nil {
			return err
		}
		if len(refused) > 0 {
			c.reportRefused(t, &list[i], refused)
		}
	}

	return nil
}

// written returns the values that the relay writes into the status column; none if it
// writes none.
func (t *table) written() (list []any) {
	l := &t.Layout
	if l.State != store.StateWords && l.State != store.StateNumbers {
		return nil
	}

	add := func(value any, written bool) {
		if written {
			list = append(list, value)
		}
	}

	add(t.status(store.Pending), true)
	add(t.status(store.Processing), l.WritesClaims())
	if l.State == store.StateWords {
		add(t.status(store.Completed), !l.DeleteDelivered)
		add(t.status(store.Failed), true)
		return list
	}

	for _, n := range l.SettledNumbers() {
		add(n, n != l.Numbers[store.Completed] || !l.DeleteDelivered)
	}

	return list
}

// refusedValues returns the values, as literals, for which an expression on the status
// column alone is false. It returns none if the server cannot evaluate the expression.
func (c *checker) refusedValues(ctx context.Context, t *table, expression string, values []any) (list []string, err error) {
	status := t.mustColumn(t.Layout.Columns.Status)
	value := "CAST(? AS SIGNED)"
	if status.family == familyText {
		value = "CONVERT(CAST(? AS CHAR) USING " + status.charset + ") COLLATE " + status.collation
	}

	query := fmt.Sprintf("SELECT COALESCE((%s), TRUE) FROM (SELECT %s AS %s) AS o", expression, value, Ident(status.name))
	for _, v := range values {
		var allowed bool
		err := c.conn.row(ctx, query, []any{v}, &allowed)
		if code(err) != 0 {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if !allowed {
			text := fmt.Sprint(v)
			if status.family == familyText {
				text = "'" + literal(text) + "'"
			}
			list = append(list, text)
		}
	}

	return list, nil
}

// reportRefused reports the values that a constraint refuses.
func (c *checker) reportRefused(t *table, k *constraint, refused []string) {
	l := &t.Layout
	list := strings.Join(refused, ", ")
	remedies := []string{"use the table's own values in layout " + l.Name + ", or give the column a CHECK that allows them"}
	if k.byName && !strings.Contains(k.expression, "\n") { // otherwise it does not fit on one line of a remedy
		remedies = []string{
			fmt.Sprintf("-- or use the table's own values in layout %s; this locks the table while it is read", l.Name),
			fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s, ADD CONSTRAINT %[2]s CHECK ((%s) OR %s IN (%s));",
				TableName(t.Outbox), Ident(k.name), k.expression, Ident(l.Columns.Status), list),
		}
	}
	c.AddFault(fmt.Sprintf("constraint %s of %s does not allow %s in column %s (columns.status), which layout %s names",
		k.name, TableName(t.Outbox), list, l.Columns.Status, l.Name), remedies...)
}
