package flowcatalyst_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/flowcatalyst"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

func message(kind, id, payload string) sink.Message {
	return sink.Message{ID: id, Kind: kind, Payload: []byte(payload)}
}

func events(n int) []sink.Message {
	msgs := make([]sink.Message, n)
	for i := range msgs {
		id := fmt.Sprint("e", i)
		msgs[i] = message(flowcatalyst.KindEvent, id, `{"id":"`+id+`"}`)
	}
	return msgs
}

func classes(res sink.Result, n int) []sink.Class {
	list := make([]sink.Class, n)
	for i := range list {
		list[i] = res.At(i).Class
	}
	return list
}

// TestRequest: requests of both wires, byte for byte.
func TestRequest(t *testing.T) {
	for _, c := range []struct {
		wire flowcatalyst.Wire
		kind string
		path string
		body string
	}{
		{"", "EVENT", "/base/api/events/batch", `[{"id":"1"},{ "id":"2" }]`},
		{flowcatalyst.WireArray, "DISPATCH_JOB", "/base/api/dispatch/jobs/batch", `[{"id":"1"},{ "id":"2" }]`},
		{flowcatalyst.WireItems, "EVENT", "/base/api/events/batch", `{"items":[{"id":"1"},{ "id":"2" }]}`},
		{flowcatalyst.WireItems, "DISPATCH_JOB", "/base/api/dispatch-jobs/batch", `{"items":[{"id":"1"},{ "id":"2" }]}`},
		{flowcatalyst.WireItems, "AUDIT_LOG", "/base/api/audit-logs/batch", `{"items":[{"id":"1"},{ "id":"2" }]}`},
	} {
		var got sinktest.Request
		r := sinktest.NewReceiver(t)
		r.Script(func(req *sinktest.Request) sinktest.Answer {
			got = *req
			return sinktest.Answer{}
		})
		s := newSink(t, flowcatalyst.Config{
			Wire: c.wire, BaseURL: r.URL() + "/base/", HTTP: flowcatalyst.HTTP{Token: canary, UserAgent: "sluicebox/1.2.3"},
		})
		res := s.Deliver(t.Context(), []sink.Message{
			message(c.kind, "1", `{"id":"1"}`), message(c.kind, "2", `{ "id":"2" }`),
		})
		if res.Class != sink.Delivered {
			t.Fatalf("wire %q, %s: %s %s", c.wire, c.kind, res.Class, res.Detail)
		}
		if got.Path != c.path || string(got.Body) != c.body {
			t.Errorf("wire %q, %s: POST %s %s", c.wire, c.kind, got.Path, got.Body)
		}
		for header, want := range map[string]string{
			"Authorization": "Bearer " + canary, "Content-Type": "application/json",
			"Accept": "application/json", "User-Agent": "sluicebox/1.2.3", "Idempotency-Key": "",
		} {
			if v := got.Header.Get(header); v != want {
				t.Errorf("wire %q, %s: header %s is %q, want %q", c.wire, c.kind, header, v, want)
			}
		}
	}
}

