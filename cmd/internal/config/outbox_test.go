package config_test

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

func TestComposeCustomLayouts(t *testing.T) {
	cfg, err := config.Load("testdata/custom.yaml", examplesEnviron())
	if err != nil {
		t.Fatal(err)
	}
	want := []store.Outbox{
		{Name: "shop.outbox", Schema: "shop", Table: "outbox", Layout: store.Layout{
			Name: "custom",
			Columns: store.Columns{
				ID: "Id", Group: "body", Payload: "body", Status: "state",
				RetryCount: "tries", Claimed: "taken_at", Settled: "ended_at", Error: "last_error",
			},
			Attributes: []store.AttributeColumn{
				{Column: "event_type", Name: "kind"}, {Column: "event_name", Name: "type"}, {Column: "happened_at", Name: "time"},
				{Column: "tenant_id", Name: "tenant_id"}, {Column: "headers", Spread: true},
			},
			State: store.StateWords,
			Words: map[store.Status]string{
				store.Pending: "NEW", store.Processing: "SENDING", store.Completed: "SENT", store.Failed: "DEAD",
			},
			GroupPath: []string{"customer", "id"},
			OrderBy:   []string{"created_at", "part"},
		}, Retention: 36 * time.Hour, ArchiveSchema: "old", Archive: "events"},
		{Name: "numbered", Table: "numbered", Kind: "invoice", Layout: store.Layout{
			Name:    "custom",
			Columns: store.Columns{ID: "id", Payload: "payload", Status: "status"},
			State:   store.StateNumbers,
			Numbers: map[store.Status]int{store.Pending: 0, store.Processing: 1, store.Completed: 2, store.Failed: 3},
			FailedNumbers: map[store.Reason]int{
				store.ReasonBadRequest: 4, store.ReasonUnauthorized: 5, store.ReasonForbidden: 6,
				store.ReasonGateway: 7, store.ReasonInternal: 8,
			},
			DeleteDelivered: true,
		}, FailedArchiveSchema: "dead", FailedArchive: "invoices"},
		{Name: "timed", Table: "timed", Kind: "EVENT", Layout: store.Layout{
			Name:    "custom",
			Columns: store.Columns{ID: "id", Payload: "payload", Delivered: "sent_at", Failed: "failed_at"},
			State:   store.StateTimestamps,
		}},
	}
	got := cfg.Outboxes()
	for i := range want {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("outbox %d is\n%+v, want\n%+v", i, got[i], want[i])
		}
	}
	if err := store.ValidateOutboxes(got, 0); err != nil {
		t.Error(err)
	}
}

// TestComposeStates: columns and values that a table need not have are left out, and a
// group may have several columns.
func TestComposeStates(t *testing.T) {
	cfg, err := config.Load("testdata/states.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []store.Layout{
		{
			Name: "custom", State: store.StateBoolean, Lease: true, GroupRest: []string{"aggregate_id"},
			Columns:    store.Columns{ID: "id", Group: "aggregate_type", Payload: "payload", Status: "published", Claimed: "in_progress_until"},
			Attributes: []store.AttributeColumn{{Column: "aggregate_type", Name: "kind"}},
		},
		{
			Name: "custom", State: store.StateWords,
			Columns: store.Columns{ID: "id", Group: "aggregate_id", Payload: "payload", Status: "status", Claimed: "taken_at"},
			Words:   map[store.Status]string{store.Pending: "NEW", store.Completed: "SENT"},
		},
		{
			Name: "custom", State: store.StateNone,
			Columns: store.Columns{ID: "id", Group: "aggregate_id", Payload: "payload"},
		},
	}
	for i, o := range cfg.Outboxes() {
		if !reflect.DeepEqual(o.Layout, want[i]) {
			t.Errorf("outbox %s has the layout\n%+v, want\n%+v", o.Name, o.Layout, want[i])
		}
	}
}

// messages is the start of a configuration with one outbox of messages.
const messages = source + `sinks:
  hooks: {type: webhook, url: https://hooks.example/x}
outboxes:
- message-prefix: orders
  sink: hooks
  kind: order
`

