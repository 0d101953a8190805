package config_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
)

// namedLayout is a configuration of one outbox with a named layout, with further keys.
const namedLayout = `
name: a
source: {url: "postgres://h/d"}
sinks:
  hooks: {type: webhook, url: "https://r"}
  platform: {type: flowcatalyst, api-base-url: "https://p"}
outboxes:
  - {table: t, layout: %s}
`

// TestEveryLayoutLoads checks that the name of each layout is enough for a webhook.
func TestEveryLayoutLoads(t *testing.T) {
	for _, p := range layouts.All() {
		rest := "sink: hooks"
		if p.Name == "flowcatalyst" {
			rest += ", kind: order"
		}
		text := fmt.Sprintf(namedLayout, p.Name+", "+rest)
		if p.Name == "catbox" {
			compare(t, faults(t, text), []string{"relay.yaml:8: outboxes[0].layout: needs dispatch.takeover: timeout"})
			text += "dispatch: {takeover: timeout}\n"
		}
		if p.Tables == nil {
			compare(t, faults(t, text), []string{"relay.yaml:8: outboxes[0].layout: is " + p.Name + ", which is no layout of tables"})
			continue
		}
		box := load(t, text).Outboxes()[0]
		if err := box.Layout.Validate(); err != nil || box.Layout.Name != p.Name || box.Kind == "" && box.Layout.KindColumn() == "" {
			t.Errorf("outbox %+v: %v", box, err)
		}
	}
}

// TestColumnsBesideALayout checks that columns beside a named layout replace its own, and that
// its other columns stay.
func TestColumnsBesideALayout(t *testing.T) {
	const debezium = "debezium, sink: hooks, columns: {time: timestamp, type: event_type, attributes: [tracingspancontext, extra.*]}, order-by: [timestamp]"
	box := load(t, fmt.Sprintf(namedLayout, debezium)).Outboxes()[0]
	l := &box.Layout
	want := []store.AttributeColumn{
		{Column: "event_type", Name: "type"}, {Column: "timestamp", Name: "time"}, {Column: "tracingspancontext", Name: "tracingspancontext"},
		{Column: "aggregatetype", Name: "kind"}, {Column: "aggregateid", Name: "aggregateid"}, {Column: "extra", Spread: true},
	}
	if !slices.Equal(l.Attributes, want) || l.Columns.ID != "id" || !slices.Equal(l.GroupRest, []string{"aggregateid"}) || !slices.Equal(l.OrderBy, []string{"timestamp"}) {
		t.Errorf("layout %+v, want attributes %+v", l, want)
	}

	l = &load(t, fmt.Sprintf(namedLayout, "eventuate, sink: hooks, columns: {id: dbid, group: destination}")).Outboxes()[0].Layout
	if l.Columns.ID != "dbid" || l.Columns.Group != "destination" || l.GroupPath != nil || l.Columns.Payload != "payload" {
		t.Errorf("layout %+v, want other columns for id and group", l)
	}
}

// TestKindsOfLayouts checks that a flowcatalyst sink has the kinds of a layout in its lanes, and
// that the key kind replaces them.
func TestKindsOfLayouts(t *testing.T) {
	box := load(t, fmt.Sprintf(namedLayout, "postbox, sink: platform")).Outboxes()[0]
	if box.Layout.Columns.Kind != "type" || slices.ContainsFunc(box.Layout.Attributes, func(a store.AttributeColumn) bool { return a.Name == "kind" }) {
		t.Errorf("layout %+v, want the kind in the lane", box.Layout)
	}
	box = load(t, fmt.Sprintf(namedLayout, "debezium, sink: platform, kind: EVENT")).Outboxes()[0]
	if box.Layout.KindColumn() != "" || box.Kind != "EVENT" {
		t.Errorf("outbox %+v, want the kind EVENT for all rows", box)
	}
}
