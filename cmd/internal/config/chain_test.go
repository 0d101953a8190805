package config_test

import (
	"strings"
	"testing"
)

// A sink refuses chain if the rows of a lane may go to several places, or have no header.
func TestChain(t *testing.T) {
	const spreads = " may send the rows of a message group to several places; let it depend on the group and the kind alone, or set chain: false here"
	debezium := "{table: o, layout: debezium, sink: s}"
	custom := "{table: o, layout: custom, sink: s, kind: k, state: none, columns: {id: id, payload: p, group: g, attributes: [aggregateid]}}"
	for _, tt := range []struct{ outbox, sink, key string }{
		{"", "type: webhook, url: 'https://h/{kind}/{group}/{{type}}'", ""},
		{custom, "type: webhook, url: 'https://h/{attr.aggregateid}'", "url"},
		{"", "type: webhook, url: 'https://h/{payload.to}'", "url"},
		{"", "type: webhook, url: 'https://h/{{{id}'", "url"},
		{"", "type: kafka, brokers: ['k:1'], topic: 'a.{kind}'", ""},
		{"", "type: kafka, brokers: ['k:1'], topic: 'a.{id}'", "topic"},
		{"", "type: kafka, brokers: ['k:1'], topic: a, key: id", "key"},
		{"", "type: kafka, brokers: ['k:1'], topic: a, key: none", "key"},
		{debezium, "type: kafka, brokers: ['k:1'], topic: a, format: debezium", ""},
		{debezium, "type: kafka, brokers: ['k:1'], topic: 'outbox.event.{kind}', format: debezium", ""},
		{strings.NewReplacer("aggregateid", "kind", "kind: k, ", "").Replace(custom), "type: redis, url: 'redis://r', stream: 'a.{kind}'", "stream"},
		{custom, "type: kafka, brokers: ['k:1'], topic: a, format: debezium", "debezium.event-key"},
		{"", "type: nats, url: 'nats://n', subject: 'a.{group}'", ""},
		{"", "type: nats, url: 'nats://n', subject: 'a.{id}'", "subject"},
		{"", "type: nats, url: 'nats://n', subject: a, stream: 'S{id}'", "stream"},
		{"", "type: rabbitmq, url: 'amqp://r', routing-key: 'a.{id}'", "routing-key"},
		{"", "type: redis, url: 'redis://r', stream: 'a.{id}'", "stream"},
		{"", "type: log", ""},
		{"", "type: log, format: raw", "-"},
		{"", "type: log, format: cloudevents-structured, cloudevents-source: /s", "-"},
		{"", "type: statistics", "-"},
	} {
		outbox := tt.outbox
		if outbox == "" {
			outbox = "{table: o, layout: outbox-messages, sink: s}"
		}
		text := source + "outboxes:\n- " + outbox + "\nsinks:\n  s: {" + tt.sink + ", chain: true}\n"
		switch tt.key {
		case "":
			load(t, text)
		case "-":
			compare(t, faults(t, text), []string{"relay.yaml:5: sinks.s.chain: is true, but the sink's messages have no header for each row; set chain: false here"})
		default:
			compare(t, faults(t, text), []string{"relay.yaml:5: sinks.s.chain: is true, but " + tt.key + spreads})
		}
	}
}
