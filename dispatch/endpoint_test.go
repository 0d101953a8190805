package dispatch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// named is a sink of the backend whose rows name their endpoint in an attribute. Requests to
// the hosts of hangs end with their context or after 30 s.
type named struct {
	*fakeBackend
	items int // in a request
	own   bool
	hangs map[string]bool
}

func (s *named) Limits(string) sink.Limits {
	return sink.Limits{Mode: sink.Atomic, MaxItems: s.items, MaxBytes: 1 << 20, OwnEndpoints: s.own, EndpointOf: func(m *sink.Message) string {
		host, _ := m.Attributes.Get("host")
		return host
	}}
}

func (s *named) Deliver(ctx context.Context, msgs []sink.Message) sink.Result {
	hosts := map[string]bool{}
	for i := range msgs {
		host, _ := msgs[i].Attributes.Get("host")
		hosts[host] = true
	}
	if len(hosts) > 1 {
		s.set(func() { s.failures = append(s.failures, fmt.Sprint("a request to ", hosts)) })
	}
	hangs := false
	for host := range hosts {
		s.set(func() { hangs = s.hangs[host] })
	}
	res := s.fakeBackend.Deliver(ctx, msgs)
	if hangs {
		select {
		case <-ctx.Done():
		case <-time.After(30 * time.Second):
		}
		return always(sink.Unavailable)(nil)
	}
	return res
}

// driveNamed is drive with a sink whose rows name their endpoints.
func driveNamed(t *testing.T, cfg Config, items int, hangs []string, test func(k *fakeBackend, s *named, d *Dispatcher)) {
	var s *named
	made := func(k *fakeBackend) sink.Sink {
		s = &named{fakeBackend: k, items: items, hangs: map[string]bool{}}
		for _, host := range hangs {
			s.hangs[host] = true
		}
		return s
	}
	driveSink(t, cfg, nil, made, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		test(k, s, d)
		k.expect(t, "failures", k.failures, "[]")
	})
}

// to returns the rows with the host that they go to.
func to(host string, rows []store.Item) []store.Item {
	for i := range rows {
		rows[i].Attributes = store.Attributes{{Name: "host", Value: host}}
	}
	return rows
}

// One endpoint does not answer. It holds part of the senders, and the rows of the other are
// delivered without a delay. Its own breaker opens alone.
func TestAHangingEndpointHoldsNoOther(t *testing.T) {
	driveNamed(t, senders(16), 1, []string{"dead"}, func(k *fakeBackend, s *named, d *Dispatcher) {
		var dead, alive counter
		for i := range 200 {
			add(t, d, &dead, to("dead", items(fmt.Sprint("dead", i), fmt.Sprint("dead", i, "a"), fmt.Sprint("dead", i, "b"))))
		}
		for i := range 200 {
			for j := range 20 {
				add(t, d, &alive, to("alive", items(fmt.Sprint("alive", j), fmt.Sprint("alive", i, "-", j))))
			}
			k.advance(time.Second)
			k.expect(t, fmt.Sprint("rows done after second ", i), alive.n, 20*(i+1))
		}
		k.expect(t, "breakers", k.breakerReports, "[deadunavailable]")
		open := d.Stats().OpenBreakers
		if len(open) != 1 || open[0].Endpoint != "dead" || open[0].Idle {
			t.Errorf("open breakers: %+v", open)
		}
		// Each of the first requests takes 30 s, and so does each probe. At most a quarter of the
		// senders probes.
		if n := slices.IndexFunc(k.requests, func(ids []string) bool { return strings.HasPrefix(ids[0], "alive") }); n > 8 {
			t.Errorf("%d requests to the dead endpoint before the first to the other", n)
		}
		k.set(func() { s.hangs = nil })
		k.advance(2 * time.Minute)
		k.expect(t, "rows done of the dead endpoint", dead.n, 400)
		k.expect(t, "breakers", k.breakerReports, "[deadunavailable closed]")
		k.expect(t, "FAILED", failedIDs(k.outcomes), "[]")
	})
}

// The open breaker of a customer's host is the customer's. That of a topic is the operator's.
func TestAnOpenBreakerOfTheOperator(t *testing.T) {
	for _, own := range []bool{false, true} {
		driveNamed(t, senders(4), 1, []string{"dead"}, func(k *fakeBackend, s *named, d *Dispatcher) {
			k.set(func() { s.own = own })
			for i := range 20 {
				add(t, d, new(counter), to("dead", items(fmt.Sprint("dead", i), fmt.Sprint("dead", i, "a"))))
			}
			k.advance(5 * time.Minute)
			if open := d.Stats().OpenBreakers; len(open) != 1 || open[0].Named == own {
				t.Errorf("own %v: open breakers: %+v", own, open)
			}
		})
	}
}

