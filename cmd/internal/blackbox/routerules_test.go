package blackbox

import (
	"strings"
	"testing"
)

// rulesCase is a table whose rows differ by group: the type of 1, 2 and 5 is OrderPaid, and 1, 3 and 5
// have a tag order_id.
func rulesCase() *layoutCase {
	c := namastackCase()
	c.document = nil
	c.insert = `INSERT INTO {table} (id, status, record_key, record_type, payload, context, partition_no, created_at, completed_at, failure_count, failure_reason, next_retry_at, handler_id)
		VALUES ($1, 'NEW', $2, $3, $4, $5, 1, now(), NULL, 0, NULL, now(), 'orders')`
	c.args = func(r *layoutRow) []any {
		typ, context := "OrderLost", `{"tags": ["vip"]}`
		if r.Group == 1 || r.Group == 2 || r.Group == 5 {
			typ = "OrderPaid"
		}
		if r.Group%2 == 1 {
			context = `{"tags": ["vip", "order_id=5"]}`
		}
		return []any{r.ID, r.group(), typ, r.payload(), context}
	}
	return c
}

// Rows take the routes whose conditions hold, also a row so large that the source leaves out its
// payload. A row that no route matches waits, and takes the route that a new configuration has for it.
func TestRowsTakeRoutesByRules(t *testing.T) {
	for _, mode := range []string{"stream", "poll"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			onLayoutHosts(t, rulesCase(), func(l *layoutScene) {
				if mode == "poll" && !l.conn.kind.postgres {
					l.t.Skip("now() has whole seconds, by which polling cannot order rows")
				}
				rowsTakeRoutesByRules(newRoutesScene(l, mode, "bus", "hooks", "copy"))
			})
		})
	}
}

func rowsTakeRoutesByRules(s *routesScene) {
	s.groups, s.rows = 5, 5
	s.config = strings.NewReplacer(
		"sink: bus, need: required", "sink: bus, when: {type: [OrderNew, OrderPaid]}",
		"sink: hooks, need: required", "sink: hooks, when: {tags-all: [order_id]}",
		"need: optional}]", "need: optional, when: {type: OrderGone}}], unmatched: hold",
	).Replace(s.config)
	r := s.run()
	for group := 1; group <= 5; group++ {
		row := &layoutRow{Group: group, N: 1}
		if group == 5 {
			row.Pad = strings.Repeat("x", 1200<<10)
		}
		if err := s.commit([]*layoutRow{row}); err != nil {
			s.t.Fatal(err)
		}
	}
	s.awaitStates(4, 0)
	for _, name := range []string{"bus", "hooks"} {
		if n := s.to[name].Counts(); n.Distinct != 3 || n.Items != 3 {
			s.t.Errorf("route %s got %d rows, %d of them distinct; want 3", name, n.Items, n.Distinct)
		}
	}
	expectStop(s.t, r)

	s.config = strings.Replace(s.config, "type: OrderGone", "type: OrderLost", 1)
	r = s.run()
	s.awaitStates(5, 0)
	if n := s.to["copy"].Counts(); n.Items != 1 {
		s.t.Errorf("the new route got %d rows, want the one that waited", n.Items)
	}
	expectStop(s.t, r)
}
