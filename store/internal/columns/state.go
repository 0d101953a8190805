package columns

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

// State prints conditions on the state of a row in the SQL of a database. A layout without
// states has only unsettled rows.
type State struct {
	Layout *store.Layout
	// Column returns a reference to a column of the row.
	Column func(name string) string
	// Bind binds a value of the status column and returns its placeholder. The conditions
	// bind their values in the order of the text.
	Bind func(value any) string
}

// Unsettled returns the condition that a row is PENDING or PROCESSING.
func (s State) Unsettled() string {
	switch s.Layout.State {
	case store.StateNone:
		return "true"
	case store.StateTimestamps:
		return s.only("", "")
	}
	return s.is(store.Pending, store.Processing)
}

// Pending returns the condition that an unsettled row is not claimed, false if the state does
// not tell: then the time of its claim does.
func (s State) Pending() string {
	if !HasStatus(s.Layout) || s.Layout.State == store.StateBoolean || s.Layout.Lease {
		return "false"
	}
	return s.is(store.Pending)
}

// Delivered returns the condition that a row is COMPLETED.
func (s State) Delivered() string {
	switch s.Layout.State {
	case store.StateNone:
		return "false"
	case store.StateTimestamps:
		return "(" + s.Column(s.Layout.Columns.Delivered) + " IS NOT NULL)"
	}
	return s.is(store.Completed)
}

// Failed returns the condition that a row is FAILED. A row that was also delivered is not.
func (s State) Failed() string {
	switch {
	case !s.Layout.Stores(store.Failed):
		return "false"
	case s.Layout.State == store.StateTimestamps:
		return s.only("", "NOT ")
	case s.Layout.State == store.StateNumbers:
		var codes []any
		for _, n := range s.Layout.FailedCodes() {
			codes = append(codes, n)
		}
		return s.isOneOf(codes...)
	}
	return s.is(store.Failed)
}

// DeadLetter returns the condition that a row is FAILED, for the dead letters of a layout. A
// layout that does not store FAILED cannot tell: among rows that the caller names, because the
// relay's own records say that they FAILED, it is the unsettled ones.
func (s State) DeadLetter(named bool) string {
	if named && !s.Layout.Stores(store.Failed) {
		return s.Unsettled()
	}
	return s.Failed()
}

// is returns the condition that the status column holds one of the statuses, as far as the
// layout stores them.
func (s State) is(statuses ...store.Status) string {
	var values []any
	for _, st := range statuses {
		if st == store.Processing && s.Layout.State == store.StateBoolean {
			continue // a claim time beside false
		}
		if s.Layout.Stores(st) {
			values = append(values, Stored(s.Layout, st))
		}
	}
	if len(values) == 0 {
		return "false"
	}
	return s.isOneOf(values...)
}

// only returns the condition that the times of delivery and failure are NULL, or are not.
func (s State) only(delivered, failed string) string {
	c := &s.Layout.Columns
	if c.Failed == "" {
		return fmt.Sprintf("(%s IS %sNULL)", s.Column(c.Delivered), delivered)
	}
	return fmt.Sprintf("(%s IS %sNULL AND %s IS %sNULL)", s.Column(c.Delivered), delivered, s.Column(c.Failed), failed)
}

// RowState returns an expression for the store.RowState of a row that exists, or
// outboxes.OtherState.
func (s State) RowState() string {
	return fmt.Sprintf("CASE WHEN %s IS TRUE THEN %d WHEN %s IS TRUE THEN %d WHEN %s IS TRUE THEN %d ELSE %d END",
		s.Delivered(), store.RowCompleted, s.Failed(), store.RowFailed, s.Unsettled(), store.RowUnsettled, outboxes.OtherState)
}

func (s State) isOneOf(values ...any) string {
	places := make([]string, len(values))
	for i, v := range values {
		places[i] = s.Bind(v)
	}
	if len(places) == 1 {
		return "(" + s.Column(s.Layout.Columns.Status) + " = " + places[0] + ")"
	}
	return "(" + s.Column(s.Layout.Columns.Status) + " IN (" + strings.Join(places, ", ") + "))"
}

// HasStatus reports whether a layout has a status column.
func HasStatus(l *store.Layout) bool {
	return l.State == store.StateWords || l.State == store.StateNumbers || l.State == store.StateBoolean
}

// StateColumns returns the columns that hold the state of a row.
func StateColumns(l *store.Layout) []string {
	switch {
	case HasStatus(l):
		return []string{l.Columns.Status}
	case l.State == store.StateTimestamps:
		return slices.DeleteFunc([]string{l.Columns.Delivered, l.Columns.Failed}, func(c string) bool { return c == "" })
	}
	return nil
}

// NullableColumn is a column that must allow NULL, and what NULL means there.
type NullableColumn struct{ Column, Marks string }

// Nullable returns the columns of a layout that must allow NULL: times that are part of the state
// of a row, and receipts.
func Nullable(l *store.Layout) []NullableColumn {
	var list []NullableColumn
	add := func(column, marks string) {
		if column != "" {
			list = append(list, NullableColumn{column, marks})
		}
	}
	if l.State == store.StateTimestamps {
		add(l.Columns.Delivered, "an unsettled row")
		add(l.Columns.Failed, "an unsettled row")
	}
	if l.Lease && l.State != store.StateNone {
		add(l.Columns.Claimed, "a row without a claim")
	}
	for i := range l.Record {
		add(l.Record[i].Column, "a row without a receipt")
	}
	return list
}

// Stored returns the value of a status in the status column. A status that the layout does
// not store has the value of PENDING.
func Stored(l *store.Layout, s store.Status) any {
	if !l.Stores(s) {
		s = store.Pending
	}
	switch l.State {
	case store.StateNumbers:
		return l.Numbers[s]
	case store.StateBoolean:
		return s == store.Completed
	}
	return l.Words[s]
}

// StoredOutcome returns the value of an outcome's status in the status column.
func StoredOutcome(l *store.Layout, o *store.Outcome) any {
	if l.State == store.StateNumbers && o.Status == store.Failed && l.Stores(store.Failed) {
		return l.FailedNumber(o.Reason)
	}
	return Stored(l, o.Status)
}

// WrittenStatuses returns the values that a relay writes into the status column.
func WrittenStatuses(l *store.Layout) []any {
	if !HasStatus(l) {
		return nil
	}
	list := []any{Stored(l, store.Pending)}
	if l.WritesClaims() && l.State != store.StateBoolean {
		list = append(list, Stored(l, store.Processing))
	}
	if !l.DeleteDelivered {
		list = append(list, Stored(l, store.Completed))
	}
	switch {
	case !l.Stores(store.Failed):
		return list
	case l.State == store.StateWords:
		return append(list, Stored(l, store.Failed))
	}
	for _, n := range l.FailedCodes() {
		list = append(list, n)
	}
	return list
}

// SetList returns the SET list of assignments. quote quotes the name of a column, and value
// returns an expression for a value that the outcome, the claim or the layout determines.
func SetList(set []Assignment, quote func(column string) string, value func(Assignment) string) string {
	constants := map[Value]string{Null: "NULL", Zero: "0", Blank: "''"}
	parts := make([]string, len(set))
	for i, a := range set {
		text, constant := constants[a.Value]
		if !constant {
			text = value(a)
		}
		parts[i] = quote(a.Column) + " = " + text
	}
	return strings.Join(parts, ", ")
}
