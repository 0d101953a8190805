package logsource

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
)

// Columns are the indexes of an outbox's columns in a row of the log. -1 is a column that the
// layout does not name.
type Columns struct {
	Outbox                               *store.Outbox
	ID, Kind, Group, Payload, RetryCount int
	// GroupRest and Attributes are in the order of the layout.
	GroupRest, Attributes []int
}

// FindColumns finds the columns of an outbox in a table as the log describes it. find returns
// -1 if the log does not have a column. The error is a *fault.MissingColumnsError; missing
// has its log, table and remedy, and quote is the database's quote of a name.
func FindColumns(o *store.Outbox, find func(name string) int, missing fault.MissingColumnsError, quote string) (Columns, error) {
	at := func(name string) int {
		if name == "" {
			return -1
		}
		i := find(name)
		if i < 0 {
			missing.Columns = append(missing.Columns, name)
		}
		return i
	}

	l := &o.Layout.Columns
	c := Columns{Outbox: o, ID: at(l.ID), Kind: at(l.Kind), Group: at(l.Group), Payload: at(l.Payload), RetryCount: at(l.RetryCount)}
	for _, name := range o.Layout.GroupRest {
		c.GroupRest = append(c.GroupRest, at(name))
	}
	for i := range o.Layout.Attributes {
		c.Attributes = append(c.Attributes, at(o.Layout.Attributes[i].Column))
	}
	if len(missing.Columns) == 0 {
		return c, nil
	}
	missing.Outbox = o
	missing.Problem = fmt.Sprintf("outbox %s: %s has table %s without column %s", o.Name, missing.Log, missing.Table, quote+strings.Join(missing.Columns, quote+" and "+quote)+quote)
	return c, &missing
}

// Include reports whether the outbox reads the column at an index.
func (c *Columns) Include(index int) bool {
	return index == c.ID || index == c.Kind || index == c.Group || index == c.Payload || index == c.RetryCount ||
		slices.Contains(c.GroupRest, index) || slices.Contains(c.Attributes, index)
}

// CapturedColumns returns the names of the columns that are read from the log, each once.
// Their order is not the table's.
func CapturedColumns(l *store.Layout) []string {
	c := &l.Columns
	all := slices.Concat([]string{c.ID, c.Kind, c.Group, c.Payload, c.RetryCount}, l.GroupRest)
	for i := range l.Attributes {
		all = append(all, l.Attributes[i].Column)
	}
	var names []string
	for _, name := range all {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
