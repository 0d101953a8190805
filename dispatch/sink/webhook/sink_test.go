package webhook_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
	"github.com/sluicebox/sluicebox/store"
)

func row(id, payload string) sink.Message {
	return sink.Message{ID: id, Kind: "order.created", Group: store.GroupOf("customer 7"), Attempt: 1, Payload: []byte(payload)}
}

// TestRequest: the whole request, byte for byte.
func TestRequest(t *testing.T) {
	var got sinktest.Request
	r := sinktest.NewReceiver(t)
	r.Script(func(req *sinktest.Request) sinktest.Answer {
		got = *req
		return sinktest.Answer{}
	})

	for name, c := range map[string]struct {
		cfg    webhook.Config
		method string
		want   map[string]string // headers besides the webhook's own
	}{
		"least": {webhook.Config{}, "POST", map[string]string{
			"Content-Type": "application/json", "User-Agent": "sluicebox",
		}},
		"all": {webhook.Config{
			Method: http.MethodPut, HTTP: webhook.HTTP{Token: canary, UserAgent: "sluicebox/1.2.3"}, ContentType: "text/csv; header=absent",
			Format: webhook.FormatCloudEvents, CloudEventsSource: "/shop",
			MetadataHeaders: []string{"group", "attempt"}, Headers: map[string]sink.Secret{"x-tenant": "a  b"},
		}, "PUT", map[string]string{
			"Content-Type": "text/csv; header=absent", "User-Agent": "sluicebox/1.2.3", "Authorization": "Bearer " + canary,
			"X-Tenant": "a  b", "Sluicebox-Group": "customer%207", "Sluicebox-Attempt": "1",
			"Ce-Id": "row-1", "Ce-Source": "/shop", "Ce-Specversion": "1.0", "Ce-Type": "order.created",
			"Ce-Subject": "customer%207", "Ce-Partitionkey": "customer%207",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c.cfg.URL = sink.Secret(r.URL() + "/hooks/a%2Fb?key=x%20y")
			payload := "{ \"n\" : 1.0 }\n"
			res := newSink(t, c.cfg).Deliver(t.Context(), []sink.Message{row("row-1", payload)})
			if res.Class != sink.Delivered || res.Items != nil {
				t.Fatalf("got %s: %s", res.Class, res.Detail)
			}
			if got.Method != c.method || got.Path != "/hooks/a/b" || string(got.Body) != payload {
				t.Errorf("%s %s %q", got.Method, got.Path, got.Body)
			}
			now := time.Now().Unix()
			if at := got.Header.Get("Webhook-Timestamp"); at != fmt.Sprint(now) && at != fmt.Sprint(now-1) {
				t.Errorf("the time is %s, now is %d", at, now)
			}
			got.Header.Del("Webhook-Timestamp")
			c.want["Webhook-Id"], c.want["Idempotency-Key"] = "row-1", "row-1"
			c.want["Content-Length"] = fmt.Sprint(len(payload))
			for header, values := range got.Header {
				if !slices.Equal(values, []string{c.want[header]}) {
					t.Errorf("header %s is %q, want %q", header, values, c.want[header])
				}
			}
			if len(got.Header) != len(c.want) {
				t.Errorf("the headers are %v, want %v", got.Header, c.want)
			}
		})
	}
}

// TestEmptyPayload: a row without a payload is a signed request without a body.
func TestEmptyPayload(t *testing.T) {
	for _, payload := range [][]byte{nil, {}} {
		var length int64 = -2
		srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if length = r.ContentLength; r.Header.Get("Webhook-Signature") == "" {
				length = -3
			}
		}))
		t.Cleanup(srv.Close)
		s := newSink(t, webhook.Config{URL: sink.Secret(srv.URL), Secrets: []sink.Secret{secretA}})
		res := s.Deliver(t.Context(), []sink.Message{{ID: "7", Payload: payload}})
		if res.Class != sink.Delivered || length != 0 {
			t.Errorf("%s with a length of %d: %s", res.Class, length, res.Detail)
		}
	}
}

