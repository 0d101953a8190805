package leader

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is an Observer that stores the latest events.
type recorder struct {
	holder atomic.Pointer[string]
	failed atomic.Pointer[error]
}

func (d *recorder) Standby(holder string) { d.holder.Store(&holder) }
func (d *recorder) LockFailed(err error)  { d.failed.Store(&err) }

// runTenure competes, and runs the tenure until the lock is lost or the context ends.
func runTenure(ctx context.Context, r relay, obs Observer, begun func(*Tenure)) error {
	c := Candidate{Locker: r, Observer: obs}
	t, err := c.Compete(ctx)
	if err != nil {
		return err
	}
	defer t.Release()
	begun(t)
	return t.Run(ctx)
}

// withLeader runs a test with a leading relay.
func withLeader(t *testing.T, test func(s *server, tenure *Tenure, ended <-chan error)) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{unreachable: map[string]bool{}}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		begun, ended := make(chan *Tenure, 1), make(chan error, 1)
		go func() { ended <- runTenure(ctx, relay{s, "a"}, &recorder{}, func(tn *Tenure) { begun <- tn }) }()
		test(s, <-begun, ended)
	})
}

func advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestStandbyTakesOver(t *testing.T) {
	withLeader(t, func(s *server, first *Tenure, ended <-chan error) {
		ctx, cancel := context.WithCancel(context.Background())
		var d recorder
		var second atomic.Pointer[Tenure]
		done := make(chan error, 1)
		go func() { done <- runTenure(ctx, relay{s, "b"}, &d, second.Store) }()
		advance(10 * time.Minute)
		if !first.IsLeader() || second.Load() != nil || *d.holder.Load() != "a" || s.tries < 2390 || s.tries > 2402 {
			t.Errorf("after 10 minutes: first leads %v, second %v, observed holder %q, %d tries", first.IsLeader(), second.Load(), *d.holder.Load(), s.tries)
		}

		s.end()
		if err := <-ended; !errors.Is(err, store.ErrNotLeader) || !errors.Is(err, errGone) {
			t.Errorf("first tenure: got %v, want ErrNotLeader and errGone", err)
		}
		if err := first.Await(ctx); !errors.Is(err, store.ErrNotLeader) || first.IsLeader() {
			t.Errorf("first tenure still leads: %v", err)
		}

		<-first.Lost()
		advance(tryInterval)
		if tn := second.Load(); tn == nil || tn.Await(ctx) != nil {
			t.Error("second candidate does not lead after one try")
		}

		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if s.holder() != nil {
			t.Error("lock not released")
		}
	})
}

// TestSlowDatabaseKeepsLeadership: a database that is slow for a moment costs a pause, not
// the leadership.
func TestSlowDatabaseKeepsLeadership(t *testing.T) {
	withLeader(t, func(s *server, tenure *Tenure, _ <-chan error) {
		ctx := context.Background()
		advance(10*time.Second + 100*time.Millisecond) // 100 ms after the start of the last ping
		s.set(func() { s.slow = 2500 * time.Millisecond })
		began := time.Now()
		advance(2800 * time.Millisecond)
		if err := tenure.Await(ctx); err != nil || time.Since(began) > 2800*time.Millisecond {
			t.Errorf("unconfirmed after %s: %v", time.Since(began), err)
		}

		advance(200 * time.Millisecond)
		if tenure.IsLeader() {
			t.Errorf("still confirmed after %s", time.Since(began))
		}

		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		if err := tenure.Await(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("short wait: got %v, want DeadlineExceeded", err)
		}
		if err := tenure.Await(ctx); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 3400*time.Millisecond {
			t.Errorf("confirmed again after %s", took)
		}
	})
}

// TestRequestsAreSignaled: an increase of the request count during the tenure is signaled.
func TestRequestsAreSignaled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{unreachable: map[string]bool{}, requests: 7}
		ctx, cancel := context.WithCancel(context.Background())
		begun, ended := make(chan *Tenure, 1), make(chan error, 1)
		go func() { ended <- runTenure(ctx, relay{s, "a"}, &recorder{}, func(tn *Tenure) { begun <- tn }) }()
		tenure := <-begun
		expect := func(what string, want bool) {
			t.Helper()
			advance(3 * time.Second)
			select {
			case <-tenure.Requested():
				if !want {
					t.Errorf("%s: a signal", what)
				}
			default:
				if want {
					t.Errorf("%s: no signal", what)
				}
			}
		}

		request := func(n int64) { s.set(func() { s.requests = n }) }
		expect("none since it began", false)
		request(8)
		expect("one more", true)
		expect("none more", false)
		request(9)
		advance(3 * time.Second)
		request(10)
		expect("two more, one by one", true)
		expect("both were told of", false)
		request(0)
		expect("the count was lost", false)
		request(1)
		expect("the first of a new count", true)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}

		expect("after the end", false)
	})
}

