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

// MissingFromText says which columns are missing in a table, and which it has.
func MissingFromText[C Column](o *store.Outbox, table string, missing []string, list []C) string {
	have := make([]string, len(list))
	for i, c := range list {
		have[i] = c.Name()
	}
	return MissingText(o, table, missing, have)
}

// CheckComplete returns a *store.SetupError if a table lacks a column that the layout names.
func CheckComplete[C Column](o *store.Outbox, table string, list []C, same SameName) error {
	missing := MissingFrom(&o.Layout, list, same)
	if len(missing) == 0 {
		return nil
	}
	return &store.SetupError{Problem: MissingFromText(o, table, missing, list), Remedy: "add them, or name others in the layout"}
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

// Stored returns the value of a status in the status column.
func Stored(l *store.Layout, s store.Status) any {
	if l.State == store.StateNumbers {
		return l.Numbers[s]
	}
	return l.Words[s]
}
