package config

import (
	"slices"
	"strings"
	"testing"
	"time"
)

const scaledFile = `
source: {url: "postgres://u:p@h/shop"}
scale: {engine: kafka, brokers: "k:9092", topic: shop, partitions: 4}
outboxes: [{table: orders, layout: outbox-messages, sink: near}]
sinks:
  near: {type: webhook, url: "https://near.example"}
`

// A shard has the configuration of the file, but a name of its own, also when the file is read again.
func TestScale(t *testing.T) {
	c, fault := parseSources(t, scaledFile)
	if fault != "" {
		t.Fatal(fault)
	}
	s := c.Settings.Scale
	if !s.Has("capture") || !s.Has("dispatch") || s.SessionTimeout != 6*time.Second || !slices.Equal(s.Brokers, []string{"k:9092"}) {
		t.Errorf("got %+v", s)
	}
	shard := c.Shard(3)
	again, err := shard.Reread()
	if err != nil || shard.Settings.Name != "sluicebox/3" || again.Settings.Name != "sluicebox/3" || c.Settings.Name != "sluicebox" {
		t.Errorf("names %q, %q and %q, %v", shard.Settings.Name, again.Settings.Name, c.Settings.Name, err)
	}
}

// What does not work with scale is refused with its key.
func TestScaleFaults(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"engine: kafka", "engine: nats", "f:3: scale.engine: is \"nats\""},
		{"\"k:9092\"", "k", "scale.brokers[0]: is \"k\", must be host:port"},
		{"topic: shop", "topic: \"{kind}\"", "f:3: scale.topic: is \"{kind}\", which has a brace"},
		{"partitions: 4", "partitions: 0", "f:3: scale.partitions: is 0, must be 1 to 1000"},
		{"partitions: 4", "partitions: 4, roles: sweep", "scale.roles[0]: is \"sweep\", must be capture or dispatch"},
		{"partitions: 4", "partitions: 4, session-timeout: 1ms", "scale.session-timeout: is 1ms"},
		{"partitions: 4", "partitions: 4, sasl: {mechanism: plain}", "scale.sasl.user: is not set"},
		{"postgres://u:p@h/shop", "sqlite:///var/lib/shop.db", "scale: needs a database that several machines reach"},
		{"/shop\"}", "/shop\", mode: poll}", "f:2: source.mode: is poll, but scale needs"},
		{"\nscale", "\ningest: {listen: \":1\"}\nscale", "ingest: does not go with scale"},
		{"source: {", "sources:\n  - {name: shop, ", "scale: needs one source"},
	} {
		if _, fault := parseSources(t, strings.Replace(scaledFile, c.from, c.to, 1)); !strings.Contains(fault, c.want) {
			t.Errorf("%s: got %s, want %s", c.to, fault, c.want)
		}
	}
}
