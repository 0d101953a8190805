package sinktest

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// testProbe: a probe takes the path of a delivery, delivers nothing, and reports the
// facts that the response proves.
func (h Harness) testProbe(t *testing.T) {
	var status atomic.Int64
	var echo atomic.Bool
	requests := make(chan *http.Request, 4)
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		requests <- r.Clone(r.Context())
		if echo.Load() {
			w.Header().Set("Location", "/login/"+h.Secret)
		}
		if code := int(status.Load()); code != http.StatusOK {
			w.WriteHeader(code)
			return
		}
		reply := h.Success(0)
		reply.Status = http.StatusOK
		reply.write(w)
	})
	p := h.prober(t, srv.URL)
	asks := h.ProbeMethod
	if _, pings := p.(sink.Pinger); pings {
		asks = http.MethodPost
	}
	for code, class := range probeClasses(asks != "") {
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
		switch {
		case asks != "":
			methods = []string{asks}
		case code == http.StatusNotFound:
			methods = append(methods, http.MethodOptions)
		}
		for _, method := range methods {
			r := <-requests
			if r.Method != method || r.ContentLength > 0 && asks == "" || r.Header.Get("Idempotency-Key") != "" || r.Header.Get("Webhook-Id") != "" {
				t.Errorf("%d: the probe is %s with %d bytes and the headers %v, want %s without a message", code, r.Method, r.ContentLength, r.Header, method)
			}
			if h.Secret != "" && !strings.Contains(r.Header.Get("Authorization"), h.Secret) {
				t.Errorf("%d: the probe is sent without the credentials", code)
			}
		}
		if len(requests) > 0 {
			t.Fatalf("%d: %d unexpected requests", code, len(requests))
		}
	}
	dead := serve(t, func(http.ResponseWriter, *http.Request) {})
	dead.Close()
	if out := h.prober(t, dead.URL).Probe(t.Context(), ""); out.Class != sink.Unavailable || out.Detail == "" {
		t.Errorf("dead port: got %s (%q)", out.Class, out.Detail)
	}
}

// probeClasses returns the class of a probe by the status of its answer. A request to the API itself
// proves more than HEAD.
func probeClasses(toAPI bool) map[int]sink.Class {
	classes := map[int]sink.Class{
		200: sink.Delivered, 204: sink.Delivered, 400: sink.Delivered, 405: sink.Delivered, 415: sink.Delivered, 501: sink.Delivered,
		404: sink.Refused, 429: sink.Refused, 500: sink.Refused, 503: sink.Refused,
		401: sink.Misconfigured, 403: sink.Misconfigured, 407: sink.Misconfigured, 302: sink.Misconfigured, 308: sink.Misconfigured,
	}
	if toAPI {
		delete(classes, 204) // the API decides whether that is a success
		classes[404], classes[405], classes[400], classes[415], classes[501] = sink.Misconfigured, sink.Misconfigured, sink.Refused, sink.Refused, sink.Refused
	}
	return classes
}

// prober returns a new sink as a sink.Prober.
func (h Harness) prober(t *testing.T, url string) sink.Prober {
	t.Helper()
	p, ok := h.New(t, url, longTimeout).(sink.Prober)
	if !ok {
		t.Fatal("the sink does not implement sink.Prober")
	}
	return p
}

// testPing: a ping is a request with the credentials and without rows. Its response
// has the same class as one for rows.
func (h Harness) testPing(t *testing.T) {
	var status atomic.Int64
	type request struct {
		*http.Request
		body string
	}

	requests := make(chan request, 4)
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- request{r.Clone(r.Context()), string(body)}
		if code := int(status.Load()); code != 0 {
			w.WriteHeader(code)
			return
		}
		h.Success(0).write(w)
	})

	p, ok := h.New(t, srv.URL, longTimeout).(sink.Pinger)
	if !ok {
		t.Skip("the sink does not implement sink.Pinger")
	}

	for code, class := range map[int]sink.Class{
		0: sink.Delivered, 302: sink.Misconfigured, 400: sink.Rejected, 401: sink.Misconfigured,
		403: sink.Misconfigured, 404: sink.Misconfigured, 429: sink.Unavailable, 500: sink.Refused, 503: sink.Unavailable,
	} {
		status.Store(int64(code))
		res, ok := p.Ping(t.Context(), h.Kind)
		if !ok || res.Items != nil || res.Class != class || (res.Detail == "") != (class == sink.Delivered) {
			t.Errorf("a ping that is answered %d: %+v, %t, want %s", code, res, ok, class)
		}
		r := <-requests
		if strings.Contains(r.body, `"id"`) || r.Header.Get("Idempotency-Key") != "" || r.Header.Get("Webhook-Id") != "" {
			t.Errorf("the ping carries a row: %q, headers %v", r.body, r.Header)
		}
		if h.Secret != "" && !strings.Contains(r.Header.Get("Authorization"), h.Secret) {
			t.Errorf("the ping is sent without the credentials")
		}
	}

	if n := len(requests); n > 0 {
		t.Errorf("%d unexpected requests", n)
	}

	dead := serve(t, func(http.ResponseWriter, *http.Request) {})
	dead.Close()
	if res, ok := h.New(t, dead.URL, longTimeout).(sink.Pinger).Ping(t.Context(), ""); !ok || res.Class != sink.Unavailable {
		t.Errorf("dead port: got %+v, %t", res, ok)
	}
}
