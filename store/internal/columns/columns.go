// Package columns lists the columns of a layout that a relay reads, and the values that a
// claim, an outcome and a requeue write. Each database has its own statements for them.
package columns

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Use is how the relay uses a column.
type Use struct {
	Column      string
	Read, Write bool
}

// UsedColumns returns the columns that a layout needs, each once.
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
	for _, column := range slices.Concat([]string{c.ID, c.Kind}, l.GroupColumns(), []string{c.Payload, c.Transaction}, l.OrderBy) {
		add(column, true, false)
	}
	for i := range l.Attributes {
		add(l.Attributes[i].Column, true, false)
	}
	switch l.State {
	case store.StateNone:
		return list
	case store.StateTimestamps:
		add(c.Delivered, true, !l.DeleteDelivered)
		add(c.Failed, true, true)
	default:
		add(c.Status, true, true)
		add(c.Delivered, true, !l.DeleteDelivered)
	}
	add(c.RetryCount, true, true)
	add(c.Claimed, true, true)
	add(c.Settled, true, true)
	add(c.Error, true, true)
	for i := range l.Record {
		add(l.Record[i].Column, false, true)
	}
	return list
}

// Missing returns the columns that a layout needs and a table lacks, in the layout's order.
func Missing(l *store.Layout, has func(column string) bool) []string {
	var list []string
	for _, u := range UsedColumns(l) {
		if !has(u.Column) {
			list = append(list, u.Column)
		}
	}
	return list
}

// Meant returns the existing column that a custom layout most likely means by a missing
// one, "" if none is near. Columns that another key names are left out, because a typing
// error rarely names one column twice. Only order-by may repeat them.
func Meant(l *store.Layout, missing string, have []string) string {
	if l.Name != store.CustomLayout {
		return "" // the preset's names are right
	}
	key := l.ConfigKey(missing)
	return store.Nearest(missing, slices.DeleteFunc(slices.Clone(have), func(name string) bool {
		taken := l.ConfigKey(name)
		return key != orderKey && taken != "" && taken != orderKey
	}))
}

// orderKey is the key that names columns which others may name too.
const orderKey = "order-by"

// Mistyped is a missing column with the key that names it, and with the column that was
// most likely meant.
func Mistyped(l *store.Layout, missing string, have []string) string {
	key := l.ConfigKey(missing)
	if near := Meant(l, missing, have); near != "" {
		key += "; did you mean " + near + "?"
	}
	return missing + " (" + key + ")"
}

// MissingText says which columns are missing, by the keys that name them, and which
// the table has.
func MissingText(o *store.Outbox, table string, missing, have []string) string {
	named := make([]string, len(missing))
	for i, column := range missing {
		named[i] = Mistyped(&o.Layout, column, have)
	}
	return fmt.Sprintf("outbox %s: table %s has no column %s, which layout %s names; its columns are %s",
		o.Name, table, strings.Join(named, ", "), o.Layout.Name, strings.Join(have, ", "))
}

// Correction says which existing columns to name in place of missing ones that look
// mistyped, "" if none does, and returns the missing columns that do not.
func Correction(l *store.Layout, missing, have []string) (correction string, absent []string) {
	var names []string
	for _, column := range missing {
		if near := Meant(l, column, have); near != "" {
			names = append(names, near+" in "+l.ConfigKey(column))
		} else {
			absent = append(absent, column)
		}
	}
	if names == nil {
		return "", absent
	}
	return "in layout " + l.Name + ", name " + strings.Join(names, ", "), absent
}

// Remedy says how to fix missing columns: in the configuration where a name looks
// mistyped, else in the table, by the statements that add returns if there is one for
// each column.
func Remedy(o *store.Outbox, table string, missing, have []string, add func(missing []string) []string) string {
	correction, absent := Correction(&o.Layout, missing, have)
	if statements := add(absent); len(statements) > 0 && len(statements) == len(absent) {
		return strings.Join(append([]string{"-- " + cmp.Or(correction, "or name others in layout "+o.Layout.Name)}, statements...), "\n")
	}
	others := fmt.Sprintf("add the columns to %s, or name others in layout %s", table, o.Layout.Name)
	switch {
	case correction == "":
		return others
	case len(absent) > 0:
		return correction + "; " + strings.Replace(others, "the columns", "the other columns", 1)
	}
	return correction
}

// Value is the value written to a column.
type Value uint8