func TestMessageFaults(t *testing.T) {
	const whole = messages + "  layout: custom\n  state: none\n"
	for _, tt := range []struct {
		name, file string
		want       []string
	}{
		{"a table too", whole + "  table: t\n", []string{"relay.yaml:5: outboxes[0].message-prefix: stands beside table: an outbox is a table or the messages with a prefix; remove one"}},
		{"a layout of tables", messages + "  layout: debezium\n", []string{"relay.yaml:8: outboxes[0].layout: is debezium, a layout of tables; with message-prefix, use layout: custom and state: none"}},
		{"a state", messages + "  layout: custom\n  columns: {delivered: sent}\n  state: timestamps\n", []string{"relay.yaml:10: outboxes[0].state: is \"timestamps\", must be none with message-prefix"}},
		{"deletion", whole + "  delete-delivered: true\n", []string{"relay.yaml:10: outboxes[0].delete-delivered: does not apply with message-prefix"}},
		{"twice", whole + "- {message-prefix: orders, name: b, layout: custom, state: none, kind: order, sink: hooks}\n", []string{"relay.yaml:10: outboxes[1].message-prefix: the prefix \"orders\" is also that of outboxes[0].message-prefix; two outboxes over one prefix"}},
		{"another database", strings.Replace(whole, "postgres://", "mysql://u@", 1), []string{"relay.yaml:5: outboxes[0].message-prefix: applies only to PostgreSQL, whose WAL has logical messages; name a table"}},
		{"a group path alone", whole + "  group-path: a.b\n", []string{"relay.yaml:10: outboxes[0].group-path: needs columns.group"}},
	} {
		t.Run(tt.name, func(t *testing.T) { compare(t, faults(t, tt.file), tt.want) })
	}
}

// TestComposeMessages: id and payload are optional, and the name is the prefix.
func TestComposeMessages(t *testing.T) {
	cfg := load(t, messages+"  layout: custom\n  state: none\n  columns: {group: [a, b]}\n")
	box := cfg.Outboxes()[0]
	if box.Name != "orders" || box.MessagePrefix != "orders" || box.Table != "" || !box.Layout.LogOnly() || box.Layout.Columns.Group != "a" {
		t.Errorf("outbox %+v", box)
	}
	if err := store.ValidateOutboxes(cfg.Outboxes(), 0); err != nil {
		t.Error(err)
	}
}

// custom is the start of a configuration with one outbox of the custom layout. Cases
// append keys.
const custom = source + `sinks:
  hooks: {type: webhook, url: https://hooks.example/x}
  platform: {type: flowcatalyst, api-base-url: https://platform}
outboxes:
- table: shop.outbox
  layout: custom
`

