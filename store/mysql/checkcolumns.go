package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// types checks that the columns can hold the values that the relay writes.
func (c *checker) types(t *table) {
	l := &t.Layout
	id := t.id()
	if !slices.Contains([]family{familyText, familyBytes, familyInteger, familyDecimal, familyUUID}, id.family) || len(id.labels()) > 0 || id.typ == "set" {
		c.AddFault(fmt.Sprintf("id column %s of %s has type %s, whose text is not exact", id.name, TableName(t.Outbox), id.full),
			"use another column as the id: text, bytes, an integer or a decimal")
	}

	if len(l.GroupPath) > 0 && !t.mustColumn(l.Columns.Group).json() {
		c.reportWrongType(t, l.Columns.Group, "JSON or text for the group-path", "LONGTEXT")
	}
	if l.State == store.StateNone {
		return
	}

	want := func(name, what, typ string, families ...family) {
		if name != "" && !slices.Contains(families, t.mustColumn(name).family) {
			c.reportWrongType(t, name, what, typ)
		}
	}

	for _, name := range []string{l.Columns.Claimed, l.Columns.Settled, l.Columns.Delivered, l.Columns.Failed} {
		want(name, "a DATETIME or TIMESTAMP", "DATETIME(6)", familyTime)
	}

	want(l.Columns.RetryCount, "an integer", "INT", familyInteger)
	if name := l.Columns.Error; name != "" {
		if col := t.mustColumn(name); col.family != familyText || len(col.labels()) > 0 || col.typ == "set" {
			c.reportWrongType(t, name, "a text", "TEXT")
		}
	}

	switch l.State {
	case store.StateNumbers:
		want(l.Columns.Status, "an integer", "INT", familyInteger)
		c.numbers(t)
	case store.StateWords:
		c.words(t)
	case store.StateTimestamps:
		c.nullable(t)
	}
}

// reportWrongType reports a column whose type does not suit the layout; typ is a suitable
// type.
func (c *checker) reportWrongType(t *table, name, what, typ string) {
	c.AddFault(fmt.Sprintf("column %s (%s) of %s has type %s, layout %s needs %s",
		name, t.Layout.ConfigKey(name), TableName(t.Outbox), t.mustColumn(name).full, t.Layout.Name, what),
		fmt.Sprintf("-- or use another column in layout %s; this locks the table while it is rebuilt", t.Layout.Name), t.retypeStatement(name, typ))
}

// addStatements returns the statements that add missing columns of known types. The types
// of an id or a payload are the services' choice.
func (t *table) addStatements(missing []string) (statements []string) {
	c := &t.Layout.Columns
	types := map[string]string{
		c.Kind: "VARCHAR(255)", c.Group: "VARCHAR(255)", c.RetryCount: "INT NOT NULL DEFAULT 0", c.Error: "TEXT",
		c.Claimed: "DATETIME(6) NULL", c.Settled: "DATETIME(6) NULL", c.Delivered: "DATETIME(6) NULL", c.Failed: "DATETIME(6) NULL",
	}
	for _, name := range missing {
		if typ := types[name]; typ != "" {
			statements = append(statements, fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s;", TableName(t.Outbox), Ident(name), typ))
		}
	}
	return statements
}

// retypeStatement returns the statement that changes a column's type.
func (t *table) retypeStatement(name, typ string) string {
	if t.mustColumn(name).notNull {
		typ += " NOT NULL"
	}
	return fmt.Sprintf("ALTER TABLE %s MODIFY COLUMN %s %s;", TableName(t.Outbox), Ident(name), typ)
}

// numbers checks that the status column can hold the layout's numbers.
func (c *checker) numbers(t *table) {
	l := &t.Layout
	status := t.mustColumn(l.Columns.Status)
	if status.family != familyInteger {
		return
	}
	for _, n := range append([]int{l.Numbers[store.Pending], l.Numbers[store.Processing]}, l.SettledNumbers()...) {
		if int64(n) > status.maxInteger() || int64(n) < status.minInteger() {
			c.AddFault(fmt.Sprintf("column %s (columns.status) of %s, of type %s, cannot hold %d, which layout %s names",
				status.name, TableName(t.Outbox), status.full, n, l.Name),
				fmt.Sprintf("use the table's own numbers in layout %s", l.Name))
		}
	}
}

// nullable checks that the columns can mark a row as unsettled.
func (c *checker) nullable(t *table) {
	for _, name := range []string{t.Layout.Columns.Delivered, t.Layout.Columns.Failed} {
		if col := t.mustColumn(name); col.notNull {
			c.AddFault(fmt.Sprintf("column %s (%s) of %s is NOT NULL, but must be NULL in an unsettled row",
				name, t.Layout.ConfigKey(name), TableName(t.Outbox)),
				"-- or use a column that services leave NULL", fmt.Sprintf("ALTER TABLE %s MODIFY COLUMN %s %s NULL;", TableName(t.Outbox), Ident(name), col.full))
		}
	}
}

// words checks that the status column can hold the layout's words.
func (c *checker) words(t *table) {
	l := &t.Layout
	status := t.mustColumn(l.Columns.Status)
	if status.family != familyText || status.typ == "set" {
		c.reportWrongType(t, status.name, "a text or an ENUM", "VARCHAR(255)")
		return
	}

	for s := store.Pending; s <= store.Failed; s++ {
		word := l.Words[s]
		if s == store.Completed && l.DeleteDelivered || s == store.Processing && !l.WritesClaims() {
			continue
		}
		labels := status.labels()
		short := len(labels) == 0 && len([]rune(word)) > status.limit
		if short || len(labels) > 0 && !slices.Contains(labels, word) {
			c.AddFault(fmt.Sprintf("column %s (columns.status) of %s, of type %s, cannot hold %q, which layout %s names for %s",
				status.name, TableName(t.Outbox), status.full, word, l.Name, s),
				"-- or use the table's own words in layout "+l.Name, t.retypeStatement(status.name, "VARCHAR(255)"))
		}
	}
}

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