// TestTenureEndsWithoutAnswers: without answers the relay pauses before another can acquire the
// lock, and the tenure ends when another can.
func TestTenureEndsWithoutAnswers(t *testing.T) {
	withLeader(t, func(s *server, tenure *Tenure, ended <-chan error) {
		advance(10 * time.Second)
		s.set(func() { s.unreachable["a"] = true })
		began := time.Now()
		if err := tenure.Await(context.Background()); err != nil {
			t.Error(err)
		}

		advance(pingValidity - time.Millisecond)
		if !tenure.IsLeader() {
			t.Error("unconfirmed too early")
		}

		advance(time.Millisecond)
		if tenure.IsLeader() {
			t.Error("confirmed for too long")
		}

		waits := make(chan error, 1)
		go func() { waits <- tenure.Await(context.Background()) }()
		if err := <-ended; !errors.Is(err, store.ErrNotLeader) || !strings.Contains(err.Error(), "no database answer for 4s") || strings.Contains(err.Error(), "taken over") {
			t.Errorf("tenure: got %v, want ErrNotLeader without an answer for 4s", err) // no other relay is known to lead
		}
		if took := time.Since(began); took != store.MinLockLease {
			t.Errorf("tenure ended after %s, want MinLockLease", took)
		}
		if err := <-waits; !errors.Is(err, store.ErrNotLeader) {
			t.Errorf("waiting Await: got %v, want ErrNotLeader", err)
		}
	})
}

// TestAnswerCountsFromPingStart: an answer counts from the start of its ping, so slow
// answers leave gaps.
func TestAnswerCountsFromPingStart(t *testing.T) {
	withLeader(t, func(s *server, tenure *Tenure, _ <-chan error) {
		s.set(func() { s.slow = 1800 * time.Millisecond })
		advance(2 * time.Minute)
		var confirmed int
		for range 3600 {
			if advance(time.Millisecond); tenure.IsLeader() {
				confirmed++
			}
		}
		// Each answer arrives 1.8 s after its ping and is valid for another 1.2 s.
		if confirmed < 2390 || confirmed > 2410 {
			t.Errorf("confirmed for %d ms of 3600", confirmed)
		}
	})
}

// TestSlowConnection: slow connections delay leadership but do not lose it.
func TestSlowConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{opening: 8 * time.Second}
		ctx, cancel := context.WithCancel(context.Background())
		begun, ended := make(chan *Tenure, 1), make(chan error, 1)
		go func() { ended <- runTenure(ctx, relay{s, "a"}, &recorder{}, func(tn *Tenure) { begun <- tn }) }()
		tenure := <-begun
		for range 60 {
			if !tenure.IsLeader() {
				t.Fatal("relay does not lead")
			}
			advance(time.Second)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestCompete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{down: true}
		var d recorder
		ctx, cancel := context.WithCancel(context.Background())
		var tenure atomic.Pointer[Tenure]
		done := make(chan error, 1)
		go func() { done <- runTenure(ctx, relay{s, "a"}, &d, tenure.Store) }()
		advance(time.Minute)
		if err := d.failed.Load(); err == nil || !errors.Is(*err, errGone) || tenure.Load() != nil {
			t.Errorf("got LockFailed(%v), want errGone", err)
		}

		s.set(func() { s.down = false })
		advance(tryInterval)
		if tenure.Load() == nil {
			t.Error("relay does not lead after the database is back")
		}

		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}

		setup := &store.SetupError{Problem: "no grant"}
		c := Candidate{Locker: refusal{setup}, Observer: &d}
		if _, err := c.Compete(context.Background()); !errors.Is(err, setup) {
			t.Errorf("%v", err)
		}
	})
}

type refusal struct{ err error }

func (r refusal) Lock(context.Context) (store.Lock, error) { return nil, r.err }

// TestNeverTwoLeaders: with random faults of three relays, their sessions and their
// network, at most one relay is certain to lead at a time, unless an administrator ends a
// session. Once the faults end, one relay leads.
func TestNeverTwoLeaders(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { threeRelays(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func threeRelays(t *testing.T, random *rand.Rand) {
	s := &server{unreachable: map[string]bool{}}
	var tenures [3]atomic.Pointer[Tenure]
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{}, len(tenures))
	for i := range tenures {
		go func() {
			for ctx.Err() == nil {
				_ = runTenure(ctx, relay{s, fmt.Sprint(i)}, &recorder{}, tenures[i].Store)
			}
			done <- struct{}{}
		}()
	}

	confirmed := func() (n int) {
		for i := range tenures {
			if tn := tenures[i].Load(); tn != nil && tn.IsLeader() {
				n++
			}
		}
		return n
	}

	turns := 0
	for range 400 {
		advance(time.Duration(random.Int64N(int64(900 * time.Millisecond))))
		if n := confirmed(); n > 1 {
			t.Fatalf("%d relays are certain to lead, want at most 1", n)
		} else {
			turns += n
		}

		who := fmt.Sprint(random.IntN(len(tenures)))
		s.set(func() {
			switch random.IntN(6) {
			case 0:
				s.unreachable[who] = true
			case 1:
				s.slow = time.Duration(random.Int64N(int64(4 * time.Second)))
			case 2:
				s.down = random.IntN(4) == 0
			default:
				s.unreachable[who], s.slow = false, 0
			}
		})
	}

	s.set(func() { clear(s.unreachable); s.slow, s.down = 0, false })
	advance(store.MinLockLease + tryTimeout + tryInterval)
	if n := confirmed(); n != 1 || turns == 0 {
		t.Errorf("%d relays lead at the end, want 1; one led in %d of 400 moments", n, turns)
	}

	cancel()
	for range tenures {
		<-done
	}
}
