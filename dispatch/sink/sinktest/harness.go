package sinktest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
	"go.uber.org/goleak"
)

// Reply is a response that a sink accepts as a success.
type Reply struct {
	Status      int
	ContentType string
	Body        []byte
}

// Harness describes the sink under test. The suite only requires that it uses HTTP.
type Harness struct {
	// New returns a sink that delivers to baseURL, times out an attempt after
	// timeout, and keeps at least 16 connections. It closes the sink with tb.Cleanup.
	New func(tb testing.TB, baseURL string, timeout time.Duration) sink.Sink

	// Kind is the kind of the messages.
	Kind string

	// Success returns the response to n accepted messages.
	Success func(n int) Reply

	// StatusOnly is true if a 2xx is a delivery whatever its body, complete or not.
	StatusOnly bool

	// StatusOverrides has the statuses that the sink classifies in another way than
	// [sink.Classify].
	StatusOverrides map[int]sink.Class

	// ProbeMethod is the method of a probe that asks the API itself, so that its answer proves
	// as much as one to a ping. Empty: a probe is HEAD.
	ProbeMethod string

	// ReplayInBody is true if the body of a replayed row differs from that of the live one,
	// because the destination would drop a repetition.
	ReplayInBody bool

	// Variant declares that another harness differs only in the requests and in the
	// successes. Then the two longest tests, which have only failures, do not run again.
	Variant bool

	// Secret is a credential that New gives to the sink, if it is set. No detail may
	// show it.
	Secret string
}

// onSuccess returns the expected class of a 2xx that is incomplete or does not come
// from the API.
func (h *Harness) onSuccess(class sink.Class) sink.Class {
	if h.StatusOnly {
		return sink.Delivered
	}
	return class
}

// Timeouts of the suite. An attempt that must end by itself gets shortTimeout and has
// to end within slack after it. Every other attempt gets longTimeout.
const (
	shortTimeout = 300 * time.Millisecond
	longTimeout  = 20 * time.Second
	slack        = 3 * time.Second
)

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	t.Run("Status", h.testStatus)
	t.Run("NotTheAPI", h.testNotTheAPI)
	t.Run("Redirect", h.testRedirect)
	t.Run("RetryAfter", h.testRetryAfter)
	t.Run("Detail", h.testDetail)
	t.Run("Echo", h.testEcho)
	t.Run("Payload", h.testPayload)
	t.Run("IdempotencyKey", h.testIdempotencyKey)
	t.Run("HeaderInjection", h.testHeaderInjection)
	t.Run("Replay", h.testReplay)
	t.Run("DeadPort", h.testDeadPort)
	t.Run("Cancelled", h.testCancelled)
	t.Run("Silence", h.testSilence)
	t.Run("Endless", h.testEndless)
	t.Run("HugeAnswer", h.testHugeAnswer)
	t.Run("HugeHeader", h.testHugeHeader)
	t.Run("BrokenOff", h.testBrokenOff)
	t.Run("NoRepeat", h.testNoRepeat)
	t.Run("FailureKeepsOthers", h.testFailureKeepsOthers)
	t.Run("Concurrent", h.testConcurrent)
	t.Run("Probe", h.testProbe)
	t.Run("Ping", h.testPing)
	if !h.Variant {
		t.Run("FlatMemory", h.testFlatMemory)
		t.Run("Reuse", h.testReuse)
	}
}

// message returns a well-formed message with its id in the payload.
func (h *Harness) message(id string) sink.Message {
	return sink.Message{
		ID: id, Kind: h.Kind, Group: store.GroupOf("g"), Attempt: 1,
		Payload: fmt.Appendf(nil, `{"id":%q,"type":"order.created"}`, id),
	}
}

func (h *Harness) messages(n int) []sink.Message {
	msgs := make([]sink.Message, n)
	for i := range msgs {
		msgs[i] = h.message(fmt.Sprintf("row-%04d", i))
	}
	return msgs
}

// several returns the number of messages for a request of more than one.
func (h *Harness) several(s sink.Sink) int { return min(s.Limits(h.Kind).MaxItems, 5) }

// deliver calls Deliver with a deadline that only a sink without a timeout reaches.
func deliver(tb testing.TB, s sink.Sink, msgs ...sink.Message) sink.Result {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), longTimeout+slack)
	defer cancel()
	res := s.Deliver(ctx, msgs)
	if res.Items != nil && len(res.Items) != len(msgs) {
		tb.Errorf("%d outcomes for %d messages", len(res.Items), len(msgs))
		return sink.Result{} // not a valid class
	}
	return res
}

// want fails the test unless all messages have the class, and a detail if they were
// not delivered.
func want(tb testing.TB, res sink.Result, n int, class sink.Class) {
	tb.Helper()
	for i := range n {
		out := res.At(i)
		if out.Class != class {
			tb.Fatalf("message %d of %d is %s (%q), want %s", i+1, n, out.Class, out.Detail, class)
		}
		if (out.Detail == "") != (class == sink.Delivered) {
			tb.Errorf("message %d of %d is %s with the detail %q", i+1, n, class, out.Detail)
		}
	}
}

// write sends a reply.
func (r Reply) write(w http.ResponseWriter) {
	if r.ContentType != "" {
		w.Header().Set("Content-Type", r.ContentType)
	}
	w.WriteHeader(r.Status)
	_, _ = w.Write(r.Body)
}

// server is an HTTP server that counts the connections it accepted.
type server struct {
	*httptest.Server
	accepted atomic.Int64
}

func serve(tb testing.TB, handler http.HandlerFunc) *server {
	tb.Helper()
	s := &server{Server: httptest.NewUnstartedServer(handler)}
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.accepted.Add(1)
		}
	}

	s.Start()
	tb.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}
