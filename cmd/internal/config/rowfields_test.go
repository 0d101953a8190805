package config_test

import (
	"fmt"
	"testing"
)

// A value that rows cannot have is an error of its key, unless only some outboxes lack it and
// their rows are sent without it.
func TestFieldsThatNoRowHas(t *testing.T) {
	const custom = ", layout: custom, kind: k, state: timestamps, sink: h, columns: {id: i, payload: p, delivered: d, "
	const none = "- {table: none" + custom + "}}\n"
	const some = "- {table: some" + custom + "type: t, group: g, attributes: [tenant_id, meta.trace]}}\n"
	const spread = "- {table: spread" + custom + "attributes: [headers.*]}}\n"
	const preset = "- {table: preset, layout: flowcatalyst, kind: k, sink: h}\n"
	const elsewhere = "- {table: other, layout: outbox-messages, sink: o}\n"
	for name, tt := range map[string]struct {
		outboxes, keys string
		want           []string
	}{
		"all have it":         {some, "url: 'https://h/{kind}/{group}/{attr.tenant_id}?a={type}', headers: {X-A: '{attr.meta.trace}'}, metadata-headers: [type, time]", nil},
		"any name":            {spread, "url: 'https://h/{attr.anything}'", nil},
		"no type":             {none, "url: 'https://h/{type}'", []string{"relay.yaml:6: sinks.h.url: has {type}, which rows of none cannot have; name its column in the outbox's columns.type"}},
		"no type, but a time": {"- {table: none" + custom + "time: t}}\n", "url: 'https://h/{type}'", []string{"relay.yaml:6: sinks.h.url: has {type}, which rows of none cannot have; name its column in the outbox's columns.type"}},
		"no time":             {none, "url: https://h, headers: {X-A: a, X-B: '{attr.time}'}", []string{"relay.yaml:6: sinks.h.headers.X-B: has {attr.time}, which rows of none cannot have; name its column in the outbox's columns.time"}},
		"no group":            {none, "url: 'https://h?{group}'", []string{"relay.yaml:6: sinks.h.url: has {group}, which rows of none cannot have; name its column in the outbox's columns.group"}},
		"metadata":            {none, "url: https://h, metadata-headers: [kind, type]", []string{"relay.yaml:6: sinks.h.metadata-headers[1]: has {type}, which rows of none cannot have"}},
		"no attribute": {none, "url: https://h, format: cloudevents, cloudevents-source: /s, cloudevents-type: 'a.{attr.x}', cloudevents-subject: '{attr.y}'", []string{
			"relay.yaml:6: sinks.h.cloudevents-type: has {attr.x}, which rows of none cannot have; add x to the outbox's columns.attributes",
			"relay.yaml:6: sinks.h.cloudevents-subject: has {attr.y}, which rows of none cannot have; add y to the outbox's columns.attributes",
		}},
		"a typing error": {some, "url: 'https://h/{attr.tenantid}'", []string{"relay.yaml:6: sinks.h.url: has {attr.tenantid}, which rows of some cannot have; did you mean {attr.tenant_id}?"}},
		"a preset layout": {preset, "url: 'https://h/{type}'", []string{
			"relay.yaml:6: sinks.h.url: has {type}, which rows of preset cannot have; the layout flowcatalyst has no column for it"}},
		"one outbox lacks what it can do without": {some + none, "url: https://h, headers: {X-A: '{type}'}", nil},
		"one outbox lacks what it needs":          {some + none, "url: 'https://h/{type}'", []string{"relay.yaml:7: sinks.h.url: has {type}, which rows of none cannot have"}},
		"a column with a problem": {"- {table: none" + custom + "attributes: 7}}\n", "url: 'https://h/{type}'", []string{
			"relay.yaml:3: outboxes[0].columns.attributes: "}},
	} {
		t.Run(name, func(t *testing.T) {
			text := source + "outboxes:\n" + tt.outboxes + elsewhere + "sinks:\n  h: {type: webhook, " + tt.keys + "}\n  o: {type: flowcatalyst, api-base-url: 'https://o'}\n"
			if tt.want == nil {
				load(t, text)
				return
			}
			compare(t, faults(t, text), tt.want)
		})
	}

	// Replays of any outbox may use a sink that none names.
	const replays = source + "outboxes:\n- {table: some, layout: custom, kind: k, state: timestamps, sink: o, columns: {id: i, payload: p, delivered: d, type: t}}\n" + elsewhere +
		"sinks:\n  o: {type: webhook, url: https://o}\n  h: {type: webhook, url: 'https://h/{%s}'}\n"
	load(t, fmt.Sprintf(replays, "type"))
	compare(t, faults(t, fmt.Sprintf(replays, "attr.x")), []string{"relay.yaml:7: sinks.h.url: has {attr.x}, which rows of some cannot have; add x to the outbox's columns.attributes"})
}
