package oauth

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeEndpoint is a fake token endpoint for synctest. Its n-th token is "t<n>".
type fakeEndpoint struct {
	lifetime time.Duration
	delay    time.Duration // time for a response
	failure  *Error        // error to return instead of a token
	same     bool          // always the first token

	mu       sync.Mutex
	requests int
}

func (d *fakeEndpoint) fetch(ctx context.Context) (*grant, *Error) {
	d.mu.Lock()
	d.requests++
	n := d.requests
	down := d.failure
	d.mu.Unlock()
	sent := time.Now()
	select {
	case <-time.After(d.delay):
	case <-ctx.Done():
		return nil, newError(sink.Unavailable, context.Cause(ctx).Error())
	}

	if down != nil {
		e := *down
		e.at = time.Now()
		return nil, &e
	}

	if d.same {
		n = 1
	}
	return newGrant(fmt.Sprint("t", n), sent, time.Now(), d.lifetime), nil
}

func (d *fakeEndpoint) fetches() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.requests
}

func (d *fakeEndpoint) fail(e *Error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failure = e
}

func (d *fakeEndpoint) source(t *testing.T) *Source {
	t.Helper()
	s := &Source{fetch: d.fetch, closeClient: func() {}}
	t.Cleanup(s.Close)
	return s
}

// wantToken fails the test unless the source returns the token without waiting.
func wantToken(t *testing.T, s *Source, want string) {
	t.Helper()
	began := time.Now()
	got, err := s.Token(t.Context())
	if err != nil || got != want {
		t.Errorf("the token is %q (%v), want %q", got, err, want)
	}
	if d := time.Since(began); d != 0 {
		t.Errorf("the token %s took %s", want, d)
	}
}

func wantFetches(t *testing.T, d *fakeEndpoint, want int) {
	t.Helper()
	synctest.Wait()
	if got := d.fetches(); got != want {
		t.Errorf("%d fetches, want %d", got, want)
	}
}

// concurrently calls f from n goroutines at once and returns the results.
func concurrently(n int, f func() (string, error)) ([]string, []error) {
	got, errs := make([]string, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { got[i], errs[i] = f() })
	}
	wg.Wait()
	return got, errs
}

func TestFirstTokenFetchedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeEndpoint{lifetime: time.Hour, delay: time.Second}
		s := d.source(t)
		<-time.After(time.Hour)
		wantFetches(t, d, 0)
		got, errs := concurrently(50, func() (string, error) { return s.Token(t.Context()) })
		for i := range got {
			if got[i] != "t1" || errs[i] != nil {
				t.Fatalf("sender %d: got %q, %v", i, got[i], errs[i])
			}
		}
		wantToken(t, s, "t1")
		wantFetches(t, d, 1)
	})
}

func TestRenewMargin(t *testing.T) {
	now := time.Now()
	for life, margin := range map[time.Duration]time.Duration{
		0:                 time.Minute, // unknown: 5 minutes
		time.Second:       200 * time.Millisecond,
		100 * time.Second: 20 * time.Second,
		5 * time.Minute:   time.Minute,
		time.Hour:         time.Minute,
		maxLifetime:       time.Minute,
	} {
		g := newGrant("t", now, now.Add(time.Second), life)
		if life == 0 {
			life = assumedLifetime
		}
		if got := g.expires.Sub(g.renewAt); got != margin {
			t.Errorf("a life of %s has the margin %s, want %s", life, got, margin)
		}
		if got := g.expires.Sub(now); got != life {
			t.Errorf("a life of %s ends %s after the fetch began", life, got)
		}
	}
}

// TestRefresh: close to its expiry a token is renewed once in the background. The
// senders use the old one meanwhile.
func TestRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeEndpoint{lifetime: time.Hour}
		s := d.source(t)
		wantToken(t, s, "t1")
		d.delay = 5 * time.Second
		<-time.After(59*time.Minute - 1)
		wantToken(t, s, "t1")
		wantFetches(t, d, 1)
		<-time.After(time.Nanosecond)
		for range 10 {
			wantToken(t, s, "t1")
		}
		wantFetches(t, d, 2)
		<-time.After(5*time.Second - 1)
		wantToken(t, s, "t1")
		<-time.After(time.Nanosecond)
		synctest.Wait()
		wantToken(t, s, "t2")
		wantFetches(t, d, 2)
	})
}

