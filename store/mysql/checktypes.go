package mysql

import (
	"fmt"
	"slices"

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
