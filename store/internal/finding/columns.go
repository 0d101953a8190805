package finding

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// Type is a type that a layout needs: in words, and as the database writes it.
type Type struct{ Words, SQL string }

// Dialect is what differs between databases in the remedies for a column.
type Dialect struct {
	Time, Integer, Text, JSON, Boolean Type
	Long                               Type // an integer of 8 bytes
	Word                               Type // of a status
	// Retype returns the statement that changes the type of a column, and DropNotNull the one
	// that makes it nullable.
	Retype      func(column, typ string) string
	DropNotNull func(column string) string
	// RetypesEnums proposes Retype also if an enumeration lacks a status.
	RetypesEnums bool
	// ComparesTypes means that a status which is only compared must be a value of the
	// column's type too.
	ComparesTypes bool
	Ident         func(name string) string
	Literal       func(text string) string
}

// Table is an outbox's table in a check.
type Table struct {
	*store.Outbox
	*Dialect
	Name   string // quoted
	Column func(name string) store.ColumnInfo
}

// AddTypes adds a fault for each column that cannot hold the values that the relay writes.
func (l *List) AddTypes(t *Table) {
	c := &t.Layout.Columns
	if len(t.Layout.GroupPath) > 0 && !t.Column(c.Group).JSON {
		l.addWrongType(t, c.Group, t.JSON)
	}
	if t.Layout.State == store.StateNone {
		return
	}

	for _, name := range []string{c.Claimed, c.Settled, c.Delivered, c.Failed} {
		if name != "" && !t.Column(name).Time {
			l.addWrongType(t, name, t.Time)
		}
	}
	if c.RetryCount != "" && !t.Column(c.RetryCount).Integer {
		l.addWrongType(t, c.RetryCount, t.Integer)
	}
	if c.Error != "" && !t.Column(c.Error).Text {
		l.addWrongType(t, c.Error, t.Text)
	}

	for i := range t.Layout.Record {
		r := &t.Layout.Record[i]
		if c := t.Column(r.Column); !c.Text && (r.Max == 0 || !c.Integer || c.Max < r.Max) {
			l.addWrongType(t, r.Column, t.receipt(r))
		}
	}

	switch t.Layout.State {
	case store.StateNumbers:
		l.addNumbers(t)
	case store.StateWords:
		l.addWords(t)
	case store.StateBoolean:
		if !t.Column(c.Status).Boolean {
			l.addWrongType(t, c.Status, t.Boolean)
		}
	}
	l.addNotNull(t)
}

// receipt returns the type of a column that keeps a receipt.
func (d *Dialect) receipt(r *store.RecordColumn) Type {
	switch {
	case r.Max > math.MaxInt32:
		return d.Long
	case r.Max > 0:
		return d.Integer
	}
	return d.Text
}

// addWrongType adds a fault for a column whose type does not fit the layout.
func (l *List) addWrongType(t *Table, name string, want Type) {
	l.AddFault(fmt.Sprintf("column %s (%s) of %s is of type %s, and layout %s needs %s",
		name, t.Layout.ConfigKey(name), t.Name, t.Column(name).Type, t.Layout.Name, want.Words),
		fmt.Sprintf("-- or name another column in layout %s; this locks the table while it is rewritten", t.Layout.Name), t.Retype(name, want.SQL))
}

// addNumbers checks that the status column can hold the layout's numbers.
func (l *List) addNumbers(t *Table) {
	numbers := t.Layout.Numbers
	status := t.Column(t.Layout.Columns.Status)
	if !status.Integer {
		l.addWrongType(t, status.Name, t.Integer)
		return
	}
	all := append([]int{numbers[store.Pending]}, t.Layout.SettledNumbers()...)
	if t.Layout.Stores(store.Processing) {
		all = slices.Insert(all, 1, numbers[store.Processing])
	}
	for _, n := range all {
		if int64(n) > status.Max || int64(n) < status.Min {
			l.AddFault(fmt.Sprintf("column %s (columns.status) of %s, of type %s, cannot hold %d, which layout %s names",
				status.Name, t.Name, status.Type, n, t.Layout.Name),
				"name the table's own numbers in layout "+t.Layout.Name)
		}
	}
}