func TestCustomFaults(t *testing.T) {
	const (
		hooks = "  sink: hooks\n  kind: order\n"
		words = hooks + "  columns: {id: id, payload: body, group: body, status: state}\n  state: words\n"
		all   = "  words: {pending: NEW, processing: SENDING, completed: SENT, failed: DEAD}\n"
		times = hooks + "  columns: {id: id, payload: body, delivered: sent, failed: gone}\n  state: timestamps\n"
	)
	for _, tt := range []struct {
		name, keys string
		want       []string
	}{
		{"nothing", "  sink: hooks\n", []string{
			"relay.yaml:6: outboxes[0].state: is required; set state: words, numbers, boolean, timestamps or none, as the table stores it|SLUICEBOX_OUTBOXES_0_STATE",
			"relay.yaml:6: outboxes[0].columns.id: is not set; name the column",
			"relay.yaml:6: outboxes[0].columns.payload: is not set; name the column",
			"relay.yaml:6: outboxes[0].kind: is required: the custom layout has no column for it; set the kind of its rows, for example kind: order, or name its column in columns.kind",
		}},
		{"an unknown state", hooks + "  columns: {id: id, payload: body}\n  state: log\n", []string{
			"relay.yaml:11: outboxes[0].state: is \"log\", must be one of words, numbers, boolean, timestamps, none"}},
		{"no state and its columns", hooks + "  columns:\n    id: id\n    payload: body\n    error: text\n  state: none\n", []string{
			"relay.yaml:13: outboxes[0].columns.error: does not apply: with state: none, the relay writes nothing into the table"}},
		{"a lease without its time-out", times[:strings.Index(times, "}")] + ", lease: until}\n  state: timestamps\n", []string{
			"relay.yaml:10: outboxes[0].columns.lease: needs dispatch.takeover: timeout"}},
		{"an attribute twice", hooks + "  columns:\n    id: id\n    payload: body\n    type: t\n    attributes: [type]\n    delivered: sent\n  state: timestamps\n", []string{
			`relay.yaml:13: outboxes[0].columns.type: names column "type", whose attribute type column "t" gives too`}},
		{"no words", words, []string{
			"relay.yaml:6: outboxes[0].words.pending: is not set; PENDING needs a word", "|words.completed: is not set"}},
		{"no time for a retention", words + all + "  retention: 7d\n", []string{
			"relay.yaml:13: outboxes[0].retention: delivered rows cannot be pruned: layout custom has no settlement time column; name one in columns.settled or columns.claimed, or remove the retention"}},
		{"a retention of what is deleted", times + "  delete-delivered: true\n  retention: 1h\n", []string{
			"relay.yaml:13: outboxes[0].retention: delivered rows cannot be pruned: layout custom deletes them at once; remove"}},
		{"a retention below zero", times + "  retention: -1h\n", []string{"relay.yaml:12: outboxes[0].retention: is -1h0m0s, must not be below 0s"}},
		{"an archive without a retention", times + "  archive: old\n", []string{
			"relay.yaml:12: outboxes[0].archive: rows are archived after their retention, and there is none; set a retention such as 168h, or remove the archive"}},
		{"an archive that is an outbox", times + "  retention: 1h\n  archive: shop.outbox\n", []string{"relay.yaml:13: outboxes[0].archive: is the table of outboxes[0]; name a table of its own"}},
		{"an archive that is no table", times + "  retention: 1h\n  archive: a.b.c\n", []string{`relay.yaml:13: outboxes[0].archive: is "a.b.c", must be table or schema.table`}},
		{"dead letters in an outbox", times + "  dead-letter-table: shop.outbox\n", []string{"relay.yaml:12: outboxes[0].dead-letter-table: is the table of outboxes[0]; name a table of its own"}},
		{"dead letters of what keeps no state", hooks + "  columns: {id: id, payload: body}\n  state: none\n  dead-letter-table: dead\n", []string{
			"relay.yaml:12: outboxes[0].dead-letter-table: FAILED rows cannot be moved: layout custom keeps no state"}},
		{"dead letters that block", times + "  dead-letter-table: dead\ndispatch: {on-failed: block}\n", []string{
			"relay.yaml:12: outboxes[0].dead-letter-table: does not go with on-failed: block of sink hooks"}},
		{"a transaction beside a state", hooks + "  columns:\n    id: id\n    payload: body\n    transaction: xid\n    delivered: sent\n  state: timestamps\n", []string{
			"relay.yaml:13: outboxes[0].columns.transaction: is only for state: none"}},
		{"a word twice", words + "  words:\n    pending: NEW\n    processing: SENDING\n    completed: SENT\n    failed: NEW\n", []string{
			`relay.yaml:16: outboxes[0].words.failed: is "NEW", which stands for PENDING too`}},
		{"words that are numbers", words + "  words: {pending: 0, processing: SENDING, completed: SENT, failed: DEAD}\n", []string{
			"relay.yaml:12: outboxes[0].words.pending: must be a text; put it in quotes"}},
		{"numbers", hooks + "  columns: {id: id, payload: body, status: state}\n  state: numbers\n  numbers: {pending: 0, processing: 0, completed: 2}\n  failed-numbers:\n    gateway: 2\n", []string{
			"relay.yaml:12: outboxes[0].numbers.processing: is 0, which stands for PENDING too",
			"relay.yaml:14: outboxes[0].failed-numbers.gateway: is 2, which stands for COMPLETED too"}},
		{"words with numbers", times + all + "  numbers: {pending: 0}\n", []string{
			"relay.yaml:12: outboxes[0].words: needs state: words, but this is state: timestamps; remove it, or change the state",
			"relay.yaml:13: outboxes[0].numbers: needs state: numbers, but this is state: timestamps"}},
		{"no columns for times", hooks + "  columns:\n    id: id\n    payload: body\n    status: state\n  state: timestamps\n", []string{
			"relay.yaml:13: outboxes[0].columns.status: does not apply: with state: timestamps, columns.delivered and columns.failed are the state",
			"relay.yaml:10: outboxes[0].columns.delivered: is not set"}},
		{"times with words", hooks + "  columns: {id: id, payload: body, status: state, failed: sent}\n  state: words\n" + all, []string{
			"relay.yaml:10: outboxes[0].columns.failed: does not apply: with state: words, the time of the settlement is written into columns.settled"}},
		{"a column twice", hooks + "  columns:\n    id: id\n    payload: body\n    status: state\n    error: state\n  state: words\n" + all, []string{
			`relay.yaml:14: outboxes[0].columns.error: is column "state", which columns.status is too`}},
		{"a column that is none", times + "  order-by: [created_at, ' x']\n", []string{
			`relay.yaml:12: outboxes[0].order-by: is " x", must be the column's name in its exact spelling`}},
		{"an unknown column", hooks + "  columns:\n    id: id\n    payload: body\n    sent: x\n  state: timestamps\n", []string{
			"relay.yaml:13: outboxes[0].columns.sent: unknown key; the keys here are id, payload", "|columns.delivered: is not set"}},
		{"a path without its column", times + "  group-path: customer.id\n", []string{
			"relay.yaml:12: outboxes[0].group-path: needs columns.group, the column with the JSON"}},
		{"a bad path", words + all + "  group-path: $.customer\n", []string{
			`relay.yaml:13: outboxes[0].group-path: is "$.customer": at character 1, begin with the first key, without $`}},
		{"a path into a list", words + all + "  group-path: lines[0].id\n", []string{
			`relay.yaml:13: outboxes[0].group-path: is "lines[0].id": at character 6, an array cannot be entered`}},
		{"a text for a switch", times + "  delete-delivered: 'yes'\n", []string{
			"relay.yaml:12: outboxes[0].delete-delivered: must be true or false, without quotes"}},
		{"one for a list", times + "  order-by: created_at\n", []string{
			"relay.yaml:12: outboxes[0].order-by: must hold a list, each entry behind a - or all of them in [ ]"}},
		{"takeover by time", times + "dispatch: {takeover: timeout}\n", []string{
			"relay.yaml:10: outboxes[0].columns.claimed: is required with dispatch.takeover: timeout"}},
		{"kind twice", hooks + "  columns: {id: id, kind: type, payload: body, delivered: sent, failed: gone}\n  state: timestamps\n", []string{
			"relay.yaml:9: outboxes[0].kind: does not apply: the custom layout has the kind in its column type"}},
		{"kind of a platform", strings.Replace(times, "hooks", "platform", 1), []string{
			`relay.yaml:9: outboxes[0].kind: is "order", must be one of EVENT, DISPATCH_JOB, AUDIT_LOG`}},
	} {
		t.Run(tt.name, func(t *testing.T) { compare(t, faults(t, custom+tt.keys), tt.want) })
	}
	load(t, custom+times)
	load(t, custom+words+all+"  group-path: '\"customer no\".id'\n")
}

