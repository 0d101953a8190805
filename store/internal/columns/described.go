package columns

import (
	"slices"

	"github.com/sluicebox/sluicebox/store"
)

// Column is a column of a table, as described by the database.
type Column interface {
	// Name returns the column's name as spelled in the table.
	Name() string
}

// SameName reports whether a database treats two names as equal.
type SameName func(a, b string) bool

// Find returns the column with the given name.
func Find[C Column](list []C, same SameName, name string) (found C, ok bool) {
	i := slices.IndexFunc(list, func(c C) bool { return same(c.Name(), name) })
	if i < 0 {
		return found, false
	}
	return list[i], true
}

// MustFind is Find for a column that is known to exist.
func MustFind[C Column](list []C, same SameName, name string) C {
	c, ok := Find(list, same, name)
	if !ok {
		panic("columns: " + name + " was not looked up")
	}
	return c
}

// MissingFrom returns the columns that a layout needs and a table lacks, in the layout's
// order.
func MissingFrom[C Column](l *store.Layout, list []C, same SameName) []string {
	return Missing(l, func(name string) bool {
		_, there := Find(list, same, name)
		return there
	})
}

// MissingError says which columns are missing in a table, and how to fix that. add
// returns the statements that add columns, as far as their types are known.
func MissingError[C Column](o *store.Outbox, table string, missing []string, list []C, add func(missing []string) []string) *store.SetupError {
	have := make([]string, len(list))
	for i, c := range list {
		have[i] = c.Name()
	}
	return &store.SetupError{Problem: MissingText(o, table, missing, have), Remedy: Remedy(o, table, missing, have, add)}
}

// NoAdditions adds no column.
func NoAdditions([]string) []string { return nil }

// CheckComplete returns a *store.SetupError if a table lacks a column that the layout names.
func CheckComplete[C Column](o *store.Outbox, table string, list []C, same SameName) error {
	if missing := MissingFrom(&o.Layout, list, same); len(missing) > 0 {
		return MissingError(o, table, missing, list, NoAdditions)
	}
	return nil
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
