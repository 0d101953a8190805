package dispatch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

func TestOutageCostsFewRequestsAndNoRetries(t *testing.T) {
	for _, class := range []sink.Class{sink.Unavailable, sink.Refused, sink.Misconfigured} {
		t.Run(class.String(), func(t *testing.T) {
			drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				k.set(func() { k.answer = always(class) })
				var c counter
				add(t, d, &c, rowsInOwnGroups(200))
				k.advance(2 * time.Second)
				add(t, d, &c, numberedRows("late", 100))
				k.advance(2 * time.Minute)
				// Expect ten requests at first, then the eager probes, then one per second
				// while untried lanes are left. A refusal is also bisected.
				if n := len(k.requests); n > 160 {
					t.Errorf("%d requests in an outage of two minutes", n)
				}
				if len(k.outcomes) > 0 {
					t.Errorf("outcomes %v", k.outcomes)
				}
				k.expect(t, "observed", k.breakerReports, []string{class.String()})
				lanes, _ := d.Lanes(LaneFilter{}, 1000)
				if i := slices.IndexFunc(lanes, func(l LaneInfo) bool { return l.State != "ready" }); i >= 0 {
					t.Errorf("lane %+v waits for itself", lanes[i])
				}
				k.set(func() { k.answer = always(sink.Delivered) })
				k.advance(30 * time.Second)
				k.expect(t, "rows done", c.n, 300)
				k.expect(t, "observed", k.breakerReports, []string{class.String(), "closed"})
			})
		})
	}
}

func TestProbesAreSingleRowsOfLanesInTurn(t *testing.T) {
	drive(t, senders(2), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = always(sink.Misconfigured) })
		for g := range 3 {
			rows := items(fmt.Sprint("g", g), fmt.Sprint(g, "a"), fmt.Sprint(g, "b"))
			add(t, d, nil, rows)
		}
		k.advance(5 * time.Minute)
		var heads []string
		for i, req := range k.requestInfos {
			if req.Probe {
				k.expect(t, "rows of a probe", req.Rows, 1)
				heads = append(heads, k.requests[i][0])
			}
		}
		if len(heads) < 9 {
			t.Errorf("%d probes in five minutes", len(heads))
			return
		}
		for i := range len(heads) - 3 {
			if heads[i] != heads[i+3] || !strings.HasSuffix(heads[i], "a") {
				t.Errorf("probes do not take turns: %v", heads)
			}
		}
	})
}

// Rejected rows opened the breaker. An untried lane is probed at once and shows that the
// receiver works.
func TestUntriedLaneIsProbedAtOnce(t *testing.T) {
	drive(t, senders(5), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				if strings.HasPrefix(ids[0], "bad") {
					return always(sink.Unavailable)(ids)
				}
				return always(sink.Delivered)(ids)
			}
		})
		for i := range 5 {
			add(t, d, nil, items(fmt.Sprint("bad", i), fmt.Sprint("bad", i)))
		}
		k.advance(10 * time.Millisecond)
		k.expect(t, "observed", k.breakerReports, "[unavailable]")
		var c counter
		add(t, d, &c, items("good", "1", "2", "3"))
		k.advance(10 * time.Millisecond)
		k.expect(t, "observed", k.breakerReports, "[unavailable closed]")
		k.expect(t, "rows done", c.n, 3)
	})
}

func TestEagerProbesAreLimited(t *testing.T) {
	drive(t, senders(5), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = always(sink.Unavailable) })
		add(t, d, nil, rowsInOwnGroups(5))
		k.advance(10 * time.Millisecond)
		for i := range 100 {
			add(t, d, nil, items(fmt.Sprint("new", i), fmt.Sprint("new", i)))
			k.advance(time.Millisecond)
		}
		if n := len(k.requests); n != 5+maxEagerProbes {
			t.Errorf("requests at once: got %d, want 5 and %d", n, maxEagerProbes)
		}
	})
}