// TestQuery: the query of the address is sent unchanged.
func TestQuery(t *testing.T) {
	uri := ""
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { uri = r.RequestURI }))
	t.Cleanup(srv.Close)
	s := newSink(t, webhook.Config{URL: sink.Secret(srv.URL + "/a%2Fb?key=x%20y&k")})
	if res := s.Deliver(t.Context(), []sink.Message{row("1", "")}); res.Class != sink.Delivered || uri != "/a%2Fb?key=x%20y&k" {
		t.Errorf("%s %s: %s", res.Class, uri, res.Detail)
	}
}

// TestConflict: 409 is a delivery only if the configuration says so.
func TestConflict(t *testing.T) {
	r := sinktest.NewReceiver(t)
	r.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Status: 409} })
	for treat, want := range map[bool]sink.Class{true: sink.Delivered, false: sink.Refused} {
		s := newSink(t, webhook.Config{URL: sink.Secret(r.URL()), Treat409AsDelivered: treat})
		if res := s.Deliver(t.Context(), []sink.Message{row("1", "{}")}); res.Class != want || res.RetryAfter != 0 {
			t.Errorf("%t: %s", treat, res.Class)
		}
	}

	if webhook.DefaultConfig().Treat409AsDelivered { // COMPLETED needs a positive response
		t.Error("Treat409AsDelivered is on by default")
	}
}

// TestGone: 410 is not the fault of the row.
func TestGone(t *testing.T) {
	r := sinktest.NewReceiver(t)
	r.Script(func(*sinktest.Request) sinktest.Answer {
		return sinktest.Answer{Status: 410, Body: []byte("unsubscribed")}
	})

	s := newSink(t, webhook.Config{URL: sink.Secret(r.URL() + "/orders")})
	res := s.Deliver(t.Context(), []sink.Message{row("1", "{}")})
	want := sink.Outcome{
		Class: sink.Misconfigured, Reason: store.ReasonBadRequest,
		Detail: "410 Gone from POST " + r.URL() + ": unsubscribed",
	}
	if !reflect.DeepEqual(res.Outcome, want) {
		t.Errorf("%+v, want %+v", res.Outcome, want)
	}
}

// TestOneRow: a request carries one row. A row that can never be sent is rejected
// without a request.
func TestOneRow(t *testing.T) {
	r := sinktest.NewReceiver(t)
	s := newSink(t, webhook.Config{URL: sink.Secret(r.URL()), HTTP: webhook.HTTP{MaxRequestBytes: 4}})
	if l := s.Limits("any"); fmt.Sprint(l) != fmt.Sprint(sink.Limits{Mode: sink.Atomic, MaxItems: 1, MaxBytes: 4}) {
		t.Errorf("got limits %+v", l)
	}

	res := s.Deliver(t.Context(), []sink.Message{row("1", "1234"), row("2", "")})
	if res.At(0).Class != sink.Delivered || res.At(1).Class != sink.NotSent {
		t.Errorf("got %+v", res)
	}

	for id, payload := range map[string]string{"3": "12345", "": "1"} {
		res := s.Deliver(t.Context(), []sink.Message{row(id, payload)})
		if res.Class != sink.Rejected || !strings.HasPrefix(res.Detail, "not sent: ") {
			t.Errorf("the row %q: %s %q", id, res.Class, res.Detail)
		}
	}

	if c := r.Counts(); c != (sinktest.Counts{Requests: 1, Items: 1, Distinct: 1}) {
		t.Errorf("got counts %+v", c)
	}
	if l := newSink(t, webhook.Config{URL: "https://h"}).Limits("x"); l.MaxItems != 1 || l.MaxBytes < 1<<30 {
		t.Errorf("got limits %+v", l)
	}
	if res := s.Deliver(t.Context(), nil); res.Class != sink.Delivered {
		t.Errorf("no messages: got %s", res.Class)
	}
}

