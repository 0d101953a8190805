package columns

import (
	"slices"

	"github.com/sluicebox/sluicebox/store"
)

// Column is a column of a table as a database describes it.
type Column interface {
	// Name is its name as the table has it.
	Name() string
}

// SameName reports whether a database takes two names for one.
type SameName func(a, b string) bool

// Find returns the column of a name among those of a table.
func Find[C Column](list []C, same SameName, name string) (found C, ok bool) {
	i := slices.IndexFunc(list, func(c C) bool { return same(c.Name(), name) })
	if i < 0 {
		return found, false
	}
	return list[i], true
}

// MustFind is Find for a column that is known to be there.
func MustFind[C Column](list []C, same SameName, name string) C {
	c, ok := Find(list, same, name)
	if !ok {
		panic("columns: " + name + " was not looked up")
	}
	return c
}

// MissingFrom lists the columns that a layout needs and a table lacks, in the layout's
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

// Order lists what rows are read by: the layout's order-by, what else the database knows
// of the order in which they were inserted, if it is not "", and the id last. Nothing
// follows an id that order-by names.
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

// Stored is the value of a status in the status column.
func Stored(l *store.Layout, s store.Status) any {
	if l.State == store.StateNumbers {
		return l.Numbers[s]
	}
	return l.Words[s]
}