func TestRetryAfterDelaysProbes(t *testing.T) {
	drive(t, senders(5), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				res := always(sink.Unavailable)(ids)
				res.RetryAfter = 7 * time.Second
				return res
			}
		})
		add(t, d, nil, rowsInOwnGroups(5))
		k.advance(10 * time.Millisecond)
		k.expect(t, "observed", k.breakerReports, "[unavailable]")
		add(t, d, nil, items("new", "new"))
		k.advance(6900 * time.Millisecond)
		k.expect(t, "requests before the time", len(k.requests), 5)
		k.set(func() { k.answer = always(sink.Delivered) })
		k.advance(time.Second)
		k.expect(t, "outcomes", len(k.outcomes), 6)
	})
}

// If a row is alone in its lane and sink, a refusal counts once per proof-wait, and an
// unanswered attempt never counts.
func TestPoisonedRowWithoutOtherTraffic(t *testing.T) {
	for class, want := range map[sink.Class]string{sink.Refused: "[2]", sink.Unavailable: "[]", sink.Misconfigured: "[]"} {
		t.Run(class.String(), func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.ProofWait = time.Second
			drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				k.set(func() {
					k.answer = func(ids []string) sink.Result {
						if slices.Contains(ids, "2") {
							return always(class)(ids)
						}
						return always(sink.Delivered)(ids)
					}
				})
				var c counter
				add(t, d, &c, items("a", "1", "2", "3"))
				k.advance(10 * time.Minute)
				k.expect(t, "FAILED", failedIDs(k.outcomes), want)
				if want != "[]" {
					k.expect(t, "rows done", c.n, 3)
					return
				}
				k.expect(t, "rows done", c.n, 1)
				if last := k.breakerReports[len(k.breakerReports)-1]; last != class.String() {
					t.Errorf("no alarm: %v", k.breakerReports)
				}
			})
		})
	}
}

func TestRowFailsAfterGiveUpAfter(t *testing.T) {
	cfg := DefaultConfig()
	cfg.GiveUpAfter = time.Minute
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = always(sink.Unavailable) })
		add(t, d, nil, items("a", "1"))
		k.advance(59 * time.Second)
		k.expect(t, "outcomes", k.settles, "[]")
		k.advance(31 * time.Second)
		k.expect(t, "outcomes", k.settles, "[[1 FAILED]]")
		k.expect(t, "count", k.outcomes[0].RetryCount, 0)
	})
}

func TestCompatCountsFailures(t *testing.T) {
	of := func(class sink.Class, reason store.Reason) sink.Outcome {
		return sink.Outcome{Class: class, Reason: reason, Detail: "no"}
	}
	tests := map[string]struct {
		compat Compat
		answer sink.Outcome
		want   string
	}{
		"every failure":  {CompatFlowCatalyst, of(sink.Unavailable, store.ReasonGateway), "[1]"},
		"every 4xx":      {CompatPostbox, of(sink.Misconfigured, store.ReasonUnauthorized), "[1]"},
		"no 5xx":         {CompatPostbox, of(sink.Refused, store.ReasonInternal), "[]"},
		"no timeout":     {CompatPostbox, of(sink.Unavailable, store.ReasonGateway), "[]"},
		"without compat": {CompatNone, of(sink.Misconfigured, store.ReasonUnauthorized), "[]"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Retry.Compat, cfg.ProofWait = tt.compat, time.Hour
			drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				k.set(func() { k.answer = func([]string) sink.Result { return sink.Result{Outcome: tt.answer} } })
				add(t, d, nil, items("a", "1"))
				k.advance(10 * time.Minute)
				k.expect(t, "FAILED", failedIDs(k.outcomes), tt.want)
			})
		})
	}
}

func TestTakeoverWaitDelaysFirstSend(t *testing.T) {
	cfg := DefaultConfig()
	cfg.TakeoverWait = 5 * time.Second
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		add(t, d, nil, items("a", "1"))
		k.advance(time.Minute)
		k.expect(t, "claims", k.claims, "[[1]]")
		k.expect(t, "requests", k.requestTimes, []time.Duration{5*time.Second + time.Millisecond})
	})
}

