package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/flowcatalyst"
)

const source = "source: {url: \"postgres://db/shop\"}\n"

func TestRouteFaults(t *testing.T) {
	const sinks = `sinks:
  platform: {type: flowcatalyst, api-base-url: "https://platform"}
`
	tests := []struct {
		name, text string
		want       []string
	}{
		{"preset and outboxes", least + "outboxes:\n  - {table: a, layout: outbox-messages, sink: x}\n",
			[]string{"relay.yaml:2: flowcatalyst: is a preset for outboxes and sinks and excludes them; use one of them",
				"relay.yaml:4: outboxes[0].sink: is x, but there is no such sink; write a section sinks"}},
		{"preset without its address", source + "flowcatalyst:\n  wire: items\n",
			[]string{"relay.yaml:2: flowcatalyst.api-base-url: is required; write https://host[:port] (or set SLUICEBOX_FLOWCATALYST_API_BASE_URL)"}},
		{"preset without a table", source + "flowcatalyst:\n  api-base-url: https://p\n  events-table: ''\n  dispatch-jobs-table: ''\n",
			[]string{"relay.yaml:2: flowcatalyst: has neither an events-table nor a dispatch-jobs-table"}},
		{"preset with one table twice", source + "flowcatalyst:\n  api-base-url: https://p\n  events-table: a\n  dispatch-jobs-table: a\n",
			[]string{`relay.yaml:5: flowcatalyst.dispatch-jobs-table: the table "a" is also that of flowcatalyst.events-table`}},
		{"preset with a bad address", source + "flowcatalyst:\n  api-base-url: ftp://p\n",
			[]string{`relay.yaml:3: flowcatalyst.api-base-url: |must be http or https`}},
		{"credentials in the address", source + "flowcatalyst:\n  api-base-url: https://u:canary@p\n",
			[]string{"relay.yaml:3: flowcatalyst.api-base-url: must not contain a user or a password"}},
		{"query in the address", source + "flowcatalyst:\n  api-base-url: https://p/?a=b\n",
			[]string{"relay.yaml:3: flowcatalyst.api-base-url: must end with the path, without ? or #"}},
		{"token with a line break", source + "flowcatalyst:\n  api-base-url: https://p\n  api-token: \"can\\nary\"\n",
			[]string{"relay.yaml:4: flowcatalyst.api-token: contains a space, a line break"}},
		{"unknown sink", source + "outboxes:\n  - table: a\n    layout: outbox-messages\n    sink: platfor\n" + sinks,
			[]string{"relay.yaml:5: outboxes[0].sink: is platfor, but there is no such sink; did you mean platform?"}},
		{"no sink", source + "outboxes:\n  - table: a\n    layout: outbox-messages\n" + sinks,
			[]string{"relay.yaml:3: outboxes[0].sink: is required; the sinks are platform"}},
		{"no table, no layout", source + "outboxes:\n  - sink: platform\n" + sinks,
			[]string{"relay.yaml:3: outboxes[0].table: is required", "relay.yaml:3: outboxes[0].layout: is required; write the name of a layout, or layout: custom"}},
		{"flowcatalyst layout without a kind", source + "outboxes:\n  - {table: a, layout: flowcatalyst, sink: platform}\n" + sinks,
			[]string{"relay.yaml:3: outboxes[0].kind: is required: the flowcatalyst layout has no column for it"}},
		{"kind where a column has it", source + "outboxes:\n  - {table: a, layout: outbox-messages, kind: EVENT, sink: platform}\n" + sinks,
			[]string{"relay.yaml:3: outboxes[0].kind: does not apply"}},
		{"kind without a path", source + "outboxes:\n  - {table: a, layout: flowcatalyst, kind: AUDIT_LOG, sink: platform}\n" + sinks,
			[]string{"relay.yaml:3: outboxes[0].kind: kind AUDIT_LOG has no endpoint with wire array; set wire to items in the sink platform"}},
		{"the first API's wire for today's table", source + "outboxes:\n  - {table: a, layout: outbox-messages, sink: p}\nsinks:\n  p:\n    type: flowcatalyst\n    wire: array\n    api-base-url: https://p\n",
			[]string{"relay.yaml:7: sinks.p.wire: is array, but outbox a has the layout outbox-messages, whose rows are for the current API; use wire: items or omit it"}},
		{"unknown kind", source + "outboxes:\n  - {table: a, layout: flowcatalyst, kind: EVENTS, sink: platform}\n" + sinks,
			[]string{`relay.yaml:3: outboxes[0].kind: is "EVENTS", must be one of EVENT, DISPATCH_JOB, AUDIT_LOG; did you mean EVENT?`}},
		{"two of one name", source + "outboxes:\n  - {name: n, table: a, layout: outbox-messages, sink: platform}\n  - {name: n, table: b, layout: outbox-messages, sink: platform}\n" + sinks,
			[]string{`relay.yaml:4: outboxes[1].name: the name "n" is also that of outboxes[0].table; give one of them another name`}},
		{"one table twice", source + "outboxes:\n  - {name: n, table: a, layout: outbox-messages, sink: platform}\n  - {name: m, table: a, layout: outbox-messages, sink: platform}\n" + sinks,
			[]string{`relay.yaml:4: outboxes[1].table: the table "a" is also that of outboxes[0].table; two outboxes over one table are not supported`}},
		{"table in three parts", source + "outboxes:\n  - {table: a.b.c, layout: outbox-messages, sink: platform}\n" + sinks,
			[]string{`relay.yaml:3: outboxes[0].table: is "a.b.c", must be table or schema.table`}},
		{"name of a sink", source + "outboxes:\n  - {table: a, layout: outbox-messages, sink: My Sink}\nsinks:\n  My Sink: {type: flowcatalyst, api-base-url: https://p}\n",
			[]string{"relay.yaml:5: sinks.My Sink: is not a valid sink name"}},
		{"sink without type and address", source + "outboxes:\n  - {table: a, layout: outbox-messages, sink: p}\nsinks:\n  p: {}\n",
			[]string{"relay.yaml:5: sinks.p.type: is required; write type: and one of camunda, "}},
		{"sink written twice", source + "outboxes:\n  - {table: a, layout: outbox-messages, sink: p}\nsinks:\n  p: {type: flowcatalyst, api-base-url: https://p}\n  p: {type: flowcatalyst, api-base-url: https://q}\n",
			[]string{"relay.yaml:6: sinks.p: is a duplicate of line 5"}},
		{"token under both names", source + "outboxes:\n  - {table: a, layout: outbox-messages, sink: p}\nsinks:\n  p:\n    type: flowcatalyst\n    api-base-url: https://p\n    token: a\n    api-token: b\n",
			[]string{"relay.yaml:9: sinks.p.api-token: is another name for token, which is also given; remove one"}},
		{"key of all sinks under one", source + "outboxes:\n  - {table: a, layout: outbox-messages, sink: p}\nsinks:\n  p:\n    type: flowcatalyst\n    api-base-url: https://p\n    takeover: timeout\n",
			[]string{"relay.yaml:8: sinks.p.takeover: applies to all sinks: set it under dispatch"}},
		{"range in a sink", source + "dispatch: {max-concurrent-groups: 0}\noutboxes:\n  - {table: a, layout: outbox-messages, sink: p}\nsinks:\n  p:\n    type: flowcatalyst\n    api-base-url: https://p\n    backoff: {max: 1ms}\n",
			[]string{"relay.yaml:2: dispatch.max-concurrent-groups: is 0, must be at least 1",
				"relay.yaml:9: sinks.p.backoff.max: is 1ms, must not be below backoff.initial (200ms)"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			compare(t, faults(t, tt.text), tt.want)
		})
	}
}

