package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// group returns the lane key of a group.
func group(name string) store.LaneKey { return nameOf(name).LaneKey }

// signalled reports whether the channel of ReplayLoad has a signal, and takes it.
func signalled(d *Dispatcher, job string) bool {
	_, _, changed := d.ReplayLoad(job)
	select {
	case <-changed:
		return true
	default:
		return false
	}
}

// Replayed rows are sent without a claim or an outcome, before the live rows of their
// group.
func TestReplayHoldsLiveLane(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		var c counter
		d.HoldForReplay("job", group("a"))
		add(t, d, &c, items("a", "3"))
		add(t, d, &c, items("b", "4"))
		k.advance(time.Second)
		k.expect(t, "requests", k.requests, "[[4]]")
		k.expect(t, "held lane", fmt.Sprintf("%+v", d.HeldLane(group("a"))), "{Quiescent:true Paused:false Waiting:true}")

		d.Replay("job", replayOf(7, items("a", "1", "2")))
		total, byLane, _ := d.ReplayLoad("job")
		k.expect(t, "load", fmt.Sprint(total, byLane[group("a")]), "{2 4} 2")
		k.expect(t, "rows held", len(d.Held("events")), 1)
		k.expect(t, "rows counted", d.Stats().Waiting, 1)
		k.expect(t, "live lanes", d.Stats().Lanes["replaying"], 1)
		k.advance(time.Second)
		k.expect(t, "requests", k.requests, "[[4] [1 2]]")
		k.expect(t, "written down", k.replayLog.done, "[[job 7 1 sent job 8 2 sent]]")
		total, byLane, _ = d.ReplayLoad("job")
		k.expect(t, "load", fmt.Sprint(total, byLane), "{0 0} map[]")
		k.expect(t, "signaled for the load", signalled(d, "job"), true)

		d.ReleaseReplayHold("job", group("a"))
		k.advance(time.Second)
		k.expect(t, "requests", k.requests, "[[4] [1 2] [3]]")
		k.expect(t, "of replays", k.jobs(), "[ job job ]")
		k.expect(t, "claims", k.claims, "[[4] [3]]")
		k.expect(t, "outcomes", k.settles, "[[4 COMPLETED] [3 COMPLETED]]")
		k.expect(t, "observed", fmt.Sprint(k.observed, k.replayLog.sent, k.replayLog.refused), "[4 COMPLETED 3 COMPLETED] 2 0")
		k.expect(t, "rows done", c.n, 2)
	})
}

// In the table, a row whose COMPLETED is being written looks undelivered.
func TestLaneIsQuiescentOnceOutcomesAreWritten(t *testing.T) {
	tests := map[string]struct {
		ungrouped Ungrouped
		key       store.LaneKey
	}{
		"in order":      {FIFO, group("a")},
		"one by itself": {Parallel, store.LaneKey{Outbox: "events", Kind: "EVENT"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Ungrouped = tt.ungrouped
			drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				k.set(func() {
					k.answer = func(ids []string) sink.Result {
						<-time.After(time.Second)
						k.set(func() { k.latency = time.Second })
						return always(sink.Delivered)(ids)
					}
				})
				row := items(tt.key.Group.Name, "1")
				row[0].Group = tt.key.Group
				add(t, d, nil, row)
				still := func() bool { return d.HeldLane(tt.key).Quiescent }
				k.expect(t, "not held", still(), false)
				k.advance(500 * time.Millisecond)
				d.HoldForReplay("job", tt.key)
				signalled(d, "job")
				k.expect(t, "while it is sent", still(), false)
				k.advance(time.Second)
				k.expect(t, "signaled once accepted", signalled(d, "job"), true)
				k.expect(t, "while COMPLETED is written", still(), false)
				k.expect(t, "signaled before that", signalled(d, "job"), false)
				k.advance(time.Second)
				k.expect(t, "signaled once written", signalled(d, "job"), true)
				k.expect(t, "outcomes", k.settles, "[[1 COMPLETED]]")
				k.expect(t, "at rest", still(), true)
				k.advance(time.Second)
				k.expect(t, "signaled without reason", signalled(d, "job"), false)
				d.ReleaseReplayHold("job", tt.key)
				k.expect(t, "after LetGo", still(), false)
			})
		})
	}
}

