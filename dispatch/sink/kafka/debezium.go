package kafka

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/store"
)

// FormatDebezium makes the records of Debezium's outbox event router; see [Debezium].
const FormatDebezium event.Format = "debezium"

// headerID is the header in which the router puts the id of the row.
const headerID = "id"

// Converter is what makes the bytes of a key, a value or a header.
type Converter string

// Converters.
const (
	// ConverterString makes the text, or the bytes of a binary payload.
	ConverterString Converter = "string"

	// ConverterJSON makes JSON without a schema. A text is a string in quotes.
	ConverterJSON Converter = "json"
)

// Debezium is how the connector was configured whose records FormatDebezium makes. The zero
// value of a converter is ConverterString.
type Debezium struct {
	EventKey        string    `yaml:"event-key" doc:"The attribute that is the key of a record (table.field.event.key). The outbox must have it."`
	EventTimestamp  bool      `yaml:"event-timestamp" doc:"Whether the timestamp of a record is the time of the row, from columns.time (table.field.event.timestamp). Else it is the time of the attempt."`
	KeyConverter    Converter `yaml:"key-converter" doc:"string: the text (StringConverter). json: a JSON string in quotes (JsonConverter with schemas.enable=false). For a column of numbers use string, because JSON writes them without quotes." enum:"string,json"`
	ValueConverter  Converter `yaml:"value-converter" doc:"string: the payload byte for byte (StringConverter, ByteArrayConverter, BinaryDataConverter). json: as for key-converter." enum:"string,json"`
	HeaderConverter Converter `yaml:"header-converter" doc:"string: the text (SimpleHeaderConverter or StringConverter). json: a JSON string in quotes." enum:"string,json"`
	ExpandPayload   bool      `yaml:"expand-json-payload" doc:"Whether a payload of JSON becomes the value, instead of a string with JSON in it (table.expand.json.payload). Only with value-converter: json."`
	NullFields      bool      `yaml:"null-fields" doc:"Whether an expanded payload keeps fields that are null (table.json.payload.null.behavior=optional_bytes). Else they are left out."`
	Tombstones      bool      `yaml:"tombstone-on-empty-payload" doc:"Whether a row without a payload is a tombstone also with value-converter: json (route.tombstone.on.empty.payload). Else its value is the text null."`
}

// debeziumDefaults are the router's own defaults.
func debeziumDefaults() Debezium {
	return Debezium{EventKey: "aggregateid", KeyConverter: ConverterString, ValueConverter: ConverterString, HeaderConverter: ConverterString}
}

// withDefaults returns d with defaults for what is not set.
func (d Debezium) withDefaults() Debezium {
	defaults := debeziumDefaults()
	for _, f := range []struct {
		value *Converter
		other Converter
	}{
		{&d.KeyConverter, defaults.KeyConverter}, {&d.ValueConverter, defaults.ValueConverter}, {&d.HeaderConverter, defaults.HeaderConverter},
	} {
		if *f.value == "" {
			*f.value = f.other
		}
	}
	if d.EventKey == "" {
		d.EventKey = defaults.EventKey
	}
	return d
}

// settings returns what package event makes of a row.
func (c *Config) settings() event.Settings {
	s := c.Settings
	if s.Format = c.Format; c.Format == FormatDebezium {
		s.Format = event.FormatRaw
	}
	return s
}

// checkFormat checks the format and what is only for that of Debezium.
func (c *Config) checkFormat(bad *store.FieldErrors) {
	formats := []event.Format{event.FormatRaw, event.FormatCloudEvents, event.FormatStructured, FormatDebezium}
	if c.Format != "" && !slices.Contains(formats, c.Format) {
		bad.Add("format", "is %q, must be one of %q", string(c.Format), formats)
		return
	}
	s := c.settings()
	s.Check(bad)
	d := c.Debezium.withDefaults()
	if c.Format != FormatDebezium {
		if d != debeziumDefaults() {
			bad.Add("debezium", "is only for format: %s", FormatDebezium)
		}
		return
	}
	if c.Key != "" && c.Key != KeyGroup {
		bad.Add("key", "is %q, which does not apply to format: %s; remove it, and name the attribute in debezium.event-key", string(c.Key), FormatDebezium)
	}
	for name := range c.Headers {
		if strings.EqualFold(name, headerID) {
			bad.Add("headers."+name, "cannot be set: with format: %s the header %s is the row's id", FormatDebezium, headerID)
		}
	}
	d.check(bad)
}

