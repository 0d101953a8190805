package config

import (
	"fmt"
	"slices"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/dispatch/route"
	"github.com/sluicebox/sluicebox/store"
)

// Values of routes' keys that differ from their defaults.
const (
	needOptional = "optional"
	fanOutFirst  = "first"
	completeAny  = "any-required"
)

// Route is one entry of outboxes[].routes.
type Route struct {
	Name string     `yaml:"name" doc:"Required. The route's name in messages, metrics and commands: 1 to 40 of the characters a-z, 0-9, _ and -, not beginning with _ or -. The relay's records have it: after a change run sluicebox routes rename."`
	Sink string     `yaml:"sink" doc:"Required. The name of the sink that receives the rows."`
	Need string     `yaml:"need" doc:"required: the row's status depends on this route. optional: it does not. Default: required." enum:"required,optional"`
	When route.Rule `yaml:"when" doc:"The rows that take the route: those for which all of these conditions hold. Without conditions, all rows."`
}

// IsOptional reports whether the row's status does not depend on the route.
func (r *Route) IsOptional() bool { return r.Need == needOptional }

// FirstMatch reports whether a row takes only the first route that matches it.
func (o *Outbox) FirstMatch() bool { return o.FanOut == fanOutFirst }

// SinkNames returns the sinks of the outbox, each once.
func (o *Outbox) SinkNames() []string {
	if len(o.Routes) == 0 {
		return []string{o.Sink}
	}
	var names []string
	for i := range o.Routes {
		if name := o.Routes[i].Sink; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// SendsTo reports whether the outbox has the sink.
func (o *Outbox) SendsTo(sink string) bool { return slices.Contains(o.SinkNames(), sink) }

// rules returns the conditions of the routes.
func (o *Outbox) rules() []route.Rule {
	rules := make([]route.Rule, len(o.Routes))
	for i := range o.Routes {
		rules[i] = o.Routes[i].When
	}
	return rules
}

// Router returns the router of an outbox with routes.
func (o *Outbox) Router() (*route.Router, error) {
	return route.Compile(o.rules(), o.FirstMatch())
}

// relayOutbox returns the outbox of the relay over a table.
func (o *Outbox) relayOutbox(table store.Outbox) sluicebox.Outbox {
	box := sluicebox.Outbox{
		Outbox: table, Sink: o.Sink, FirstMatch: o.FirstMatch(),
		AnyRequired: o.Complete == completeAny, Unmatched: sluicebox.Unmatched(o.Unmatched),
	}
	for _, r := range o.Routes {
		box.Routes = append(box.Routes, sluicebox.Route{Name: r.Name, Sink: r.Sink, Optional: r.IsOptional(), When: r.When})
	}
	return box
}

// sinksByKinds returns the sinks of an outbox, those first that accept only some kinds.
func (s *Settings) sinksByKinds(o *Outbox) []string {
	var some, all []string
	for _, name := range o.SinkNames() {
		if s.Sinks[name].Type == SinkFlowCatalyst {
			some = append(some, name)
		} else {
			all = append(all, name)
		}
	}
	return append(some, all...)
}

// checkDestinations checks the sink or the routes of an outbox.
func (k *checker) checkDestinations(path string, o *Outbox, s *Settings) {
	if len(o.Routes) == 0 {
		if o.Sink == "" && k.isGiven(path+".routes") && k.hasNoProblem(path+".routes") {
			k.fail(path+".routes", "has no route; add one, or write sink: in its place")
			return
		}
		k.checkRoute(path+".sink", o.Sink, s.Sinks)
		for _, key := range []struct{ name, value string }{{"fan-out", o.FanOut}, {"complete", o.Complete}, {"unmatched", o.Unmatched}} {
			if p := joinKey(path, key.name); key.value != "" && k.hasNoProblem(p) {
				k.fail(p, "needs routes, and this outbox has one sink; remove it, or write routes in place of sink")
			}
		}
		return
	}

	if o.Sink != "" && k.hasNoProblem(path+".sink") {
		k.fail(path+".sink", "stands beside routes: each route names its sink; remove it, or make it a route, {name: %s, sink: %s}", o.Sink, o.Sink)
	}
	if len(o.Record) > 0 && k.hasNoProblem(path+".record") {
		k.fail(path+".record", "does not apply with routes: whichever route ends last writes the row, and its sink may have answered nothing to record; remove it, or write sink in place of routes")
	}
	k.checkRoutes(path, o, s)
	k.checkKindInLane(path, o, s)
	if o.Complete == completeAny && !slices.ContainsFunc(o.Routes, func(r Route) bool { return !r.IsOptional() }) && k.hasNoProblem(path+".complete") {
		k.fail(path+".complete", "is any-required, but every route is optional; remove need: optional from a route, or remove complete")
	}
}

// checkRoutes checks each route of an outbox, and that the layout has the attributes of its conditions.
func (k *checker) checkRoutes(path string, o *Outbox, s *Settings) {
	first := map[string]int{}
	for i := range o.Routes {
		r, at := &o.Routes[i], fmt.Sprintf("%s.routes[%d]", path, i)
		if k.requireValue(at+".name", r.Name, "name the route") && k.hasNoProblem(at+".name") {
			other, taken := first[r.Name]
			switch {
			case r.Name == route.Unmatched:
				k.fail(at+".name", "is unmatched, which is the name of rows that no route matches; give the route another name")
			case store.ValidateRouteName(r.Name) != nil:
				k.fail(at+".name", "is %q, must be 1 to 40 of the characters a-z, 0-9, _ and -, not beginning with _ or -", r.Name)
			case taken:
				k.fail(at+".name", "is %s, the name of routes[%d] too; give one of them another name", r.Name, other)
			}
			if !taken {
				first[r.Name] = i
			}
		}
		k.checkRoute(at+".sink", r.Sink, s.Sinks)
		if o.Layout != "" && k.hasNoProblem(path+".layout") && k.hasNoProblemBelow(path+".columns") {
			k.checkWhen(at+".when", o, &r.When, s)
		}
	}
	_, err := o.Router()
	k.failFields(path, err, func(key string) string { return key })
}

// checkWhen refuses conditions on attributes that rows of the outbox cannot have.
func (k *checker) checkWhen(path string, o *Outbox, when *route.Rule, s *Settings) {
	rows := rowsOf{outbox: o, layout: o.storeLayout(s.Source.URL.documents())}
	for _, name := range when.Needs() {
		if rows.layout.HasAttribute(name) {
			continue
		}
		key, remedy := joinKey(path, "attributes."+name), attributeRemedy(&rows.layout, name)
		switch _, own := when.Attributes[name]; {
		case name == store.AttributeKind:
			remedy = "write the kinds in when.kind"
		case name == store.AttributeType && len(when.Type) > 0:
			key = joinKey(path, "type")
		case !own && when.TagsFrom == "":
			key, remedy = tagsKey(path, when), "name the attribute with the tags in tags-from, or "+remedy
		case !own:
			key = tagsKey(path, when)
		}
		if k.hasNoProblem(key) {
			k.fail(key, "looks at the attribute %s, which rows of %s cannot have; %s", name, rows.name(), remedy)
		}
	}
}

// attributeRemedy says how rows get an attribute.
func attributeRemedy(l *store.Layout, name string) string {
	var have []string
	for _, a := range l.Attributes {
		have = append(have, a.Name)
	}
	switch near := store.Nearest(name, have); {
	case name == store.AttributeType || name == store.AttributeTime:
		return "name its column in the outbox's columns." + name
	case near != "":
		return "did you mean " + near + "?"
	}
	return "add " + name + " to the outbox's columns.attributes"
}

// tagsKey returns the key to blame for an attribute without tags.
func tagsKey(path string, when *route.Rule) string {
	switch {
	case when.TagsFrom != "":
		return joinKey(path, "tags-from")
	case len(when.TagsAll) > 0:
		return joinKey(path, "tags-all")
	case len(when.TagsAny) > 0:
		return joinKey(path, "tags-any")
	}
	return joinKey(path, "tags-exact")
}

// checkKindInLane refuses routes of which one sink needs a lane for each kind and another keeps the
// order of a group whatever the kinds of its rows are.
func (k *checker) checkKindInLane(path string, o *Outbox, s *Settings) {
	documents := s.Source.URL.documents()
	apart, together := *o, *o
	apart.kindInLane, together.kindInLane = true, false
	a, b := apart.storeLayout(documents), together.storeLayout(documents)
	if a.Columns.Kind == b.Columns.Kind {
		return
	}
	var of []string // that divide a group by kind
	for _, name := range o.SinkNames() {
		if s.Sinks[name].Type == SinkFlowCatalyst {
			of = append(of, name)
		}
	}
	if len(of) == 0 || len(of) == len(o.SinkNames()) || !k.hasNoProblem(path+".routes") {
		return
	}
	k.fail(path+".routes", "needs one lane for each kind (sink %s, type flowcatalyst) and one for all kinds of a group (the other sinks); set one kind for all rows, for example kind: EVENT in place of the column %s, or route to flowcatalyst sinks only", of[0], a.Columns.Kind)
}

// unmatched returns what becomes of a row that no route matches.
func (o *Outbox) unmatched() string {
	if o.Unmatched == "" {
		return string(sluicebox.UnmatchedFail)
	}
	return o.Unmatched
}
