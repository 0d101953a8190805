package sinktest

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// meaning is the expected class and reason of a status.
type meaning struct {
	class  sink.Class
	reason store.Reason
	status []int
}

// meanings is the table of the README. It is repeated here on purpose, so that the
// suite detects a change of [sink.Classify].
func meanings() []meaning {
	return []meaning{
		{sink.Rejected, store.ReasonBadRequest, []int{400, 413, 422}},
		{sink.Refused, store.ReasonBadRequest, []int{402, 406, 409, 410, 411, 412, 414, 415, 417, 423, 428, 431, 451, 499}},
		{sink.Refused, store.ReasonInternal, []int{500, 501, 505, 507, 511, 599}},
		{sink.Unavailable, store.ReasonBadRequest, []int{408, 425, 429}},
		{sink.Unavailable, store.ReasonGateway, []int{502, 503, 504}},
		{sink.Misconfigured, store.ReasonUnauthorized, []int{401}},
		{sink.Misconfigured, store.ReasonForbidden, []int{403}},
		{sink.Misconfigured, store.ReasonBadRequest, []int{404, 405, 407}},
		{sink.Misconfigured, store.ReasonInternal, []int{300, 301, 302, 303, 304, 307, 308}},
	}
}

func (h Harness) testStatus(t *testing.T) {
	var status atomic.Int64
	srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(int(status.Load()))
	})

	s := h.New(t, srv.URL, longTimeout)
	for _, row := range meanings() {
		for _, code := range row.status {
			status.Store(int64(code))
			for _, n := range []int{1, h.several(s)} {
				res := deliver(t, s, h.messages(n)...)
				class, reason := row.class, row.reason
				if other, ok := h.StatusOverrides[code]; ok {
					class = other
				}
				want(t, res, n, class)
				if class == sink.Delivered {
					continue
				}
				if res.Items != nil {
					t.Errorf("%d to %d messages has an outcome for each, but is one for all", code, n)
				}
				if res.Reason != reason {
					t.Errorf("%d has reason %d, want %d", code, res.Reason, reason)
				}
				if !strings.Contains(res.Detail, strconv.Itoa(code)) {
					t.Errorf("the detail of a %d does not say so: %q", code, res.Detail)
				}
			}
		}
	}

	ok := serve(t, func(w http.ResponseWriter, _ *http.Request) { h.Success(1).write(w) })
	want(t, deliver(t, h.New(t, ok.URL, longTimeout), h.message("a")), 1, sink.Delivered)
}

// testNotTheAPI: a 2xx with an HTML page is not a delivery, unless only the status
// counts.
func (h Harness) testNotTheAPI(t *testing.T) {
	const page = "<!doctype html><html><title>Sign in</title></html>"
	for _, code := range []int{200, 201, 202} {
		srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			Reply{code, "text/html; charset=utf-8", []byte(page)}.write(w)
		})
		s := h.New(t, srv.URL, longTimeout)
		res := deliver(t, s, h.message("a"))
		want(t, res, 1, h.onSuccess(sink.Misconfigured))
		if h.StatusOnly {
			continue
		}
		if d := res.At(0).Detail; !strings.Contains(d, "text/html") || !strings.Contains(d, "<!doctype html>") {
			t.Errorf("the detail does not show the response: %q", d)
		}
	}
}

func (h Harness) testRedirect(t *testing.T) {
	var followed atomic.Int64
	target := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		followed.Add(1)
		h.Success(1).write(w)
	})

	for _, code := range []int{301, 302, 303, 307, 308} {
		srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, target.URL+"/login", code)
		})
		want(t, deliver(t, h.New(t, srv.URL, longTimeout), h.message("a")), 1, sink.Misconfigured)
	}

	if n := followed.Load(); n != 0 {
		t.Errorf("%d redirects were followed; the target would get the credentials", n)
	}
}

func (h Harness) testRetryAfter(t *testing.T) {
	inAMinute := time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)
	for _, c := range []struct {
		status   int
		value    string
		min, max time.Duration
	}{
		{429, "2", 2 * time.Second, 2 * time.Second},
		{429, "86400", 24 * time.Hour, 24 * time.Hour},
		{413, "7", 7 * time.Second, 7 * time.Second},
		{503, "7", 7 * time.Second, 7 * time.Second},
		{500, "7", 7 * time.Second, 7 * time.Second},
		{503, "0", 0, 0},
		{503, "3600", time.Hour, time.Hour},
		{503, inAMinute, 50 * time.Second, time.Minute},
		{503, "Fri, 31 Dec 1999 23:59:59 GMT", 0, 0},
		{503, "soon", 0, 0},
		{503, "-5", 0, 0},
		{503, "", 0, 0},
	} {
		t.Run(fmt.Sprintf("%d_%s", c.status, c.value), func(t *testing.T) {
			var requests atomic.Int64
			srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				requests.Add(1)
				w.Header().Set("Retry-After", c.value)
				w.WriteHeader(c.status)
			})
			start := time.Now()
			res := deliver(t, h.New(t, srv.URL, longTimeout), h.message("a"))
			if res.RetryAfter < c.min || res.RetryAfter > c.max {
				t.Errorf("Retry-After %q is %s, want %s to %s", c.value, res.RetryAfter, c.min, c.max)
			}
			// The lane waits, not the sink.
			if n := requests.Load(); n != 1 || time.Since(start) > slack {
				t.Errorf("%d requests in %s, want one at once", n, time.Since(start))
			}
		})
	}
}

// testDetail: the text of a response becomes one clean line.
func (h Harness) testDetail(t *testing.T) {
	body := "first\r\nsecond\x00\x1b[31m\xff \u202e" + h.Secret + strings.Repeat("é", 20000)
	for _, code := range []int{200, 302, 400, 503} {
		if h.StatusOnly && code == 200 {
			continue
		}
		srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			Reply{code, "text/plain", []byte(body)}.write(w)
		})
		res := deliver(t, h.New(t, srv.URL, longTimeout), h.message("a"))
		d := res.At(0).Detail
		if !strings.Contains(d, "first second") {
			t.Errorf("%d: the detail does not show the answer in one line: %q", code, d)
		}
		if strings.ContainsAny(d, "\r\n\x00\x1b\u202e") || !utf8.ValidString(d) {
			t.Errorf("%d: the detail contains control characters: %q", code, d)
		}
		if n := utf8.RuneCountInString(d); n > 400 {
			t.Errorf("%d: the detail has %d characters", code, n)
		}
		if h.Secret != "" && strings.Contains(d, h.Secret) {
			t.Errorf("%d: the detail shows the secret that the receiver echoed: %q", code, d)
		}
	}
}
