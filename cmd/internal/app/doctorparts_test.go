package app

import (
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// TestDoctorAdvisesRoutes: routes that are valid but may surprise are advice, others are not.
func TestDoctorAdvisesRoutes(t *testing.T) {
	for name, tt := range map[string]struct{ routes, want string }{
		"in order":      {"[{name: a, sink: one}, {name: b, sink: two, need: optional}]", ""},
		"one sink":      {"[{name: a, sink: one}, {name: b, sink: one, when: {type: x}}]", "routes a and b both go to sink one: it gets a row that matches both twice"},
		"apart":         {"[{name: a, sink: one, when: {type: [x, y]}}, {name: b, sink: one, when: {type: z}}]", ""},
		"the first":     {"[{name: a, sink: one, when: {type: x}}, {name: b, sink: one}]\n  fan-out: first", ""},
		"only optional": {"[{name: a, sink: one, need: optional}]", "each route is optional: a row is COMPLETED with the first route that delivers it, whether the others do or not"},
		"never":         {"[{name: a, sink: one}, {name: b, sink: two, when: {kind: invoice}}]", "route b never gets a row: each row is of kind order"},
	} {
		d := &doctor{cfg: loadConfig(t, `
source: {url: "postgres://db.example/shop"}
sinks: {one: {type: webhook, url: "https://one.example"}, two: {type: webhook, url: "https://two.example"}}
outboxes:
- table: orders
  layout: custom
  state: none
  kind: order
  columns: {id: id, type: type, payload: body}
  routes: `+tt.routes+"\n")}
		d.reportConfiguration()
		var advice []string
		for _, f := range d.findings {
			if f.Grade == store.GradeAdvice {
				advice = append(advice, f.Text)
			}
			if f.Grade != store.GradeOK && (f.Remedy == "" || f.Subject != "outbox orders") {
				t.Errorf("%s: %+v lacks a remedy or its outbox", name, f)
			}
		}
		if got := strings.Join(advice, "\n"); got != tt.want {
			t.Errorf("%s: got advice %q, want %q", name, got, tt.want)
		}
	}
}