// TestUnsendable: a message that cannot be sent does not break the request of other
// rows, and no later row overtakes it.
func TestUnsendable(t *testing.T) {
	good := func(i int) sink.Message { return events(5)[i] }
	broken := message("EVENT", "bad", `{"id":"bad"`)
	large := message("EVENT", "large", `{"id":"`+strings.Repeat("x", 1<<20)+`"}`)
	const d, r, n = sink.Delivered, sink.Rejected, sink.NotSent
	for name, c := range map[string]struct {
		msgs   []sink.Message
		want   []sink.Class
		taken  []string
		detail string // of the first rejected message
	}{
		"alone":      {[]sink.Message{broken}, []sink.Class{r}, nil, "not valid JSON at byte 11: unexpected end of JSON input"},
		"first":      {[]sink.Message{broken, good(0)}, []sink.Class{r, n}, nil, "not valid JSON"},
		"later":      {[]sink.Message{good(0), good(1), broken, good(2)}, []sink.Class{d, d, n, n}, []string{"e0", "e1"}, ""},
		"empty":      {[]sink.Message{message("EVENT", "x", "")}, []sink.Class{r}, nil, "payload is empty"},
		"nil":        {[]sink.Message{{ID: "x", Kind: "EVENT"}}, []sink.Class{r}, nil, "payload is empty"},
		"not UTF-8":  {[]sink.Message{message("EVENT", "x", "{\"a\":\"\xff\"}"), good(0)}, []sink.Class{r, n}, nil, "payload is not UTF-8 and so not JSON"},
		"two values": {[]sink.Message{message("EVENT", "x", `{"id":"x"},{"id":"y"}`)}, []sink.Class{r}, nil, "not valid JSON at byte 11"},
		"BOM":        {[]sink.Message{message("EVENT", "x", "\uFEFF{}")}, []sink.Class{r}, nil, "not valid JSON at byte 1"},
		"control":    {[]sink.Message{message("EVENT", "x", "{\"a\":\"\n\"}")}, []sink.Class{r}, nil, "not valid JSON at byte 7"},
		"large":      {[]sink.Message{large, good(0)}, []sink.Class{r, n}, nil, "payload of 1048585 bytes needs a request of 1048597 bytes; the limit of POST /api/events/batch is 1048575"},
		"large later": {
			[]sink.Message{good(0), large}, []sink.Class{d, n}, []string{"e0"}, "",
		},
		"other kind": {[]sink.Message{message("EVENTS", "x", "{}")}, []sink.Class{r}, nil, `kind "EVENTS" has no endpoint`},
		"other kind, several": {
			[]sink.Message{message("X", "x", "{}"), message("X", "y", "{}")}, []sink.Class{r, n}, nil, `"X" has no endpoint`,
		},
		"kinds mixed": {
			[]sink.Message{good(0), message("DISPATCH_JOB", "j", `{"id":"j"}`)}, []sink.Class{d, n}, []string{"e0"}, "",
		},
		"none": {nil, nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			recv := sinktest.NewReceiver(t)
			s := newSink(t, flowcatalyst.Config{Wire: flowcatalyst.WireItems, BaseURL: recv.URL()})
			res := s.Deliver(t.Context(), c.msgs)
			if got := classes(res, len(c.msgs)); !slices.Equal(got, c.want) {
				t.Errorf("the outcomes are %v, want %v", got, c.want)
			}
			var ids []string
			for _, x := range recv.Accepted() {
				ids = append(ids, x.ID)
			}
			if !slices.Equal(ids, c.taken) {
				t.Errorf("%v arrived, want %v", ids, c.taken)
			}
			if c.detail != "" && !strings.Contains(res.At(0).Detail, c.detail) {
				t.Errorf("got detail %q, want %q in it", res.At(0).Detail, c.detail)
			}
		})
	}
}

// TestUnsendableAfterFailure: a failure of the request applies to all messages, so that
// no single row is blamed for it.
func TestUnsendableAfterFailure(t *testing.T) {
	recv := sinktest.NewReceiver(t)
	recv.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Status: 400} })
	s := newSink(t, flowcatalyst.Config{BaseURL: recv.URL()})
	res := s.Deliver(t.Context(), append(events(2), message("EVENT", "bad", "{")))
	if res.Class != sink.Rejected || res.Items != nil {
		t.Errorf("the result is %+v, want one rejection for all", res)
	}
}

// TestItemResults: if the platform has a result for each item, each message has its
// own outcome.
func TestItemResults(t *testing.T) {
	recv := sinktest.NewReceiver(t)
	recv.Script(func(*sinktest.Request) sinktest.Answer {
		return sinktest.Answer{ItemStatuses: []string{"SUCCESS", "ERROR", "SKIPPED", "DUPLICATE"}}
	})

	s := newSink(t, flowcatalyst.Config{Wire: flowcatalyst.WireItems, BaseURL: recv.URL()})
	res := s.Deliver(t.Context(), append(events(5), message("EVENT", "bad", "{")))
	want := []sink.Class{sink.Delivered, sink.Refused, sink.Delivered, sink.Refused, sink.Delivered, sink.NotSent}
	if got := classes(res, 6); !slices.Equal(got, want) {
		t.Errorf("the outcomes are %v, want %v", got, want)
	}
	if d := res.At(1).Detail; d != "POST /api/events/batch answered ERROR for the item: item 1 would not do" {
		t.Errorf("got detail %q", d)
	}
}

