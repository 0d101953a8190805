package dispatch

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

func TestWithdrawKeepsRowsInFlight(t *testing.T) {
	for _, class := range []sink.Class{sink.Delivered, sink.Unavailable} {
		t.Run(class.String(), func(t *testing.T) {
			cfg := senders(1)
			cfg.APIBatchSize = 2
			drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				k.set(func() {
					k.answer = func(ids []string) sink.Result { <-time.After(time.Second); return always(class)(ids) }
				})
				d.Replay("job", replayOf(1, items("a", "1", "2", "3")))
				d.Replay("job", replayOf(4, items("b", "4")))
				k.advance(100 * time.Millisecond)
				d.WithdrawReplay("job")
				total, byLane, _ := d.ReplayLoad("job")
				k.expect(t, "load", fmt.Sprint(total, byLane[group("a")]), "{2 4} 2")
				k.advance(time.Minute)
				total, _, _ = d.ReplayLoad("job")
				k.expect(t, "load", total, "{0 0}")
				k.expect(t, "signaled", signalled(d, "job"), true)
				k.expect(t, "requests", k.requests, "[[1 2]]")
				want := map[sink.Class]string{sink.Delivered: "[[job 1 1 sent job 2 2 sent]]", sink.Unavailable: "[]"}
				k.expect(t, "written down", k.replayLog.done, want[class])

				k.set(func() { k.answer = always(sink.Delivered) })
				d.Replay("job", replayOf(3, items("a", "3")))
				k.advance(time.Minute)
				k.expect(t, "requests", k.requests, "[[1 2] [3]]")
			})
		})
	}
}

// Withdrawn rows are not bisected further.
func TestWithdrawEndsBisect(t *testing.T) {
	drive(t, senders(1), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				<-time.After(time.Second)
				return always(sink.Rejected)(ids)
			}
		})
		d.Freeze(true)
		d.Replay("job", replayOf(1, rowsInOwnGroups(4)))
		d.Freeze(false)
		k.advance(100 * time.Millisecond)
		d.WithdrawReplay("job")
		k.advance(time.Minute)
		total, _, _ := d.ReplayLoad("job")
		k.expect(t, "load", total, "{0 0}")
		k.expect(t, "requests", k.requests, "[[0 1 2 3]]")
	})
}

// A probe that is withdrawn before a sender was free makes room for another.
func TestWithdrawProbe(t *testing.T) {
	drive(t, senders(1), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = always(sink.Misconfigured) })
		add(t, d, nil, items("a", "1"))
		k.advance(100 * time.Millisecond)
		k.expect(t, "breaker reports", k.breakerReports, "[misconfigured]")
		long := items("b", "2")
		long[0].Kind = "JOB"
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				if ids[0] == "2" {
					<-time.After(time.Hour)
				}
				return always(sink.Delivered)(ids)
			}
		})
		add(t, d, nil, long)
		k.advance(10 * time.Millisecond) // the only sender is busy
		d.Replay("job", replayOf(1, items("c", "3")))
		synctest.Wait()
		k.expect(t, "in flight", d.Stats().InFlight, 1)
		d.WithdrawReplay("job")
		total, _, _ := d.ReplayLoad("job")
		k.expect(t, "load", total, "{0 0}")
		k.advance(2 * time.Hour)
		k.expect(t, "requests", k.requests, "[[1] [2] [1]]")
	})
}

func TestShutdownRecordsReplayedRows(t *testing.T) {
	drive(t, senders(1), func(k *fakeBackend, d *Dispatcher, end func(error) error) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				<-time.After(500 * time.Millisecond)
				return always(sink.Delivered)(ids)
			}
		})
		d.Replay("job", replayOf(1, items("a", "1")))
		k.advance(100 * time.Millisecond)
		d.Replay("job", replayOf(2, items("a", "2")))
		d.Replay("job", replayOf(3, items("b", "3")))
		if err := end(nil); err != nil {
			t.Fatal(err)
		}
		k.expect(t, "requests", k.requests, "[[1]]")
		k.expect(t, "written down", k.replayLog.done, "[[job 1 1 sent]]")
		d.Replay("job", replayOf(4, items("a", "4")))
		total, _, _ := d.ReplayLoad("job")
		k.expect(t, "load", total, "{0 0}")
	})
}

func TestReplayOfLostLeaderStops(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, end func(error) error) {
		k.set(func() { k.replayLog.refuse = fmt.Errorf("fenced: %w", store.ErrNotLeader) })
		d.Replay("job", replayOf(1, items("a", "1")))
		k.advance(time.Second)
		if err := end(nil); !errors.Is(err, store.ErrNotLeader) {
			t.Errorf("%v", err)
		}
	})
}

// A deleted job has nowhere to record rows, and its lanes do not wait.
func TestDeletedReplayReleasesLanes(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, end func(error) error) {
		k.set(func() {
			k.answer = poisoned("2")
			k.replayLog.refuse = fmt.Errorf("note the rows of replay job: %w", store.ErrNoJob)
		})
		d.HoldForReplay("job", group("a"))
		add(t, d, nil, items("a", "4"))
		d.Replay("job", replayOf(1, items("a", "1", "2", "3")))
		k.advance(time.Hour)
		total, byLane, _ := d.ReplayLoad("job")
		k.expect(t, "load", fmt.Sprint(total, byLane), "{0 0} map[]")
		k.expect(t, "signaled for the load", signalled(d, "job"), true)
		d.ReleaseReplayHold("job", group("a"))
		k.set(func() { k.replayLog.refuse = nil })
		d.Replay("another", replayOf(7, items("b", "7")))
		k.advance(time.Second)
		k.expect(t, "written down", k.replayLog.done, "[[another 7 7 sent]]")
		k.expect(t, "outcomes", k.settles, "[[4 COMPLETED]]")
		if err := end(nil); err != nil {
			t.Error(err)
		}
	})
}

// A replayed row leaves nothing in memory, even if no other row follows.
func TestReplayMemoryIsReleased(t *testing.T) {
	for _, class := range []sink.Class{sink.Delivered, sink.Rejected} {
		limits := func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 2, MaxBytes: 1 << 20} }
		c, now := newTestCore(DefaultConfig(), limits, func() float64 { return 0 }), time.Unix(1e9, 0)
		c.cfg.MaxRetries = 0
		var payloads []weak.Pointer[byte]
		func() {
			rows := replayOf(1, items("a", "1", "2", "3"))
			for i := range rows {
				rows[i].Payload = make([]byte, 1<<10)
				payloads = append(payloads, weak.Make(&rows[i].Payload[0]))
			}
			c.replay("job", rows)
		}()
		for range 20 {
			c.nextClaims(maxStatementRows, now)
			for req := c.nextRequest(now); req != nil; req = c.nextRequest(now) {
				c.answered(req, &sink.Result{Outcome: sink.Outcome{Class: class}}, now)
			}
			if _, done := c.nextReplayDone(1); len(done) > 0 {
				c.replayDoneWritten(now)
			}
			now = now.Add(time.Hour)
			c.tick(now)
		}
		runtime.GC()
		for i, payload := range payloads {
			if payload.Value() != nil {
				t.Errorf("%s: the payload of row %d is still in memory", class, i+1)
			}
		}
		if c.jobCount() > 0 || !c.drained() {
			t.Errorf("%s: left over: %d jobs", class, c.jobCount())
		}
		runtime.KeepAlive(c)
	}
}
