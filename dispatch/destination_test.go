package dispatch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// slowSink takes a while for each request, and counts those in flight with those of other sinks.
type slowSink struct {
	*fakeBackend
	inFlight, most *int // guarded by mu of shared
	shared         *fakeBackend
}

// Deliver implements sink.Sink.
func (s slowSink) Deliver(ctx context.Context, msgs []sink.Message) sink.Result {
	s.shared.set(func() { *s.inFlight++; *s.most = max(*s.most, *s.inFlight) })
	defer s.shared.set(func() { *s.inFlight-- })
	time.Sleep(20 * time.Millisecond)
	return s.fakeBackend.Deliver(ctx, msgs)
}

// sharing are dispatchers of one destination.
type sharing struct {
	backends    []*fakeBackend
	dispatchers []*Dispatcher
	ends        []func() // each ends a dispatcher
	most        int      // requests in flight
	to          *Destination
}

// share runs n dispatchers of one destination.
func share(t *testing.T, n int, cfg Config, test func(*sharing)) {
	shareLeased(t, n, cfg, nil, test)
}

// shareLeased is share in which the first dispatcher has a lease, if not nil.
func shareLeased(t *testing.T, n int, cfg Config, lease Lease, test func(*sharing)) {
	synctest.Test(t, func(t *testing.T) {
		s, inFlight := &sharing{to: NewDestination(nil)}, 0
		for i := range n {
			k := newFakeBackend()
			s.backends = append(s.backends, k)
			opt := k.options(1)
			opt.Sink, opt.Destination = slowSink{k, &inFlight, &s.most, s.backends[0]}, s.to
			if i == 0 {
				opt.Lease = lease
			}
			d := New(cfg, opt)
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- d.Run(ctx) }()
			s.dispatchers = append(s.dispatchers, d)
			s.ends = append(s.ends, func() {
				if s.ends[i] = func() {}; ctx.Err() == nil {
					cancel()
					if err := <-done; err != nil {
						t.Error(err)
					}
					d.Close()
				}
			})
		}
		test(s)
		for i := range s.ends {
			s.ends[i]()
		}
		if now := s.to.Stats(); now.InFlight != 0 || now.Waiting != 0 || now.Members != 0 {
			t.Errorf("the destination has %+v at the end", now)
		}
	})
}

// requests returns how many requests each dispatcher sent.
func (s *sharing) requests() (n []int) {
	for _, k := range s.backends {
		k.set(func() { n = append(n, len(k.requests)) })
	}
	return n
}

// Dispatchers of one destination have no more requests in flight than one alone. One with few rows takes
// turns with one that has many.
func TestDestinationIsShared(t *testing.T) {
	cfg := senders(4)
	cfg.APIBatchSize = 1
	share(t, 3, cfg, func(s *sharing) {
		var many, few, fewer counter
		add(t, s.dispatchers[0], &many, rowsInOwnGroups(1000))
		s.backends[0].advance(time.Second)
		before := s.requests()
		if before[0] < 150 {
			t.Fatalf("one dispatcher alone sent %d requests in a second, want 200", before[0])
		}
		add(t, s.dispatchers[1], &few, rowsInOwnGroups(40))
		add(t, s.dispatchers[2], &fewer, rowsInOwnGroups(20))
		for few.n < 40 {
			s.backends[0].advance(20 * time.Millisecond)
		}
		after := s.requests()
		if n := after[0] - before[0]; n > 40+3*4 {
			t.Errorf("the one with many rows sent %d requests while another sent 40", n)
		}
		if fewer.n != 20 {
			t.Errorf("%d of 20 rows are delivered", fewer.n)
		}
		s.backends[0].advance(time.Minute)
		if many.n != 1000 || s.most != 4 {
			t.Errorf("%d of 1000 rows are delivered, %d requests in flight at the most, want 4", many.n, s.most)
		}
	})
}