// TestCustomKeysOfOtherLayouts checks that keys of the custom layout are refused with
// other layouts.
func TestCustomKeysOfOtherLayouts(t *testing.T) {
	text := strings.Replace(custom, "layout: custom", "layout: flowcatalyst", 1) + `  sink: hooks
  kind: any word
  state: words
  words: {pending: NEW}
  group-path: a
  delete-delivered: true
`
	compare(t, faults(t, text), []string{
		"relay.yaml:10: outboxes[0].state: needs layout: custom, but this is layout: flowcatalyst; remove it, or change the layout",
		"relay.yaml:11: outboxes[0].words: needs layout: custom",
		"relay.yaml:12: outboxes[0].group-path: needs layout: custom",
		"relay.yaml:13: outboxes[0].delete-delivered: needs layout: custom",
	})
}

// TestOrderByOfEveryLayout checks that order-by works with every layout and with the
// preset.
func TestOrderByOfEveryLayout(t *testing.T) {
	for layout, kind := range map[string]string{"flowcatalyst": "  kind: EVENT\n", "outbox-messages": ""} {
		text := strings.Replace(custom, "layout: custom", "layout: "+layout, 1) + "  sink: hooks\n" + kind
		if o := load(t, text).Outboxes()[0]; !slices.Equal(o.Layout.OrderBy, []string{"created_at"}) {
			t.Errorf("%s: %v by default", layout, o.Layout.OrderBy)
		}
		if o := load(t, text+"  order-by: [made, id]\n").Outboxes()[0]; !slices.Equal(o.Layout.OrderBy, []string{"made", "id"}) {
			t.Errorf("%s: %v", layout, o.Layout.OrderBy)
		}
		compare(t, faults(t, text+"  order-by: [' x']\n"), []string{fmt.Sprint("relay.yaml:", strings.Count(text, "\n")+1, `: outboxes[0].order-by: is " x", must be the column's name`)})
	}
	for _, o := range load(t, strings.Replace(least, `platform"}`, `platform", order-by: [made]}`, 1)).Outboxes() {
		if !slices.Equal(o.Layout.OrderBy, []string{"made"}) {
			t.Errorf("the preset's %s: %v", o.Name, o.Layout.OrderBy)
		}
	}
}

