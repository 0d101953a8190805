package webhook_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
	"github.com/sluicebox/sluicebox/store"
)

// recorded starts a receiver and returns it with the requests that it gets.
func recorded(t *testing.T) (*sinktest.Receiver, *[]sinktest.Request) {
	var all []sinktest.Request
	r := sinktest.NewReceiver(t)
	r.Script(func(req *sinktest.Request) sinktest.Answer {
		all = append(all, *req)
		return sinktest.Answer{}
	})
	return r, &all
}

// TestStructured: a request with one event, byte for byte.
func TestStructured(t *testing.T) {
	r, got := recorded(t)
	m := sink.Message{
		ID: "7", Kind: "order", Group: store.GroupOf("c<1>"), Committed: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), Attempt: 1,
	}
	const head = `{"id":"7","partitionkey":"c<1>","source":"/s","specversion":"1.0","subject":"c<1>","tenant":"t-7","time":"2026-01-02T03:04:05.000006Z","type":"order"`
	typed := func(media string) string {
		return strings.Replace(head, `"id"`, `"datacontenttype":"`+media+`","id"`, 1)
	}
	for name, c := range map[string]struct{ media, payload, want string }{
		"json":       {"", "{ \"n\" : 1.0 }\n", typed("application/json") + ",\"data\":{ \"n\" : 1.0 }\n}"},
		"text":       {"text/plain", `a "b" <é>`, typed("text/plain") + `,"data":"a \"b\" <é>"}`},
		"binary":     {"application/octet-stream", "\x00\xff", typed("application/octet-stream") + `,"data_base64":"AP8="}`},
		"no JSON":    {"", "{\"a\": \"\xff\"}", typed("application/json") + `,"data_base64":"eyJhIjogIv8ifQ=="}`},
		"no payload": {"", "", head + "}"},
	} {
		*got = nil
		m.Payload = []byte(c.payload)
		s := newSink(t, webhook.Config{
			URL: sink.Secret(r.URL()), Format: webhook.FormatStructured, CloudEventsSource: "/s", ContentType: c.media,
			Headers: map[string]sink.Secret{"ce-tenant": "t-{id}"}, Secrets: []sink.Secret{secretA},
		})
		res := s.Deliver(t.Context(), []sink.Message{m})
		if res.Class != sink.Delivered || len(*got) != 1 {
			t.Fatalf("%s: %s: %s", name, res.Class, res.Detail)
		}
		req := (*got)[0]
		if string(req.Body) != c.want || !json.Valid(req.Body) {
			t.Errorf("%s: the body is\n%s, want\n%s", name, req.Body, c.want)
		}
		for header, want := range map[string]string{
			"Content-Type": "application/cloudevents+json; charset=utf-8", "Webhook-Id": "7", "Idempotency-Key": "7", "Ce-Id": "", "Ce-Tenant": "",
		} {
			if value := req.Header.Get(header); value != want {
				t.Errorf("%s: header %s is %q, want %q", name, header, value, want)
			}
		}
		if req.Header.Get("Webhook-Signature") == "" {
			t.Errorf("%s: the request is not signed", name)
		}
	}

	m.Payload = []byte("1")
	m.Attributes = store.Attributes{{Name: "type", Value: "Paid"}, {Name: "time", Value: "2026-01-01T00:00:00Z"}, {Name: "tenant", Value: "é"}, {Name: "empty"}}
	s := newSink(t, webhook.Config{
		URL: sink.Secret(r.URL()), Format: webhook.FormatStructured, CloudEventsSource: "/s",
		Headers: map[string]sink.Secret{"ce-tenant": "t-{attr.tenant}", "ce-empty": "{attr.empty}", "ce-none": "{attr.none}", "X-Type": "{type}"},
	})
	*got = nil
	const want = `{"datacontenttype":"application/json","id":"7","partitionkey":"c<1>","source":"/s","specversion":"1.0","subject":"c<1>","tenant":"t-é","time":"2026-01-01T00:00:00Z","type":"Paid","data":1}`
	if res := s.Deliver(t.Context(), []sink.Message{m}); res.Class != sink.Delivered || string((*got)[0].Body) != want || (*got)[0].Header.Get("X-Type") != "Paid" {
		t.Errorf("%s: %+v, want\n%s", res.Class, *got, want)
	}

	m.Payload = []byte("no json")
	s = newSink(t, webhook.Config{URL: sink.Secret(r.URL()), Format: webhook.FormatStructured, CloudEventsSource: "/s"})
	if res := s.Deliver(t.Context(), []sink.Message{m}); res.Class != sink.Rejected || !strings.Contains(res.Detail, "payload is not JSON, as its content-type application/json says") {
		t.Errorf("%s: %s", res.Class, res.Detail)
	}
}

