// Package tables makes, fills and reads the outbox tables that package storetest asks
// for, in a database that speaks SQL. It has the statements that all databases share;
// what they say in their own ways is a [Dialect].
package tables

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Dialect is what one database says in its own way.
type Dialect struct {
	// Ident quotes an identifier, and Table gives an outbox's table, quoted.
	Ident func(name string) string
	Table func(o *store.Outbox) string
	// Placeholder is the place of the nth parameter of a statement, counted from 1.
	Placeholder func(n int) string
	// Types are those of the columns, and Options what stands behind them.
	Types   Types
	Options string
	// Plain, Text and Time are expressions for what a quoted column holds: as it is,
	// as text, and as the text of a time in UTC. TimePlaceholder is the one for the place of
	// a time. Each has one %s.
	Plain, Text, Time, TimePlaceholder string
	// Bind gives a time as it is bound, and Parse reads the text of one.
	Bind  func(at time.Time) any
	Parse func(text string) (time.Time, error)
	// Replay is the relay's own table of replays.
	Replay string
	// Txn is the statement that names the open transaction as the source would; "" if
	// it has no name.
	Txn string
}

// Types are the types of columns, with their constraints. The relay has to do with
// other types too, but these are those that the layouts' own users have.
type Types struct {
	ID, Payload, Kind string
	Group, JSON       string // the second is a group that stands in JSON
	Word, Number      string // of a status
	RetryCount, Error string

	Claimed, Settled, Delivered, Failed, Order string // times
}

// QuestionMark is the place of a parameter in a statement that does not count them.
func QuestionMark(int) string { return "?" }

// Create returns the statements that make an outbox's table anew.
func (d *Dialect) Create(o *store.Outbox) []string {
	table := d.Table(o)
	return []string{
		"DROP TABLE IF EXISTS " + table,
		"CREATE TABLE " + table + " (" + strings.Join(d.columns(&o.Layout), ", ") + ")" + d.Options,
	}
}

func (d *Dialect) columns(l *store.Layout) (list []string) {
	c, types := &l.Columns, &d.Types
	add := func(name, typ string) {
		if name != "" {
			list = append(list, d.Ident(name)+" "+typ)
		}
	}
	group, status := types.Group, types.Word
	if len(l.GroupPath) > 0 {
		group = types.JSON
	}
	if l.State == store.StateNumbers {
		status = types.Number
	}
	add(c.ID, types.ID)
	add(c.Payload, types.Payload)
	add(c.Kind, types.Kind)
	add(c.Group, group)
	add(c.Status, status)
	add(c.RetryCount, types.RetryCount)
	add(c.Claimed, types.Claimed)
	add(c.Settled, types.Settled)
	add(c.Delivered, types.Delivered)
	add(c.Failed, types.Failed)
	add(c.Error, types.Error)
	for _, name := range l.OrderBy {
		add(name, types.Order)
	}
	return list
}

// pick is an expression for a column, or what stands for one that the layout lacks.
func (d *Dialect) pick(name, form, none string) string {
	if name == "" {
		return none
	}
	return fmt.Sprintf(form, d.Ident(name))
}

// statement gathers what is bound in a statement.
type statement struct {
	*Dialect
	args []any
}

// arg binds a value, and returns its place.
func (s *statement) arg(v any) string {
	s.args = append(s.args, v)
	return s.Placeholder(len(s.args))
}

// at binds a time, or nil, and returns its place.
func (s *statement) at(v any) string {
	if at, ok := v.(time.Time); ok {
		v = s.Bind(at)
	}
	return fmt.Sprintf(s.TimePlaceholder, s.arg(v))
}