// The outcome of a row that is being spilled waits for the spill, and so does Quiescent.
func TestLaneIsNotQuiescentDuringSpill(t *testing.T) {
	limits := func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 1, MaxBytes: 1 << 20} }
	c, now := newTestCore(DefaultConfig(), limits, func() float64 { return 0 }), time.Unix(1e9, 0)
	still := func(when string, want bool) {
		t.Helper()
		if got := c.heldLane(group("a")).Quiescent; got != want {
			t.Errorf("%s: still %v", when, got)
		}
	}
	c.append(rowsWithSeq(1, items("a", "1")), nil)
	c.spillForLog(true)
	for _, req := range c.nextClaims(1, now) {
		c.claimed(req, []store.ClaimAnswer{{Result: store.Claimed}}, now, now)
	}
	c.answered(c.nextRequest(now), &sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}, now)
	c.holdForReplay("job", group("a"))
	still("before it is spilled", false)
	c.nextSpills(1)
	still("while it is spilled", false)
	c.spillsWritten(make([]bool, c.beingSpilled()))
	still("before its outcome is written", false)
	if n := len(c.nextOutcomes(1)); n != 1 {
		t.Fatalf("%d outcomes", n)
	}
	still("while its outcome is written", false)
	c.written([]store.SettleResult{store.Written}, now)
	still("once it is written", true)
}

// The row behind a refused one is sent once the refusal is durable. The lane is not
// blocked.
func TestRefusedReplayRowIsRecordedBeforeNext(t *testing.T) {
	cfg := DefaultConfig()
	cfg.OnFailed, cfg.MaxRetries = Block, 1
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer, k.replayLog.refuse = poisoned("2"), errors.New("connection refused") })
		d.Replay("job", replayOf(1, items("a", "1", "2", "3")))
		k.advance(time.Minute)
		k.expect(t, "requests", k.requests, "[[1 2 3] [1] [2] [2]]")
		k.set(func() { k.replayLog.refuse = nil })
		k.advance(time.Minute)
		k.expect(t, "requests", k.requests[4:], "[[3]]")
		k.expect(t, "written down", k.replayLog.done, "[[job 1 1 sent] [job 2 2 refused: rejected] [job 3 3 sent]]")
		k.expect(t, "observed", fmt.Sprint(k.replayLog.sent, k.replayLog.refused), "2 1")
		k.expect(t, "holds and outcomes", fmt.Sprint(k.operated.holds, k.outcomes), "[] []")
		if !slices.Contains(k.failures, "record replayed rows") {
			t.Errorf("the observer got %v", k.failures)
		}
	})
}

// Live rows and the rows of two jobs never share a request.
func TestRequestCarriesOneJob(t *testing.T) {
	drive(t, senders(1), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		d.Freeze(true)
		live := rowsInOwnGroups(30)
		for i := range live {
			switch i % 3 {
			case 0:
				add(t, d, nil, live[i:i+1])
			case 1:
				d.Replay("one", replayOf(int64(i), live[i:i+1]))
			case 2:
				d.Replay("two", replayOf(int64(i), live[i:i+1]))
			}
		}
		k.advance(time.Second)
		k.expect(t, "requests while frozen", k.requests, "[]")
		d.Freeze(false)
		k.advance(time.Second)
		at := 0
		for _, ids := range k.requests {
			for _, m := range k.messages[at : at+len(ids)] {
				if m.Replay != k.messages[at].Replay {
					t.Errorf("a request of %q carries row %s of %q", k.messages[at].Replay, m.ID, m.Replay)
				}
			}
			at += len(ids)
		}
		k.expect(t, "rows sent", at, 30)
		count := map[string]int{}
		for _, job := range k.jobs() {
			count[job]++
		}
		k.expect(t, "of each", count, "map[:10 one:10 two:10]")
	})
}

func TestReplayWaitsForLease(t *testing.T) {
	var l fakeLease
	driveLeased(t, DefaultConfig(), &l, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		settle := l.suspend()
		d.Replay("job", replayOf(1, items("a", "1")))
		k.advance(time.Minute)
		k.expect(t, "requests in doubt", k.requests, "[]")
		settle()
		k.advance(time.Second)
		k.expect(t, "requests", k.requests, "[[1]]")
	})
}