// TestSeveralRows: a request carries the rows that can be sent, up to the first that cannot,
// and has the same id on every attempt.
func TestSeveralRows(t *testing.T) {
	for _, format := range []webhook.Format{webhook.FormatBatch, webhook.FormatJSONArray} {
		r, got := recorded(t)
		cfg := webhook.Config{URL: sink.Secret(r.URL()), Format: format}
		if format == webhook.FormatBatch {
			cfg.CloudEventsSource = "/s"
		}
		s := newSink(t, cfg)
		rows := []sink.Message{row("1", `{"n": 1}`), row("2", "2"), row("3", `"3"`), row("4", "no json"), row("5", "5")}
		var ids []string
		for range 2 {
			res := s.Deliver(t.Context(), rows)
			for i, want := range []sink.Class{sink.Delivered, sink.Delivered, sink.Delivered, sink.NotSent, sink.NotSent} {
				if res.At(i).Class != want {
					t.Errorf("%s, row %d: %s, want %s: %s", format, i+1, res.At(i).Class, want, res.At(i).Detail)
				}
			}
			ids = append(ids, (*got)[len(*got)-1].Header.Get("Webhook-Id"))
		}
		if ids[0] != ids[1] || !strings.HasPrefix(ids[0], "batch-") || (*got)[0].Header.Get("Idempotency-Key") != "" {
			t.Errorf("%s: the ids are %q", format, ids)
		}
		if res := s.Deliver(t.Context(), rows[3:]); res.At(0).Class != sink.Rejected || res.At(1).Class != sink.NotSent || len(*got) != 2 {
			t.Errorf("%s, the bad row: %+v", format, res)
		}
		if res := s.Deliver(t.Context(), rows[:1]); res.Class != sink.Delivered || (*got)[2].Header.Get("Webhook-Id") != "1" {
			t.Errorf("%s, one row: %+v, id %s", format, res, (*got)[2].Header.Get("Webhook-Id"))
		}

		var list []json.RawMessage
		if err := json.Unmarshal((*got)[0].Body, &list); err != nil || len(list) != 3 {
			t.Fatalf("%s: %v: %s", format, err, (*got)[0].Body)
		}
		if format == webhook.FormatJSONArray {
			if string((*got)[0].Body) != `[{"n": 1},2,"3"]` || (*got)[0].Header.Get("Content-Type") != "application/json" {
				t.Errorf("the body is %s", (*got)[0].Body)
			}
			continue
		}
		for i, text := range list {
			var e struct {
				ID   string
				Data json.RawMessage
			}
			if err := json.Unmarshal(text, &e); err != nil || e.ID != fmt.Sprint(i+1) || string(e.Data) != string(rows[i].Payload) {
				t.Errorf("event %d is %s: %v", i+1, text, err)
			}
		}
	}
}

