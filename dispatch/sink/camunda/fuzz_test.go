package camunda_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/camunda"
	"github.com/sluicebox/sluicebox/store"
)

// A row is rejected or makes a request that the OpenAPI document allows, and a message of gRPC with the
// same variables. Neither has a text that is not UTF-8.
func FuzzMessage(f *testing.F) {
	f.Add("1", "OrderPaid", "order-7", []byte(`{"a": 1e2, "b":"\u2028"}`), "x", "", false)
	f.Add("\xff", "a\x00", "", []byte(`{"a":1,"a":2}`), "</script>", "r1", false)
	f.Add("1", "", "", []byte(`{"name":"n","correlationKey":"k","variables":{"a":[]}}`), "", "", true)
	f.Fuzz(func(t *testing.T, id, typ, group string, payload []byte, added, replay string, isMessage bool) {
		cfg := config("https://h")
		cfg.Variables = map[string]string{"added": "{attr.added}"}
		if isMessage {
			cfg.Payload = camunda.PayloadMessage
		}
		m := sink.Message{
			ID: id, Group: store.GroupOf(group), Payload: bytes.Clone(payload), Replay: replay, Attributes: attributes("type", typ, "added", added),
		}
		body, proto, reason := camunda.Encode(cfg, &m)
		if !bytes.Equal(m.Payload, payload) {
			t.Fatal("the payload is changed")
		}
		if reason != "" {
			return
		}
		p, err := parsePublication(bytes.NewReader(body))
		if err != nil || !utf8.Valid(body) {
			t.Fatalf("%q: %v", body, err)
		}
		var variables map[string]json.RawMessage
		if err := json.Unmarshal(p.Variables, &variables); err != nil || variables["added"] == nil {
			t.Fatalf("variables %q: %v", p.Variables, err)
		}
		if !bytes.Contains(proto, p.Variables) || !bytes.Contains(proto, []byte(p.MessageID)) || !bytes.Contains(proto, []byte(p.Name)) {
			t.Fatalf("over gRPC %q, over REST %q", proto, body)
		}
	})
}

// An answer of another program is an error or a topology, and ends.
func FuzzTopology(f *testing.F) {
	f.Add([]byte("\x0a\x04\x22\x02\x08\x01\x10\x01\x18\x01\x20\x01\x2a\x058.8.0"))
	f.Add([]byte("\x0a\x06\x22\x04\x10\x07\x18\x09"))
	f.Add([]byte("\x08"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if facts, _, err := camunda.ReadTopology(b); err == nil && facts == "" {
			t.Error("no facts")
		}
	})
}