// The default wire of a sink follows the layout of its outboxes, because with the other
// wire audit logs would FAIL unsent and events would use up their retries.
func TestWireFollowsTheLayout(t *testing.T) {
	const (
		today  = "  - {table: a, layout: outbox-messages, sink: %s}\n"
		first  = "  - {table: b, layout: flowcatalyst, kind: EVENT, sink: %s}\n"
		custom = "  - {table: c, layout: custom, kind: EVENT, sink: %s, columns: {id: i, payload: p, delivered: d, failed: f}, state: timestamps, order-by: [i]}\n"
	)
	for _, c := range []struct {
		outboxes string
		wire     flowcatalyst.Wire
	}{
		{fmt.Sprintf(today, "p"), flowcatalyst.WireItems},
		{fmt.Sprintf(first, "p"), flowcatalyst.WireArray},
		{fmt.Sprintf(custom, "p"), flowcatalyst.WireArray},
		{fmt.Sprintf(first+today, "p", "p"), flowcatalyst.WireItems},     // the only wire that works for both
		{fmt.Sprintf(first+today, "p", "other"), flowcatalyst.WireArray}, // another sink's table
		{fmt.Sprintf(today, "other"), flowcatalyst.WireItems},            // only for replays
		{fmt.Sprintf(first, "other"), flowcatalyst.WireArray},
	} {
		text := source + "outboxes:\n" + c.outboxes + "sinks:\n  p: {type: flowcatalyst, api-base-url: https://p}\n  other: {type: webhook, url: https://h}\n"
		if got := load(t, text).FlowCatalyst("p").Wire; got != c.wire {
			t.Errorf("the wire is %s, want %s, for\n%s", got, c.wire, c.outboxes)
		}
	}
	if got := load(t, least).FlowCatalyst("flowcatalyst").Wire; got != flowcatalyst.WireArray {
		t.Errorf("the preset's wire is %s", got)
	}
	if got := load(t, least, "SLUICEBOX_FLOWCATALYST_WIRE=items").FlowCatalyst("flowcatalyst").Wire; got != flowcatalyst.WireItems {
		t.Errorf("a wire that is given is %s", got)
	}
}