// The contents of the rows are not in memory, so only their claims show which endpoint does not
// answer. It holds no more senders than if it had been known.
func TestAHangingEndpointThatOnlyClaimsShow(t *testing.T) {
	driveNamed(t, senders(16), 1, []string{"dead"}, func(k *fakeBackend, _ *named, d *Dispatcher) {
		k.set(func() {
			k.grant = func(r *store.ClaimRow) store.ClaimAnswer {
				host := strings.TrimRight(r.ID, "0123456789-")
				return store.ClaimAnswer{Result: store.Claimed, Payload: []byte("{}"), Attributes: store.Attributes{{Name: "host", Value: host}}}
			}
		})
		var alive counter
		for i := range 200 {
			rows := items(fmt.Sprint("dead", i), fmt.Sprint("dead", i))
			rows[0].Payload = nil
			add(t, d, nil, rows)
		}
		for i := range 120 {
			for j := range 5 {
				add(t, d, &alive, to("alive", items(fmt.Sprint("alive", j), fmt.Sprint("alive", i, "-", j))))
			}
			k.advance(time.Second)
			k.expect(t, fmt.Sprint("rows done after second ", i), alive.n, 5*(i+1))
		}
		// Each row of the dead endpoint is claimed to learn that, and a few as requests and probes.
		if n := len(k.rows) - alive.n; n > 260 {
			t.Errorf("the 200 rows of the dead endpoint were claimed %d times", n)
		}
	})
}

// Many endpoints do not answer. The others go on, because probes take part of the senders only.
func TestManyHangingEndpoints(t *testing.T) {
	hosts := make([]string, 100)
	for i := range hosts {
		hosts[i] = fmt.Sprint("dead", i)
	}
	driveNamed(t, senders(16), 1, hosts, func(k *fakeBackend, _ *named, d *Dispatcher) {
		for i, host := range hosts {
			for j := range 10 {
				add(t, d, nil, to(host, items(fmt.Sprint(host, "-", j), fmt.Sprint(host, "-", i, "-", j))))
			}
		}
		k.advance(time.Hour) // until all breakers are open
		if open := len(d.Stats().OpenBreakers); open != len(hosts) {
			t.Errorf("open breakers: got %d, want %d", open, len(hosts))
		}
		var alive counter
		for i := range 60 {
			add(t, d, &alive, to("alive", items("alive", fmt.Sprint("alive", i))))
			k.advance(time.Second)
			k.expect(t, fmt.Sprint("rows done after second ", i), alive.n, i+1)
		}
	})
}

// An endpoint that used to work is down and works again, beside many that never answer. It does not
// wait until each of them was probed. Its receiver was forgotten before it failed.
func TestAnEndpointRecoversBesideManyThatHang(t *testing.T) {
	for _, n := range []int{4, 16} {
		t.Run(fmt.Sprint(n, " senders"), func(t *testing.T) {
			hosts := make([]string, 100) // of one probe each, they last half an hour and more
			for i := range hosts {
				hosts[i] = fmt.Sprint("dead", i)
			}
			driveNamed(t, senders(n), 1, hosts, func(k *fakeBackend, s *named, d *Dispatcher) {
				var good, bad counter
				add(t, d, &good, to("good", items("good", "good")))
				k.advance(time.Second)
				k.expect(t, "rows done", good.n, 1)
				for _, host := range hosts {
					for j := range 6 {
						id := fmt.Sprint(host, "-", j)
						add(t, d, &bad, to(host, items(id, id)))
					}
				}
				k.set(func() { s.hangs["good"] = true })
				for j := range 6 {
					add(t, d, &good, to("good", items(fmt.Sprint("good", j), fmt.Sprint("good", j))))
				}
				k.advance(3 * time.Hour) // all breakers are open
				k.expect(t, "rows done", []int{good.n, bad.n}, "[1 0]")
				k.set(func() { delete(s.hangs, "good") })
				k.advance(4 * time.Minute) // its backoff, and with one probe a time-out of another endpoint
				k.expect(t, "rows done", good.n, 7)
				k.set(func() { s.hangs = nil })
				k.advance(time.Hour)
				k.expect(t, "rows done of the others", bad.n, 600)
			})
		})
	}
}