func TestVariablesOfLayouts(t *testing.T) {
	const text = custom + `  sink: hooks
  kind: order
  columns: {id: id, payload: body, status: s}
  state: numbers
  numbers: {pending: 1, processing: 2, completed: 3, failed: 4}
  order-by: [a]
`
	o := load(t, text,
		"SLUICEBOX_OUTBOXES_0_COLUMNS_ID=key", "SLUICEBOX_OUTBOXES_0_COLUMNS_RETRY_COUNT=tries",
		"SLUICEBOX_OUTBOXES_0_NUMBERS_PENDING=0", "SLUICEBOX_OUTBOXES_0_FAILED_NUMBERS_GATEWAY=9",
		"SLUICEBOX_OUTBOXES_0_ORDER_BY=[b, c]", "SLUICEBOX_OUTBOXES_0_ORDER_BY_1=d",
		"SLUICEBOX_OUTBOXES_0_DELETE_DELIVERED=true").Outboxes()[0]
	l := o.Layout
	if l.Columns.ID != "key" || l.Columns.RetryCount != "tries" || l.Numbers[store.Pending] != 0 ||
		l.FailedNumbers[store.ReasonGateway] != 9 || len(l.FailedNumbers) != 1 || !l.DeleteDelivered ||
		!reflect.DeepEqual(l.OrderBy, []string{"b", "d"}) {
		t.Errorf("the layout is %+v", l)
	}
	for variable, want := range map[string]string{
		"SLUICEBOX_OUTBOXES_0_NUMBERS_PENDING=x":    `SLUICEBOX_OUTBOXES_0_NUMBERS_PENDING: outboxes[0].numbers.pending: is "x", must be a whole number`,
		"SLUICEBOX_OUTBOXES_0_DELETE_DELIVERED=yes": `SLUICEBOX_OUTBOXES_0_DELETE_DELIVERED: outboxes[0].delete-delivered: is "yes", must be true or false`,
		"SLUICEBOX_OUTBOXES_0_ORDER_BY=b":           "SLUICEBOX_OUTBOXES_0_ORDER_BY:1: outboxes[0].order-by: must hold a list",
	} {
		got := faults(t, text, variable)
		if len(got) == 0 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%s: got %q, want %q", variable, got, want)
		}
	}
}

// recording is the start of a configuration with columns for receipts. Cases append the keys of the
// outbox.
const recording = source + `sinks:
  js: {type: nats, url: nats://n1, subject: orders}
  hooks: {type: webhook, url: https://hooks.example/x}
outboxes:
- table: orders
  kind: order
`