// addWords checks that the status column can hold the layout's words.
func (l *List) addWords(t *Table) {
	status := t.Column(t.Layout.Columns.Status)
	if !status.Text && len(status.Enum) == 0 {
		l.addWrongType(t, status.Name, t.Word)
		return
	}

	for s := store.Pending; s <= store.Failed; s++ {
		word := t.Layout.Words[s]
		if !t.Layout.Stores(s) || s == store.Completed && t.Layout.DeleteDelivered || s == store.Processing && !t.Layout.WritesClaims() && !t.ComparesTypes {
			continue
		}
		short := status.Length > 0 && len([]rune(word)) > status.Length
		if !short && (len(status.Enum) == 0 || slices.Contains(status.Enum, word)) {
			continue
		}
		remedy := []string{"name the table's own words in layout " + t.Layout.Name}
		if short || t.RetypesEnums {
			remedy = []string{"-- or " + remedy[0], t.Retype(status.Name, t.Word.SQL)}
		}
		l.AddFault(fmt.Sprintf("column %s (columns.status) of %s, of type %s, cannot hold %q, which layout %s names for %s",
			status.Name, t.Name, status.Type, word, t.Layout.Name, s), remedy...)
	}
}

// addNotNull checks that the columns in which NULL has a meaning allow it.
func (l *List) addNotNull(t *Table) {
	for _, n := range columns.Nullable(&t.Layout) {
		if t.Column(n.Column).NotNull {
			l.AddFault(fmt.Sprintf("column %s (%s) of %s is NOT NULL, but NULL marks %s", n.Column, t.Layout.ConfigKey(n.Column), t.Name, n.Marks),
				"-- or name a column that the services leave NULL", t.DropNotNull(n.Column))
		}
	}
}

// Constraint is a CHECK constraint of the status column.
type Constraint struct {
	Name, Expression string
	// Unnamed constraints belong to their column and cannot be dropped by name.
	Unnamed bool
}

// AddRefused adds a fault for the values of the status column that a constraint refuses, if
// any.
func (l *List) AddRefused(t *Table, k Constraint, refused []any) {
	if len(refused) == 0 {
		return
	}
	texts := make([]string, len(refused))
	for i, v := range refused {
		if texts[i] = fmt.Sprint(v); t.Layout.State == store.StateWords {
			texts[i] = strings.TrimSpace(t.Literal(texts[i]))
		}
	}

	list, status := strings.Join(texts, ", "), t.Layout.Columns.Status
	remedies := []string{"name the table's values in layout " + t.Layout.Name + ", or let the constraint allow them"}
	if !k.Unnamed && !strings.Contains(k.Expression, "\n") { // a remedy is one line
		remedies = []string{
			fmt.Sprintf("-- or name the table's values in layout %s; this locks the table during a full scan", t.Layout.Name),
			fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s, ADD CONSTRAINT %[2]s CHECK ((%s) OR %s IN (%s));",
				t.Name, t.Ident(k.Name), k.Expression, t.Ident(status), list),
		}
	}
	l.AddFault(fmt.Sprintf("constraint %s of %s does not allow %s in column %s (columns.status), which layout %s names",
		k.Name, t.Name, list, status, t.Layout.Name), remedies...)
}

// AddColumns returns the statements that add missing columns of a known type. The types of an
// id, a payload and a status are up to the services.
func (t *Table) AddColumns(missing []string) (statements []string) {
	c := &t.Layout.Columns
	types := map[string]string{
		c.Kind: t.Word.SQL, c.Group: t.Word.SQL, c.RetryCount: t.Integer.SQL + " NOT NULL DEFAULT 0", c.Error: t.Text.SQL,
		c.Claimed: t.Time.SQL, c.Settled: t.Time.SQL, c.Delivered: t.Time.SQL, c.Failed: t.Time.SQL,
	}
	for _, name := range t.Layout.GroupRest {
		types[name] = t.Word.SQL
	}
	for _, a := range t.Layout.Attributes {
		switch {
		case types[a.Column] != "" || a.Column == c.ID || a.Column == c.Payload: // it is more than an attribute
		case a.Name == store.AttributeTime:
			types[a.Column] = t.Time.SQL
		default:
			types[a.Column] = t.Text.SQL
		}
	}
	for i := range t.Layout.Record {
		types[t.Layout.Record[i].Column] = t.receipt(&t.Layout.Record[i]).SQL
	}
	for _, name := range missing {
		if typ := types[name]; typ != "" {
			statements = append(statements, fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s;", t.Name, t.Ident(name), typ))
		}
	}
	return statements
}
