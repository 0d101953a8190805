package camunda_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/camunda"
	"github.com/sluicebox/sluicebox/store"
)

// row returns a row as the layout zeebe has them.
func row(id string) sink.Message {
	return sink.Message{
		ID: id, Kind: "message", Group: store.GroupOf("order-7"), Payload: []byte(`{"total":1.0}`), Attempt: 1,
		Attributes: attributes("type", "OrderPaid", "tenant", "acme"),
	}
}

// Requests of every configuration are as the OpenAPI document has them; see gateway.
func TestPublication(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*camunda.Config)
		row    func(*sink.Message)
		want   publication
	}{
		"defaults": {want: publication{Name: "OrderPaid", CorrelationKey: "order-7", MessageID: "1", Variables: json.RawMessage(`{"total":1.0}`)}},
		"templates": {
			func(c *camunda.Config) {
				c.Name, c.CorrelationKey, c.TenantID, c.IDPrefix = "{kind}.{type}", "{attr.tenant}", "{attr.tenant}", "shop-"
				c.Variables = map[string]string{"total": "{id}", "none": "{attr.none}", "<x>": "{{}}"}
			}, nil,
			publication{Name: "message.OrderPaid", CorrelationKey: "acme", TenantID: "acme", MessageID: "shop-1", Variables: json.RawMessage(`{"<x>":"{}","total":"1"}`)},
		},
		"no group, no payload": {
			nil, func(m *sink.Message) { m.Group, m.Payload = store.Group{}, nil },
			publication{Name: "OrderPaid", MessageID: "1"},
		},
		"variables alone": {
			func(c *camunda.Config) { c.Variables = map[string]string{"a": "{id}"} }, func(m *sink.Message) { m.Payload = nil },
			publication{Name: "OrderPaid", CorrelationKey: "order-7", MessageID: "1", Variables: json.RawMessage(`{"a":"1"}`)},
		},
		"a message as payload": {
			func(c *camunda.Config) { c.Payload = camunda.PayloadMessage },
			func(m *sink.Message) { m.Payload = []byte(`{"name":"n","correlationKey":"k","variables":{"a": 1e2}}`) },
			publication{Name: "n", CorrelationKey: "k", MessageID: "1", Variables: json.RawMessage(`{"a": 1e2}`)},
		},
		"a name alone as payload": {
			func(c *camunda.Config) { c.Payload = camunda.PayloadMessage },
			func(m *sink.Message) { m.Payload = []byte(`{"name":"n","variables":null}`) },
			publication{Name: "n", MessageID: "1"},
		},
		"a replay": {nil, func(m *sink.Message) { m.Replay = "r" },
			publication{Name: "OrderPaid", CorrelationKey: "order-7", MessageID: "1/r", Variables: json.RawMessage(`{"total":1.0}`)}},
		"an id that is not UTF-8": {nil, func(m *sink.Message) { m.ID = "\xff" },
			publication{Name: "OrderPaid", CorrelationKey: "order-7", MessageID: "%FF", Variables: json.RawMessage(`{"total":1.0}`)}},
	} {
		t.Run(name, func(t *testing.T) {
			g := serveREST(t)
			cfg, m := config(g.URL+"/engine/"), row("1")
			if tt.change != nil {
				tt.change(&cfg)
			}
			if tt.row != nil {
				tt.row(&m)
			}
			res := newSink(t, cfg).Deliver(t.Context(), []sink.Message{m})
			if res.Class != sink.Delivered {
				t.Fatalf("%s: %s", res.Class, res.Detail)
			}
			got := g.published()[0]
			tt.want.TimeToLive = time.Hour.Milliseconds()
			if got.Name != tt.want.Name || got.CorrelationKey != tt.want.CorrelationKey || got.MessageID != tt.want.MessageID ||
				got.TenantID != tt.want.TenantID || got.TimeToLive != tt.want.TimeToLive || string(got.Variables) != string(tt.want.Variables) {
				t.Errorf("published %+v %s, want %+v %s", got, got.Variables, tt.want, tt.want.Variables)
			}
		})
	}
}

// A row that Camunda can never take is rejected without a request.
func TestRejected(t *testing.T) {
	g := serveREST(t)
	for name, tt := range map[string]struct {
		change func(*camunda.Config)
		row    func(*sink.Message)
		want   string
	}{
		"no type":             {nil, func(m *sink.Message) { m.Attributes = nil }, "row has no type, which name needs"},
		"no key":              {func(c *camunda.Config) { c.CorrelationKey = "{attr.x}" }, nil, "row has no attr.x, which correlation-key needs"},
		"no tenant":           {func(c *camunda.Config) { c.TenantID = "{attr.x}" }, nil, "row has no attr.x, which tenant-id needs"},
		"no id":               {nil, func(m *sink.Message) { m.ID = "" }, "empty id"},
		"an empty name":       {nil, func(m *sink.Message) { m.Attributes = attributes("type", " ") }, "name of the message is empty"},
		"a name in Latin-1":   {nil, func(m *sink.Message) { m.Attributes = attributes("type", "\xe9") }, "name of the message is not UTF-8"},
		"a list":              {nil, func(m *sink.Message) { m.Payload = []byte(" [1]") }, "payload is no JSON object, as variables must be"},
		"no JSON":             {nil, func(m *sink.Message) { m.Payload = []byte("{") }, "payload is not JSON"},
		"too large":           {func(c *camunda.Config) { c.MaxRequestBytes = 50 }, nil, "exceeds max-request-bytes (50)"},
		"no message":          {asMessage, func(m *sink.Message) { m.Payload = nil }, "payload is empty"},
		"a message of a list": {asMessage, func(m *sink.Message) { m.Payload = []byte("[]") }, "payload is no object with name, correlationKey and variables alone"},
		"a message with more": {asMessage, func(m *sink.Message) { m.Payload = []byte(`{"name":"a","timeToLive":1}`) }, `unknown field "timeToLive"`},
		"a nameless message":  {asMessage, func(m *sink.Message) { m.Payload = []byte(`{"variables":{}}`) }, "name of the message is empty"},
		"variables of a list": {asMessage, func(m *sink.Message) { m.Payload = []byte(`{"name":"a","variables":[]}`) }, "variables of the payload is no JSON object"},
	} {
		cfg, m := config(g.URL+"/engine"), row("1")
		if tt.change != nil {
			tt.change(&cfg)
		}
		if tt.row != nil {
			tt.row(&m)
		}
		res := newSink(t, cfg).Deliver(t.Context(), []sink.Message{m, row("2")})
		if out := res.At(0); out.Class != sink.Rejected || !strings.Contains(out.Detail, tt.want) || res.At(1).Class != sink.NotSent || !res.Unsent {
			t.Errorf("%s: %+v, want rejected with %q", name, res, tt.want)
		}
	}
	if got := g.published(); got != nil {
		t.Errorf("published %v", got)
	}
}

