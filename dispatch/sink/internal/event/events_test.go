package event

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// FuzzID: two rows never share an id, and no id is too long for a header.
func FuzzID(f *testing.F) {
	f.Add("p", "7", "8")
	f.Add("", strings.Repeat("x", 255), strings.Repeat("x", 256))
	f.Add("evt.", strings.Repeat("x", 300)+"a", strings.Repeat("x", 300)+"b")
	f.Fuzz(func(t *testing.T, prefix, a, b string) {
		prefix = prefix[:min(len(prefix), maxPrefix)]
		x, y := ID(prefix, a), ID(prefix, b)
		if len(x) > maxID || !strings.HasPrefix(x, prefix) {
			t.Fatalf("%q becomes %q", a, x)
		}
		if x == y && a != b && len(a) > len("sha256-")+64 {
			t.Fatalf("%q and %q become %q", a, b, x)
		}
	})
}

// FuzzEncode: in every binding the values of a row come back, and none leaves its header.
func FuzzEncode(f *testing.F) {
	f.Add("7", "order.paid", "customer 7", `{"n":1}`)
	f.Add("", "é\r\nX: y", "50% of \"it\"", "\xff")
	f.Add("a\x00b", "t", "", "")
	f.Fuzz(func(t *testing.T, id, typ, group, payload string) {
		m := &sink.Message{ID: id, Group: store.GroupOf(group), Payload: []byte(payload),
			Attributes: store.Attributes{{Name: "type", Value: typ}}}
		for _, b := range []Binding{{"ce_", "content-type"}, {"ce-", "Content-Type"}, {"cloudEvents:", ""}} {
			e := NewEncoder(Settings{Format: FormatCloudEvents, CloudEventsSource: "/s"}, b)
			msg, reason := e.Encode(m)
			if (reason != "") != (id == "" || typ == "") {
				t.Fatalf("%q, type %q: %q", id, typ, reason)
			}
			if reason != "" {
				continue
			}
			if string(msg.Body) != payload {
				t.Fatalf("the body is %q, want %q", msg.Body, payload)
			}
			got := map[string]string{}
			for _, h := range msg.Headers {
				value, err := h.Value, error(nil)
				if b.Prefix == "ce-" {
					if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
						t.Fatalf("header %s is %q", h.Name, value)
					}
					if value, err = url.PathUnescape(value); err != nil {
						t.Fatal(err)
					}
				}
				got[strings.TrimPrefix(h.Name, b.Prefix)] = value
			}
			if got["id"] != ID("", id) || got["type"] != typ || got["subject"] != group || got["partitionkey"] != group {
				t.Fatalf("%q, %q, %q become %q", id, typ, group, got)
			}
		}
	})
}