// A pause applies to the group, to live and replayed rows.
func TestPauseStopsReplay(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		ctx := context.Background()
		d.HoldForReplay("job", group("a"))
		if err := d.Pause(ctx, nameOf("a"), "stock-taking"); err != nil {
			t.Fatal(err)
		}
		k.expect(t, "held lane", fmt.Sprintf("%+v", d.HeldLane(group("a"))), "{Quiescent:true Paused:true Waiting:false}")
		k.expect(t, "signaled for the pause", signalled(d, "job"), true)
		d.Replay("job", replayOf(1, items("a", "1")))
		d.Replay("job", replayOf(2, items("b", "2")))
		k.advance(time.Minute)
		k.expect(t, "requests", k.requests, "[[2]]")
		states := func() (states []string) {
			lanes, _ := d.Lanes(LaneFilter{}, 10)
			for _, l := range lanes {
				states = append(states, fmt.Sprintf("%s %q %s, %s", l.LaneKey, l.Job, l.State, l.Reason))
			}
			slices.Sort(states)
			return states
		}
		k.expect(t, "lanes", states(), `[events/EVENT/a "" paused, stock-taking events/EVENT/a "job" paused, stock-taking]`)
		signalled(d, "job")
		if err := d.Resume(ctx, nameOf("a")); err != nil {
			t.Fatal(err)
		}
		k.expect(t, "signaled on resume", signalled(d, "job"), true)
		k.advance(time.Minute)
		k.expect(t, "requests", k.requests, "[[2] [1]]")
		k.expect(t, "lanes", states(), `[events/EVENT/a "" replaying, held by replay job]`)
		d.ReleaseReplayHold("another", group("a"))
		k.expect(t, "lanes", len(states()), 1)
		d.ReleaseReplayHold("job", group("a"))
		k.expect(t, "lanes", states(), "[]")
	})
}

func TestOperatorActionsOnReplayLane(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = always(sink.Unavailable) })
		d.HoldForReplay("job", group("a"))
		add(t, d, nil, items("a", "2"))
		d.Replay("job", replayOf(1, items("a", "1")))
		k.advance(time.Second)
		name, ctx := nameOf("a"), context.Background()
		if err := d.RetryNow(name); !errors.Is(err, ErrLaneState) {
			t.Errorf("the live lane can be tried: %v", err)
		}
		name.Job = "job"
		for what, err := range map[string]error{
			"skip": d.Skip(ctx, name, "x"), "pause": d.Pause(ctx, name, "x"), "resume": d.Resume(ctx, name),
		} {
			if !errors.Is(err, ErrLaneState) {
				t.Errorf("%s of a replayed lane: %v", what, err)
			}
		}
		before := len(k.requests)
		if err := d.RetryNow(name); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		k.set(func() { k.expect(t, "requests after a retry", len(k.requests)-before, 1) })
		name.Job = "none"
		if err := d.RetryNow(name); !errors.Is(err, ErrNoLane) {
			t.Errorf("a lane of no job: %v", err)
		}
	})
}

// A held lane takes no room from replayed rows, and may be spilled meanwhile.
func TestReplayTakesNoBufferRoom(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows, cfg.BufferBytes = 10, 20
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = always(sink.Unavailable) })
		d.HoldForReplay("job", group("a"))
		rows := numberedRows("a", 10)
		for i := range rows {
			rows[i].Seq = store.Seq(i + 1)
		}
		add(t, d, nil, rows)
		d.Replay("job", replayOf(1, numberedRows("a", 30)))
		k.advance(time.Second)
		k.expect(t, "room", d.Room(), 0)
		d.SpillExcess(true)
		d.Spill(true)
		k.advance(time.Second)
		k.expect(t, "room", d.Room(), 10)
		k.expect(t, "spilled", len(k.items), 10)
		k.set(func() { k.answer = always(sink.Delivered) })
		k.advance(time.Minute)
		k.expect(t, "sent again", k.replayLog.sent, 30)
		for _, m := range k.messages {
			k.expect(t, "payload of "+m.ID, string(m.Payload), "{}")
		}
		k.expect(t, "spilled", len(k.items), 10)
		d.ReleaseReplayHold("job", group("a"))
		k.advance(time.Minute)
		k.expect(t, "spilled", len(k.items), 0)
		k.expect(t, "settled", len(k.outcomes), 10)
	})
}

