package webhook

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

func newSinkAt(tb testing.TB, at time.Time, cfg Config) *Sink {
	tb.Helper()
	if cfg.URL == "" {
		cfg.URL = "https://hooks.example/orders"
	}

	s, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}

	s.now = func() time.Time { return at }
	return s
}

// headers returns the headers of an attempt that depend on the row, as "name: value".
func headers(tb testing.TB, s *Sink, m sink.Message) []string {
	tb.Helper()
	h, why := s.header([]sink.Message{m}, m.Payload)
	if why != "" {
		return []string{why}
	}

	var list []string
	for name, values := range h {
		if name = strings.ToLower(name); name == "content-type" || name == "user-agent" || len(values) != 1 {
			continue
		}
		list = append(list, name+": "+values[0])
	}

	slices.Sort(list)
	return list
}

// TestHeaders: the headers about a row, byte for byte.
func TestHeaders(t *testing.T) {
	at := time.Unix(1614265330, 999_999_999)
	ce := Config{Format: FormatCloudEvents, CloudEventsSource: "/shop/orders"}
	ceOf := func(typ string) Config {
		c := ce
		c.CloudEventsType = typ
		return c
	}
	ceType := ce
	ceType.CloudEventsType, ceType.IDPrefix = "com.example.order", "evt."
	all := Config{MetadataHeaders: []string{MetadataAttempt, MetadataGroup, MetadataKind}}
	row := sink.Message{
		ID: "msg_p5jXN8AQM9LWM0D4loKWxJek", Kind: "Euro € 😀", Group: store.GroupOf(`50% of "it"`), Attempt: 3,
		Payload:   []byte(`{"test": 2432232314}`),
		Committed: time.Date(2026, 3, 1, 12, 0, 0, 1500, time.FixedZone("", 3600)),
	}

	change := func(f func(*sink.Message)) sink.Message {
		m := row
		f(&m)
		return m
	}

	const id = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	plain := []string{"idempotency-key: " + id, "webhook-id: " + id, "webhook-timestamp: 1614265330"}
	for name, c := range map[string]struct {
		cfg  Config
		m    sink.Message
		want []string
	}{
		"unsigned": {Config{}, row, plain},
		"signed": {Config{Secrets: []sink.Secret{secretA}}, row, append([]string{
			"webhook-signature: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
		}, plain...)},
		"event": {ce, row, append([]string{
			"ce-id: " + id, "ce-partitionkey: 50%25%20of%20%22it%22", "ce-source: /shop/orders", "ce-specversion: 1.0",
			"ce-subject: 50%25%20of%20%22it%22", "ce-time: 2026-03-01T11:00:00.0000015Z",
			"ce-type: Euro%20%E2%82%AC%20%F0%9F%98%80", // the example of the HTTP binding
		}, plain...)},
		"event of its own type": {ceType, row, []string{
			"ce-id: evt." + id, "ce-partitionkey: 50%25%20of%20%22it%22", "ce-source: /shop/orders", "ce-specversion: 1.0",
			"ce-subject: 50%25%20of%20%22it%22", "ce-time: 2026-03-01T11:00:00.0000015Z", "ce-type: com.example.order",
			"idempotency-key: evt." + id, "webhook-id: evt%2E" + id, "webhook-timestamp: 1614265330",
		}},
		"bare event": {ce, sink.Message{ID: "7", Kind: "K"}, []string{
			"ce-id: 7", "ce-source: /shop/orders", "ce-specversion: 1.0", "ce-type: K",
			"idempotency-key: 7", "webhook-id: 7", "webhook-timestamp: 1614265330",
		}},
		"event without a kind": {ce, sink.Message{ID: "7"}, []string{
			"CloudEvent has no type, because the row has no kind; set cloudevents-type",
		}},
		"event of an empty group": {ce, sink.Message{ID: "7", Kind: "K", Group: store.GroupOf("")}, []string{
			"ce-id: 7", "ce-source: /shop/orders", "ce-specversion: 1.0", "ce-type: K",
			"idempotency-key: 7", "webhook-id: 7", "webhook-timestamp: 1614265330",
		}},
		"event of values": {
			Config{
				Format: FormatCloudEvents, CloudEventsSource: "/s", CloudEventsType: "com.{kind}", CloudEventsSubject: "{kind}/{id}",
				Headers: map[string]sink.Secret{"ce-tenant": "{group}", "ce-plant": `a "b"`, "X-Trace": "00-{group}", "X-None": "a{{{id}}}"},
			},
			sink.Message{ID: "7", Kind: "K €", Group: store.GroupOf("g\r\nh"), Committed: time.Unix(1, 0)},
			[]string{
				"ce-id: 7", "ce-source: /s", "ce-specversion: 1.0", "ce-type: com.K%20%E2%82%AC", "ce-subject: K%20%E2%82%AC/7",
				"ce-partitionkey: g%0D%0Ah", "ce-time: 1970-01-01T00:00:01Z", "ce-tenant: g%0D%0Ah", "ce-plant: a%20%22b%22",
				"x-trace: 00-g%0D%0Ah", "x-none: a{7}", "idempotency-key: 7", "webhook-id: 7", "webhook-timestamp: 1614265330",
			},
		},
		"event with attributes": {
			Config{
				Format: FormatCloudEvents, CloudEventsSource: "/s", CloudEventsSubject: "{attr.a b}",
				Headers:         map[string]sink.Secret{"ce-tenant": "{attr.tenant}", "X-Trace": "{attr.trace}", "X-Empty": "{attr.empty}", "X-None": "{attr.none}"},
				MetadataHeaders: []string{MetadataKind, MetadataGroup, MetadataType, MetadataTime},
			},
			sink.Message{ID: "7", Kind: "order", Committed: time.Unix(1, 0), Attributes: store.Attributes{
				{Name: "type", Value: "Order Paid"}, {Name: "time", Value: "2026-01-02T03:04:05Z"},
				{Name: "tenant", Value: "t\r\n1"}, {Name: "trace", Value: "00-4bf9"}, {Name: "empty"}, {Name: "a b", Value: "s"},
			}},
			[]string{
				"ce-id: 7", "ce-source: /s", "ce-specversion: 1.0", "ce-type: Order%20Paid", "ce-subject: s", "ce-time: 2026-01-02T03:04:05Z",
				"ce-tenant: t%0D%0A1", "x-trace: 00-4bf9", "sluicebox-kind: order", "sluicebox-type: Order%20Paid", "sluicebox-time: 2026-01-02T03:04:05Z",
				"idempotency-key: 7", "webhook-id: 7", "webhook-timestamp: 1614265330",
			},
		},
		"event without a type but a kind": {ce, sink.Message{ID: "7", Kind: "order", Attributes: store.Attributes{{Name: "type"}}}, []string{
			"ce-id: 7", "ce-source: /shop/orders", "ce-specversion: 1.0", "ce-type: order",
			"idempotency-key: 7", "webhook-id: 7", "webhook-timestamp: 1614265330",
		}},
		"event of an attribute that the row lacks": {ceOf("x.{type}"), sink.Message{ID: "7", Kind: "K"}, []string{
			"CloudEvent has no type, because the row has no type; set cloudevents-type",
		}},
		"event of a long type": {ceOf("x.{type}"), sink.Message{ID: "7", Attributes: store.Attributes{{Name: "type", Value: strings.Repeat("é", 342)}}}, []string{
			"type of the CloudEvent needs 2054 bytes in a header, which exceeds 2048",
		}},
		"time of the commit": {Config{MetadataHeaders: []string{MetadataTime, MetadataType}}, sink.Message{ID: "7", Committed: time.Unix(1, 0)}, []string{
			"sluicebox-time: 1970-01-01T00:00:01Z", "idempotency-key: 7", "webhook-id: 7", "webhook-timestamp: 1614265330",
		}},
		"too many long values": {
			Config{Headers: map[string]sink.Secret{
				"A": "{kind}", "B": "{kind}", "C": "{kind}", "D": "{kind}", "E": "{kind}", "F": "{kind}", "G": "{kind}", "H": "{kind}", "I": "{id}",
			}},
			sink.Message{ID: "7", Kind: strings.Repeat("x", 2048)},
			[]string{"values of the row need 16394 bytes of headers, which exceeds 16384"},
		},
		"header without a value": {Config{Headers: map[string]sink.Secret{"X-A": "{group}", "X-B": "{kind}"}}, sink.Message{ID: "7"}, []string{
			"idempotency-key: 7", "webhook-id: 7", "webhook-timestamp: 1614265330",
		}},
		"event of a type that the row lacks": {ceOf("x.{group}"), sink.Message{ID: "7", Kind: "K"}, []string{
			"CloudEvent has no type, because the row has no group; set cloudevents-type",
		}},
		"metadata": {all, row, append([]string{
			"sluicebox-attempt: 3", "sluicebox-group: 50%25%20of%20%22it%22",
			"sluicebox-kind: Euro%20%E2%82%AC%20%F0%9F%98%80",
		}, plain...)},
		"metadata of a row without a group": {all, change(func(m *sink.Message) { m.Group = store.Group{} }), append([]string{
			"sluicebox-attempt: 3", "sluicebox-kind: Euro%20%E2%82%AC%20%F0%9F%98%80",
		}, plain...)},
		"group too long": {all, change(func(m *sink.Message) { m.Group.Name = strings.Repeat("g", 2049) }), append([]string{
			"sluicebox-attempt: 3", "sluicebox-kind: Euro%20%E2%82%AC%20%F0%9F%98%80",
		}, plain...)},
		"full stop": {Config{}, sink.Message{ID: "a.b c"}, []string{
			"idempotency-key: a.b%20c", "webhook-id: a%2Eb%20c", "webhook-timestamp: 1614265330",
		}},
		"full stop, signed": {Config{Secrets: []sink.Secret{secretA}}, sink.Message{ID: "a.b c", Payload: []byte("{}")}, []string{
			"idempotency-key: a.b%20c", "webhook-id: a%2Eb%20c", "webhook-timestamp: 1614265330",
			"webhook-signature: v1,aFa8tu4jN4W056mkZUUrV/ZFomxRqRnILtP2no0V01c=",
		}},
		"long id": {Config{}, sink.Message{ID: strings.Repeat("x", 256)}, []string{
			"idempotency-key: sha256-85e62acd750c4eb56b7b6a1d66dca5bfaac5f062608a1a893410d0288936c09a",
			"webhook-id: sha256-85e62acd750c4eb56b7b6a1d66dca5bfaac5f062608a1a893410d0288936c09a",
			"webhook-timestamp: 1614265330",
		}},
		"no id": {Config{}, sink.Message{}, []string{
			"row has an empty id, which receivers need to identify rows; set id-prefix",
		}},
	} {
		slices.Sort(c.want)
		if got := headers(t, newSinkAt(t, at, c.cfg), c.m); !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// TestSameIDEachAttempt: each attempt has the same id, and its own time and
// signature.
func TestSameIDEachAttempt(t *testing.T) {
	s := newSinkAt(t, time.Unix(100, 0), Config{Secrets: []sink.Secret{secretA}})
	m := sink.Message{ID: "7", Payload: []byte("{}"), Attempt: 1}
	first, _ := s.header([]sink.Message{m}, m.Payload)
	s.now = func() time.Time { return time.Unix(160, 0) }
	m.Attempt = 2
	second, _ := s.header([]sink.Message{m}, m.Payload)
	for name, same := range map[string]bool{
		"Webhook-Id": true, "idempotency-key": true, "Webhook-Timestamp": false, "Webhook-Signature": false,
	} {
		if (first[name][0] == second[name][0]) != same {
			t.Errorf("%s is %s and then %s", name, first[name], second[name])
		}
	}

	if h := s.fixed(); len(h) != 2 {
		t.Errorf("an attempt left its headers behind: %v", h)
	}
}

// FuzzAttribute: the rules of the CloudEvents HTTP binding, section 3.1.3.2.
func FuzzAttribute(f *testing.F) {
	for _, s := range []string{
		"Euro € 😀", "", `"`, "%41", "a\r\nX: y", "\x7f\u0080\u2028", "\xc0\xa0", "!~", "é",
	} {
		f.Add(s)
	}

	f.Fuzz(func(t *testing.T, s string) {
		got := attribute(s)
		if back, err := url.PathUnescape(got); err != nil || back != s {
			t.Fatalf("%q becomes %q, which reads as %q, %v", s, got, back, err)
		}
		if strings.ContainsFunc(got, func(r rune) bool { return r < '!' || r > '~' || r == '"' }) {
			t.Fatalf("%q becomes %q", s, got)
		}
		// All other characters stay as they are.
		var want strings.Builder
		for i := 0; i < len(s); {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r >= '!' && r <= '~' && r != '"' && r != '%' {
				want.WriteRune(r)
			} else {
				for _, c := range []byte(s[i : i+n]) {
					const hex = "0123456789ABCDEF"
					want.WriteString("%" + hex[c/16:c/16+1] + hex[c%16:c%16+1])
				}
			}
			i += n
		}
		if got != want.String() {
			t.Fatalf("%q becomes %q, want %q", s, got, want.String())
		}
	})
}

// TestReserved: no fixed header replaces a header of the relay.
func TestReserved(t *testing.T) {
	s := newSinkAt(t, time.Unix(1, 0), Config{
		Secrets: []sink.Secret{secretA}, Format: FormatCloudEvents, CloudEventsSource: "/s",
		MetadataHeaders: []string{MetadataKind, MetadataGroup, MetadataType, MetadataTime, MetadataAttempt},
	})

	h, why := s.header([]sink.Message{{
		ID: "7", Kind: "K", Group: store.GroupOf("g"), Attempt: 1, Committed: time.Unix(1, 0),
		Attributes: store.Attributes{{Name: "type", Value: "T"}},
	}}, nil)
	if why != "" || len(h) < 16 {
		t.Fatal(why, h)
	}

	for name := range h {
		if reservedReason(http.CanonicalHeaderKey(name), FormatCloudEvents) == "" {
			t.Errorf("%s is not reserved, but the relay sets it", name)
		}
	}
}