// Requests of several rows have one endpoint, also if only the claim shows it because the
// contents of the rows were dropped. Rows of a group keep their order across endpoints.
func TestRequestsDoNotMixEndpoints(t *testing.T) {
	for name, bytes := range map[string]int64{"known": 1 << 20, "read by the claim": 200} {
		t.Run(name, func(t *testing.T) {
			cfg := senders(4)
			cfg.BufferBytes = bytes
			driveNamed(t, cfg, 50, nil, func(k *fakeBackend, _ *named, d *Dispatcher) {
				hosts := map[string]string{}
				k.set(func() {
					k.grant = func(r *store.ClaimRow) store.ClaimAnswer {
						return store.ClaimAnswer{
							Result: store.Claimed, Payload: []byte("{}"), Attributes: store.Attributes{{Name: "host", Value: hosts[r.ID]}},
						}
					}
				})
				var c counter
				d.Freeze(true)
				for i := range 40 {
					for j := range 10 {
						id, host := fmt.Sprintf("g%d-%02d", j, i), fmt.Sprint("host", (i/3+j)%4)
						k.set(func() { hosts[id] = host })
						add(t, d, &c, to(host, items(fmt.Sprint("g", j), id)))
					}
				}
				d.Freeze(false)
				k.advance(time.Minute)
				k.expect(t, "rows done", c.n, 400)
				sent := map[string][]string{}
				several := 0
				for _, ids := range k.requests {
					several += min(1, len(ids)-1)
					for _, id := range ids {
						sent[id[:2]] = append(sent[id[:2]], id)
					}
				}
				for group, ids := range sent {
					if !slices.IsSorted(ids) || len(ids) != 40 {
						t.Errorf("group %s: %v", group, ids)
					}
				}
				if several < 10 {
					t.Errorf("%d requests of several rows", several)
				}
				for host := range 4 {
					d.mu.Lock()
					recv := d.core.receiverNamed(fmt.Sprint("host", host))
					d.mu.Unlock()
					if recv != nil {
						t.Errorf("endpoint %s is kept without lanes", recv.Endpoint)
					}
				}
			})
		})
	}
}

// A row in the middle of a group that goes to a dead endpoint holds its group, and its group
// alone.
func TestAGroupWaitsForItsRowOfADeadEndpoint(t *testing.T) {
	driveNamed(t, senders(4), 1, []string{"dead"}, func(k *fakeBackend, s *named, d *Dispatcher) {
		var first, behind, other counter
		add(t, d, &first, to("alive", items("g", "1")))
		add(t, d, &behind, to("dead", items("g", "2")))
		add(t, d, &behind, to("alive", items("g", "3")))
		add(t, d, &other, to("alive", items("h", "4")))
		k.advance(10 * time.Minute)
		k.expect(t, "rows done", []int{first.n, behind.n, other.n}, "[1 0 1]")
		k.set(func() { s.hangs = nil })
		k.advance(2 * time.Minute)
		k.expect(t, "rows done", behind.n, 2)
		k.expect(t, "order", k.settles[len(k.settles)-1], "[3 COMPLETED]")
	})
}

// receiverNamed returns the receiver of an endpoint; nil if there is none.
func (c *core) receiverNamed(endpoint string) *lanes.Receiver {
	for _, recv := range c.lanes.Endpoints.All() {
		if recv.Endpoint == endpoint {
			return recv
		}
	}
	return nil
}

// Spilled rows do not tell their endpoint. Those of a dead one, more than fit into memory, take
// turns with the others.
func TestSpilledRowsOfADeadEndpointKeepOutNoOthers(t *testing.T) {
	cfg := senders(4)
	cfg.BufferRows, cfg.APIBatchSize = 40, 2
	var rows []store.Item
	for i := range 120 {
		group := fmt.Sprint([]string{"dead", "live"}[i%2], i)
		rows = append(rows, items(group, group+"a", group+"b")...)
	}
	made := func(k *fakeBackend) sink.Sink {
		k.grant = func(r *store.ClaimRow) store.ClaimAnswer {
			return store.ClaimAnswer{Result: store.Claimed, Payload: []byte("{}"), Attributes: store.Attributes{{Name: "host", Value: r.ID[:4]}}}
		}
		k.answer = func(ids []string) sink.Result {
			if strings.HasPrefix(ids[0], "dead") {
				return always(sink.Unavailable)(ids)
			}
			return always(sink.Delivered)(ids)
		}
		return &named{fakeBackend: k, items: 10}
	}
	runRestartedSink(t, cfg, rowsWithSeq(1, rows), made, func(k *fakeBackend, d *Dispatcher) {
		k.advance(5 * time.Minute)
		k.expect(t, "rows done of the living endpoint", k.delivered('l'), 120)
		if n := len(k.rows); n > 6000 {
			t.Errorf("%d rows were claimed in 5 minutes", n)
		}
		k.set(func() { k.answer = always(sink.Delivered) })
		k.advance(5 * time.Minute)
		k.expect(t, "rows done of the dead endpoint", k.delivered('d'), 120)
		k.expect(t, "FAILED", failedIDs(k.outcomes), "[]")
	})
}
