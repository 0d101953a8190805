package tracing

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicebox/sluicebox/cmd/internal/tracing/tracetest"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
	"github.com/sluicebox/sluicebox/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// receiver is an endpoint that refuses the first request of each row.
type receiver struct {
	*httptest.Server
	mu   sync.Mutex
	seen map[string][]string // the traceparents by id
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{seen: map[string][]string{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		id := req.Header.Get("Idempotency-Key")
		r.seen[id] = append(r.seen[id], req.Header.Get("Traceparent")+" "+req.Header.Get("X-Row"))
		if len(r.seen[id]) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

const writersTrace, writersSpan = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

// TestTraceOfARow: one trace leads from the span of the writer over the spans of the relay to the
// receiver, with a span for each attempt.
func TestTraceOfARow(t *testing.T) {
	for _, protocol := range []string{protocolHTTP, protocolGRPC} {
		t.Run(protocol, func(t *testing.T) {
			server, to := tracetest.New(t, protocol), newReceiver(t)
			tracer, err := New(Options{
				Config: Config{Endpoint: server.URL, Protocol: protocol}, Relay: "shop", Holder: "me", Version: "1", Log: slog.New(slog.DiscardHandler),
				Variable: func(string) string { return "" },
			})
			if err != nil {
				t.Fatal(err)
			}
			hook, err := webhook.New(webhook.Config{URL: sink.Secret(to.URL), Headers: map[string]sink.Secret{"x-row": "{attr.traceparent}"}})
			if err != nil {
				t.Fatal(err)
			}
			defer hook.Close()
			s := tracer.Wrap("hooks", "webhook", hook)
			now := time.Now()
			m := sink.Message{
				Outbox: "orders", ID: "7", Payload: []byte("{}"), Committed: now.Add(-4 * time.Second), Captured: now.Add(-3 * time.Second), Claimed: now.Add(-time.Second),
				Attributes: store.Attributes{{Name: "traceparent", Value: "00-" + writersTrace + "-" + writersSpan + "-01"}, {Name: "tracestate", Value: "a=b"}},
			}
			ref := store.Ref{Outbox: "orders", ID: "7"}
			for m.Attempt = 1; m.Attempt <= 2; m.Attempt++ {
				if res := s.Deliver(t.Context(), []sink.Message{m}); (res.At(0).Class == sink.Delivered) != (m.Attempt == 2) {
					t.Fatalf("attempt %d: %+v", m.Attempt, res)
				}
			}
			if id := tracer.Settled(ref, &store.Outcome{Status: store.Completed}); id != writersTrace {
				t.Errorf("trace %q, want %s", id, writersTrace)
			}
			if tracer.Settled(ref, &store.Outcome{Status: store.Completed}) != "" || tracer.open.Load() != 0 {
				t.Error("the span of a settled row is open")
			}
			if value, _ := m.Attributes.Get("traceparent"); !strings.Contains(value, writersSpan) {
				t.Errorf("the row has %s", value)
			}
			unsampled := m
			unsampled.ID, unsampled.Attempt, unsampled.Attributes = "8", 1, store.Attributes{{Name: "traceparent", Value: "00-" + writersTrace + "-" + writersSpan + "-00"}}
			s.Deliver(t.Context(), []sink.Message{unsampled})
			tracer.Close()
			checkTrace(t, server, to)
		})
	}
}

// checkTrace checks the spans of a row and what its receiver got.
func checkTrace(t *testing.T, server *tracetest.Server, to *receiver) {
	t.Helper()
	all, _ := server.Spans()
	byName := map[string][]*spans.Span{}
	var row *spans.Span
	for _, s := range all {
		byName[s.GetName()] = append(byName[s.GetName()], s)
		if s.GetName() == "relay orders" {
			row = s
		}
	}
	names := slices.Sorted(maps.Keys(byName))
	if want := []string{"capture", "claim", "queue", "relay orders", "send hooks", "settle"}; !slices.Equal(names, want) || len(all) != 7 {
		t.Fatalf("%d spans %v, want %v with two of send", len(all), names, want)
	}
	if id := hex.EncodeToString(row.GetTraceId()); id != writersTrace || hex.EncodeToString(row.GetParentSpanId()) != writersSpan || row.GetTraceState() != "a=b" {
		t.Errorf("trace %s, parent %x, state %s", id, row.GetParentSpanId(), row.GetTraceState())
	}
	length := func(name string) time.Duration {
		s := byName[name][0]
		return time.Duration(s.GetEndTimeUnixNano() - s.GetStartTimeUnixNano()).Round(time.Second) //nolint:gosec // some seconds
	}
	if c, q, k := length("capture"), length("queue"), length("claim"); c != time.Second || q != 2*time.Second || k != time.Second {
		t.Errorf("capture %s, queue %s, claim %s", c, q, k)
	}
	for i, send := range byName["send hooks"] {
		class, status := "unavailable", int64(503)
		if i == 1 {
			class, status = "delivered", 200
		}
		attributes := map[string]string{}
		for _, a := range send.GetAttributes() {
			if attributes[a.GetKey()] = a.GetValue().GetStringValue(); a.GetKey() == "http.response.status_code" && a.GetValue().GetIntValue() != status {
				t.Errorf("attempt %d: status %d, want %d", i+1, a.GetValue().GetIntValue(), status)
			}
		}
		if attributes["sluicebox.class"] != class || attributes["messaging.system"] != "webhook" || attributes["messaging.message.id"] != "7" || send.GetKind() != spans.Span_SPAN_KIND_PRODUCER {
			t.Errorf("attempt %d: %v", i+1, attributes)
		}
		own := tracetest.Traceparent(send)
		if got := to.seen["7"][i]; got != own+" "+own || !bytes.Equal(send.GetParentSpanId(), row.GetSpanId()) {
			t.Errorf("attempt %d: the receiver got %q, want %s twice", i+1, got, own)
		}
	}
	if got := to.seen["8"][0]; got != "00-"+writersTrace+"-"+writersSpan+"-00 00-"+writersTrace+"-"+writersSpan+"-00" {
		t.Errorf("the receiver of a row that is not sampled got %q", got)
	}
	for name, want := range map[string]string{"service.name": "sluicebox", "service.namespace": "shop", "service.instance.id": "me"} {
		if got := server.Resource(name); got != want {
			t.Errorf("the resource has %s %q, want %q", name, got, want)
		}
	}
}

// none delivers everything.
type none struct{ sink.Sink }

func (none) Deliver(context.Context, []sink.Message) sink.Result {
	return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
}

// Rows without a context are traced by the ratio, from the first attempt on. The spans of rows that
// another relay delivers, or that are deleted, end.
func TestRowsWithoutContext(t *testing.T) {
	for ratio, want := range map[Ratio]int64{0: 0, 1: 2} {
		o := &Options{Config: Config{SampleRatio: ratio}, Log: slog.New(slog.DiscardHandler), Variable: func(string) string { return "" }}
		tracer := newTracer(o, nil, sdk.NewBatchSpanProcessor(nil))
		s := tracer.Wrap("s", "kafka", none{})
		first := []sink.Message{{Outbox: "orders", ID: "1", Attempt: 1}, {Outbox: "orders", ID: "2", Attempt: 1}, {Outbox: "orders", ID: "3", Attempt: 2}}
		s.Deliver(t.Context(), first)
		if got := tracer.open.Load(); got != want {
			t.Errorf("ratio %s: %d rows are traced, want %d", ratio, got, want)
		}
		if len(first[0].Attributes) != 0 {
			t.Errorf("ratio %s: the message of the caller has %v", ratio, first[0].Attributes)
		}
		tracer.Vanished([]*store.Item{{Ref: store.Ref{Outbox: "orders", ID: "1"}}})
		if got := tracer.open.Load(); got != max(0, want-1) {
			t.Errorf("ratio %s: %d rows are open after one was deleted", ratio, got)
		}
		tracer.Reset()
		if tracer.open.Load() != 0 {
			t.Errorf("ratio %s: rows are open on a standby", ratio)
		}
		tracer.Close()
	}
	var off *Tracer
	off.Reset()
	off.Close()
	if off.Settled(store.Ref{}, &store.Outcome{}) != "" {
		t.Error("no tracer traces")
	}
}

// TestSpansOfRowsOfAnyBytes: a row whose id or error is not UTF-8 does not drop the spans of others.
func TestSpansOfRowsOfAnyBytes(t *testing.T) {
	server := tracetest.New(t, protocolHTTP)
	tracer, err := New(Options{Config: Config{Endpoint: server.URL, SampleRatio: 1}, Log: slog.New(slog.DiscardHandler), Variable: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	s := tracer.Wrap("s", "kafka", none{})
	for _, id := range []string{"1", "\xff"} {
		s.Deliver(t.Context(), []sink.Message{{Outbox: "orders", ID: id, Attempt: 1}})
		tracer.Settled(store.Ref{Outbox: "orders", ID: id}, &store.Outcome{Status: store.Failed, Error: "no\xfe"})
	}
	tracer.Close()
	all, _ := server.Spans()
	ids := map[string]bool{}
	for _, s := range all {
		for _, a := range s.GetAttributes() {
			if a.GetKey() == "messaging.message.id" {
				ids[a.GetValue().GetStringValue()] = true
			}
		}
	}
	if len(all) != 6 || !ids["1"] || !ids["\uFFFD"] {
		t.Errorf("%d spans of %v, want 6 of both rows", len(all), ids)
	}
}

func TestValidate(t *testing.T) {
	for want, c := range map[string]Config{
		"":                             {Endpoint: "https://h:4318/x", SampleRatio: 0.5},
		"endpoint is no address":       {Endpoint: "h:4318"},
		"endpoint contains a user":     {Endpoint: "http://u:p@h"},
		"endpoint has a path":          {Endpoint: "http://h/x", Protocol: "grpc"},
		"headers has the name \"a b\"": {Headers: map[string]sink.Secret{"a b": "x"}},
	} {
		err := c.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
}

// A collector may quote a header, so its words are not logged.
func TestAnEchoOfTheCollectorIsNotLogged(t *testing.T) {
	const dial = "connection error: desc = \"transport: dial tcp 127.0.0.1:1: connect: connection refused\""
	for want, err := range map[string]error{
		"traces export: rpc error: code = Unauthenticated":                     fmt.Errorf("traces export: %w", status.Error(grpccodes.Unauthenticated, "you sent canary")),
		"traces export: rpc error: code = Unavailable desc = " + dial:          fmt.Errorf("traces export: %w", status.Error(grpccodes.Unavailable, dial)),
		"traces export: failed to send to http://h/v1/traces: 400 Bad Request": fmt.Errorf("traces export: failed to send to http://h/v1/traces: 400 Bad Request (%w)", errors.New("body: you sent canary")),
		"traces export: retry-able request failure":                            errors.New("traces export: retry-able request failure: body: you sent canary"),
		"context deadline exceeded":                                            context.DeadlineExceeded,
	} {
		if got := exportText(err); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestParseRatio(t *testing.T) {
	for text, want := range map[string]Ratio{"0": 0, "1": 1, "0.01": 0.01, "1e-3": 0.001, "2": -1, "-1": -1, "NaN": -1, "10%": -1, "": -1} {
		got, err := ParseRatio(text)
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
		if again, err := ParseRatio(got.String()); err != nil || again != got {
			t.Errorf("%s is not parsed again: %v", got, err)
		}
	}
}

// The variables of OpenTelemetry choose the sampler if the configuration has no ratio.
func TestSamplerOf(t *testing.T) {
	for _, c := range []struct {
		ratio     Ratio
		name, arg string
		want      string
	}{
		{0, "", "", "TraceIDRatioBased{0}"},
		{0.5, "always_on", "", "TraceIDRatioBased{0.5}"},
		{0, "always_on", "", "AlwaysOnSampler"},
		{0, "always_off", "", "AlwaysOffSampler"},
		{0, "traceidratio", "0.25", "TraceIDRatioBased{0.25}"},
		{0, "parentbased_traceidratio", "0.25", "TraceIDRatioBased{0.25}"},
		{0, "parentbased_always_on", "0.25", "AlwaysOnSampler"},
		{0, "parentbased_always_off", "", "TraceIDRatioBased{0}"},
		{0, "unknown", "", "TraceIDRatioBased{0}"},
	} {
		sampler := samplerOf(&Config{SampleRatio: c.ratio}, func(name string) string {
			return map[string]string{"OTEL_TRACES_SAMPLER": c.name, "OTEL_TRACES_SAMPLER_ARG": c.arg}[name]
		})
		if got := sampler.Description(); !strings.Contains(got, c.want) {
			t.Errorf("%s, %s: %s, want %s", c.name, c.arg, got, c.want)
		}
	}
}