// TestLimits: a request at the limits is sent whole and stays below the platform's
// limit.
func TestLimits(t *testing.T) {
	for _, wire := range []flowcatalyst.Wire{flowcatalyst.WireArray, flowcatalyst.WireItems} {
		for kind, most := range map[string]int{"EVENT": 1 << 20, "DISPATCH_JOB": 3_000_001, "AUDIT_LOG": 1 << 20} {
			cfg := flowcatalyst.Config{Wire: wire}
			if cfg.CheckKind(kind) != nil {
				continue
			}
			size := 0
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var b bytes.Buffer
				if _, err := b.ReadFrom(r.Body); err != nil {
					t.Error(err)
				}
				size = b.Len()
				_, _ = w.Write(sinktest.Results(cfgItems(kind)))
			}))
			t.Cleanup(srv.Close)
			cfg.BaseURL = srv.URL
			s := newSink(t, cfg)
			l := s.Limits(kind)
			if l.Mode != sink.Atomic || l.MaxItems != cfgItems(kind) {
				t.Errorf("%s: got limits %+v", kind, l)
			}
			msgs := make([]sink.Message, l.MaxItems)
			for i := range msgs {
				msgs[i] = message(kind, "x", `"`+strings.Repeat("x", l.MaxBytes/l.MaxItems-2)+`"`)
			}
			res := s.Deliver(t.Context(), msgs)
			if res.Class != sink.Delivered || res.Items != nil {
				t.Errorf("%s over %s: %s %s", kind, wire, res.Class, res.Detail)
			}
			if size >= most || size < most*98/100 {
				t.Errorf("%s over %s: the largest request has %d bytes, want just below %d", kind, wire, size, most)
			}
		}
	}
}

func cfgItems(kind string) int {
	if kind == "AUDIT_LOG" {
		return 100
	}
	return 1000
}

// TestMaxRequestBytes: a platform with other limits than the known ones.
func TestMaxRequestBytes(t *testing.T) {
	recv := sinktest.NewReceiver(t)
	s := newSink(t, flowcatalyst.Config{BaseURL: recv.URL(), HTTP: flowcatalyst.HTTP{MaxRequestBytes: 20}})
	for size, want := range map[int]sink.Class{18: sink.Delivered, 19: sink.Rejected} {
		m := message("EVENT", "x", `"`+strings.Repeat("x", size-2)+`"`)
		if res := s.Deliver(t.Context(), []sink.Message{m}); res.Class != want {
			t.Errorf("a payload of %d bytes is %s: %s", size, res.Class, res.Detail)
		}
	}

	if l := s.Limits("EVENT"); l.MaxBytes < 1 {
		t.Errorf("got limits %+v", l)
	}
}

// TestErrorsHideToken: no failure shows the token.
func TestErrorsHideToken(t *testing.T) {
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/login?"+r.Header.Get("Authorization"))
		w.WriteHeader(int(r.ContentLength) + 300 - 9) // 2 payload bytes: []
		_, _ = fmt.Fprintf(w, "you sent %s", r.Header)
	}))
	t.Cleanup(echo.Close)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		url string
		ctx context.Context
	}{
		"answer":    {echo.URL, t.Context()},
		"dead port": {"http://127.0.0.1:1", t.Context()},
		"no host":   {"http://nowhere.invalid", t.Context()},
		"cancelled": {echo.URL, ended},
	} {
		s := newSink(t, flowcatalyst.Config{BaseURL: c.url, HTTP: flowcatalyst.HTTP{Token: canary}})
		for _, size := range []int{7, 107, 207} { // 3xx, 4xx, 5xx
			m := message("EVENT", "x", `"`+strings.Repeat("x", size-2)+`"`)
			res := s.Deliver(c.ctx, []sink.Message{m})
			if res.Class == sink.Delivered || res.Detail == "" {
				t.Errorf("%s: %s %q", name, res.Class, res.Detail)
			}
			if strings.Contains(fmt.Sprintf("%+v", res), canary) {
				t.Errorf("%s: the detail shows the token: %q", name, res.Detail)
			}
		}
	}
}

// A body above 1 KiB is compressed if the configuration says so.
func TestCompression(t *testing.T) {
	var encoding string
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		encoding = r.Header.Get("Content-Encoding")
		reader, err := gzip.NewReader(r.Body)
		if err == nil {
			body, err = io.ReadAll(reader)
		}
		if err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	s := newSink(t, flowcatalyst.Config{BaseURL: server.URL, Compression: "gzip"})
	payload := `{"id":"` + strings.Repeat("a", 2000) + `"}`
	res := s.Deliver(t.Context(), []sink.Message{message(flowcatalyst.KindEvent, "1", payload)})
	if res.Class != sink.Delivered || encoding != "gzip" || string(body) != "["+payload+"]" {
		t.Errorf("%s %s: Content-Encoding %q, %d bytes", res.Class, res.Detail, encoding, len(body))
	}
}