// The circuit breaker that one dispatcher opened holds the others back, except for probes of all
// together. The first accepted row closes it for all.
func TestBreakerIsShared(t *testing.T) {
	cfg := senders(4)
	cfg.APIBatchSize = 1
	share(t, 3, cfg, func(s *sharing) {
		down := func(is sink.Class) {
			for _, k := range s.backends {
				k.set(func() { k.answer = always(is) })
			}
		}
		down(sink.Unavailable)
		var done [3]counter
		add(t, s.dispatchers[0], &done[0], rowsInOwnGroups(20))
		s.backends[0].advance(time.Minute)
		if n := s.to.Stats().OpenBreakers; n != 1 || len(s.dispatchers[1].Stats().OpenBreakers) != 0 {
			t.Fatalf("%d breakers are open", n)
		}
		before := s.requests()
		add(t, s.dispatchers[1], &done[1], rowsInOwnGroups(20))
		add(t, s.dispatchers[2], &done[2], rowsInOwnGroups(20))
		s.backends[0].advance(10 * time.Minute)
		after := s.requests()
		if n := after[1] + after[2]; n > 100 {
			t.Errorf("%d requests of dispatchers that did not open the breaker", n)
		}
		if n := after[0] + after[1] + after[2] - before[0]; n < 20 || n > 110 {
			t.Errorf("%d probes in ten minutes, want those of one: one each 30 s, and one a second for each new lane", n)
		}
		down(sink.Delivered)
		s.backends[0].advance(time.Minute)
		for i := range done {
			if done[i].n != 20 || len(s.dispatchers[i].Stats().OpenBreakers) != 0 {
				t.Errorf("dispatcher %d delivered %d of 20 rows: %+v", i, done[i].n, s.dispatchers[i].Stats().OpenBreakers)
			}
		}
	})
}

// A dispatcher that ends with a probe or requests in flight holds no other back.
func TestDispatcherLeavesDestination(t *testing.T) {
	cfg := senders(2)
	cfg.APIBatchSize = 1
	share(t, 2, cfg, func(s *sharing) {
		s.backends[0].set(func() { s.backends[0].hang = true })
		add(t, s.dispatchers[0], nil, rowsInOwnGroups(10))
		s.backends[0].advance(time.Second)
		var c counter
		add(t, s.dispatchers[1], &c, rowsInOwnGroups(10))
		s.backends[1].advance(time.Second)
		if now := s.to.Stats(); now.InFlight != 2 || now.Waiting != 1 || c.n != 0 {
			t.Fatalf("%+v, %d rows delivered, want 2 in flight and one that waits", now, c.n)
		}
		s.ends[0]()
		s.backends[1].advance(time.Second)
		if c.n != 10 {
			t.Errorf("%d of 10 rows are delivered: %s", c.n, fmt.Sprint(s.to.Stats()))
		}
	})
}

// A fresh row that comes while another dispatcher has all requests is sent once there is room, although
// nothing else happens to its own dispatcher.
func TestFreshRowWaitsForDestination(t *testing.T) {
	cfg := senders(2)
	cfg.APIBatchSize = 1
	share(t, 2, cfg, func(s *sharing) {
		s.dispatchers[1].change(func(c *core) { c.late.allowed = func() bool { return true } })
		s.backends[0].set(func() {
			s.backends[0].answer = func(ids []string) sink.Result {
				<-time.After(300 * time.Millisecond)
				return always(sink.Delivered)(ids)
			}
		})
		add(t, s.dispatchers[0], nil, rowsInOwnGroups(2))
		s.backends[0].advance(100 * time.Millisecond)
		var c counter
		addFresh(s.dispatchers[1], &c, items("a", "1"))
		s.backends[1].advance(time.Minute)
		if c.n != 1 {
			t.Errorf("the row is not delivered after a minute: %+v", s.to.Stats())
		}
	})
}

// A dispatcher whose database fails has no probe in flight that holds the others back.
func TestProbeOfAFailingDatabase(t *testing.T) {
	cfg := senders(2)
	cfg.APIBatchSize = 1
	share(t, 2, cfg, func(s *sharing) {
		for _, k := range s.backends {
			k.set(func() { k.answer = always(sink.Unavailable) })
		}
		var c counter
		add(t, s.dispatchers[0], nil, rowsInOwnGroups(20))
		add(t, s.dispatchers[1], &c, rowsInOwnGroups(20))
		s.backends[0].advance(10 * time.Minute)
		s.backends[0].set(func() { s.backends[0].err = fmt.Errorf("read-only") })
		s.backends[0].advance(10 * time.Minute) // it has its turn to probe
		s.backends[1].set(func() { s.backends[1].answer = always(sink.Delivered) })
		s.backends[1].advance(10 * time.Minute)
		if c.n != 20 {
			t.Errorf("%d of 20 rows are delivered after ten minutes: %+v", c.n, s.to.Stats())
		}
	})
}

