package nats_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/nats"
	"github.com/sluicebox/sluicebox/store"
)

// A value of a row stays within its token, and different values have different subjects.
func TestSubjectOfFields(t *testing.T) {
	const template = "shop.{kind}.v1-{attr.tenant}.{group}"
	row := func(tenant, group string) *sink.Message {
		return &sink.Message{ID: "7", Kind: "order.paid", Group: store.GroupOf(group),
			Attributes: store.Attributes{{Name: "tenant", Value: tenant}}}
	}
	for name, c := range map[string]struct{ tenant, group, want, reason string }{
		"plain":     {"a", "g", "shop.order%2Epaid.v1-a.g", ""},
		"dots":      {"a.b", "..", "shop.order%2Epaid.v1-a%2Eb.%2E%2E", ""},
		"wildcards": {"*", ">", "shop.order%2Epaid.v1-%2A.%3E", ""},
		"blanks":    {"a b", "a\r\n\tb", "shop.order%2Epaid.v1-a%20b.a%0D%0A%09b", ""},
		"percent":   {"%2E", "$JS\"", "shop.order%2Epaid.v1-%252E.%24JS%22", ""},
		"not ASCII": {"é", "\xff", "shop.order%2Epaid.v1-%C3%A9.%FF", ""},
		"empty":     {"", "g", "", "a value of the row in the subject is empty"},
		"long":      {"a", strings.Repeat("x", 2048), "", "subject of 2071 bytes exceeds 2048"},
	} {
		if got, reason := nats.SubjectOf(template, row(c.tenant, c.group)); got != c.want || reason != c.reason {
			t.Errorf("%s: got %q, reason %q, want %q, reason %q", name, got, reason, c.want, c.reason)
		}
	}
	if _, reason := nats.SubjectOf(template, &sink.Message{ID: "7", Kind: "k"}); reason != "row has no attr.tenant, which subject needs" {
		t.Errorf("without an attribute: got reason %q", reason)
	}
}

// Whatever a row holds, its subject has the tokens of the template, and the value can be read
// from it.
func FuzzSubjectOfFields(f *testing.F) {
	f.Add("a", "b")
	f.Add("*.>", "\x00\xff é%")
	f.Fuzz(func(t *testing.T, group, id string) {
		subject, reason := nats.SubjectOf("{group}.x.{id}", &sink.Message{ID: id, Group: store.GroupOf(group)})
		if reason != "" {
			return
		}
		tokens := strings.Split(subject, ".")
		if len(tokens) != 3 || strings.ContainsAny(subject, " \t\r\n*>$") {
			t.Fatalf("%q, %q give %q", group, id, subject)
		}
		for i, want := range map[int]string{0: group, 2: id} {
			if got, err := url.PathUnescape(tokens[i]); got != want || err != nil || tokens[i] == "" {
				t.Errorf("%q, %q give %q", group, id, subject)
			}
		}
	})
}

func TestStreamOfFields(t *testing.T) {
	for value, want := range map[string]string{"A-1": "EV_A-1", "a.b": "", "": "", "a b": "", "a/b": "", "*": "", strings.Repeat("x", 300): ""} {
		got, reason := nats.StreamOf("EV_{kind}", &sink.Message{Kind: value})
		if got != want || (reason == "") != (want != "") {
			t.Errorf("%.10q: got %q, reason %q", value, got, reason)
		}
	}
}

// The breaker is one for each stream.
func TestEndpoint(t *testing.T) {
	c := nats.Config{Subject: "a", Stream: "ORDERS"}
	if l := c.Limits("k"); l.Endpoint != "ORDERS" || l.EndpointOf != nil || l.Mode != sink.Prefix {
		t.Errorf("a fixed stream has the limits %+v", l)
	}
	c.Stream, c.Batch = "EV_{kind}", nats.BatchAtomic
	l := c.Limits("k")
	if l.Mode != sink.Prefix || l.MaxItems != 1000 || l.EndpointOf == nil {
		t.Fatalf("a template has the limits %+v", l)
	}
	for kind, want := range map[string]string{"A": "EV_A", "a.b": ""} {
		if got := l.EndpointOf(&sink.Message{Kind: kind}); got != want {
			t.Errorf("kind %q: got endpoint %q, want %q", kind, got, want)
		}
	}
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		filter, pattern string
		want            bool
	}{
		{"orders.>", "orders.*", true},
		{"orders.*", "orders.*", true},
		{"orders.*", "orders.a", true},
		{"orders.a", "orders.*", false},
		{"orders.>", "orders", false},
		{"orders", "orders", true},
		{"*.x", "orders.x", true},
		{">", "a.*.b", true},
		{"orders.*", "orders.*.x", false},
		{"other.>", "orders.*", false},
	} {
		if got := nats.Covers(c.filter, c.pattern); got != c.want {
			t.Errorf("%s covers %s: got %t", c.filter, c.pattern, got)
		}
	}
	if got := nats.Wildcards("a.{kind}.v-{id}.{attr.x}{group}.b"); got != "a.*.*.*.b" {
		t.Errorf("got wildcards %q", got)
	}
}

func TestHasBatches(t *testing.T) {
	for version, want := range map[string]bool{
		"2.9.10": false, "2.11.9": false, "2.12.0": false, "2.12.1": true, "2.12.1-RC.2": true, "2.15.1": true, "3.0.0": true, "1.99.9": false, "": false, "dev": false,
	} {
		if got := nats.HasBatches(version); got != want {
			t.Errorf("%q: got %t", version, got)
		}
	}
}

// TestPlainAck: the short way reads only what servers write, and leaves all else to JSON.
func TestPlainAck(t *testing.T) {
	want := jetstream.PubAck{Stream: "S-1", Sequence: 1203}
	for _, text := range []string{`{"stream":"S-1","seq":1203}`, `{"stream":"S-1", "seq":1203}`} {
		if got, ok := nats.PlainAck(text); !ok || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", text, got, ok, want)
		}
	}
	for _, text := range []string{
		"", "{}", `{"stream":"S-1"}`, `{"stream":"", "seq":1}`, `{"stream":"S-1", "seq":}`, `{"stream":"S-1", "seq":-1}`,
		`{"stream":"S-1", "seq":1`, `{"stream":"S\u002d1", "seq":1}`, `{"stream":"S-1", "seq":99999999999999999999}`,
		`{"stream":"S-1", "seq":1, "duplicate": true}`, `{"stream":"S-1",  "seq":1}`, `{"stream":"S-1","seq":1,"batch":"b"}`,
		`{"stream":"S-1", "domain":"D", "seq":1}`, `{"error":{"code":503}}`,
	} {
		if got, ok := nats.PlainAck(text); ok {
			t.Errorf("%s: got %+v, want none", text, got)
		}
	}
}