// TestPayloads: each format carries a payload byte for byte, or rejects its row alone and says
// why.
func TestPayloads(t *testing.T) {
	large := bytes.Repeat([]byte("\x00\xff\r\n"), 1<<18)
	quoted := append(append([]byte(`"`), bytes.Repeat([]byte("é\\n"), 1<<18)...), '"')
	base64Of := func(p []byte) string { return base64.StdEncoding.EncodeToString(p) }
	for _, c := range []struct {
		name    string
		format  webhook.Format
		media   string
		payload []byte
		want    string // in the body; or of the reason, if rejected
		class   sink.Class
	}{
		{"NULL", webhook.FormatRaw, "", nil, "", sink.Delivered},
		{"NULL", webhook.FormatCloudEvents, "", nil, "", sink.Delivered},
		{"NULL", webhook.FormatStructured, "", nil, `"type":"K"}`, sink.Delivered},
		{"NULL", webhook.FormatBatch, "", nil, `"type":"K"}]`, sink.Delivered},
		{"NULL", webhook.FormatJSONArray, "", nil, "payload is empty and not JSON, as format: json-array needs", sink.Rejected},
		{"large bytes", webhook.FormatRaw, "application/octet-stream", large, string(large), sink.Delivered},
		{"large bytes", webhook.FormatCloudEvents, "application/octet-stream", large, string(large), sink.Delivered},
		{"large bytes", webhook.FormatStructured, "application/octet-stream", large, `"data_base64":"` + base64Of(large) + `"}`, sink.Delivered},
		{"large bytes", webhook.FormatBatch, "", large, `"data_base64":"` + base64Of(large) + `"}]`, sink.Delivered},
		{"large JSON", webhook.FormatStructured, "", quoted, `"data":` + string(quoted) + `}`, sink.Delivered},
		{"large JSON", webhook.FormatJSONArray, "", quoted, "[" + string(quoted) + "]", sink.Delivered},
		{"no UTF-8", webhook.FormatRaw, "", []byte("\"\xff\""), "\"\xff\"", sink.Delivered},
		{"no UTF-8", webhook.FormatJSONArray, "", []byte("\"\xff\""), "payload is not UTF-8 and so not JSON, as format: json-array needs", sink.Rejected},
	} {
		r, got := recorded(t)
		cfg := webhook.Config{URL: sink.Secret(r.URL()), Format: c.format, ContentType: c.media}
		if strings.HasPrefix(string(c.format), "cloudevents") {
			cfg.CloudEventsSource = "/s"
		}
		res := newSink(t, cfg).Deliver(t.Context(), []sink.Message{{ID: "7", Kind: "K", Payload: c.payload}})
		switch {
		case res.Class != c.class:
			t.Errorf("%s, %s: %s: %s", c.format, c.name, res.Class, res.Detail)
		case c.class == sink.Rejected && res.Detail != "not sent: "+c.want:
			t.Errorf("%s, %s: %s", c.format, c.name, res.Detail)
		case c.class == sink.Delivered && !strings.HasSuffix(string((*got)[0].Body), c.want):
			t.Errorf("%s, %s: the body of %d bytes does not end with the payload", c.format, c.name, len((*got)[0].Body))
		}
	}
}

// TestBatchBytes: a request has as many rows as fit, to the byte.
func TestBatchBytes(t *testing.T) {
	r, got := recorded(t)
	rows := []sink.Message{row("1", "11"), row("2", "22"), row("3", "33")}
	for limit, want := range map[int]string{4: "[11]", 6: "[11]", 7: "[11,22]", 9: "[11,22]", 10: "[11,22,33]", 0: "[11,22,33]"} {
		*got = nil
		s := newSink(t, webhook.Config{URL: sink.Secret(r.URL()), Format: webhook.FormatJSONArray, HTTP: webhook.HTTP{MaxRequestBytes: limit}})
		if res := s.Deliver(t.Context(), slices.Clone(rows)); len(*got) != 1 || string((*got)[0].Body) != want || res.At(0).Class != sink.Delivered {
			t.Errorf("%d bytes: %+v, %+v, want %s", limit, *got, res, want)
		}
	}
	s := newSink(t, webhook.Config{URL: sink.Secret(r.URL()), Format: webhook.FormatJSONArray, HTTP: webhook.HTTP{MaxRequestBytes: 3}})
	if res := s.Deliver(t.Context(), rows); res.At(0).Class != sink.Rejected || !strings.Contains(res.At(0).Detail, "payload of 2 bytes needs a request of 4 bytes, which exceeds max-request-bytes (3)") {
		t.Errorf("%+v", res)
	}
}