// TestRefreshSlow: a sender waits only after the old token has expired.
func TestRefreshSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeEndpoint{lifetime: 20 * time.Second}
		s := d.source(t)
		wantToken(t, s, "t1")
		d.delay = 8 * time.Second
		<-time.After(16 * time.Second)
		wantToken(t, s, "t1") // starts a fetch
		<-time.After(4*time.Second - 1)
		wantToken(t, s, "t1")
		<-time.After(time.Nanosecond)
		began := time.Now()
		got, err := s.Token(t.Context())
		if waited := time.Since(began); got != "t2" || err != nil || waited != 4*time.Second {
			t.Errorf("after %s got token %q, %v", waited, got, err)
		}
		wantFetches(t, d, 2)
	})
}

// TestRefreshFails: an endpoint that is down gets a request every 2 s. Senders get no
// error until the old token expires.
func TestRefreshFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeEndpoint{lifetime: 100 * time.Second}
		s := d.source(t)
		wantToken(t, s, "t1")
		d.fail(newError(sink.Unavailable, "down"))
		<-time.After(80 * time.Second)
		for range 200 { // the remaining 20 s
			wantToken(t, s, "t1")
			synctest.Wait()
			<-time.After(100 * time.Millisecond)
		}
		wantFetches(t, d, 11)
		_, errs := concurrently(50, func() (string, error) { return s.Token(t.Context()) })
		for _, err := range errs {
			if e := (*Error)(nil); !errors.As(err, &e) || e.Class != sink.Unavailable || e.Error() != "no token: down" {
				t.Fatalf("got error %v", err)
			}
		}
		wantFetches(t, d, 12)
		d.fail(nil)
		<-time.After(failurePause - 1)
		if _, err := s.Token(t.Context()); err == nil {
			t.Error("endpoint requested before the end of the pause")
		}
		<-time.After(time.Nanosecond)
		wantToken(t, s, "t13")
	})
}

// TestRetryAfter: the endpoint's Retry-After is obeyed up to a minute.
func TestRetryAfter(t *testing.T) {
	for asked, pause := range map[time.Duration]time.Duration{
		0: failurePause, time.Second: failurePause, 30 * time.Second: 30 * time.Second, time.Hour: maxPause,
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &fakeEndpoint{lifetime: time.Hour, failure: &Error{Class: sink.Unavailable, RetryAfter: asked}}
			s := d.source(t)
			left := func() time.Duration {
				_, err := s.Token(t.Context())
				e := (*Error)(nil)
				if !errors.As(err, &e) {
					t.Fatalf("got error %v", err)
				}
				return e.RetryAfter
			}
			if got := left(); got != asked {
				t.Errorf("first sender: got RetryAfter %s, want %s", got, asked)
			}
			<-time.After(pause - 1)
			if got := left(); got != max(asked-pause+1, 0) {
				t.Errorf("later sender: got RetryAfter %s", got)
			}
			wantFetches(t, d, 1)
			<-time.After(time.Nanosecond)
			_ = left()
			wantFetches(t, d, 2)
		})
	}
}

// TestRenew: a 401 to the current token renews it, once for all senders. A 401 to an
// older token returns the current one.
func TestRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeEndpoint{lifetime: time.Hour}
		s := d.source(t)
		wantToken(t, s, "t1")
		d.delay = time.Second
		<-time.After(minAge)
		got, errs := concurrently(50, func() (string, error) { return s.Renew(t.Context(), "t1") })
		for i := range got {
			if got[i] != "t2" || errs[i] != nil {
				t.Fatalf("sender %d: got %q, %v", i, got[i], errs[i])
			}
		}
		<-time.After(minAge)
		for range 10 { // late 401s
			if got, err := s.Renew(t.Context(), "t1"); got != "t2" || err != nil {
				t.Fatalf("late sender: got %q, %v", got, err)
			}
		}
		wantToken(t, s, "t2")
		wantFetches(t, d, 2)
	})
}