// A dispatcher whose claim hangs, because its database does not answer, holds no other back from probing.
func TestProbeOfAHungClaim(t *testing.T) {
	cfg := senders(2)
	cfg.APIBatchSize = 1
	share(t, 2, cfg, func(s *sharing) {
		for _, k := range s.backends {
			k.set(func() { k.answer = always(sink.Unavailable) })
		}
		var hung, c counter
		add(t, s.dispatchers[0], &hung, rowsInOwnGroups(20))
		s.backends[0].advance(10 * time.Minute)
		s.backends[0].set(func() { s.backends[0].hangClaims = true })
		s.backends[0].advance(10 * time.Minute) // it claims the row of a probe
		add(t, s.dispatchers[1], &c, rowsInOwnGroups(20))
		s.backends[1].set(func() { s.backends[1].answer = always(sink.Delivered) })
		s.backends[1].advance(10 * time.Minute)
		if c.n != 20 {
			t.Errorf("%d of 20 rows are delivered after ten minutes: %+v", c.n, s.to.Stats())
		}
	})
}

// A dispatcher whose relay may have lost its lock has no slot and no probe of the destination. Once the
// lock is confirmed, it sends its rows in their order.
func TestUncertainLeaseHoldsNoSlot(t *testing.T) {
	for name, down := range map[string]bool{"slots": false, "probe": true} {
		t.Run(name, func(t *testing.T) {
			cfg, lease := senders(2), &fakeLease{}
			cfg.APIBatchSize = 1
			shareLeased(t, 2, cfg, lease, func(s *sharing) {
				if down {
					for _, k := range s.backends {
						k.set(func() { k.answer = always(sink.Unavailable) })
					}
					add(t, s.dispatchers[0], nil, rowsInOwnGroups(8))
					s.backends[0].advance(10 * time.Minute)
				}
				settle := lease.suspend()
				var waits, c counter
				add(t, s.dispatchers[0], &waits, slices.Concat(items("a", "a1", "a2", "a3"), items("b", "b1"), items("c", "c1"), items("d", "d1")))
				s.backends[0].advance(time.Minute)
				before := s.requests()
				for _, k := range s.backends {
					k.set(func() { k.answer = always(sink.Delivered) })
				}
				add(t, s.dispatchers[1], &c, rowsInOwnGroups(20))
				s.backends[1].advance(time.Minute)
				if c.n != 20 {
					t.Errorf("%d of 20 rows are delivered while the other dispatcher waits: %+v", c.n, s.to.Stats())
				}
				if after := s.requests(); after[0] != before[0] || s.to.Stats().InFlight != 0 {
					t.Errorf("%d requests without a lease, %d in flight", after[0]-before[0], s.to.Stats().InFlight)
				}
				settle()
				s.backends[0].advance(time.Minute)
				if waits.n != 6 {
					t.Errorf("%d of 6 rows are delivered: %+v", waits.n, s.to.Stats())
				}
				var of []string
				s.backends[0].set(func() {
					for _, ids := range s.backends[0].requests[before[0]:] {
						for _, id := range ids {
							if strings.HasPrefix(id, "a") {
								of = append(of, id)
							}
						}
					}
				})
				if got := fmt.Sprint(of); got != "[a1 a2 a3]" {
					t.Errorf("the rows of a group are sent as %s", got)
				}
			})
		})
	}
}

// While a rate limit holds requests back, a dispatcher waits and does not look again and again.
func TestRateOfDestination(t *testing.T) {
	cfg := senders(4)
	cfg.APIBatchSize, cfg.RateLimit = 1, 2
	share(t, 2, cfg, func(s *sharing) {
		var c [2]counter
		add(t, s.dispatchers[0], &c[0], rowsInOwnGroups(10))
		add(t, s.dispatchers[1], &c[1], rowsInOwnGroups(10))
		s.backends[0].advance(20 * time.Second)
		if c[0].n != 10 || c[1].n != 10 {
			t.Errorf("%d and %d of 10 rows are delivered", c[0].n, c[1].n)
		}
	})
}
