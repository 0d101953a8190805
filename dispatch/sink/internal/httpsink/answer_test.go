package httpsink

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
)

// TestBodyCounts: a success whose body counts needs its whole body. If only the
// status counts, the body is read up to a bound.
func TestBodyCounts(t *testing.T) {
	const most = 1000
	for name, c := range map[string]struct {
		status int
		body   string
		cut    bool // close the connection within the body
		whole  error
		kept   int // bytes of the body if it counts
	}{
		"short":       {200, strings.Repeat("x", most-1), false, nil, most - 1},
		"just":        {200, strings.Repeat("x", most), false, nil, most},
		"too long":    {200, strings.Repeat("x", most+1), false, ErrTooLong, most},
		"cut":         {200, strings.Repeat("x", 10), true, io.ErrUnexpectedEOF, 10},
		"failure":     {500, strings.Repeat("x", most+1), false, nil, most + 1},
		"failure cut": {500, strings.Repeat("x", 10), true, io.ErrUnexpectedEOF, 10},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
			if c.cut {
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
		}))
		t.Cleanup(srv.Close)
		client := newTestClient(t, srv.URL, Settings{})
		for _, maxSuccess := range []int{0, most} {
			a, err := client.Do(t.Context(), &Request{Method: "POST", URL: srv.URL, MaxSuccess: maxSuccess})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			whole, kept := c.whole, c.kept
			if maxSuccess == 0 && errors.Is(whole, ErrTooLong) {
				whole, kept = nil, most+1
			}
			if a.Status != c.status || !errors.Is(a.Err, whole) || len(a.Body) != kept {
				t.Errorf("%s, at most %d: %d with %d bytes, %v", name, maxSuccess, a.Status, len(a.Body), a.Err)
			}
			if want := 7 * time.Second; a.Success() != (a.RetryAfter == 0) || !a.Success() && a.RetryAfter != want {
				t.Errorf("%s: got RetryAfter %s", name, a.RetryAfter)
			}
		}
	}
}

// TestSlowSuccess: waiting for a body ends with the attempt. Only where the body
// counts is the outcome then unknown.
func TestSlowSuccess(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice that the client has gone
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(srv.Close)
	client := newTestClient(t, srv.URL, Settings{RequestTimeout: 200 * time.Millisecond})
	a, err := client.Do(t.Context(), &Request{Method: "POST", URL: srv.URL})
	if err != nil || a.Status != 200 {
		t.Errorf("status counts: got %v, %v", a, err)
	}

	_, err = client.Do(t.Context(), &Request{Method: "POST", URL: srv.URL, MaxSuccess: 10})
	if err == nil || err.Error() != "no response within request-timeout (200ms)" {
		t.Errorf("body counts: got %v", err)
	}

	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("not the leader any more"))
	_, err = client.Do(ended, &Request{Method: "POST", URL: srv.URL})
	res := NoAnswerResult("POST /secret", err, redact.New(false, "secret"))
	if res.Class != sink.Unavailable || res.Detail != "POST /[redacted]: request canceled: not the leader any more" {
		t.Errorf("canceled request: got %+v", res)
	}
}

func TestFailureText(t *testing.T) {
	for want, a := range map[string]Answer{
		"404 Not Found from POST /x":                                {Status: 404, Body: []byte(" \r\n")},
		"422 Unprocessable Entity from POST /x: no such [redacted]": {Status: 422, Body: []byte("no such\nkey")},
		"302 Found from POST /x, redirect to https://h/[redacted]":  {Status: 302, Body: []byte("b"), Location: "https://h/key"},
		"599 from POST /x": {Status: 599},
	} {
		if got := a.Failure("POST /x", redact.New(false, "key")); strings.Join(strings.Fields(got), " ") != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestParseAddress(t *testing.T) {
	for raw, want := range map[string]string{ // expected error; "" for none
		"https://h.example:8443/a?b=c": "",
		"http://[::1]:80":              "",
		"h.example":                    `key has scheme "", must be http or https`,
		"ftp://h":                      `key has scheme "ftp", must be http or https`,
		"https://:80":                  "key has no host",
		"https:h":                      "key has no host",
		"https://u@h":                  "key contains a user or password; put the token in the-token",
		"https://u:p@h:x":              "key is not a URL",
		"https://h:x":                  `key is not a URL: invalid port ":x" after host`,
	} {
		u, err := ParseAddress("key", raw, "the-token")
		if want == "" && (err != nil || u.String() != raw) || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%s: %v, want %q", raw, err, want)
		}
	}
}
