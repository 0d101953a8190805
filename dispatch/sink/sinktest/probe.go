package sinktest

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// testProbe: a probe goes the way of a delivery, delivers nothing, and says what
// the answer proves.
func (h Harness) testProbe(t *testing.T) {
	var status atomic.Int64
	var echo atomic.Bool
	requests := make(chan *http.Request, 4)
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		requests <- r.Clone(r.Context())
		if echo.Load() {
			w.Header().Set("Location", "/login/"+h.Secret)
		}
		w.WriteHeader(int(status.Load()))
	})
	p := h.prober(t, srv.URL)
	for code, class := range map[int]sink.Class{
		200: sink.Delivered, 204: sink.Delivered, 400: sink.Delivered, 405: sink.Delivered, 415: sink.Delivered,
		404: sink.Refused, 429: sink.Refused, 500: sink.Refused, 503: sink.Refused,
		401: sink.Misconfigured, 403: sink.Misconfigured, 407: sink.Misconfigured, 302: sink.Misconfigured, 308: sink.Misconfigured,
	} {
		status.Store(int64(code))
		echo.Store(code/100 == 3)
		out := p.Probe(t.Context(), h.Kind)
		if out.Class != class || !strings.Contains(out.Detail, http.StatusText(code)) {
			t.Errorf("%d is %s (%q), want %s", code, out.Class, out.Detail, class)
		}
		if h.Secret != "" && strings.Contains(out.Detail, h.Secret) {
			t.Errorf("%d: the detail shows the secret: %q", code, out.Detail)
		}
		methods := []string{http.MethodHead}
		if code == http.StatusNotFound {
			methods = append(methods, http.MethodOptions)
		}
		for _, method := range methods {
			r := <-requests
			if r.Method != method || r.ContentLength > 0 || r.Header.Get("Idempotency-Key") != "" || r.Header.Get("Webhook-Id") != "" {
				t.Errorf("%d: the probe is %s with %d bytes and the headers %v, want %s without a message", code, r.Method, r.ContentLength, r.Header, method)
			}
			if h.Secret != "" && !strings.Contains(r.Header.Get("Authorization"), h.Secret) {
				t.Errorf("%d: the probe is sent without the credentials", code)
			}
		}
		if len(requests) > 0 {
			t.Fatalf("%d: %d requests more", code, len(requests))
		}
	}
	dead := serve(t, func(http.ResponseWriter, *http.Request) {})
	dead.Close()
	if out := h.prober(t, dead.URL).Probe(t.Context(), ""); out.Class != sink.Unavailable || out.Detail == "" {
		t.Errorf("a dead port is %s (%q)", out.Class, out.Detail)
	}
}

// prober makes a sink and takes it as a sink.Prober.
func (h Harness) prober(t *testing.T, url string) sink.Prober {
	t.Helper()
	p, ok := h.New(t, url, longTimeout).(sink.Prober)
	if !ok {
		t.Fatal("the sink is no sink.Prober")
	}
	return p
}