// A job may send its rows to another sink, even one without an outbox. Then the live lane
// is held only while the job reads its rows, and a pause of the live lane does not apply.
func TestReplayToAnotherSink(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, home *Dispatcher, _ func(error) error) {
		there := newFakeBackend()
		d := New(DefaultConfig(), there.options(1))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		add(t, home, nil, items("b", "4"))
		home.HoldForReplay("job", group("a"))
		add(t, home, nil, items("a", "3"))
		k.expect(t, "quiescent", home.HeldLane(group("a")).Quiescent, true)
		k.advance(time.Second)
		home.ReleaseReplayHold("job", group("a"))
		k.advance(time.Second)
		if err := home.Pause(ctx, nameOf("a"), "stock-taking"); err != nil {
			t.Fatal(err)
		}
		d.Replay("job", replayOf(1, items("a", "1", "2")))
		k.advance(time.Second)
		k.expect(t, "requests at home", k.requests, "[[4] [3]]")
		k.expect(t, "requests there", there.requests, "[[1 2]]")
		k.expect(t, "written down", there.replayLog.done, "[[job 1 1 sent job 2 2 sent]]")
		k.expect(t, "claims and outcomes there", fmt.Sprint(there.claims, there.outcomes), "[] []")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// requestsByJob counts the requests of each job and of live rows.
func requestsByJob(k *fakeBackend) string {
	count := map[string]int{}
	for at, i := 0, 0; i < len(k.requests); i++ {
		count[k.messages[at].Replay]++
		at += len(k.requests[i])
	}
	return fmt.Sprint(count)
}

// Live rows find a sender, however many rows a job has and however slow the receiver is.
// Without live rows the job gets most senders.
func TestReplayLeavesSenders(t *testing.T) {
	cfg := senders(8)
	cfg.APIBatchSize = 1
	live := rowsInOwnGroups(40)
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.hang = true })
		d.Replay("job", replayOf(1, live[:20]))
		k.advance(time.Second)
		k.expect(t, "requests of a job that is alone", requestsByJob(k), "map[job:6]")
		add(t, d, nil, live[20:])
		k.advance(time.Second)
		k.expect(t, "requests", requestsByJob(k), "map[:2 job:6]")
	})
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.hang = true })
		d.Freeze(true)
		d.Replay("job", replayOf(1, live[:20]))
		add(t, d, nil, live[20:])
		d.Freeze(false)
		k.advance(time.Second)
		k.expect(t, "requests beside live rows", requestsByJob(k), "map[:6 job:2]")
	})
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.hang = true })
		add(t, d, nil, live[:4])
		k.advance(time.Second)
		d.Replay("job", replayOf(1, live[10:30]))
		k.advance(time.Second)
		k.expect(t, "requests beside live ones", requestsByJob(k), "map[:4 job:2]")
		add(t, d, nil, live[4:6])
		k.advance(time.Second)
		k.expect(t, "requests with more live rows", requestsByJob(k), "map[:6 job:2]")
	})
}

// While live rows flow, the rows of a job share a request, and have a quarter of the senders if they
// cannot. A second after the last live row the job gets most senders, although none of its requests has
// ended.
func TestReplayGivesWayToFlow(t *testing.T) {
	rows := rowsInOwnGroups(21)
	for _, tc := range []struct {
		batch         int
		flowing, then string
	}{
		{100, "map[:1 job:1]", "map[:1 job:1]"},
		{1, "map[:1 job:2]", "map[:1 job:6]"},
	} {
		cfg := senders(8)
		cfg.APIBatchSize = tc.batch
		drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
			add(t, d, nil, rows[:1])
			k.advance(500 * time.Millisecond)
			k.set(func() { k.hang = true })
			d.Replay("job", replayOf(1, rows[1:]))
			k.advance(400 * time.Millisecond)
			k.expect(t, "requests beside the flow", requestsByJob(k), tc.flowing)
			k.advance(200 * time.Millisecond)
			k.expect(t, "requests after it", requestsByJob(k), tc.then)
		})
	}
}
