package main

import (
	"encoding/json"
	"strings"
	"testing"
)

const routedFile = `source: {url: "postgres://relay@db/shop"}
sinks:
  bus: {type: kafka, brokers: ["k1:9092"], topic: 'orders.{kind}'}
  hooks: {type: webhook, url: "https://hooks.example/x"}
outboxes:
- table: orders
  layout: custom
  state: none
  columns: {id: id, kind: k, type: t, payload: body, attributes: [tags]}
  routes:
  - {name: bus, sink: bus, when: {type: [OrderPaid, OrderShipped]}}
  - {name: hooks, sink: hooks, need: optional, when: {tags-all: [order_id]}}
`

func TestConfigTest(t *testing.T) {
	path := file(t, routedFile)
	got := try(t, backend{}, nil, "config", "test", "-c", path, "--row", `{"k": "order", "type": "OrderPaid", "tags": ["vip"]}`)
	want := `outbox orders, kind order, group (none)
  kind: order
  type: OrderPaid
  tags: ["vip"]

ROUTE  SINK   NEED      MATCHES  ENDPOINT      REASON
bus    bus    required  yes      orders.order  type is OrderPaid
hooks  hooks  optional  no       -             tags vip: no tag order_id
`
	if got.code != 0 || got.stdout != want || got.stderr != "" {
		t.Errorf("exit %d, stderr %q, stdout\n%s\nwant\n%s", got.code, got.stderr, got.stdout, want)
	}

	got = try(t, backend{}, nil, "config", "test", "-c", path, "--json", "--row", `{"k": "order", "group": "g", "tags": "order_id=5"}`)
	var one struct {
		Group        string
		Destinations []struct {
			Route   string
			Matched bool
		}
	}
	if err := json.Unmarshal([]byte(got.stdout), &one); err != nil || got.code != 0 || one.Group != "g" || len(one.Destinations) != 2 || one.Destinations[0].Matched || !one.Destinations[1].Matched {
		t.Errorf("exit %d, %v: %s", got.code, err, got.stdout)
	}
}

// TestConfigTestExitCodes: scripts tell a row without a route from an invalid row.
func TestConfigTestExitCodes(t *testing.T) {
	sink := strings.Replace(routedFile[:strings.Index(routedFile, "  routes:")], "state: none", "state: none\n  sink: bus", 1)
	for _, tt := range []struct {
		name, file string
		args       []string
		code       int
		stderr     string
	}{
		{"no route", routedFile, []string{"--row", "{}"}, 1, "sluicebox: no route of orders matches the row: it is FAILED (unmatched: fail)\n  change the conditions of a route"},
		{"no route, held", routedFile + "  unmatched: hold\n", []string{"--row", "{}"}, 1, "sluicebox: no route of orders matches the row: it waits (unmatched: hold)"},
		{"no route, complete", routedFile + "  unmatched: complete\n", []string{"--row", "{}"}, 0, ""},
		{"one sink", sink, []string{"--row", `{"id": 7}`}, 0, ""},
		{"no row", routedFile, nil, 64, "sluicebox: missing flags: --row=JSON"},
		{"no JSON", routedFile, []string{"--row", "x"}, 64, "sluicebox: --row: row is no JSON object"},
		{"an unknown outbox", routedFile, []string{"--row", "{}", "--outbox", "x"}, 64, `sluicebox: unknown outbox "x"`},
		{"several outboxes", routedFile + "- {table: b, layout: crablet, sink: bus}\n", []string{"--row", "{}"}, 64, "sluicebox: several outboxes: orders, b\n  name one with --outbox"},
		{"no configuration", "outboxes: 1", []string{"--row", "{}"}, 78, "sluicebox: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := try(t, backend{}, nil, append([]string{"config", "test", "-c", file(t, tt.file)}, tt.args...)...)
			if got.code != tt.code || !strings.HasPrefix(got.stderr, tt.stderr) || tt.stderr == "" && got.stderr != "" {
				t.Errorf("exit %d, stderr %q; want %d, %q", got.code, got.stderr, tt.code, tt.stderr)
			}
		})
	}
	p := program{stdin: strings.NewReader(`{"t": "OrderPaid"}`)}
	if got := tryWith(t, p, "config", "test", "-c", file(t, routedFile), "--row", "-"); got.code != 0 || !strings.Contains(got.stdout, "type: OrderPaid") {
		t.Errorf("standard input: exit %d, %s", got.code, got.stdout)
	}
}
