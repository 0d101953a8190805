package columns

import (
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// Column is a column of a table, as described by the database.
type Column interface {
	// Name returns the column's name as spelled in the table.
	Name() string
	// NotNull reports whether the column rejects NULL.
	NotNull() bool
}

// SameName reports whether a database treats two names as equal.
type SameName func(a, b string) bool

// Described is an outbox's table as a database describes it.
type Described[C Column] struct {
	*store.Outbox
	Quoted  string // the table's name
	Columns []C    // all of them, in the table's order
	Same    SameName
	// Inserted is the column that numbers the rows as they are inserted, "" if none.
	Inserted string
}

// Has reports whether the table has a column.
func (t *Described[C]) Has(name string) bool { return t.index(name) >= 0 }

func (t *Described[C]) index(name string) int {
	return slices.IndexFunc(t.Columns, func(c C) bool { return t.Same(c.Name(), name) })
}

// MustColumn returns a column that is known to exist.
func (t *Described[C]) MustColumn(name string) C {
	i := t.index(name)
	if i < 0 {
		panic("columns: " + name + " was not looked up")
	}
	return t.Columns[i]
}

// Outcome returns the assignments of an outcome; see [Outcome].
func (t *Described[C]) Outcome(to store.Status) []Assignment {
	return Outcome(&t.Layout, to, t.notNull)
}

// Requeue returns the assignments of a requeue; see [Requeue].
func (t *Described[C]) Requeue() []Assignment { return Requeue(&t.Layout, t.notNull) }

func (t *Described[C]) notNull(name string) bool { return t.MustColumn(name).NotNull() }

// Missing returns the columns that the layout needs and the table lacks, in the layout's
// order.
func (t *Described[C]) Missing() []string { return Missing(&t.Layout, t.Has) }

// MissingError says which columns are missing, and how to fix that. add returns the
// statements that add columns, as far as their types are known; nil adds none.
func (t *Described[C]) MissingError(missing []string, add func(missing []string) []string) *store.SetupError {
	if add == nil {
		add = func([]string) []string { return nil }
	}
	have := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		have[i] = c.Name()
	}
	return &store.SetupError{Problem: MissingText(t.Outbox, t.Quoted, missing, have), Remedy: Remedy(t.Outbox, t.Quoted, missing, have, add)}
}

// CheckComplete returns a *store.SetupError if the table lacks a column that the layout names.
func (t *Described[C]) CheckComplete() error {
	if missing := t.Missing(); len(missing) > 0 {
		return t.MissingError(missing, nil)
	}
	return nil
}

// Ordered returns the columns to sort by; see Order.
func (t *Described[C]) Ordered() []string { return Order(&t.Layout, t.Same, t.Inserted) }

// OrderBy returns the ORDER BY list. ref returns a reference to a column.
func (t *Described[C]) OrderBy(ref func(column string) string) string {
	refs := t.Ordered()
	for i, name := range refs {
		refs[i] = ref(name)
	}
	return strings.Join(refs, ", ")
}

// Order returns the columns to sort by: the layout's order-by, then inserted, the
// database's insertion order, unless it is "", and the id last. Columns after an id in
// order-by are omitted, because the id is unique.
func Order(l *store.Layout, same SameName, inserted string) []string {
	var list []string
	for _, name := range slices.Concat(l.OrderBy, []string{inserted, l.Columns.ID}) {
		if name != "" && !slices.ContainsFunc(list, func(has string) bool { return same(has, name) }) {
			list = append(list, name)
		}
		if same(name, l.Columns.ID) {
			break
		}
	}
	return list
}