// TestDetailsHideSecrets: no detail shows the parts of a request that a receiver
// echoes.
func TestDetailsHideSecrets(t *testing.T) {
	parts := []func(*http.Request) string{
		func(r *http.Request) string { return r.RequestURI },
		func(r *http.Request) string { return r.URL.Path },
		func(r *http.Request) string { return r.URL.EscapedPath() },
		func(r *http.Request) string { return r.URL.RawQuery },
		func(r *http.Request) string { return r.URL.Query().Get("k") },
		func(r *http.Request) string { return r.Header.Get("Authorization") },
		func(r *http.Request) string { return r.Header.Get("X-Key") },
		func(r *http.Request) string { return strings.TrimPrefix(r.Header.Get("X-Basic"), "Basic ") },
		func(r *http.Request) string { return "nothing" },
	}

	statuses := []int{302, 400, 404, 503}
	// The length of the payload selects the response.
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := int(r.ContentLength)
		if n%len(statuses) == 0 {
			w.Header().Set("Location", r.RequestURI)
		}
		w.WriteHeader(statuses[n%len(statuses)])
		_, _ = fmt.Fprintf(w, "you sent %s", parts[n/len(statuses)](r))
	}))
	t.Cleanup(echo.Close)
	const tail, bare, basic = "4d7e90", "81c2f0ab", "63ab77d1"
	address := "/path%20" + canary + tail + "/x?k=query%20" + canary + tail + "&" + bare
	for name, to := range map[string]string{
		"answer": echo.URL, "dead port": "http://127.0.0.1:1", "no host": "http://nowhere.invalid",
	} {
		s := newSink(t, webhook.Config{
			URL: sink.Secret(to + address), Secrets: []sink.Secret{secretA},
			Headers: map[string]sink.Secret{
				// A secret that is a prefix of a longer one must not prevent its
				// removal.
				"X-Short": canary, "X-Key": canary + tail, "X-Basic": "Basic " + basic,
				"Authorization": "Bearer a-" + canary + tail,
			},
		})
		requests := len(parts) * len(statuses)
		if name != "answer" {
			requests = 1
		}
		for n := range requests {
			res := s.Deliver(t.Context(), []sink.Message{row("1", strings.Repeat("x", n))})
			if res.Class == sink.Delivered || !strings.Contains(res.Detail, "POST "+to) {
				t.Errorf("%s, request %d: %s %q", name, n, res.Class, res.Detail)
			}
			shown := fmt.Sprintf("%+v", res)
			for _, secret := range []string{canary, tail, bare, basic, "path", "query", secretA[6:]} {
				if strings.Contains(shown, secret) {
					t.Errorf("%s, request %d: the detail shows a secret: %q", name, n, res.Detail)
				}
			}
			if last := n/len(statuses) == len(parts)-1; name == "answer" && n%len(statuses) != 0 &&
				strings.Contains(res.Detail, "[redacted]") == last {
				t.Errorf("request %d: the detail does not show the answer: %q", n, res.Detail)
			}
		}
	}
}

// TestErrorDetailStatus: with error-detail status a detail shows nothing of the body,
// which may quote the payload.
func TestErrorDetailStatus(t *testing.T) {
	r := sinktest.NewReceiver(t)
	r.Script(func(req *sinktest.Request) sinktest.Answer { return sinktest.Answer{Status: 400, Body: req.Body} })
	for detail, want := range map[sink.ErrorDetail]string{
		"":                     ": {\"customer\":\"Miller\"}",
		sink.ErrorDetailBody:   ": {\"customer\":\"Miller\"}",
		sink.ErrorDetailStatus: "",
	} {
		s := newSink(t, webhook.Config{URL: sink.Secret(r.URL()), HTTP: webhook.HTTP{ErrorDetail: detail}})
		want = "400 Bad Request from POST " + r.URL() + want
		if res := s.Deliver(t.Context(), []sink.Message{row("1", `{"customer":"Miller"}`)}); res.Detail != want {
			t.Errorf("%q: got detail %q, want %q", detail, res.Detail, want)
		}
	}
}