// FuzzJSON: an event in JSON is valid, whatever the row has.
func FuzzJSON(f *testing.F) {
	f.Add("7", "t", "g", "x", `{"n": 1.0}`, true)
	f.Add("\xff", "\"}", "\u2028", "<", "\xff", true)
	f.Add("7", "t", "", "", "no json", false)
	f.Fuzz(func(t *testing.T, id, typ, group, extension, payload string, isJSON bool) {
		s := Settings{Format: FormatStructured, CloudEventsSource: "/s", Headers: map[string]sink.Secret{"ce-x": "{attr.x}"}}
		if !isJSON {
			s.ContentType = "text/plain"
		}
		msg, reason := NewEncoder(s, Binding{"ce_", "content-type"}).Encode(&sink.Message{
			ID: id, Group: store.GroupOf(group), Payload: []byte(payload),
			Attributes: store.Attributes{{Name: "type", Value: typ}, {Name: "x", Value: extension}},
		})
		if reason != "" {
			return
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(msg.Body, &members); err != nil {
			t.Fatalf("%v: %s", err, msg.Body)
		}
		if payload != "" && members["data"] == nil && members["data_base64"] == nil {
			t.Fatalf("no data: %s", msg.Body)
		}
	})
}

// wantAsEncodingJSON checks that what counts as JSON is what encoding/json reads.
func wantAsEncodingJSON(t *testing.T, payload []byte) {
	t.Helper()
	want := utf8.Valid(payload) && json.Valid(payload)
	if reason := NotJSON(payload); (reason == "") != want {
		t.Errorf("%.100q: got %q, valid %v", payload, reason, want)
	}
}

func FuzzNotJSON(f *testing.F) {
	for _, payload := range []string{
		`{"a":1,"a":2}`, `"\ud800"`, `"\udc00\ud800x"`, "\"\xff\"", "\ufeff{}", `{"a":[1,-0.5e+9,null,true]} `, "01", "1.", "-", `"\x"`, "\"\t\"", "", " ", "[1,]", "{}{}", "nul",
	} {
		f.Add([]byte(payload))
	}
	f.Fuzz(wantAsEncodingJSON)
}

func TestDeepJSON(t *testing.T) {
	for _, depth := range []int{9999, 10000, 10001} {
		wantAsEncodingJSON(t, []byte(strings.Repeat("[", depth)+strings.Repeat("]", depth)))
		wantAsEncodingJSON(t, []byte(strings.Repeat(`{"a":`, depth)+"1"+strings.Repeat("}", depth)))
	}
}

// TestEncode: messages of each format and binding, byte for byte.
func TestEncode(t *testing.T) {
	kafka, nats, amqp := Binding{"ce_", "content-type"}, Binding{"ce-", "Content-Type"}, Binding{"cloudEvents:", ""}
	row := sink.Message{
		ID: "7", Kind: "order", Group: store.GroupOf("é 1"), Payload: []byte(`{"n":1}`), Committed: time.Unix(1, 0),
		Attributes: store.Attributes{{Name: "type", Value: "Paid"}, {Name: "tenant", Value: "t\r\n1"}},
	}
	headers := map[string]sink.Secret{"ce-tenant": "x {attr.tenant}", "x-trace": "00-{attr.tenant}", "none": "{attr.none}"}
	plain := map[string]sink.Secret{"x-trace": "00-{attr.tenant}", "none": "{attr.none}", "a": "{{b}}"}
	event := Settings{Format: FormatCloudEvents, CloudEventsSource: "/s", IDPrefix: "p-", Headers: headers}
	for name, c := range map[string]struct {
		s       Settings
		b       Binding
		replay  string
		headers []string
		typ     string
		body    string
	}{
		"raw":        {Settings{Headers: plain}, kafka, "", []string{"a: {b}", "x-trace: 00-t\r\n1"}, "application/json", `{"n":1}`},
		"raw, ASCII": {Settings{Headers: plain}, nats, "r 1", []string{"Sluicebox-Replay: r%201", "a: {b}", "x-trace: 00-t%0D%0A1"}, "application/json", `{"n":1}`},
		"Kafka": {event, kafka, "", []string{
			"ce_id: p-7", "ce_partitionkey: é 1", "ce_source: /s", "ce_specversion: 1.0", "ce_subject: é 1", "ce_tenant: x t\r\n1",
			"ce_time: 1970-01-01T00:00:01Z", "ce_type: Paid", "content-type: application/json", "x-trace: 00-t\r\n1",
		}, "application/json", `{"n":1}`},
		"NATS": {event, nats, "", []string{
			"Content-Type: application/json", "ce-id: p-7", "ce-partitionkey: %C3%A9%201", "ce-source: /s", "ce-specversion: 1.0", "ce-subject: %C3%A9%201",
			"ce-tenant: x%20t%0D%0A1", "ce-time: 1970-01-01T00:00:01Z", "ce-type: Paid", "x-trace: 00-t%0D%0A1",
		}, "application/json", `{"n":1}`},
		"AMQP": {event, amqp, "r", []string{
			"Sluicebox-Replay: r", "cloudEvents:id: p-7", "cloudEvents:partitionkey: é 1", "cloudEvents:source: /s", "cloudEvents:specversion: 1.0", "cloudEvents:subject: é 1",
			"cloudEvents:tenant: x t\r\n1", "cloudEvents:time: 1970-01-01T00:00:01Z", "cloudEvents:type: Paid", "x-trace: 00-t\r\n1",
		}, "application/json", `{"n":1}`},
		"structured": {Settings{Format: FormatStructured, CloudEventsSource: "/s", Headers: headers}, kafka, "",
			[]string{"content-type: " + MediaType, "x-trace: 00-t\r\n1"}, MediaType,
			`{"datacontenttype":"application/json","id":"7","partitionkey":"é 1","source":"/s","specversion":"1.0","subject":"é 1","tenant":"x t\r\n1","time":"1970-01-01T00:00:01Z","type":"Paid","data":{"n":1}}`},
	} {
		m := row
		m.Replay = c.replay
		var bad store.FieldErrors
		if c.s.Check(&bad); bad.Err() != nil {
			t.Errorf("%s: %v", name, bad.Err())
			continue
		}
		msg, reason := NewEncoder(c.s, c.b).Encode(&m)
		var got []string
		for _, h := range msg.Headers {
			got = append(got, h.Name+": "+h.Value)
		}
		if reason != "" || !slices.Equal(got, c.headers) || msg.ContentType != c.typ || string(msg.Body) != c.body {
			t.Errorf("%s: %s\n%q %s\n%s\nwant\n%q %s\n%s", name, reason, got, msg.ContentType, msg.Body, c.headers, c.typ, c.body)
		}
	}

	for name, c := range map[string]struct {
		s    Settings
		m    sink.Message
		want string
	}{
		"no id":   {event, sink.Message{Kind: "k"}, ""}, // the prefix is one
		"no type": {event, sink.Message{ID: "1"}, "CloudEvent has no type, because the row has no kind; set cloudevents-type"},
		"no JSON": {Settings{Format: FormatStructured, CloudEventsSource: "/s"}, sink.Message{ID: "1", Kind: "k", Payload: []byte("x")},
			"payload is not JSON, as its content-type application/json says"},
		"no id at all": {Settings{Format: FormatCloudEvents, CloudEventsSource: "/s"}, sink.Message{Kind: "k"}, NoIDReason},
	} {
		if msg, reason := NewEncoder(c.s, kafka).Encode(&c.m); reason != c.want || reason != "" && msg.Body != nil {
			t.Errorf("%s: %q, want %q", name, reason, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	const canary = "canary"
	header := func(name, value string) Settings {
		return Settings{Headers: map[string]sink.Secret{name: sink.Secret(value)}}
	}
	ofEvent := header("ce-Tenant", "{group}")
	ofEvent.Format, ofEvent.CloudEventsSource = FormatCloudEvents, "/s"
	for name, c := range map[string]struct {
		s    Settings
		want string
	}{
		"zero":              {Settings{}, ""},
		"defaults":          {DefaultSettings(), ""},
		"format":            {Settings{Format: "xml"}, `format is "xml", must be one of ["raw" "cloudevents" "cloudevents-structured"]`},
		"no source":         {Settings{Format: FormatStructured}, "cloudevents-source is not set"},
		"source of raw":     {Settings{CloudEventsSource: "/s"}, "cloudevents-source is only for a format of CloudEvents"},
		"prefix":            {Settings{IDPrefix: "a b"}, "id-prefix is"},
		"media type":        {Settings{ContentType: "x/"}, "content-type is"},
		"extension":         {ofEvent, ""},
		"extension of raw":  {header("ce-a", "b"), "headers.ce-a cannot be set: names starting with ce- belong to the formats of CloudEvents"},
		"prefix of Kafka":   {header("ce_a", "b"), "headers.ce_a cannot be set: write ce-NAME"},
		"header of the row": {header("content-TYPE", "b"), "headers.content-TYPE cannot be set: use the key content-type"},
		"replay":            {header("sluicebox-x", "b"), "headers.sluicebox-x cannot be set: names starting with sluicebox-"},
		"name":              {header("a b", canary), `headers has the invalid name "a b"`},
		"newline":           {header("a", canary+"\n"), "headers.a contains a line break"},
		"empty":             {header("a", ""), "headers.a is empty"},
		"field":             {header("a", "{"+canary+"}"), "headers.a has a brace alone or an unknown field"},
		"not ASCII":         {header("a", "é"), ""},
	} {
		var bad store.FieldErrors
		c.s.Check(&bad)
		err := bad.Err()
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: refused: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		case err != nil && strings.Contains(err.Error(), canary):
			t.Errorf("%s: the error shows a secret: %v", name, err)
		}
	}
	s := Settings{CloudEventsType: "{type}", CloudEventsSubject: "{group}", Headers: map[string]sink.Secret{"b": "{attr.x}", "a": "Bearer {id}"}}
	want := []sink.Field{{Key: "cloudevents-type", Attribute: "type", Required: true}, {Key: "cloudevents-subject"}, {Key: "headers.b", Attribute: "x"}}
	if got := s.Fields(); !slices.Equal(got, want) {
		t.Errorf("the fields are %v, want %v", got, want)
	}
	if got := s.Secrets(); len(got) != 0 {
		t.Errorf("the secrets are %q", got)
	}
}

// A body is the same for each attempt, so the chain is a header alone.
func TestChainIsNotInTheBody(t *testing.T) {
	t.Parallel()
	for _, format := range []Format{FormatRaw, FormatCloudEvents, FormatStructured} {
		e := NewEncoder(Settings{Format: format, CloudEventsSource: "/s"}, Binding{Prefix: "ce_"})
		m := sink.Message{ID: "1", Kind: "k", Payload: []byte("{}")}
		plain, _ := e.Encode(&m)
		m.Chain = "a-1;0;0;1"
		chained, reason := e.Encode(&m)
		if reason != "" || string(chained.Body) != string(plain.Body) || !slices.Contains(chained.Headers, Header{sink.ChainHeader, m.Chain}) {
			t.Errorf("%s: %s with the headers %v, want %s with the chain (%s)", format, chained.Body, chained.Headers, plain.Body, reason)
		}
	}
}
