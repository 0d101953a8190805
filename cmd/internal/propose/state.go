package propose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// Columns returns the columns whose values Propose wants to know: those that may be the state.
func Columns(t *store.TableInfo) []string {
	g := &guesser{Request: &Request{Table: t}, taken: map[string]string{}}
	if c := g.statusColumn(); c != nil {
		return []string{c.Name}
	}
	return nil
}

// statusColumn returns the column with the state of a row, nil if there is none.
func (g *guesser) statusColumn() *store.ColumnInfo {
	return g.find(statusNames, func(c *store.ColumnInfo) bool {
		blank := len(c.Enum) > 0 && !slices.ContainsFunc(c.Enum, func(value string) bool { return value != "" })
		return writable(c) && !blank && (isWord(c) || c.Integer || c.Boolean)
	})
}

// flagColumn returns the column that is true, or 1, once a row was delivered.
func (g *guesser) flagColumn() *store.ColumnInfo {
	return g.find(booleanNames, func(c *store.ColumnInfo) bool { return writable(c) && (c.Boolean || c.Integer) && !isTextTime(c) })
}

// isTextTime reports whether a column that takes integers is declared as a time.
func isTextTime(c *store.ColumnInfo) bool {
	typ := strings.ToLower(c.Type)
	return strings.Contains(typ, "date") || strings.Contains(typ, "time")
}

// isTime reports whether the relay can write a time into a column, and NULL before.
func isTime(c *store.ColumnInfo) bool { return writable(c) && c.Time && !c.NotNull }

// isDocumentTime is isTime for documents: NotNull says only what the sample had.
func (g *guesser) isTime(c *store.ColumnInfo) bool {
	return isTime(c) || g.Table.Documents && writable(c) && c.Time
}

// stateKeys are the keys of the state: under columns, and beside it.
type stateKeys struct{ columns, keys section }

// state guesses how the table stores the state of a row.
func (g *guesser) state() (s stateKeys) {
	status, flag := g.statusColumn(), g.flagColumn()
	switch {
	case status != nil && isWord(status):
		g.use(status, "status")
		s.columns.add("status", status.Name, because(likely, "the state of the row, by the column's name"))
		g.addWords(&s, status)
	case status != nil && status.Integer && !isBooleanType(status):
		g.use(status, "status")
		s.columns.add("status", status.Name, because(likely, "the state of the row, by the column's name"))
		g.addNumbers(&s, status)
	case status != nil || flag != nil && flag.Boolean:
		if status == nil {
			status = flag
		}
		g.use(status, "status")
		s.columns.add("status", status.Name, because(likely, "true once the row was delivered, by the column's name"))
		s.keys.add("state", "boolean", because(sure, "%s is of type %s", status.Name, status.Type))
		g.addClaim(&s)
	case flag != nil:
		g.use(flag, "status")
		s.columns.add("status", flag.Name, because(likely, "not 0 once the row was delivered, by the column's name"))
		s.keys.add("state", "numbers", because(sure, "%s is of type %s", flag.Name, flag.Type))
		s.keys.add("numbers", section{
			{"pending", 0, because(likely, "not delivered, by the column's name")}, {"completed", 1, because(likely, "delivered, by the column's name")},
		}, note{})
	default:
		return g.timesOrNone()
	}
	if c := g.find(deliveredNames, g.isTime); c != nil {
		s.columns.add("delivered", g.use(c, "delivered"), because(likely, "the time of delivery, by the column's name"))
		g.addTextTimes(&s, c)
	}
	g.addResults(&s)
	return s
}

// isBooleanType reports whether a column is declared as a boolean. MySQL's is tinyint(1).
func isBooleanType(c *store.ColumnInfo) bool {
	return c.Boolean && strings.Contains(strings.ToLower(c.Type), "bool")
}