func TestSourceURLs(t *testing.T) {
	tests := []struct{ url, want string }{
		{"mysql://u:can#ary@db/shop", "is not a URL of the form mysql://"},
		{"mariadb://u:12?canary@db/shop", "is not a URL of the form mariadb://"},
		{"mysql://u:canary@db/", "names no database; write mysql://"},
		{"mysql://u:canary@db/shop?sslmode=disable", "has an unknown parameter: \"sslmode\"; known parameters are tls, "},
		{"mongodb://u:canary@db", "names no database; write mongodb://"},
		{"mongodb://u:canary@db1:27017,db2:27017/?replicaSet=rs0", "names no database; write mongodb://"},
		{"mongodb://u:canary@db/admin", "names the database admin, which is the server's own; "},
		{"mongodb://u:12/canary@db/shop", "percent-encode special characters"},
		{"mongodb://u:can#ary@db/shop", "percent-encode special characters"},
		{"mongodb://u:canary@db/shop?tls=maybe", "cannot be used: |connection-string"},
		{"mongodb+srv://u:canary@cluster.example/", "names no database; write mongodb://"},
		{"oracle://u:canary@db/shop", "must be postgres://"},
		{"host=db password=canary", "is not a URL; write postgres://user@host:port/database"},
		{"postgres://u:can#ary@db/shop", "percent-encode special characters"},
		{"postgres://u:12?canary@db/shop", "percent-encode special characters"},
		{"postgres://u:12/canary@db/shop", "percent-encode special characters"},
		{"postgres://u:%zzcanary@db/shop", "percent-encode special characters"},
	}
	for _, key := range []string{"url", "stream-url"} {
		for _, tt := range tests {
			t.Run(key+" "+tt.url, func(t *testing.T) {
				text := "flowcatalyst: {api-base-url: https://p}\nsource:\n  " + key + ": '" + tt.url + "'\n"
				if key == "stream-url" && strings.HasPrefix(tt.url, "mongo") {
					text += "  url: mongodb://u@db/shop\n"
				} else if key == "stream-url" && (strings.HasPrefix(tt.url, "my") || strings.HasPrefix(tt.url, "ma")) {
					text += "  url: mysql://u@db/shop\n"
				} else if key == "stream-url" {
					text += "  url: postgres://db/shop\n"
				}
				got := faults(t, text)
				compare(t, got, []string{"relay.yaml:3: source." + key + ": |" + tt.want})
				mustHide(t, got[0])
			})
		}
	}
	for _, url := range []string{"mongodb://db/shop", "mongodb://u:p%40ss@db1:27017,db2:27018/shop?replicaSet=rs0&authSource=admin", "mongodb+srv://u:p@cluster.example/shop",
		"mysql://u@db/shop", "MariaDB://u:p%40ss@db:3307/shop?tls=skip-verify", "sqlite:///var/lib/shop.db", "sqlite:/var/lib/shop.db", "sqlite:shop.db", "SQLite:shop%20two.db", "postgres://db/shop", "postgresql://u:p%40ss@db:5432/shop?sslmode=disable", "POSTGRES://db/shop", "postgres:///shop?host=/run/postgresql",
		"postgres://u:p@db1:5432,db2:5433/shop", "postgres://db1,[::1]:5433,db3/shop?target_session_attrs=any"} {
		load(t, "flowcatalyst: {api-base-url: https://p}\nsource: {url: '"+url+"'}\n")
	}
}

