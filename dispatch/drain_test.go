package dispatch

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

func TestDrainTimeoutEndsHangingRequest(t *testing.T) {
	for name, hang := range map[string]func(k *fakeBackend){
		"request": func(k *fakeBackend) { k.hang = true },
		"outcome": func(k *fakeBackend) {
			k.answer = func(ids []string) sink.Result {
				k.set(func() { k.latency = time.Hour })
				return always(sink.Delivered)(ids)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, end func(error) error) {
				k.set(func() { hang(k) })
				add(t, d, nil, items("a", "1"))
				k.advance(100 * time.Millisecond)
				began := time.Now()
				if err := end(nil); err != nil {
					t.Error(err)
				}
				k.expect(t, "time to end", time.Since(began), time.Second)
			})
		})
	}
}

func TestLostLeaderDoesNotDrain(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, end func(error) error) {
		k.set(func() { k.hang = true })
		add(t, d, nil, items("a", "1"))
		k.advance(100 * time.Millisecond)
		k.reset()
		began := time.Now()
		if err := end(fmt.Errorf("lost: %w", store.ErrNotLeader)); err != nil {
			t.Error(err)
		}
		k.expect(t, "time to end", time.Since(began), time.Duration(0))
		k.expect(t, "statements", len(k.statementTimes), 0)
		k.expect(t, "answers", len(k.requestInfos), 0) // the result of a canceled request is unknown
	})
}

func TestLostLeadershipEndsDrain(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, end func(error) error) {
		k.set(func() { k.hang = true })
		add(t, d, nil, items("a", "1"))
		k.advance(100 * time.Millisecond)
		k.set(func() { k.latency, k.err = 100*time.Millisecond, store.ErrNotLeader })
		add(t, d, nil, items("b", "2"))
		synctest.Wait() // 2 is being claimed
		began := time.Now()
		if err := end(nil); !errors.Is(err, store.ErrNotLeader) {
			t.Error(err)
		}
		k.expect(t, "time to end", time.Since(began), 100*time.Millisecond)
	})
}

func TestShutdownGivesBackWaitingLane(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, end func(error) error) {
		k.set(func() {
			k.answer = always(sink.Unavailable)
			k.grant = func(*store.ClaimRow) store.ClaimAnswer {
				return store.ClaimAnswer{Result: store.Claimed, RetryCount: 2}
			}
		})
		add(t, d, nil, items("a", "1"))
		k.advance(100 * time.Millisecond)
		began := time.Now()
		if err := end(nil); err != nil {
			t.Error(err)
		}
		k.expect(t, "time to end", time.Since(began), time.Millisecond)
		k.expect(t, "outcomes", k.outcomes, []store.Outcome{
			{Ref: store.Ref{Outbox: "events", ID: "1"}, Status: store.Pending, RetryCount: 2},
		})
	})
}

// The outcome of the head is refused. The row behind it is claimed too.
func TestShutdownGivesBackRowsBehindRefusedOutcome(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("ends before the answer %v", late), func(t *testing.T) {
			drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, end func(error) error) {
				k.set(func() {
					k.answer = func([]string) sink.Result {
						<-time.After(500 * time.Millisecond)
						k.set(func() { k.refusedIDs = map[string]bool{"1": true} })
						return sink.Result{Items: []sink.Outcome{{Class: sink.Rejected}, {Class: sink.NotSent}}}
					}
				})
				add(t, d, nil, items("a", "1", "2"))
				if k.advance(100 * time.Millisecond); !late {
					k.advance(500 * time.Millisecond)
				}
				if err := end(nil); err != nil {
					t.Error(err)
				}
				k.expect(t, "outcomes", k.settles, "[[2 PENDING]]")
			})
		})
	}
}

func TestStatsCountHeldRows(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		add(t, d, nil, items("a", "1"))
		synctest.Wait()
		k.expect(t, "while claiming", d.Stats(), Stats{Rows: 1, Waiting: 1, Bytes: 2, InFlight: 1, Lanes: map[string]int{
			"ready": 0, "claiming": 1, "sending": 0, "writing": 0, "waiting": 0, "spilled": 0, "blocked": 0, "paused": 0, "replaying": 0, "stalled": 0,
		}})
		k.advance(time.Second)
		if s := d.Stats(); s.Rows != 0 || s.Bytes != 0 || s.InFlight != 0 {
			t.Errorf("at rest: %+v", s)
		}
	})
}

// The claim in flight at shutdown is given back too.
func TestShutdownGivesBackClaimInFlight(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, end func(error) error) {
		k.set(func() { k.latency = 300 * time.Millisecond })
		add(t, d, nil, items("a", "1"))
		synctest.Wait() // 1 is being claimed, and nothing else is in flight
		if err := end(nil); err != nil {
			t.Error(err)
		}
		k.expect(t, "outcomes", k.settles, "[[1 PENDING]]")
	})
}