// timesOrNone is the state of a table without a status.
func (g *guesser) timesOrNone() (s stateKeys) {
	delivered := g.find(deliveredNames, g.isTime)
	if delivered == nil {
		s.keys.add("state", "none", because(decide, "no column shows which rows were delivered, so only the log tells the new ones. "+
			"delete-delivered: true deletes delivered rows; without it they stay"))
		return s
	}
	s.columns.add("delivered", g.use(delivered, "delivered"), because(likely, "NULL until the row was delivered, by the column's name"))
	if failed := g.find(failedNames, g.isTime); failed != nil {
		s.columns.add("failed", g.use(failed, "failed"), because(likely, "NULL until the row failed, by the column's name"))
	}
	s.keys.add("state", "timestamps", because(likely, "a row without a time in %s is to be sent", delivered.Name))
	g.addTextTimes(&s, delivered)
	g.addClaim(&s)
	g.addResults(&s)
	return s
}

// addTextTimes adds text-times if the documents have texts where MongoDB has dates.
func (g *guesser) addTextTimes(s *stateKeys, c *store.ColumnInfo) {
	if g.Table.Documents && c.TextTime {
		s.keys.add("text-times", true, because(likely, "%s holds texts", c.Name))
	}
}

// addClaim adds the time of a claim, or its end.
func (g *guesser) addClaim(s *stateKeys) {
	if c := g.find(leaseNames, g.isTime); c != nil {
		g.lease = true
		s.columns.add("lease", g.use(c, "lease"), because(likely, "the end of a claim, by the column's name"))
		return
	}
	if c := g.find(claimedNames, g.isTime); c != nil {
		s.columns.add("claimed", g.use(c, "claimed"), because(likely, "the time of a claim, by the column's name"))
	}
}

// addResults adds the columns for the retries, the error and the end.
func (g *guesser) addResults(s *stateKeys) {
	if c := g.find(settledNames, g.isTime); c != nil {
		s.columns.add("settled", g.use(c, "settled"), because(likely, "the time of the settlement, by the column's name"))
	}
	if c := g.find(retryNames, func(c *store.ColumnInfo) bool { return writable(c) && c.Integer }); c != nil {
		s.columns.add("retry-count", g.use(c, "retry-count"), because(likely, "by the column's name"))
	}
	if c := g.find(errorNames, func(c *store.ColumnInfo) bool { return writable(c) && (isText(c) || g.Table.Documents && c.Type == "") }); c != nil {
		s.columns.add("error", g.use(c, "error"), because(likely, "by the column's name"))
	}
}

// values are the values of a status column.
type values struct {
	list     []string
	complete bool   // the database knows all of them
	from     string // for notes
}

func valuesOf(c *store.ColumnInfo) values {
	v := values{list: slices.Clone(c.Enum), complete: true, from: "the values of type " + c.Type}
	if len(c.Enum) == 0 {
		v.list, v.from = slices.Clone(c.Allowed), "a constraint allows it"
	}
	if !slices.ContainsFunc(v.list, func(value string) bool { return value != "" }) {
		v.list, v.complete, v.from = slices.Clone(c.Values), false, "found in a sample of the rows"
	}
	if c.Default != "" && !slices.Contains(v.list, c.Default) && !v.complete {
		v.list = append(v.list, c.Default)
	}
	return v
}

// others describes values that got no meaning.
func (g *guesser) remarkOthers(c *store.ColumnInfo, list []string, used map[store.Status]string) {
	var rest []string
	for _, value := range list {
		if !slices.ContainsFunc([]store.Status{store.Pending, store.Processing, store.Completed, store.Failed}, func(s store.Status) bool { return used[s] == value && value != "" }) {
			rest = append(rest, fmt.Sprintf("%q", value))
		}
	}
	if len(rest) > 0 {
		g.remarks = append(g.remarks, fmt.Sprintf("Rows with another %s are left alone: %s.", c.Name, strings.Join(rest, ", ")))
	}
}