func asMessage(c *camunda.Config) { c.Payload = camunda.PayloadMessage }

// A message that the gateway has is delivered, and counted as skipped. The receipt is its key.
func TestRepeated(t *testing.T) {
	g := serveREST(t)
	cfg := config(g.URL + "/engine")
	cfg.Receipts = true
	s := newSink(t, cfg)
	first := s.Deliver(t.Context(), []sink.Message{row("1")})
	if first.Class != sink.Delivered || first.Skipped != 0 || len(first.Receipt) != 1 || first.Receipt[0].Value != "2251799813685249" {
		t.Errorf("the first: %+v", first)
	}
	again := s.Deliver(t.Context(), []sink.Message{row("1")})
	if again.Class != sink.Delivered || again.Skipped != 1 || again.Receipt != nil || again.Detail != "" {
		t.Errorf("again: %+v", again)
	}
	if n := len(g.published()); n != 1 {
		t.Errorf("%d messages, want 1", n)
	}
}

// Some refusals mean something else than their status.
func TestRefusals(t *testing.T) {
	g := serveREST(t)
	deliver := func(change func(*camunda.Config)) sink.Outcome {
		cfg := config(g.URL + "/engine")
		change(&cfg)
		return newSink(t, cfg).Deliver(t.Context(), []sink.Message{row("1")}).Outcome
	}
	fixed := func(c *camunda.Config) { c.TenantID = "a" }
	byRow := func(c *camunda.Config) { c.TenantID = "{attr.tenant}" }
	for _, tt := range []struct {
		refuse string
		change func(*camunda.Config)
		want   sink.Class
	}{
		{"INVALID_ARGUMENT", fixed, sink.Misconfigured}, {"INVALID_ARGUMENT", byRow, sink.Rejected},
		{"RESOURCE_EXHAUSTED", byRow, sink.Unavailable}, {"MAX_MESSAGE_SIZE_EXCEEDED", byRow, sink.Rejected},
	} {
		g.set(func() { g.refuse = tt.refuse })
		if out := deliver(tt.change); out.Class != tt.want || !strings.Contains(out.Detail, tt.refuse) {
			t.Errorf("%s is %s (%s), want %s", tt.refuse, out.Class, out.Detail, tt.want)
		}
	}
}

// The credentials of a user, and the topology that a probe reports.
func TestProbe(t *testing.T) {
	g := serveREST(t)
	g.authorization = "Basic cmVsYXk6Y2FuYXJ5LTdmM2QyYTkxYzQ="
	probe := func(change func(*camunda.Config)) sink.Outcome {
		cfg := config(g.URL + "/engine")
		cfg.User, cfg.Password = "relay", canary
		change(&cfg)
		return newSink(t, cfg).Probe(t.Context(), "")
	}
	for name, tt := range map[string]struct {
		change   func(*camunda.Config)
		topology string
		class    sink.Class
		detail   string
	}{
		"healthy":          {func(*camunda.Config) {}, healthy, sink.Delivered, "/engine/v2/topology: gateway 8.8.0, brokers 1, partitions 1; only a delivery"},
		"a wrong password": {func(c *camunda.Config) { c.Password = "other-password" }, healthy, sink.Misconfigured, "401"},
		"no leader": {func(*camunda.Config) {}, strings.Replace(healthy, `"leader"`, `"follower"`, 1), sink.Refused,
			"partitions without a healthy leader 1"},
		"a short time to live": {func(c *camunda.Config) { c.TimeToLive, c.MaxBackoff = time.Minute, 50*time.Second }, healthy, sink.Refused,
			"time-to-live 1m0s is shorter than backoff.max and request-timeout (1m10s)"},
		"another program": {func(*camunda.Config) {}, `{}`, sink.Misconfigured, "not from the API of Camunda 8 (no gatewayVersion)"},
	} {
		g.set(func() { g.topology = tt.topology })
		out := probe(tt.change)
		if out.Class != tt.class || !strings.Contains(out.Detail, tt.detail) || strings.Contains(out.Detail, canary) {
			t.Errorf("%s: %s: %s, want %s with %q", name, out.Class, out.Detail, tt.class, tt.detail)
		}
	}
	if got := g.published(); got != nil {
		t.Errorf("a probe published %v", got)
	}
}
