// Package tables creates, fills and reads the outbox tables of package storetest in an SQL
// database. It contains the statements that all databases share; a [Dialect] contains the
// differences.
package tables

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/outbox"
)

// Dialect is the SQL dialect of one database.
type Dialect struct {
	*outbox.Dialect
	// Types are the column types, and Options the table options after them.
	Types   Types
	Options string
	// Plain, Text and Time are formats of expressions for a quoted column: its value, its
	// text, and the text of its time in UTC. TimePlaceholder is the format for the
	// placeholder of a time. Each has one %s.
	Plain, Text, Time, TimePlaceholder string
	// Parse parses the text of a time.
	Parse func(text string) (time.Time, error)
	// SetRefused is the format of the statement that sets how many rows of a replay of the
	// relay suite were refused. Its two %s are placeholders for the number and the id.
	SetRefused string
	// Txn is the query for the Txn of the open transaction, as a source would report it; ""
	// if the database has none.
	Txn string
}

// Types are column types with their constraints. The relay supports other types too; the
// users of the layouts have these.
type Types struct {
	ID, Payload, Kind string
	Group, JSON       string // JSON is for a group inside JSON
	// status columns
	Word, Number, Boolean string

	RetryCount, Error string

	Claimed, Settled, Delivered, Failed, Order string // times
}

// Create returns the statements that recreate an outbox's table.
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
	switch l.State {
	case store.StateNumbers:
		status = types.Number
	case store.StateBoolean:
		status = types.Boolean
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
	for i := range l.Record {
		add(l.Record[i].Column, receiptType(&l.Record[i]))
	}
	for _, name := range l.OrderBy {
		add(name, types.Order)
	}

	return list
}

// receiptType returns the type of a column for a receipt, a text if the name ends with text.
func receiptType(r *store.RecordColumn) string {
	switch {
	case r.Max == 0 || strings.HasSuffix(r.Column, "text"):
		return "VARCHAR(250)"
	case r.Max <= math.MaxInt32:
		return "INTEGER"
	}
	return "BIGINT"
}

// pick returns an expression for a column, or none if the layout lacks it.
func (d *Dialect) pick(name, form, none string) string {
	if name == "" {
		return none
	}
	return fmt.Sprintf(form, d.Ident(name))
}

// statement collects the parameters of a statement.
type statement struct {
	*Dialect
	args []any
}

// arg binds a value and returns its placeholder.
func (s *statement) arg(v any) string {
	s.args = append(s.args, v)
	return s.Placeholder(len(s.args))
}

// at binds a time, or nil, and returns its placeholder.
func (s *statement) at(v any) string {
	return fmt.Sprintf(s.TimePlaceholder, s.arg(s.Bind(v)))
}
