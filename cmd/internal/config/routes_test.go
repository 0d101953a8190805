package config_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/dispatch/route"
	"github.com/sluicebox/sluicebox/store"
)

func TestComposeRoutes(t *testing.T) {
	cfg, err := config.Load("testdata/routes.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	opts, err := cfg.Relay("")
	if err != nil {
		t.Fatal(err)
	}
	orders, events := opts.Outboxes[0], opts.Outboxes[1]
	want := []sluicebox.Route{
		{Name: "bus", Sink: "kafka-eu"},
		{Name: "bus-us", Sink: "kafka-us", Optional: true},
		{Name: "hooks", Sink: "hooks", When: route.Rule{
			Kind: []string{"order"}, Type: []string{"OrderPaid", "OrderShipped"},
			Attributes: map[string][]string{"tenant": {"a", "b"}, "region": {"eu"}}, TagsAll: []string{"order_id"},
		}},
		{Name: "audit", Sink: "audit", When: route.Rule{TagsAny: []string{"payment_id", "transfer_id"}, TagsExact: []string{"vip"}, TagsFrom: "labels"}},
	}
	if !reflect.DeepEqual(orders.Routes, want) || orders.Sink != "" || orders.FirstMatch || orders.AnyRequired || orders.Unmatched != sluicebox.UnmatchedHold {
		t.Errorf("orders: got %+v, want the routes\n%+v", orders, want)
	}
	if !events.FirstMatch || !events.AnyRequired || len(events.Routes) != 2 {
		t.Errorf("events: got %+v", events)
	}
	box := cfg.Outboxes()[0]
	if got := store.WithLegs([]store.Outbox{box}); len(got) != 6 || got[2].Name != "outbox/bus-us" || got[5].Name != "outbox/unmatched" || !box.Routes[1].Optional || box.Routes[0].Optional {
		t.Errorf("legs: got %+v", got)
	}
	if err := store.ValidateOutboxes(cfg.Outboxes(), 0); err != nil {
		t.Error(err)
	}
	if sinks := cfg.Routes(); sinks["outbox/hooks"] != "hooks" || sinks["events/rest"] != "audit" || len(sinks) != 6 {
		t.Errorf("sinks by leg: got %v", sinks)
	}
}

// withRoutes is the start of a configuration with routes. Cases append keys of the outbox.
const withRoutes = source + `sinks:
  bus: {type: nats, url: nats://n1, subject: orders}
  hooks: {type: webhook, url: https://hooks.example/x}
  platform: {type: flowcatalyst, api-base-url: https://platform}
outboxes:
- table: orders
  layout: custom
  state: none
`

func TestFaultsOfRoutes(t *testing.T) {
	const (
		plain = "  kind: order\n  columns: {id: id, payload: body, attributes: [tags]}\n"
		typed = "  columns: {id: id, kind: k, type: t, group: g, payload: body, attributes: [tags, tenant]}\n"
		two   = "  routes:\n  - {name: a, sink: bus}\n  - {name: b, sink: hooks}\n"
	)
	many := "  routes:\n" + strings.Repeat("  - {name: a, sink: bus}\n", 32)
	for i := range 32 {
		many = strings.Replace(many, "name: a,", "name: r"+string(rune('a'+i%26))+strings.Repeat("x", i/26)+",", 1)
	}
	for _, tt := range []struct {
		name, keys string
		want       []string
	}{
		{"sink and routes", plain + "  sink: bus\n" + two, []string{
			"relay.yaml:12: outboxes[0].sink: stands beside routes: each route names its sink; remove it, or make it a route, {name: bus, sink: bus}"}},
		{"dead letters in a table", plain + two + "  dead-letter-table: dead\n", []string{
			"relay.yaml:15: outboxes[0].dead-letter-table: FAILED rows of an outbox with routes cannot be moved"}},
		{"no routes", plain + "  routes: []\n", []string{"relay.yaml:12: outboxes[0].routes: has no route; add one, or write sink: in its place"}},
		{"keys without routes", plain + "  sink: bus\n  fan-out: all\n  complete: any-required\n  unmatched: hold\n", []string{
			"relay.yaml:13: outboxes[0].fan-out: needs routes, and this outbox has one sink; remove it, or write routes in place of sink",
			"relay.yaml:14: outboxes[0].complete: needs routes", "relay.yaml:15: outboxes[0].unmatched: needs routes"}},
		{"names", plain + "  routes:\n  - {sink: bus}\n  - {name: unmatched, sink: bus}\n  - {name: A b, sink: bus}\n  - {name: x, sink: bus}\n  - {name: x, sink: hooks}\n", []string{
			"relay.yaml:13: outboxes[0].routes[0].name: is required; name the route|SLUICEBOX_OUTBOXES_0_ROUTES_0_NAME",
			"relay.yaml:14: outboxes[0].routes[1].name: is unmatched, which is the name of rows that no route matches; give the route another name",
			`relay.yaml:15: outboxes[0].routes[2].name: is "A b", must be 1 to 40 of the characters a-z, 0-9, _ and -, not beginning with _ or -`,
			"relay.yaml:17: outboxes[0].routes[4].name: is x, the name of routes[3] too; give one of them another name"}},
		{"sinks", plain + "  routes:\n  - {name: a}\n  - {name: b, sink: hoks}\n", []string{
			"relay.yaml:13: outboxes[0].routes[0].sink: is required; the sinks are bus, hooks, platform",
			"relay.yaml:14: outboxes[0].routes[1].sink: is hoks, but there is no such sink; did you mean hooks?"}},
		{"a shadowed route", plain + two + "  fan-out: first\n", []string{
			"relay.yaml:14: outboxes[0].routes[1]: never gets a row: routes[0] takes all of its rows (fan-out: first); place it before that route, or change a condition"}},
		{"too many", plain + many, []string{"relay.yaml:12: outboxes[0].routes: has 32 routes, must be at most 31"}},
		{"only optional routes", plain + "  routes: [{name: a, sink: bus, need: optional}]\n  complete: any-required\n", []string{
			"relay.yaml:13: outboxes[0].complete: is any-required, but every route is optional; remove need: optional from a route, or remove complete"}},
		{"receipts", plain + two + "  record: {stream: s}\n", []string{
			"relay.yaml:15: outboxes[0].record: does not apply with routes: whichever route ends last writes the row, and its sink may have answered nothing to record; remove it, or write sink in place of routes"}},
		{"kinds in the lane", typed + "  routes:\n  - {name: a, sink: platform}\n  - {name: b, sink: hooks}\n", []string{
			"relay.yaml:11: outboxes[0].routes: needs one lane for each kind (sink platform, type flowcatalyst) and one for all kinds of a group (the other sinks); set one kind for all rows, for example kind: EVENT in place of the column k, or route to flowcatalyst sinks only"}},
		{"an attribute that rows do not have", plain + "  routes:\n  - {name: a, sink: bus, when: {type: x}}\n  - {name: b, sink: bus, when: {attributes: {tenant: x, tag: y}}}\n" +
			"  - {name: c, sink: bus, when: {tags-any: [x], tags-from: labels}}\n", []string{
			"relay.yaml:13: outboxes[0].routes[0].when.type: looks at the attribute type, which rows of orders cannot have; name its column in the outbox's columns.type",
			"relay.yaml:14: outboxes[0].routes[1].when.attributes.tag: looks at the attribute tag, which rows of orders cannot have; did you mean tags?",
			"relay.yaml:14: outboxes[0].routes[1].when.attributes.tenant: looks at the attribute tenant, which rows of orders cannot have; add tenant to the outbox's columns.attributes",
			"relay.yaml:15: outboxes[0].routes[2].when.tags-from: looks at the attribute labels, which rows of orders cannot have; add labels to the outbox's columns.attributes"}},
		{"no tags", strings.Replace(plain, "[tags]", "[x]", 1) + "  routes: [{name: a, sink: bus, when: {tags-all: [x]}}]\n", []string{
			"relay.yaml:12: outboxes[0].routes[0].when.tags-all: looks at the attribute tags, which rows of orders cannot have; name the attribute with the tags in tags-from, or add tags to the outbox's columns.attributes"}},
		{"conditions", typed + "  routes:\n  - {name: a, sink: bus, when: {tags-from: tags}}\n  - {name: b, sink: bus, when: {tags-any: ['']}}\n  - {name: c, sink: bus, when: {attributes: {tenant: []}}}\n  - {name: d, sink: bus, when: {tipe: x}}\n", []string{
			"relay.yaml:15: outboxes[0].routes[3].when.tipe: unknown key; did you mean type?",
			"relay.yaml:12: outboxes[0].routes[0].when.tags-from: needs tags-all, tags-any or tags-exact; add one, or remove it",
			"relay.yaml:13: outboxes[0].routes[1].when.tags-any: has an empty tag; remove it",
			"relay.yaml:14: outboxes[0].routes[2].when.attributes.tenant: has no value; write the values that match, or remove it"}},
		{"values", plain + "  routes: [{name: a, sink: bus, need: maybe}]\n  fan-out: one\n  complete: all\n  unmatched: drop\n", []string{
			`relay.yaml:13: outboxes[0].fan-out: is "one", must be one of all, first`, "relay.yaml:14: outboxes[0].complete: is \"all\"", "relay.yaml:15: outboxes[0].unmatched: is \"drop\"",
			`relay.yaml:12: outboxes[0].routes[0].need: is "maybe", must be one of required, optional`}},
	} {
		t.Run(tt.name, func(t *testing.T) { compare(t, faults(t, withRoutes+tt.keys), tt.want) })
	}
	load(t, withRoutes+typed+"  routes: [{name: a, sink: platform}, {name: b, sink: platform, need: optional}]\n")
	load(t, withRoutes+strings.Replace(typed, "kind: k, ", "", 1)+"  kind: EVENT\n  routes: [{name: a, sink: platform}, {name: b, sink: hooks, when: {kind: EVENT}}]\n")
}

// TestRouteVariables: the keys of routes have variables, also those of attributes.
func TestRouteVariables(t *testing.T) {
	cfg := load(t, withRoutes+"  columns: {id: id, kind: k, payload: body, attributes: [tenant]}\n  routes: [{name: a, sink: bus, when: {attributes: {tenant: x}}}]\n",
		"SLUICEBOX_OUTBOXES_0_ROUTES_0_SINK=hooks", "SLUICEBOX_OUTBOXES_0_ROUTES_0_WHEN_KIND=[m, n]", "SLUICEBOX_OUTBOXES_0_ROUTES_0_WHEN_ATTRIBUTES_TENANT=[y, z]")
	want := []config.Route{{Name: "a", Sink: "hooks", When: route.Rule{Kind: []string{"m", "n"}, Attributes: map[string][]string{"tenant": {"y", "z"}}}}}
	if got := cfg.Settings.Outboxes[0].Routes; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestPrintedRoutesLoad: what `config check` prints is the same configuration again.
func TestPrintedRoutesLoad(t *testing.T) {
	cfg, err := config.Load("testdata/routes.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := cfg.YAML()
	if err != nil {
		t.Fatal(err)
	}
	again := load(t, string(text))
	for i := range cfg.Settings.Outboxes {
		if got, want := again.Settings.Outboxes[i].Routes, cfg.Settings.Outboxes[i].Routes; !sameRoutes(got, want) {
			t.Errorf("outbox %d: got %+v, want %+v", i, got, want)
		}
	}
}

// sameRoutes compares routes; an empty list is none.
func sameRoutes(a, b []config.Route) bool {
	one, errA := route.Compile(rulesOf(a), false)
	two, errB := route.Compile(rulesOf(b), false)
	if errA != nil || errB != nil || len(a) != len(b) {
		return false
	}
	it := &store.Item{Kind: "order", Attributes: store.Attributes{{Name: "type", Value: "x"}, {Name: "tags", Value: "y"}}}
	for i := range a {
		if a[i].Name != b[i].Name || a[i].Sink != b[i].Sink || a[i].Need != b[i].Need || one.Explain(it)[i] != two.Explain(it)[i] {
			return false
		}
	}
	return true
}

func rulesOf(routes []config.Route) (rules []route.Rule) {
	for _, r := range routes {
		rules = append(rules, r.When)
	}
	return rules
}

func TestTestRow(t *testing.T) {
	cfg, err := config.Load("testdata/routes.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, row string
		outbox    int
		matched   string // the names of the routes
		unmatched string
	}{
		{"columns", `{"id": 7, "aggregatetype": "order", "aggregateid": "c1", "type": "OrderPaid", "tags": "{order_id=5}", "tenant": "a", "region": "eu", "payload": {"x": 1}}`, 0, "bus bus-us hooks", ""},
		{"names", `{"kind": "order", "group": "c1", "type": "OrderPaid", "tags": ["order_id=5"], "attributes": {"tenant": "b", "region": "eu", "labels": ["vip", "payment_id=3"]}}`, 0, "bus bus-us hooks audit", ""},
		{"nothing", `{}`, 0, "bus bus-us", ""},
		{"the first route", `{"type": "WalletOpened", "tags": ["wallet_id=1"]}`, 1, "wallet", ""},
		{"the last route", `{"type": "WalletOpened", "tags": ["wallet=1"]}`, 1, "rest", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			test, err := cfg.TestRow(tt.outbox, []byte(tt.row))
			if err != nil {
				t.Fatal(err)
			}
			var matched []string
			for _, d := range test.Destinations {
				if d.Matched {
					matched = append(matched, d.Route)
				}
				if d.Reason == "" {
					t.Errorf("route %s has no reason", d.Route)
				}
			}
			if got := strings.Join(matched, " "); got != tt.matched || test.Unmatched != tt.unmatched {
				t.Errorf("got routes %q, unmatched %q; want %q, %q", got, test.Unmatched, tt.matched, tt.unmatched)
			}
		})
	}
	test, err := cfg.TestRow(0, []byte(`{"aggregatetype": "invoice", "aggregateid": "c1"}`))
	if err != nil || test.Item.Group != store.GroupOf("c1") || test.Destinations[0].Endpoint != "orders.invoice" {
		t.Errorf("got %+v, %v; want group c1 and the topic orders.invoice", test, err)
	}
	for row, want := range map[string]string{
		"x":                              "row is no JSON object; write",
		"[]":                             "row is no JSON object",
		`{"tipe": "x"}`:                  "row has tipe, which the relay does not read; did you mean type?",
		`{"attributes": {"x": 1}}`:       "rows of the outbox have no attribute x; add x to the outbox's columns.attributes",
		`{"attributes": 1}`:              "attributes is no JSON object",
		`{"attributes": {"tenants": 1}}`: "rows of the outbox have no attribute tenants; did you mean tenant?",
	} {
		if _, err := cfg.TestRow(0, []byte(row)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", row, err, want)
		}
	}
}

// The host of a row is that of its payload, if url names a member of it.
func TestTestRowWithAddress(t *testing.T) {
	cfg := load(t, `
name: jobs
source: {url: 'postgres://relay@db.example/post'}
outboxes: [{table: postbox_messages, layout: postbox, sink: jobs}]
sinks: {jobs: {type: webhook, url: '{payload.url}', body: '{payload.body}', allow-hosts: [hooks.example]}}
`)
	for url, want := range map[string]string{"https://hooks.example/paid?key=x": "https://hooks.example", "https://other.example/": ""} {
		test, err := cfg.TestRow(0, []byte(`{"type": "DISPATCH_JOB", "payload": "{\"url\": \"`+url+`\"}"}`))
		if err != nil || test.Destinations[0].Endpoint != want {
			t.Errorf("%s: got %+v, %v; want endpoint %q", url, test, err, want)
		}
	}
}