// TestMongo checks the keys that apply only to documents.
func TestMongo(t *testing.T) {
	const platform = "sinks: {platform: {type: flowcatalyst, api-base-url: https://p}}\n"
	const documents = "source: {url: 'mongodb://db/shop'}\n" + platform
	load(t, documents+"outboxes: [{table: app.outbox_messages, layout: outbox-messages-text, sink: platform}]\n")
	for _, tt := range []struct{ text, want string }{
		{documents + "outboxes: [{table: 'a$b', layout: outbox-messages, sink: platform}]\n",
			`relay.yaml:3: outboxes[0].table: is "a$b", must be a collection of the URL's database`},
		{documents + "outboxes: [{table: system.users, layout: outbox-messages, sink: platform}]\n",
			`relay.yaml:3: outboxes[0].table: is "system.users", must be a collection of the URL's database`},
		{documents + "outboxes: [{table: a, layout: custom, sink: platform, kind: EVENT, columns: {id: _id, payload: a..b, delivered: sent, failed: given_up}, state: timestamps}]\n",
			`relay.yaml:3: outboxes[0].columns.payload: is "a..b", must be the field's name`},
		{"source: {url: 'postgres://db/shop'}\n" + platform + "outboxes: [{table: a, layout: outbox-messages-text, sink: platform}]\n",
			"relay.yaml:3: outboxes[0].layout: is outbox-messages-text, which is no layout of tables; those are flowcatalyst, outbox-messages, "},
		{"source: {url: 'postgres://db/shop'}\n" + platform + "outboxes: [{table: a, layout: custom, sink: platform, kind: EVENT, columns: {id: id, payload: p, delivered: sent, failed: given_up}, state: timestamps, text-times: true}]\n",
			"relay.yaml:3: outboxes[0].text-times: applies only to MongoDB: the columns of a table have types"},
		{"source: {url: 'mongodb://db/shop', stream-url: 'postgres://db/shop'}\nflowcatalyst: {api-base-url: https://p}\n",
			"relay.yaml:1: source.stream-url: must be the same database as source.url"},
	} {
		compare(t, faults(t, tt.text), []string{tt.want})
	}
}

// TestSQLite checks the values and keys that do not apply to a file.
func TestSQLite(t *testing.T) {
	const preset = "flowcatalyst: {api-base-url: https://p}\nsource:\n  url: "
	for _, tt := range []struct{ url, want string }{
		{"'sqlite://db/shop.db'", "names a host|sqlite:///absolute/path.db"},
		{"'sqlite:'", "names no file"},
		{"'sqlite:///var/lib/'", "names no file"},
		{"'sqlite::memory:'", "names a database in memory"},
		{"'sqlite:shop.db?mode=ro'", "has parameters, but SQLite supports none"},
		{"'sqlite:50%.db'", "has a path that cannot be decoded|%25"},
	} {
		compare(t, faults(t, preset+tt.url+"\n"), []string{"relay.yaml:3: source.url: |" + tt.want})
	}
	compare(t, faults(t, preset+"sqlite:shop.db\n  stream-url: sqlite:shop.db\n"),
		[]string{"relay.yaml:4: source.stream-url: does not apply to SQLite, which has no roles"})
	compare(t, faults(t, preset+"postgres://db/shop\n  stream-url: sqlite:shop.db\n"),
		[]string{"relay.yaml:4: source.stream-url: must be the same database as source.url"})
	const tables = "source: {url: sqlite:shop.db}\nflowcatalyst: {api-base-url: https://p, dispatch-jobs-table: '', events-table: %s}\n"
	compare(t, faults(t, fmt.Sprintf(tables, "shop.events")),
		[]string{`relay.yaml:2: flowcatalyst.events-table: is "shop.events", but SQLite has no schemas; name only the table`})
	load(t, fmt.Sprintf(tables, "main.events"))
}