// An open breaker is a fault only while rows wait for the endpoint, in memory or spilled.
// Here six rows FAILED and no other came, so nothing is wrong until the next row.
func TestOpenBreakerWithoutRowsIsIdle(t *testing.T) {
	cfg := DefaultConfig()
	cfg.ProofWait, cfg.MaxRetries, cfg.Backoff.Max = time.Second, 1, time.Second
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = always(sink.Refused) })
		add(t, d, nil, rowsInOwnGroups(6))
		k.advance(100 * time.Millisecond)
		k.expect(t, "while rows wait", k.breakerReports, "[refused]")
		k.advance(10 * time.Minute)
		k.expect(t, "FAILED", len(failedIDs(k.outcomes)), 6)
		k.expect(t, "without a row", k.breakerReports, "[refused refused, idle]")
		if s := d.Stats().OpenBreakers; len(s) != 1 || !s[0].Idle {
			t.Errorf("open breakers: %+v", s)
		}

		add(t, d, nil, items("late", "x"))
		k.advance(time.Millisecond)
		k.expect(t, "with a row again", k.breakerReports, "[refused refused, idle refused]")
		if err := d.Pause(context.Background(), nameOf("late"), "test"); err != nil {
			t.Error(err)
		}
		k.advance(time.Second)
		k.expect(t, "with a paused group alone", k.breakerReports, "[refused refused, idle refused refused, idle]")
		if err := d.Resume(context.Background(), nameOf("late")); err != nil {
			t.Error(err)
		}
		k.set(func() { k.answer = always(sink.Delivered) })
		k.advance(time.Minute)
		k.expect(t, "after a row was taken", k.breakerReports[4:], "[refused closed]")
	})
}

// Spilled rows wait for the endpoint like rows in memory.
func TestOpenBreakerWithSpilledRowsIsNotIdle(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows = 10
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = always(sink.Unavailable) })
		for i := range 40 {
			add(t, d, nil, rowsWithSeq(i+1, items(fmt.Sprint("g", i), fmt.Sprint(i))))
		}
		for range 60 {
			d.SpillExcess(true)
			k.advance(time.Second)
		}
		if s := d.Stats(); s.Spilled == 0 || len(s.OpenBreakers) != 1 || s.OpenBreakers[0].Idle {
			t.Errorf("%+v", s)
		}
		k.expect(t, "observed", k.breakerReports, "[unavailable]")
	})
}

// A receiver configured for the wrong wire format rejects every row. The breaker must open
// before the whole outbox becomes dead letters.
func TestRejectingReceiverOpensBreaker(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = always(sink.Rejected) })
		add(t, d, nil, rowsInOwnGroups(1000))
		k.advance(10 * time.Minute)
		k.expect(t, "observed", k.breakerReports, "[rejected]")
		if n := len(failedIDs(k.outcomes)); n > 20 {
			t.Errorf("%d rows FAILED in ten minutes", n)
		}
		k.set(func() { k.answer = always(sink.Delivered) })
		k.advance(time.Minute)
		k.expect(t, "observed", k.breakerReports, "[rejected closed]")
	})
}

// A row that can never be sent proves nothing about the receiver: the breaker stays as it is,
// and the rows of other lanes are delivered.
func TestRowsThatCannotBeSentOpenNoBreaker(t *testing.T) {
	drive(t, senders(2), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		good := sink.Delivered
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				if strings.HasPrefix(ids[0], "bad") {
					return sink.RejectFirst(len(ids), "not sent: no address")
				}
				return always(good)(ids)
			}
		})
		for i := range 30 {
			add(t, d, nil, items(fmt.Sprint("bad", i), fmt.Sprint("bad", i)))
		}
		k.advance(time.Hour)
		k.expect(t, "FAILED", len(failedIDs(k.outcomes)), 30)
		k.expect(t, "breakers", k.breakerReports, "[]")

		// With an open breaker such a row is no probe that failed: the next lane is probed at once.
		k.set(func() { good = sink.Unavailable })
		for i := range 5 {
			add(t, d, nil, items(fmt.Sprint("good", i), fmt.Sprint("good", i)))
		}
		k.advance(time.Hour)
		k.expect(t, "breakers", k.breakerReports, "[unavailable]")
		for i := range 30 {
			add(t, d, nil, items(fmt.Sprint("bad", 30+i), fmt.Sprint("bad", 30+i)))
		}
		k.set(func() { good = sink.Delivered })
		k.advance(time.Minute)
		k.expect(t, "breakers", k.breakerReports, "[unavailable closed]")
		k.advance(time.Hour)
		k.expect(t, "FAILED", len(failedIDs(k.outcomes)), 60)
	})
}