// TestRenewDuringRefresh: a 401 joins the fetch in flight, even for a token younger
// than minAge.
func TestRenewDuringRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeEndpoint{lifetime: 5 * time.Second}
		s := d.source(t)
		wantToken(t, s, "t1")
		d.delay = 500 * time.Millisecond
		<-time.After(4 * time.Second)
		wantToken(t, s, "t1")
		if got, err := s.Renew(t.Context(), "t1"); got != "t2" || err != nil {
			t.Errorf("got token %q, %v", got, err)
		}
		wantFetches(t, d, 2)
	})
}

// TestRenewFresh: a 401 to a token younger than minAge does not renew it, because the
// platform refuses the next one too.
func TestRenewFresh(t *testing.T) {
	for name, same := range map[string]bool{"other tokens": false, "the same token": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &fakeEndpoint{lifetime: time.Hour, same: same}
				s := d.source(t)
				const load = 10 * time.Minute
				for began := time.Now(); time.Since(began) < load; <-time.After(100 * time.Millisecond) {
					token, err := s.Token(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					if _, err := s.Renew(t.Context(), token); err != nil {
						t.Fatal(err)
					}
				}
				wantFetches(t, d, int(load/minAge))
			})
		})
	}
}

// TestRenewFails: a failed renewal keeps the old token, because a single 401 may be a
// glitch.
func TestRenewFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeEndpoint{lifetime: time.Hour}
		s := d.source(t)
		wantToken(t, s, "t1")
		<-time.After(minAge)
		d.fail(newError(sink.Misconfigured, "gone"))
		for range 5 {
			if got, err := s.Renew(t.Context(), "t1"); err == nil {
				t.Errorf("got token %q", got)
			}
			wantToken(t, s, "t1")
		}
		wantFetches(t, d, 2)
	})
}

// TestFetchTimeout: a fetch from a silent endpoint times out after 10 s.
func TestFetchTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeEndpoint{lifetime: time.Hour, delay: time.Hour}
		s := d.source(t)
		began := time.Now()
		_, err := s.Token(t.Context())
		if waited := time.Since(began); waited != fetchTimeout || err == nil || err.Error() != "no token: no response within 10s" {
			t.Errorf("after %s: %v", waited, err)
		}
	})
}

// TestContext: a sender whose context ends does not cancel the fetch of others.
func TestContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeEndpoint{lifetime: time.Hour, delay: 3 * time.Second}
		s := d.source(t)
		gone := errors.New("gone")
		short, cancel := context.WithTimeoutCause(t.Context(), time.Second, gone)
		defer cancel()
		began := time.Now()
		_, err := s.Token(short)
		if waited := time.Since(began); !errors.Is(err, gone) || waited != time.Second {
			t.Errorf("after %s: %v", waited, err)
		}
		got, err := s.Token(t.Context())
		if waited := time.Since(began); got != "t1" || err != nil || waited != d.delay {
			t.Errorf("after %s got token %q, %v", waited, got, err)
		}
		wantFetches(t, d, 1)
		<-time.After(d.lifetime)
		if _, err := s.Token(short); !errors.Is(err, gone) {
			t.Errorf("a sender that has gone: %v", err)
		}
		wantFetches(t, d, 1)
	})
}

// TestClose: Close cancels the fetch in flight and waits for it.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeEndpoint{lifetime: time.Hour, delay: time.Hour}
		s := d.source(t)
		failed := make(chan error, 1)
		go func() {
			_, err := s.Token(t.Context())
			failed <- err
		}()
		synctest.Wait()
		s.Close()
		if s.flight != nil {
			t.Error("a fetch is in flight after Close")
		}
		if err := <-failed; err == nil || err.Error() != "no token: sink is closed" {
			t.Errorf("waiting sender: got %v", err)
		}
		<-time.After(time.Hour)
		if _, err := s.Token(t.Context()); err == nil || err.Error() != "no token: sink is closed" {
			t.Errorf("later sender: got %v", err)
		}
		wantFetches(t, d, 1)
		s.Close()
	})
}
