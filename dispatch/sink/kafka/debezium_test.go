package kafka

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// What a consumer reads, as Debezium 3.6 writes it for the same rows with the same options.
func (c *cluster) testDebezium(t *testing.T) {
	row := func(id, key, payload string, attributes ...store.Attribute) sink.Message {
		m := sink.Message{
			ID: id, Kind: "order", Group: store.GroupOf("order/" + key), Attempt: 1,
			Attributes: append(store.Attributes{{Name: "type", Value: "Paid"}, {Name: "aggregateid", Value: key}}, attributes...),
		}
		if payload != "" {
			m.Payload = []byte(payload)
		}
		return m
	}
	const payload = `{"t": "é", "n": 1.50, "b": null}`
	rows := []sink.Message{
		row("e1", "7/é", payload, store.Attribute{Name: "time", Value: "2026-01-02T03:04:05.678901Z"}),
		row("e2", "7/é", ""),
		row("e3", "7/é", `plain "text"`),
		{ID: "e4", Kind: "order", Group: store.GroupOf(`order/\N`), Payload: []byte("\x00\xff"), Attempt: 1},
	}
	for name, of := range map[string]struct {
		d    Debezium
		want []string
	}{
		"texts": {Debezium{EventTimestamp: true}, []string{
			`"7/é" ` + fmt.Sprintf("%q", payload) + ` id="e1" eventType="Paid" at the row's time`, `"7/é" <nil> id="e2" eventType="Paid"`,
			`"7/é" "plain \"text\"" id="e3" eventType="Paid"`, `<nil> "\x00\xff" id="e4"`,
		}},
		"JSON": {Debezium{KeyConverter: ConverterJSON, ValueConverter: ConverterJSON, HeaderConverter: ConverterJSON}, []string{
			`"\"7/é\"" "\"{\\\"t\\\": \\\"é\\\", \\\"n\\\": 1.50, \\\"b\\\": null}\"" id="\"e1\"" eventType="\"Paid\""`,
			`"\"7/é\"" "null" id="\"e2\"" eventType="\"Paid\""`, `"\"7/é\"" "\"plain \\\"text\\\"\"" id="\"e3\"" eventType="\"Paid\""`, "rejected",
		}},
		"expanded": {Debezium{KeyConverter: ConverterJSON, ValueConverter: ConverterJSON, ExpandPayload: true, Tombstones: true}, []string{
			`"\"7/é\"" "{\"t\":\"é\",\"n\":1.5}" id="e1" eventType="Paid"`, `"\"7/é\"" <nil> id="e2" eventType="Paid"`,
			`"\"7/é\"" "\"plain \\\"text\\\"\"" id="e3" eventType="Paid"`, "rejected",
		}},
	} {
		to := c.create(t, 8, nil)
		cfg := to.config()
		cfg.Format, cfg.Debezium = FormatDebezium, of.d
		cfg.Headers = map[string]sink.Secret{"eventType": "{type}"}
		s := open(t, cfg)
		if mode := s.Limits("order").Mode; mode != sink.Prefix {
			t.Errorf("%s: the mode is %d", name, mode)
		}
		res, partitions := s.Deliver(t.Context(), rows[:3]), map[int32]bool{}
		for i := range 3 {
			if out := res.At(i); out.Class != sink.Delivered {
				t.Errorf("%s: row %d is %s: %s", name, i, out.Class, out.Detail)
			}
		}
		binary := s.Deliver(t.Context(), rows[3:])
		got := map[string]string{"e4": binary.At(0).Class.String()}
		for _, r := range to.records() {
			text := quoted(r.Key) + " " + quoted(r.Value)
			for _, h := range r.Headers {
				text += fmt.Sprintf(" %s=%q", h.Key, h.Value)
			}
			if r.Timestamp.UnixMilli() == 1767323045678 {
				text += " at the row's time"
			}
			id := strings.Trim(header(r, "id"), `"`)
			if got[id] = text; id != "e4" {
				partitions[r.Partition] = true
			}
		}
		if len(partitions) != 1 {
			t.Errorf("%s: an aggregate is in %d partitions", name, len(partitions))
		}
		for i, want := range of.want {
			if got := got[rows[i].ID]; got != want {
				t.Errorf("%s: the record is\n%s, want\n%s", name, got, want)
			}
		}
	}
}

// quoted returns a key or a value in quotes, <nil> for null.
func quoted(b []byte) string {
	if b == nil {
		return "<nil>"
	}
	return fmt.Sprintf("%q", b)
}

// A lane whose rows have several keys is delivered in order: one partition in each request.
func (c *cluster) testKeysOfALane(t *testing.T) {
	to := c.create(t, 50, nil)
	cfg := to.config()
	cfg.Format, cfg.Headers = FormatDebezium, nil
	s := open(t, cfg)
	var msgs []sink.Message
	for i, key := range []string{"a", "a", "b", "a"} {
		msgs = append(msgs, sink.Message{ID: fmt.Sprint(i), Group: store.GroupOf("g"), Attributes: store.Attributes{{Name: "aggregateid", Value: key}}, Attempt: 1})
	}
	for _, want := range []int{2, 1, 1} {
		res, n := s.Deliver(t.Context(), msgs), 0
		for i := range msgs {
			switch out := res.At(i); {
			case out.Class == sink.Delivered && n == i:
				n++
			case out.Class != sink.NotSent:
				t.Fatalf("row %s is %s (%s) behind %d delivered", msgs[i].ID, out.Class, out.Detail, n)
			}
		}
		if n != want {
			t.Fatalf("%d of %d rows were delivered, want %d", n, len(msgs), want)
		}
		msgs = msgs[n:]
	}
}

func TestDebeziumConfig(t *testing.T) {
	for name, c := range map[string]struct {
		change func(c *Config)
		want   string
	}{
		"defaults":    {func(c *Config) {}, ""},
		"other":       {func(c *Config) { c.Format, c.Debezium.KeyConverter = "raw", ConverterJSON }, "debezium is only for format: debezium"},
		"format":      {func(c *Config) { c.Format = "avro" }, `format is "avro", must be one of ["raw" "cloudevents" "cloudevents-structured" "debezium"]`},
		"key":         {func(c *Config) { c.Key = KeyID }, "name the attribute in debezium.event-key"},
		"id":          {func(c *Config) { c.Headers = map[string]sink.Secret{"ID": "{id}"} }, "headers.ID cannot be set"},
		"converter":   {func(c *Config) { c.Debezium.ValueConverter = "avro" }, `debezium.value-converter is "avro", must be one of ["string" "json"]`},
		"expand":      {func(c *Config) { c.Debezium.ExpandPayload = true }, "debezium.expand-json-payload is only for value-converter: json"},
		"tombstones":  {func(c *Config) { c.Debezium.Tombstones = true }, "debezium.tombstone-on-empty-payload is only for value-converter: json"},
		"null fields": {func(c *Config) { c.Debezium.NullFields = true }, "debezium.null-fields is only for expand-json-payload"},
		"CloudEvents": {func(c *Config) { c.CloudEventsSource = "/s" }, "cloudevents-source is only for a format of CloudEvents"},
	} {
		cfg := DefaultConfig()
		cfg.Brokers, cfg.Topic, cfg.Format = []string{"k:9092"}, "outbox.event.{kind}", FormatDebezium
		c.change(&cfg)
		if err := cfg.Validate(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