func TestRecordFaults(t *testing.T) {
	const (
		flow = "  layout: flowcatalyst\n  sink: js\n"
		none = "  sink: js\n  layout: custom\n  columns: {id: id, payload: body}\n  state: none\n"
	)
	for _, tt := range []struct {
		name, keys string
		want       []string
	}{
		{"a misspelt receipt", flow + "  record: {stream: s, sequense: n}\n", []string{
			"relay.yaml:10: outboxes[0].record.sequense: is no receipt of a sink of type nats; those are stream, sequence; did you mean sequence?"}},
		{"a receipt of another broker", flow + "  record:\n    partition: p\n    offset: o\n", []string{
			"relay.yaml:11: outboxes[0].record.partition: is no receipt of a sink of type nats; those are stream, sequence",
			"relay.yaml:12: outboxes[0].record.offset: is no receipt of a sink of type nats; those are stream, sequence"}},
		{"no column", flow + "  record: {stream: ''}\n", []string{"relay.yaml:10: outboxes[0].record.stream: is not set; name the column"}},
		{"a column that is none", flow + "  record: {stream: ' s'}\n", []string{
			`relay.yaml:10: outboxes[0].record.stream: is " s", must be the column's name in its exact spelling`}},
		{"the column of the state", flow + "  record: {stream: status}\n", []string{
			`relay.yaml:10: outboxes[0].record.stream: is column "status", which columns.status is too`}},
		{"one column twice", flow + "  record:\n    stream: r\n    sequence: r\n", []string{
			`relay.yaml:12: outboxes[0].record.sequence: is column "r", which record.stream is too`}},
		{"a sink without receipts", "  layout: flowcatalyst\n  sink: hooks\n  record: {stream: s}\n", []string{
			"relay.yaml:10: outboxes[0].record: does not apply: a sink of type webhook returns no receipts; remove it"}},
		{"no such sink", "  layout: flowcatalyst\n  sink: none\n  record: {stream: s}\n", []string{
			"relay.yaml:9: outboxes[0].sink: is none, but there is no such sink"}},
		{"no state", none + "  record: {stream: s}\n", []string{
			"relay.yaml:12: outboxes[0].record: needs a state in the table: with state none the relay writes nothing into a row; remove it"}},
		{"deleted rows", "  sink: js\n  layout: custom\n  columns: {id: id, payload: body, delivered: sent}\n  state: timestamps\n  delete-delivered: true\n  record: {stream: s}\n", []string{
			"relay.yaml:13: outboxes[0].record: does not apply: layout custom deletes a delivered row"}},
		{"messages", strings.Replace(none, "  sink", "  name: m\n  message-prefix: m\n  sink", 1) + "  record: {stream: s}\n", []string{
			"|stands beside table", "|record: needs a state in the table"}},
	} {
		t.Run(tt.name, func(t *testing.T) { compare(t, faults(t, recording+tt.keys), tt.want) })
	}
}

// TestComposeRecord: the layout has the columns with the types of their receipts, and only the sink
// of the outbox is asked for receipts.
func TestComposeRecord(t *testing.T) {
	cfg := load(t, recording+"  layout: flowcatalyst\n  sink: js\n  record: {sequence: n, stream: s}\n- {table: plain, layout: flowcatalyst, kind: order, sink: hooks}\n")
	want := []store.RecordColumn{{Receipt: "stream", Column: "s"}, {Receipt: "sequence", Column: "n", Max: math.MaxInt64}}
	if boxes := cfg.Outboxes(); !reflect.DeepEqual(boxes[0].Layout.Record, want) || boxes[1].Layout.Record != nil {
		t.Errorf("columns: got %+v and %+v, want %+v and none", boxes[0].Layout.Record, boxes[1].Layout.Record, want)
	}
	if js, hooks := cfg.Settings.Sinks["js"], cfg.Settings.Sinks["hooks"]; !js.Receipts || hooks.Receipts {
		t.Errorf("asked for receipts: js %t, hooks %t; want only js", js.Receipts, hooks.Receipts)
	}
	if err := store.ValidateOutboxes(cfg.Outboxes(), 0); err != nil {
		t.Error(err)
	}
}

// TestTransactionFaults: only PostgreSQL's tables have an order of transactions.
func TestTransactionFaults(t *testing.T) {
	const keys = "  sink: hooks\n  kind: order\n  columns:\n    id: id\n    payload: body\n    transaction: xid\n  state: none\n"
	compare(t, faults(t, strings.Replace(custom+keys, "postgres://", "mysql://u@", 1)), []string{
		"relay.yaml:13: outboxes[0].columns.transaction: applies only to PostgreSQL"})
	compare(t, faults(t, messages+"  layout: custom\n  state: none\n  columns: {transaction: xid}\n"), []string{
		"relay.yaml:10: outboxes[0].columns.transaction: does not apply with message-prefix"})
}