// Values of columns.
const (
	Status   Value = iota + 1 // value of the row's new status
	Time                      // time of the claim or the outcome
	LeaseEnd                  // end of the claim; see store.Layout.Lease
	Retries                   // retry count of the outcome
	Error                     // error of the outcome; an empty one leaves the column unchanged
	Null
	Zero
	Blank   // the empty string
	Receipt // value of the delivery's receipt; see ReceiptValue
)

// Assignment assigns a value to a column.
type Assignment struct {
	Column string
	Value  Value
	Record int // with Receipt: the index in store.Layout.Record
}

// list collects assignments to the columns that the layout has.
type list []Assignment

func (a *list) add(column string, value Value) {
	if column != "" {
		*a = append(*a, Assignment{Column: column, Value: value})
	}
}

// empty clears a column that may be NULL. Without notNull every column may.
func (a *list) empty(column string, notNull func(column string) bool) {
	if column != "" && (notNull == nil || !notNull(column)) {
		a.add(column, Null)
	}
}

// ClaimTime returns the time that a claim writes: when it was made, or the end of its lease.
func ClaimTime(l *store.Layout, at time.Time, takeover time.Duration) time.Time {
	if l.Lease && !at.IsZero() {
		return at.Add(takeover)
	}
	return at
}

// Claim returns the assignments of a claim, nil if claims write nothing.
func Claim(l *store.Layout) []Assignment {
	var set list
	if !l.WritesClaims() {
		return nil
	}
	if l.State == store.StateWords || l.State == store.StateNumbers {
		set.add(l.Columns.Status, Status)
	}
	if l.Lease {
		set.add(l.Columns.Claimed, LeaseEnd)
	} else {
		set.add(l.Columns.Claimed, Time)
	}
	return set
}

// Outcome returns the assignments of an outcome that does not delete the row, nil if the
// table has no column for it. A status that the table does not store leaves the row PENDING.
// An unsettled row without a word or number for PROCESSING loses its claim time, which would
// otherwise hold it for the next leader.
func Outcome(l *store.Layout, to store.Status, notNull func(column string) bool) []Assignment {
	var set list
	c := &l.Columns
	switch {
	case l.State == store.StateNone:
		return nil
	case HasStatus(l):
		set.add(c.Status, Status)
	case to == store.Failed:
		set.add(c.Failed, Time)
	}
	if to == store.Completed {
		set.add(c.Delivered, Time)
	}
	switch settled := to.Settled() && l.Stores(to); {
	case l.Lease && settled:
		set.add(c.Settled, Time)
		set.add(c.Claimed, Null)
	case l.Lease:
		set.add(c.Claimed, Null)
	case settled:
		set.add(cmp.Or(c.Settled, c.Claimed), Time)
	case claimedByTime(l):
		set.empty(c.Claimed, notNull)
	}
	if to != store.Completed {
		set.add(c.RetryCount, Retries)
		set.add(c.Error, Error)
		return set
	}
	for i := range l.Record {
		set = append(set, Assignment{Column: l.Record[i].Column, Value: Receipt, Record: i})
	}
	return set
}

// ReceiptValue returns what an outcome writes into a column of store.Layout.Record: an integer or
// a text, as the column is. It is nil for NULL: the delivery had no such value, or the column cannot
// hold it. Such a value must not keep the row from becoming COMPLETED. clean returns a text as the
// column takes it.
func ReceiptValue(r *store.RecordColumn, o *store.Outcome, column *store.ColumnInfo, clean func(text string) string) any {
	text, ok := r.Text(o.Receipt)
	switch n, err := strconv.ParseInt(text, 10, 64); {
	case !ok:
		return nil
	case !column.Integer:
		return clean(text)
	case err != nil || n < 0 || n > min(r.Max, column.Max):
		return nil
	default:
		return n
	}
}

// Requeue returns the assignments that make a FAILED row look untried. It clears the claim
// and settlement times if they are part of the state and may be NULL; otherwise they stay,
// as in a retry.
func Requeue(l *store.Layout, notNull func(column string) bool) []Assignment {
	var set list
	c := &l.Columns
	if HasStatus(l) {
		set.add(c.Status, Status)
	} else {
		set.add(c.Failed, Null)
	}
	if claimedByTime(l) {
		set.empty(c.Claimed, notNull)
	}
	set.empty(c.Settled, notNull)
	set.add(c.RetryCount, Zero)
	if c.Error != "" && notNull != nil && notNull(c.Error) {
		set.add(c.Error, Blank)
	}
	set.empty(c.Error, notNull)
	return set
}

// claimedByTime reports whether the claim time alone tells a claimed row from a PENDING one.
func claimedByTime(l *store.Layout) bool {
	return l.State != store.StateWords && l.State != store.StateNumbers
}
