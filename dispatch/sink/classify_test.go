package sink_test

import (
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

func TestClassify(t *testing.T) {
	type meaning struct {
		class  sink.Class
		reason store.Reason
	}

	named := map[int]meaning{
		400: {sink.Rejected, store.ReasonBadRequest},
		401: {sink.Misconfigured, store.ReasonUnauthorized},
		403: {sink.Misconfigured, store.ReasonForbidden},
		404: {sink.Misconfigured, store.ReasonBadRequest},
		405: {sink.Misconfigured, store.ReasonBadRequest},
		407: {sink.Misconfigured, store.ReasonBadRequest},
		408: {sink.Unavailable, store.ReasonBadRequest},
		413: {sink.Rejected, store.ReasonBadRequest},
		422: {sink.Rejected, store.ReasonBadRequest},
		425: {sink.Unavailable, store.ReasonBadRequest},
		429: {sink.Unavailable, store.ReasonBadRequest},
		502: {sink.Unavailable, store.ReasonGateway},
		503: {sink.Unavailable, store.ReasonGateway},
		504: {sink.Unavailable, store.ReasonGateway},
	}

	// Every number that a status line may contain, and some that it may not.
	for status := -1; status <= 1001; status++ {
		want, ok := named[status]
		if !ok {
			switch {
			case status >= 200 && status <= 299:
				want = meaning{sink.Delivered, store.ReasonNone}
			case status >= 400 && status <= 499:
				want = meaning{sink.Refused, store.ReasonBadRequest}
			case status >= 500 && status <= 599:
				want = meaning{sink.Refused, store.ReasonInternal}
			default:
				want = meaning{sink.Misconfigured, store.ReasonInternal}
			}
		}
		class, reason := sink.Classify(status)
		if (meaning{class, reason}) != want {
			t.Errorf("%d is %s with reason %d, want %s with reason %d", status, class, reason, want.class, want.reason)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const most = (1<<31 - 1) * time.Second
	for value, want := range map[string]time.Duration{
		"":                                     0,
		"0":                                    0,
		"1":                                    time.Second,
		" 120 ":                                2 * time.Minute,
		"00120":                                2 * time.Minute,
		"2147483647":                           most,
		"2147483648":                           most,
		"99999999999999999999999999":           most,
		"-1":                                   0,
		"+1":                                   0,
		"1.5":                                  0,
		"1e3":                                  0,
		"0x10":                                 0,
		"1_000":                                0,
		"10s":                                  0,
		"soon":                                 0,
		"Sun, 01 Mar 2026 12:01:30 GMT":        90 * time.Second,
		"Sunday, 01-Mar-26 12:01:30 GMT":       90 * time.Second, // RFC 850
		"Sun Mar  1 12:01:30 2026":             90 * time.Second, // asctime
		"Sun, 01 Mar 2026 12:00:00 GMT":        0,
		"Fri, 31 Dec 1999 23:59:59 GMT":        0,
		"Sun, 01 Mar 2026 12:01:30 +0000":      0,
		"2026-03-01T12:01:30Z":                 0,
		"Fri, 31 Dec 9999 23:59:59 GMT":        1<<63 - 1, // the largest Duration
		"Sun, 01 Mar 2026 12:01:30 GMT, 5":     0,
		"\u0661":                               0, // a digit outside ASCII
		"120, 240":                             0,
		"Sun, 32 Mar 2026 12:01:30 GMT":        0,
		strings.Repeat("9", 100_000):           most,
		"Mon, 01 Jan 0001 00:00:00 GMT":        0,
		"Sun, 01 Mar 2026 12:00:00.000001 GMT": 1000 * time.Nanosecond,
	} {
		if got := sink.RetryAfter(http.Header{"Retry-After": {value}}, now); got != want {
			t.Errorf("%.60q is %s, want %s", value, got, want)
		}
	}

	if got := sink.RetryAfter(nil, now); got != 0 {
		t.Errorf("no header: got %s", got)
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, v := range []string{"120", "2147483648", "-1", "Sun, 01 Mar 2026 12:01:30 GMT", "Sun Mar  1 12:01:30 2026", "x"} {
		f.Add(v, int64(1_772_366_400))
	}

	f.Fuzz(func(t *testing.T, v string, unix int64) {
		now := time.Unix(unix, 0)
		got := sink.RetryAfter(http.Header{"Retry-After": {v}}, now)
		if got < 0 {
			t.Fatalf("%q at %s is %s", v, now, got)
		}
		if n, err := strconv.ParseUint(v, 10, 31); err == nil && got != time.Duration(n)*time.Second {
			t.Fatalf("%q is %s", v, got)
		}
	})
}

func TestClassNames(t *testing.T) {
	seen := map[string]sink.Class{}
	for c := sink.Delivered; c <= sink.NotSent; c++ {
		name := c.String()
		if other, twice := seen[name]; twice || name == "unknown" {
			t.Errorf("class %d has the name %q, like %d", c, name, other)
		}
		seen[name] = c
	}

	if name := sink.Class(0).String(); name != "unknown" {
		t.Errorf("class 0: got name %q", name)
	}
}

func TestResultAt(t *testing.T) {
	all := sink.Result{Outcome: sink.Outcome{Class: sink.Refused, Detail: "d"}}
	if out := all.At(7); !reflect.DeepEqual(out, all.Outcome) {
		t.Errorf("message 7: got %+v", out)
	}
	each := sink.Result{Items: []sink.Outcome{{Class: sink.Delivered}, {Class: sink.NotSent}}}
	if out := each.At(1); out.Class != sink.NotSent {
		t.Errorf("message 1: got %+v", out)
	}
}

// One failure of all messages is one of the request. Any other mix is a verdict on each.
func TestResultOf(t *testing.T) {
	down, other := sink.Outcome{Class: sink.Unavailable, Detail: "down"}, sink.Outcome{Class: sink.Unavailable, Detail: "other"}
	ok, bad, unsent := sink.Outcome{Class: sink.Delivered}, sink.Outcome{Class: sink.Rejected}, sink.Outcome{Class: sink.NotSent}
	sameDetail := func(first, other *sink.Outcome) bool {
		return other.Class == first.Class && other.Detail == first.Detail
	}
	for name, c := range map[string]struct {
		items []sink.Outcome
		alike func(first, other *sink.Outcome) bool
		one   bool
	}{
		"one":             {[]sink.Outcome{bad}, sink.SameClass, true},
		"one class":       {[]sink.Outcome{down, other, unsent}, sink.SameClass, true},
		"two details":     {[]sink.Outcome{down, other}, sameDetail, false},
		"one detail":      {[]sink.Outcome{down, down}, sameDetail, true},
		"not sent":        {[]sink.Outcome{down, unsent}, sameDetail, false},
		"some delivered":  {[]sink.Outcome{down, ok}, sink.SameClass, false},
		"all delivered":   {[]sink.Outcome{ok, ok}, sink.SameClass, false},
		"all rejected":    {[]sink.Outcome{bad, bad}, sink.SameClass, false},
		"one of each":     {[]sink.Outcome{down, bad}, sink.SameClass, false},
		"not sent behind": {[]sink.Outcome{bad, unsent}, sink.SameClass, false},
	} {
		res := sink.ResultOf(c.items, c.alike)
		if (res.Items == nil) != c.one {
			t.Errorf("%s: one outcome %t, want %t", name, res.Items == nil, c.one)
		}
		for i := range c.items {
			if got := res.At(i); got.Class != c.items[i].Class && got.Class != c.items[0].Class {
				t.Errorf("%s: message %d is %s", name, i, got.Class)
			}
		}
	}
}
