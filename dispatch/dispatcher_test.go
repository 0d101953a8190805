package dispatch

import (
	"errors"
	"flag"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

func TestMain(m *testing.M) {
	// Twice the default; a longer search is, for example, -run Model -rapid.checks 5000.
	if err := errors.Join(flag.Set("rapid.checks", "200"), flag.Set("rapid.steps", "50")); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func TestNaturalBatching(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		var c counter
		add(t, d, &c, items("a", "1"))
		synctest.Wait() // the claim of 1 is in flight
		for _, id := range []string{"2", "3", "4"} {
			add(t, d, &c, items("g"+id, id))
		}
		k.advance(time.Second)
		k.expect(t, "claims", k.claims, "[[1] [2 3 4]]")
		if c.n != 4 {
			t.Errorf("rows done: got %d, want 4", c.n)
		}
	})
}

func TestRowIsRetriedBeforeNextOfItsGroup(t *testing.T) {
	cfg := DefaultConfig()
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.answer = func([]string) sink.Result {
				return sink.Result{Outcome: sink.Outcome{Class: sink.Unavailable, Detail: "down"}}
			}
		})
		var c counter
		add(t, d, &c, items("a", "1", "2"))
		k.advance(time.Minute)
		k.set(func() {
			k.expect(t, "first request", k.requests[0], "[1 2]")
			for _, r := range k.requests[1:] {
				k.expect(t, "request", r, "[1]")
			}
			if n := len(k.requests); n < 10 || n > 14 {
				t.Errorf("%d requests in a minute of backoff from 200 ms to 30 s", n)
			}
			k.answer = newFakeBackend().answer
		})
		k.advance(time.Minute)
		k.expect(t, "outcomes", k.settles, "[[1 COMPLETED] [2 COMPLETED]]")
		k.expect(t, "rows done", c.n, 2)
	})
}

func TestRetryAfterIsCapped(t *testing.T) {
	cfg := DefaultConfig()
	cfg.RetryAfterMax = 10 * time.Second
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		asked := []time.Duration{2 * time.Second, 24 * time.Hour, 0}
		k.set(func() {
			k.answer = func([]string) sink.Result {
				res := sink.Result{Outcome: sink.Outcome{Class: sink.Unavailable}, RetryAfter: asked[0]}
				if asked = asked[1:]; len(asked) == 0 {
					res.Class = sink.Delivered
				}
				return res
			}
		})
		var c counter
		add(t, d, &c, items("a", "1"))
		k.advance(time.Minute)
		if c.n != 1 || len(k.requestTimes) != 3 {
			t.Fatalf("%d rows done by %d requests", c.n, len(k.requestTimes))
		}
		for i, want := range []time.Duration{2 * time.Second, 10 * time.Second} {
			if got := k.requestTimes[i+1] - k.requestTimes[i]; got < want || got > want+100*time.Millisecond {
				t.Errorf("wait %d: got %s, want %s", i+1, got, want)
			}
		}
	})
}

func TestShutdownFinishesRequestsAndGivesBackClaims(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxConcurrentGroups = 2
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, end func(error) error) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				<-time.After(500 * time.Millisecond)
				return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
			}
		})
		add(t, d, nil, items("a", "1"))
		k.advance(100 * time.Millisecond) // 1 is being sent
		add(t, d, nil, items("b", "2"))
		synctest.Wait() // 2 is being claimed
		add(t, d, nil, items("c", "3"))
		if err := end(nil); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(k.began); took > 510*time.Millisecond {
			t.Errorf("ended after %s, with a request of 500 ms in flight", took)
		}
		k.expect(t, "requests", k.requests, "[[1]]")
		k.expect(t, "outcomes", k.settles, "[[2 PENDING] [1 COMPLETED]]")
	})
}

func TestLostLeaderStopsAtOnce(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, end func(error) error) {
		k.set(func() { k.err = store.ErrNotLeader })
		add(t, d, nil, items("a", "1"))
		k.advance(time.Second)
		if err := end(nil); !errors.Is(err, store.ErrNotLeader) {
			t.Fatalf("%v", err)
		}
		if len(k.requests) > 0 {
			t.Errorf("sent %v without leadership", k.requests)
		}
	})
}

func TestUnreachableStoreIsRetried(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.err = errors.New("connection refused") })
		var c counter
		add(t, d, &c, items("a", "1"))
		k.advance(time.Minute)
		k.set(func() { k.err = nil })
		k.advance(10 * time.Second)
		if c.n != 1 {
			t.Error("the row did not go out once the store was back")
		}
	})
}

func TestFreeze(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		d.Freeze(true)
		add(t, d, nil, items("a", "1", "2"))
		k.advance(time.Second)
		k.expect(t, "requests while frozen", k.requests, "[]")
		d.Freeze(false)
		k.advance(time.Second)
		k.expect(t, "requests", k.requests, "[[1 2]]")
	})
}
