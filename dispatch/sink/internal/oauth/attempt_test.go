package oauth

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// platform accepts one token and answers 401 to all others.
type platform struct {
	mu   sync.Mutex
	good string
	saw  []string
}

func (p *platform) request(token string) sink.Result {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.saw = append(p.saw, token)
	if token == p.good {
		return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
	}
	return sink.Result{Outcome: sink.Outcome{Class: sink.Misconfigured, Reason: store.ReasonUnauthorized, Detail: "401"}}
}

func (p *platform) accept(token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.good = token
}

// TestAttempt: the keys change under 50 senders. Each repeats its request once, and
// concurrently use the same new token.
func TestAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeEndpoint{lifetime: time.Hour}
		s := d.source(t)
		p := &platform{good: "t1"}
		attempt := func() sink.Result { return s.Attempt(t.Context(), "POST /x", p.request) }
		if res := attempt(); res.Class != sink.Delivered {
			t.Fatal(res)
		}
		<-time.After(minAge)
		p.accept("t2")
		d.delay = time.Second
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if res := attempt(); res.Class != sink.Delivered {
					t.Errorf("got %s: %s", res.Class, res.Detail)
				}
			})
		}
		wg.Wait()
		wantFetches(t, d, 2)
		slices.Sort(p.saw)
		if n := len(p.saw); n != 101 || p.saw[50] != "t1" || p.saw[51] != "t2" {
			t.Errorf("%d requests: %v", n, p.saw)
		}
	})
}

// TestAttemptRefused: the second 401 is final, and a fresh token is not renewed.
func TestAttemptRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeEndpoint{lifetime: time.Hour}
		s := d.source(t)
		p := &platform{}
		for i, c := range []struct {
			wait time.Duration
			saw  string
		}{{0, "t1"}, {minAge, "t1 t2"}, {0, "t2"}, {minAge - 1, "t2"}, {1, "t2 t3"}} {
			<-time.After(c.wait)
			p.saw = nil
			res := s.Attempt(t.Context(), "POST /x", p.request)
			if res.Class != sink.Misconfigured || res.Reason != store.ReasonUnauthorized || res.Detail != "401" {
				t.Errorf("attempt %d: %+v", i, res)
			}
			if saw := strings.Join(p.saw, " "); saw != c.saw {
				t.Errorf("attempt %d carried %s, want %s", i, saw, c.saw)
			}
		}
	})
}

// TestAttemptOther: only a 401 repeats the request.
func TestAttemptOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeEndpoint{lifetime: time.Hour}
		s := d.source(t)
		for _, status := range []int{200, 400, 403, 404, 500, 503} {
			class, reason := sink.Classify(status)
			n := 0
			s.Attempt(t.Context(), "POST /x", func(string) sink.Result {
				n++
				return sink.Result{Outcome: sink.Outcome{Class: class, Reason: reason}}
			})
			if n != 1 {
				t.Errorf("%d: %d requests", status, n)
			}
			<-time.After(minAge)
		}
		wantFetches(t, d, 1)
	})
}

// TestAttemptWithoutToken: nothing is sent, and the result is the endpoint's.
func TestAttemptWithoutToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeEndpoint{lifetime: time.Hour}
		s := d.source(t)
		p := &platform{}
		for _, c := range []struct {
			down *Error
			want sink.Result
		}{
			{
				&Error{Class: sink.Unavailable, RetryAfter: 7 * time.Second, text: "no token: down"},
				sink.Result{Outcome: sink.Outcome{Class: sink.Unavailable, Reason: store.ReasonGateway, Detail: "POST /x: no token: down"}, RetryAfter: 7 * time.Second},
			},
			{
				&Error{Class: sink.Misconfigured, text: "no token: who"},
				sink.Result{Outcome: sink.Outcome{Class: sink.Misconfigured, Reason: store.ReasonUnauthorized, Detail: "POST /x: no token: who"}},
			},
		} {
			d.fail(c.down)
			if res := s.Attempt(t.Context(), "POST /x", p.request); !reflect.DeepEqual(res.Outcome, c.want.Outcome) || res.RetryAfter != c.want.RetryAfter {
				t.Errorf("%+v, want %+v", res, c.want)
			}
			<-time.After(maxPause)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if res := s.Attempt(ctx, "POST /x", p.request); res.Class != sink.Unavailable || !strings.Contains(res.Detail, "canceled") {
			t.Errorf("cancelled: %+v", res)
		}
		if len(p.saw) != 0 {
			t.Errorf("requests without a token: %q", p.saw)
		}
	})
}

// TestAttemptRenewFails: the endpoint is down when the keys change. The result is
// Unavailable, because that is temporary.
func TestAttemptRenewFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeEndpoint{lifetime: time.Hour}
		s := d.source(t)
		p := &platform{good: "t1"}
		s.Attempt(t.Context(), "POST /x", p.request)
		<-time.After(minAge)
		p.accept("t3")
		d.fail(newError(sink.Unavailable, "down"))
		for range 2 {
			res := s.Attempt(t.Context(), "POST /x", p.request)
			if res.Class != sink.Unavailable || res.Detail != "POST /x answered 401 to the last token: no token: down" {
				t.Errorf("got %+v", res)
			}
		}
		wantFetches(t, d, 2)
		d.fail(nil)
		<-time.After(failurePause)
		if res := s.Attempt(t.Context(), "POST /x", p.request); res.Class != sink.Delivered {
			t.Errorf("got %+v", res)
		}
	})
}
