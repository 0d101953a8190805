package propose

import (
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
)

// known is a layout of another project that fits the table.
type known struct {
	preset layouts.Preset
	layout *store.Layout
	named  bool // the table has the project's name, too
}

// knownLayout returns the named layout with the most columns among those that fit, nil if none
// does.
func (g *guesser) knownLayout() *known {
	var best *known
	for _, p := range layouts.All() {
		l := p.Layout(g.Table.Documents)
		if l == nil || !Suits(l, g.Table) || g.hasOtherState(l) {
			continue
		}
		k := &known{preset: p, layout: l}
		for _, s := range p.Schemas {
			k.named = k.named || strings.EqualFold(s.Table, g.Table.Table)
		}
		if best == nil || k.named && !best.named || k.named == best.named && len(columnsOf(l)) > len(columnsOf(best.layout)) {
			best = k
		}
	}
	return best
}

// columnsOf returns the columns that a layout names, each once.
func columnsOf(l *store.Layout) (list []string) {
	for _, n := range l.NamedColumns() {
		if !slices.Contains(list, n.Column) {
			list = append(list, n.Column)
		}
	}
	return list
}

// Fits reports whether a table has the columns that a layout names. A sample of documents need
// not show the fields that are written later.
func Fits(l *store.Layout, t *store.TableInfo) bool {
	later := append(l.WrittenColumns(), "")
	return !slices.ContainsFunc(columnsOf(l), func(name string) bool {
		if t.Documents {
			if slices.Contains(later, name) && name != l.Columns.Status {
				return false
			}
			name, _, _ = strings.Cut(name, ".")
		}
		_, found := t.Column(name)
		return !found
	})
}

// Suits reports whether a table has the columns of a layout, and stores a state as the layout
// does.
func Suits(l *store.Layout, t *store.TableInfo) bool { return Fits(l, t) && holdsStates(l, t) }

// hasOtherState reports whether the table has a column for a state that the layout does not
// know.
func (g *guesser) hasOtherState(l *store.Layout) bool {
	if l.State != store.StateNone {
		return false
	}
	return g.statusColumn() != nil || g.flagColumn() != nil || g.find(deliveredNames, g.isTime) != nil
}

// holdsStates reports whether the table stores a state in the way of the layout, as far as its
// types and values show.
func holdsStates(l *store.Layout, t *store.TableInfo) bool {
	if t.Documents && len(l.OrderBy) > 0 {
		if c, found := t.Column(l.OrderBy[0]); !found || c.TextTime != l.TextTimes {
			return false
		}
	}
	status, found := t.Column(l.Columns.Status)
	switch l.State {
	case store.StateWords:
		if !found || !isWord(status) {
			return false
		}
		v := valuesOf(status)
		return len(v.list) == 0 || slices.ContainsFunc(v.list, func(value string) bool {
			return slices.ContainsFunc(statusKeys(), func(s store.Status) bool { return value == l.Words[s] && value != "" })
		})
	case store.StateNumbers:
		return found && status.Integer
	case store.StateBoolean:
		return found && status.Boolean
	case store.StateTimestamps:
		c, found := t.Column(l.Columns.Delivered)
		return found && c.Time || t.Documents
	}
	return true
}

// isPlatformLayout reports whether a layout is one of FlowCatalyst's own.
func isPlatformLayout(name string) bool {
	return slices.Contains([]string{"flowcatalyst", "outbox-messages", "outbox-messages-text"}, name)
}

// addKnown adds the keys of a table with a named layout.
func (g *guesser) addKnown(o *section, k *known) {
	n := because(likely, "the table has its columns")
	if k.named {
		n = because(sure, "the table has its name and its columns")
	}
	o.add("layout", k.preset.Name, n)
	o.add("sink", g.sink(), g.sinkNote())
	if k.preset.Kind == "" && k.layout.KindColumn() == "" {
		kind, table := "EVENT", squash(g.Table.Table)
		switch {
		case strings.Contains(table, "dispatchjob"):
			kind = "DISPATCH_JOB"
		case strings.Contains(table, "audit"):
			kind = "AUDIT_LOG"
		}
		o.add("kind", kind, because(likely, "from the table's name"))
	} else if g.platform() && !isPlatformLayout(k.preset.Name) {
		o.add("kind", "EVENT", because(decide, "or DISPATCH_JOB, AUDIT_LOG: the rows' endpoint of FlowCatalyst"))
	}
	g.lease = k.layout.Lease
	if isPlatformLayout(k.preset.Name) {
		return
	}
	for _, name := range columnsOf(k.layout) {
		if c, found := g.Table.Column(name); found {
			g.taken[c.Name] = k.layout.ConfigKey(name)
		}
	}
	var columns section
	if !k.layout.HasAttribute(store.AttributeTime) || !slices.ContainsFunc(k.layout.Attributes, func(a store.AttributeColumn) bool { return a.Name == store.AttributeTime || a.Spread }) {
		if c := g.find(timeNames, g.isEventTime); c != nil {
			columns.add("time", g.use(c, "time"), because(likely, "when it happened, by the column's name; the layout has no such column"))
		}
	}
	if list := g.attributes(); len(list) > 0 {
		columns.add("attributes", list, because(likely, "columns that the layout does not name"))
	}
	if len(columns) > 0 {
		o.add("columns", columns, note{})
	}
}
