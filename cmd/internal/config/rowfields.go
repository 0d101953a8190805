package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// checkRowFields refuses keys of sinks with a value that rows cannot have:
//
//   - no row of the sink's outboxes can, or
//   - those of one outbox cannot, and a row without it is not sent.
//
// A sink that no outbox names serves replays of any outbox. There a field is refused only if
// no outbox has it, because who asks for a replay chooses the outbox.
func (k *checker) checkRowFields(s *Settings) {
	documents := s.Source.URL.documents()
	for _, name := range slices.Sorted(maps.Keys(s.Sinks)) {
		path, to := "sinks."+name, s.Sinks[name]
		t, known := sinkTypes()[to.Type]
		if !known || !k.hasNoProblem(path) {
			continue
		}
		d := t.destination(&to, "")
		if d.validate() != nil {
			continue
		}
		routed := isRoutedTo(s, name)
		var rows []rowsOf
		for i := range s.Outboxes {
			if o := &s.Outboxes[i]; o.SendsTo(name) || !routed {
				rows = append(rows, rowsOf{o, o.storeLayout(documents), k.hasNoProblemBelow(outboxKey(i))})
			}
		}
		for _, f := range d.fields() {
			k.checkRowField(joinKey(path, f.Key), f, rows, routed)
		}
		k.checkChain(path, &to, rows)
	}
}

// rowsOf are the rows of an outbox.
type rowsOf struct {
	outbox *Outbox
	layout store.Layout
	valid  bool // its outbox has no problem
}

// canHave reports whether rows can have the value of a field.
func (r *rowsOf) canHave(f sink.Field) bool {
	switch {
	case !r.valid, f.Attribute == store.AttributeKind:
		return true // reported elsewhere
	case f.Attribute == "":
		return r.layout.Columns.Group != ""
	}
	return r.layout.HasAttribute(f.Attribute)
}

// checkRowField checks a field against the outboxes whose rows the sink may get.
func (k *checker) checkRowField(path string, f sink.Field, rows []rowsOf, routed bool) {
	lacking := slices.DeleteFunc(slices.Clone(rows), func(r rowsOf) bool { return r.canHave(f) })
	if len(lacking) == 0 || len(lacking) < len(rows) && (!f.Required || !routed) || !k.hasNoProblem(path) {
		return
	}
	k.fail(path, "has %s, which rows of %s cannot have; %s", f, lacking[0].name(), lacking[0].remedy(f))
}

// name returns the table or the prefix of the messages.
func (r *rowsOf) name() string { return cmp.Or(r.outbox.Table, r.outbox.Prefix) }

// remedy says how rows get the value of a field.
func (r *rowsOf) remedy(f sink.Field) string {
	var have []string
	for _, a := range r.layout.Attributes {
		have = append(have, a.Name)
	}
	own := f.Attribute == store.AttributeType || f.Attribute == store.AttributeTime // they have keys of their own
	switch near := store.Nearest(f.Attribute, have); {
	case f.Attribute != "" && near != "" && !own:
		return fmt.Sprintf("did you mean %s?", sink.Field{Attribute: near})
	case r.outbox.Layout != layoutCustom:
		return fmt.Sprintf("the layout %s has no column for it", r.outbox.Layout)
	case f.Attribute == "":
		return "name its column in the outbox's columns.group"
	case own:
		return "name its column in the outbox's columns." + f.Attribute
	}
	return fmt.Sprintf("add %s to the outbox's columns.attributes", strings.TrimSuffix(f.Attribute, spreadSuffix))
}
