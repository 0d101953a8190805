package app

import (
	"fmt"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/dispatch/route"
	"github.com/sluicebox/sluicebox/store"
)

// adviseRoutes reports routes that are valid, but may not do what they seem to.
func (d *doctor) adviseRoutes(o *config.Outbox) {
	advise := func(remedy, format string, args ...any) {
		d.add(PartConfiguration, store.Finding{Grade: store.GradeAdvice, Subject: "outbox " + o.Name, Text: fmt.Sprintf(format, args...), Remedy: remedy}, false)
	}
	required := false
	for i := range o.Routes {
		r := &o.Routes[i]
		required = required || !r.IsOptional()
		if o.Kind != "" && r.When.Excludes(&route.Rule{Kind: []string{o.Kind}}) {
			advise("change when.kind of the route, or remove the route", "route %s never gets a row: each row is of kind %s", r.Name, o.Kind)
			continue
		}
		for j := range o.Routes[:i] {
			other := &o.Routes[j]
			if other.Sink == r.Sink && !o.FirstMatch() && !other.When.Excludes(&r.When) {
				advise("make the conditions of the routes exclude each other, or write one route for both", "routes %s and %s both go to sink %s: it gets a row that matches both twice", other.Name, r.Name, r.Sink)
			}
		}
	}
	if len(o.Routes) > 0 && !required {
		advise("remove need: optional from the routes that must deliver a row", "each route is optional: a row is COMPLETED with the first route that delivers it, whether the others do or not")
	}
}