func (d *Debezium) check(bad *store.FieldErrors) {
	converters := []Converter{ConverterString, ConverterJSON}
	for _, f := range []struct {
		key   string
		value Converter
	}{
		{"key-converter", d.KeyConverter}, {"value-converter", d.ValueConverter}, {"header-converter", d.HeaderConverter},
	} {
		if !slices.Contains(converters, f.value) {
			bad.Add("debezium."+f.key, "is %q, must be one of %q", string(f.value), converters)
		}
	}
	if d.ValueConverter != ConverterJSON {
		for _, f := range []struct {
			key string
			on  bool
		}{{"expand-json-payload", d.ExpandPayload}, {"tombstone-on-empty-payload", d.Tombstones}} {
			if f.on {
				bad.Add("debezium."+f.key, "is only for value-converter: %s", ConverterJSON)
			}
		}
	}
	if d.NullFields && !d.ExpandPayload {
		bad.Add("debezium.null-fields", "is only for expand-json-payload")
	}
}

// fields returns the attributes that the format needs.
func (d *Debezium) fields() []sink.Field {
	all := []sink.Field{{Key: "debezium.event-key", Attribute: d.EventKey, Required: true}}
	if d.EventTimestamp {
		all = append(all, sink.Field{Key: "debezium.event-timestamp", Attribute: store.AttributeTime})
	}
	return all
}

// encode completes the record of a row whose headers are set. reason is set if the row can never
// be sent.
func (d *Debezium) encode(rec *record, m *sink.Message, id string) (reason string) {
	rec.headers = append([]kmsg.Header{{Key: headerID, Value: []byte(id)}}, rec.headers...)
	if d.HeaderConverter == ConverterJSON {
		for i := range rec.headers {
			if h := &rec.headers[i]; h.Key != sink.ReplayHeader {
				h.Value = appendString(nil, string(h.Value))
			}
		}
	}
	d.setKey(rec, m)
	if at, ok := m.Attributes.Get(store.AttributeTime); ok && d.EventTimestamp {
		if t, err := time.Parse(time.RFC3339Nano, at); err == nil {
			rec.time = t.UnixMilli()
		}
	}
	return d.setValue(rec, m.Payload)
}

// setKey sets the key. A row without one keeps the partition of its group.
func (d *Debezium) setKey(rec *record, m *sink.Message) {
	key, ok := m.Attributes.Get(d.EventKey)
	switch {
	case d.KeyConverter == ConverterJSON && ok:
		rec.key = appendString(nil, key)
	case d.KeyConverter == ConverterJSON:
		rec.key = []byte(jsonNull)
	case ok:
		rec.key = []byte(key)
	default:
		rec.place = []byte(m.Group.Name)
		return
	}
	rec.place = rec.key
}

// setValue sets the value.
func (d *Debezium) setValue(rec *record, payload []byte) (reason string) {
	switch {
	case d.ValueConverter != ConverterJSON || len(payload) == 0 && d.Tombstones:
		if rec.value = payload; len(payload) == 0 {
			rec.value = nil
		}
		return ""
	case len(payload) == 0:
		rec.value = []byte(jsonNull)
		return ""
	case !utf8.Valid(payload):
		return "payload is not UTF-8, as JSON requires; set debezium.value-converter to " + string(ConverterString)
	}
	if d.ExpandPayload {
		var ok bool
		if rec.value, ok = expand(payload, d.NullFields); !ok {
			return fmt.Sprintf("payload of %d bytes expands to more than %d: the objects of a list have many different fields", len(payload), len(rec.value))
		}
		if rec.value != nil {
			return ""
		}
	}
	rec.value = appendString(nil, string(payload))
	return ""
}
