// Package columns says what a relay reads from the columns of a layout, and what a
// claim, an outcome and a requeue write into them. Each database has its own
// statements for it.
package columns

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// Use is what the relay does with a column.
type Use struct {
	Column      string
	Read, Write bool
}

// UsedColumns lists the columns that a layout needs, each once.
func UsedColumns(l *store.Layout) []Use {
	c := &l.Columns
	var list []Use
	add := func(column string, read, write bool) {
		if column == "" {
			return
		}
		if i := slices.IndexFunc(list, func(u Use) bool { return u.Column == column }); i >= 0 {
			list[i].Read, list[i].Write = list[i].Read || read, list[i].Write || write
			return
		}
		list = append(list, Use{column, read, write})
	}
	for _, column := range append([]string{c.ID, c.Kind, c.Group, c.Payload}, l.OrderBy...) {
		add(column, true, false)
	}
	switch l.State {
	case store.StateNone:
		return list
	case store.StateTimestamps:
		add(c.Delivered, true, !l.DeleteDelivered)
		add(c.Failed, true, true)
	default:
		add(c.Status, true, true)
	}
	add(c.RetryCount, true, true)
	add(c.Claimed, true, true)
	add(c.Settled, true, true)
	add(c.Error, true, true)
	return list
}

// Missing lists the columns that a layout needs and a table lacks, in the layout's
// order.
func Missing(l *store.Layout, has func(column string) bool) []string {
	var list []string
	for _, u := range UsedColumns(l) {
		if !has(u.Column) {
			list = append(list, u.Column)
		}
	}
	return list
}

// MissingText says which columns are missing, by the keys that name them, and which
// the table has.
func MissingText(o *store.Outbox, table string, missing, have []string) string {
	named := make([]string, len(missing))
	for i, column := range missing {
		named[i] = column + " (" + o.Layout.ConfigKey(column) + ")"
	}
	return fmt.Sprintf("outbox %s: table %s has no column %s, which layout %s names; its columns are %s",
		o.Name, table, strings.Join(named, ", "), o.Layout.Name, strings.Join(have, ", "))
}

// Value says what a column is given.
type Value uint8

// What columns are given.
const (
	Status  Value = iota + 1 // the value of the status that the row gets
	Time                     // the time of the claim or the outcome
	Retries                  // the outcome's count
	Error                    // the outcome's error; one without leaves the column's text
	Null
	Zero
	Blank // the empty text
)

// Assignment gives a value to a column.
type Assignment struct {
	Column string
	Value  Value
}

// list gathers assignments to columns that the layout names.
type list []Assignment

func (a *list) add(column string, value Value) {
	if column != "" {
		*a = append(*a, Assignment{column, value})
	}
}

// Claim is what a claim writes; nothing where claims leave no trace.
func Claim(l *store.Layout) []Assignment {
	var set list
	if !l.WritesClaims() {
		return nil
	}
	if l.State != store.StateTimestamps {
		set.add(l.Columns.Status, Status)
	}
	set.add(l.Columns.Claimed, Time)
	return set
}

// Outcome is what an outcome writes, unless it deletes the row; nothing where the
// table has no column for anything of it.
func Outcome(l *store.Layout, to store.Status) []Assignment {
	var set list
	c := &l.Columns
	switch {
	case l.State == store.StateNone:
		return nil
	case l.State != store.StateTimestamps:
		set.add(c.Status, Status)
	case to == store.Completed:
		set.add(c.Delivered, Time)
	case to == store.Failed:
		set.add(c.Failed, Time)
	}
	if to.Settled() {
		set.add(cmp.Or(c.Settled, c.Claimed), Time)
	}
	if to != store.Completed {
		set.add(c.RetryCount, Retries)
		set.add(c.Error, Error)
	}
	return set
}

// Requeue is what makes a FAILED row one that was never tried. The times of claim
// and settlement are emptied where they belong to the state, and may be NULL; else
// they stay, as at a retry.
func Requeue(l *store.Layout, notNull func(column string) bool) []Assignment {
	var set list
	c := &l.Columns
	empty := func(column string) {
		if column != "" && !notNull(column) {
			set.add(column, Null)
		}
	}
	if l.State == store.StateTimestamps {
		set.add(c.Failed, Null)
		empty(c.Claimed) // or the claim would hold the row
	} else {
		set.add(c.Status, Status)
	}
	empty(c.Settled)
	set.add(c.RetryCount, Zero)
	if c.Error != "" && notNull(c.Error) {
		set.add(c.Error, Blank)
	}
	empty(c.Error)
	return set
}
