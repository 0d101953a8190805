package dispatch

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

func nameOf(group string) LaneName {
	return LaneName{LaneKey: store.LaneKey{Outbox: "events", Kind: "EVENT", Group: store.GroupOf(group)}}
}

// blocking runs a test with a lane "a" that its row 1 blocks, and row 2 behind it.
func blocking(t *testing.T, test func(k *fakeBackend, d *Dispatcher)) {
	cfg := DefaultConfig()
	cfg.OnFailed, cfg.MaxRetries = Block, 0
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = poisoned("1") })
		add(t, d, nil, items("a", "1", "2"))
		add(t, d, nil, items("b", "3"))
		k.advance(time.Minute)
		k.expect(t, "outcomes", k.settles, "[[3 COMPLETED] [1 FAILED]]")
		o := k.outcomes[1]
		want := store.Hold{Lane: nameOf("a").LaneKey, Kind: store.Blocked, ID: "1", Reason: "rejected", Since: o.At}
		if o.Block == nil || *o.Block != want {
			t.Errorf("the outcome: got %+v, want %+v", o.Block, want)
		}
		k.expect(t, "lanes", d.Stats().Lanes["blocked"], 1)
		k.set(func() { k.answer = always(sink.Delivered); k.settles = nil })
		test(k, d)
	})
}

func TestSkipReleasesBlockedLane(t *testing.T) {
	blocking(t, func(k *fakeBackend, d *Dispatcher) {
		if err := d.Skip(context.Background(), nameOf("a"), "known"); err != nil {
			t.Error(err)
		}
		k.advance(time.Second)
		k.expect(t, "outcomes", k.settles, "[[2 COMPLETED]]")
	})
}

func TestRequeueReleasesBlockedLane(t *testing.T) {
	blocking(t, func(k *fakeBackend, d *Dispatcher) {
		k.set(func() { k.operated.failed = items("a", "1") })
		n, err := d.Requeue(context.Background(), store.DeadLetterFilter{Outbox: "events"}, 10, true)
		if n != 1 || err != nil {
			t.Error(n, err)
		}
		k.advance(time.Second)
		k.expect(t, "outcomes", k.settles, "[[1 COMPLETED 2 COMPLETED]]")
	})
}

func TestDiscardReleasesBlockedLane(t *testing.T) {
	blocking(t, func(k *fakeBackend, d *Dispatcher) {
		k.set(func() { k.operated.failed = items("a", "1") })
		n, err := d.Discard(context.Background(), store.DeadLetterFilter{Outbox: "events"}, 10)
		if n != 1 || err != nil {
			t.Error(n, err)
		}
		k.advance(time.Second)
		k.expect(t, "outcomes", k.settles, "[[2 COMPLETED]]")
	})
}

func TestRequeueWithoutPlaceLeavesRowsToSource(t *testing.T) {
	blocking(t, func(k *fakeBackend, d *Dispatcher) {
		k.set(func() { k.operated.failed = items("a", "1") })
		if _, err := d.Requeue(context.Background(), store.DeadLetterFilter{Outbox: "events"}, 10, false); err != nil {
			t.Error(err)
		}
		k.advance(time.Second)
		k.expect(t, "outcomes", k.settles, "[[2 COMPLETED]]")
	})
}

func TestHoldsAreRestored(t *testing.T) {
	for mode, want := range map[OnFailed]string{Block: "[]", Continue: "[[2 COMPLETED]]"} {
		cfg := DefaultConfig()
		cfg.OnFailed = mode
		drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
			d.Restore([]store.Hold{
				{Lane: nameOf("a").LaneKey, Kind: store.Blocked, ID: "1", Reason: "bad", RetryCount: 3},
				{Lane: nameOf("b").LaneKey, Kind: store.Paused, Reason: "look"},
			})
			add(t, d, nil, items("a", "2"))
			add(t, d, nil, items("b", "3"))
			k.advance(time.Second)
			k.expect(t, "outcomes", k.settles, want)
			lanes, n := d.Lanes(LaneFilter{State: "blocked"}, 10)
			if mode == Continue {
				k.expect(t, "blocked", n, 0)
				return
			}
			k.expect(t, "blocked", lanes, []LaneInfo{{
				LaneKey: nameOf("a").LaneKey, State: "blocked", Rows: 1, Head: "1", RetryCount: 3, Error: "bad",
			}})
		})
	}
}

func TestPausedLaneWaitsForResume(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		ctx := context.Background()
		if err := d.Pause(ctx, nameOf("a"), "an incident"); err != nil {
			t.Error(err)
		}
		k.expect(t, "kept", k.operated.holds[0].Kind, store.Paused)
		add(t, d, nil, items("a", "1"))
		add(t, d, nil, items("b", "2"))
		k.advance(time.Minute)
		k.expect(t, "outcomes", k.settles, "[[2 COMPLETED]]")
		lanes, _ := d.Lanes(LaneFilter{Outbox: "events"}, 10)
		k.expect(t, "lanes", lanes, []LaneInfo{{
			LaneKey: nameOf("a").LaneKey, State: "paused", Rows: 1, Head: "1", Reason: "an incident", Since: k.began.Add(time.Millisecond),
		}})
		if err := d.RetryNow(nameOf("a")); !errors.Is(err, ErrLaneState) {
			t.Error(err)
		}
		if err := d.Resume(ctx, nameOf("a")); err != nil {
			t.Error(err)
		}
		k.advance(time.Second)
		k.expect(t, "outcomes", k.settles, "[[2 COMPLETED] [1 COMPLETED]]")
		k.expect(t, "kept", len(k.operated.holds), 0)
		for lane, want := range map[string]error{"a": ErrNoLane, "none": ErrNoLane} {
			if err := d.Resume(ctx, nameOf(lane)); !errors.Is(err, want) {
				t.Error(lane, err)
			}
		}
	})
}

func TestSkipHead(t *testing.T) {
	tests := map[string]struct {
		class sink.Class
		takes time.Duration
		after time.Duration // when it is called
		err   error
		want  string
	}{
		"while it waits":            {sink.Unavailable, 0, 100 * time.Millisecond, nil, "[[1 FAILED] [2 COMPLETED]]"},
		"while the breaker is open": {sink.Misconfigured, 0, time.Minute, nil, "[[1 FAILED] [2 COMPLETED]]"},
		"in a request that fails":   {sink.Unavailable, time.Second, 100 * time.Millisecond, nil, "[[1 FAILED] [2 COMPLETED]]"},
		"in one that is taken":      {sink.Delivered, time.Second, 100 * time.Millisecond, ErrLaneState, "[[1 COMPLETED] [2 COMPLETED]]"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.APIBatchSize = 1
			drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				k.set(func() {
					k.answer = func(ids []string) sink.Result {
						<-time.After(tt.takes)
						if ids[0] == "1" {
							return always(tt.class)(ids)
						}
						return always(sink.Delivered)(ids)
					}
				})
				add(t, d, nil, items("a", "1", "2"))
				k.advance(tt.after)
				if err := d.Skip(context.Background(), nameOf("a"), "skipped: known"); !errors.Is(err, tt.err) {
					t.Error(err)
				}
				k.advance(time.Minute)
				k.expect(t, "outcomes", k.settles, tt.want)
				if k.outcomes[0].Status == store.Failed && (k.outcomes[0].Error != "skipped: known" || k.outcomes[0].Block != nil) {
					t.Errorf("%+v", k.outcomes[0])
				}
			})
		})
	}
}

func TestSkipEndsWithContextOrRelay(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, end func(error) error) {
		k.set(func() { k.hang = true })
		add(t, d, nil, items("a", "1"))
		k.advance(100 * time.Millisecond)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := d.Skip(ctx, nameOf("a"), "x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		add(t, d, nil, items("b", "2"))
		k.advance(100 * time.Millisecond)
		result := make(chan error, 1)
		go func() { result <- d.Skip(context.Background(), nameOf("b"), "x") }()
		if err := end(nil); err != nil {
			t.Error(err)
		}
		if err := <-result; !errors.Is(err, ErrStopped) {
			t.Error(err)
		}
		if err := d.Skip(ctx, nameOf("none"), "x"); !errors.Is(err, ErrNoLane) {
			t.Error(err)
		}
	})
}

func TestRetryNow(t *testing.T) {
	for name, class := range map[string]sink.Class{"during its backoff": sink.Unavailable, "behind an open breaker": sink.Misconfigured} {
		t.Run(name, func(t *testing.T) {
			drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				k.set(func() { k.answer = always(class) })
				add(t, d, nil, items("a", "1"))
				add(t, d, nil, items("b", "2"))
				k.advance(5 * time.Second)
				group := store.GroupOf("b")
				lanes, _ := d.Lanes(LaneFilter{Group: &group}, 10)
				if len(lanes) != 1 || lanes[0].Error != class.String() || !lanes[0].NextAttempt.After(time.Now()) || lanes[0].Attempts < 2 {
					t.Errorf("lanes %+v", lanes)
				}
				n := len(k.requests)
				k.set(func() { k.answer = always(sink.Delivered) })
				if err := d.RetryNow(nameOf("b")); err != nil {
					t.Error(err)
				}
				k.advance(2 * time.Millisecond)
				k.expect(t, "first request", k.requests[n], "[2]")
				if err := d.RetryNow(nameOf("none")); !errors.Is(err, ErrNoLane) {
					t.Error(err)
				}
			})
		})
	}
}

func TestStoreErrorChangesNoLane(t *testing.T) {
	blocking(t, func(k *fakeBackend, d *Dispatcher) {
		ctx := context.Background()
		k.set(func() { k.err = store.ErrNotLeader })
		_, requeued := d.Requeue(ctx, store.DeadLetterFilter{}, 1, true)
		_, discarded := d.Discard(ctx, store.DeadLetterFilter{}, 1)
		for _, err := range []error{
			d.Skip(ctx, nameOf("a"), "x"), d.Pause(ctx, nameOf("b"), "x"), requeued, discarded,
		} {
			if !errors.Is(err, store.ErrNotLeader) {
				t.Error(err)
			}
		}
		lanes, n := d.Lanes(LaneFilter{}, 1)
		k.expect(t, "lanes", n, 1)
		k.expect(t, "state", lanes[0].State, "blocked")
		k.set(func() { k.err = nil })
	})
}

func TestSingleRowLaneCannotBePaused(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Ungrouped = Parallel
	drive(t, cfg, func(_ *fakeBackend, d *Dispatcher, _ func(error) error) {
		lane := LaneName{LaneKey: store.LaneKey{Outbox: "events", Kind: "EVENT"}}
		if err := d.Pause(context.Background(), lane, "x"); !errors.Is(err, ErrLaneState) {
			t.Error(err)
		}
	})
}

func TestRequeuedRowsKeepTheirOrderAcrossCalls(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		d.Freeze(true)
		add(t, d, nil, items("a", "live"))
		k.set(func() { k.operated.failed = items("a", "1", "2", "3", "4", "5") })
		for _, want := range []int{2, 2, 1, 0} {
			n, err := d.Requeue(context.Background(), store.DeadLetterFilter{Outbox: "events"}, 2, true)
			if n != want || err != nil {
				t.Error(n, err)
			}
		}
		d.Freeze(false)
		k.advance(time.Second)
		k.expect(t, "requests", k.requests, "[[1 2 3 4 5 live]]")
	})
}

func TestRequeueWaitsForRoom(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows = 2
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, end func(error) error) {
		d.Freeze(true)
		add(t, d, nil, items("a", "1", "2"))
		k.set(func() { k.operated.failed = items("b", "3") })
		requeue := func(ctx context.Context) error {
			_, err := d.Requeue(ctx, store.DeadLetterFilter{Outbox: "events"}, 10, true)
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := requeue(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		result := make(chan error, 1)
		go func() { result <- requeue(context.Background()) }()
		k.advance(time.Second)
		k.expect(t, "rows left FAILED", len(k.operated.failed), 1)
		d.Freeze(false)
		k.advance(time.Second)
		if err := <-result; err != nil {
			t.Error(err)
		}
		k.expect(t, "outcomes", k.settles, "[[1 COMPLETED 2 COMPLETED] [3 COMPLETED]]")
		d.Freeze(true)
		add(t, d, nil, items("a", "1", "2"))
		go func() { result <- requeue(context.Background()) }()
		k.advance(time.Second)
		if err := end(nil); err != nil {
			t.Error(err)
		}
		if err := <-result; !errors.Is(err, ErrStopped) {
			t.Error(err)
		}
	})
}

func TestInsertFoundSkipsKnownRows(t *testing.T) {
	cfg := DefaultConfig()
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		add(t, d, nil, items("a", "before"))
		k.advance(time.Second)
		d.TrackSettled(true)
		add(t, d, nil, items("a", "meanwhile"))
		k.advance(time.Second)
		k.set(func() { k.answer = always(sink.Unavailable) })
		add(t, d, nil, items("a", "held"))
		k.advance(10 * time.Millisecond)
		k.set(func() { k.answer, k.requests = always(sink.Delivered), nil })
		if n := d.InsertFound(items("a", "before", "meanwhile", "held", "set back")); n != 2 {
			t.Errorf("%d rows were placed", n)
		}
		d.TrackSettled(false)
		k.advance(time.Second)
		k.expect(t, "requests", k.requests, "[[before set back held]]")
	})
}

// A paused outbox claims and sends nothing, also across a restart, while other outboxes of the
// sink go on. Lanes that were paused one by one stay paused after the resume.
func TestPausedOutboxWaitsForResume(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		ctx := context.Background()
		if err := d.Pause(ctx, nameOf("b"), "one lane"); err != nil {
			t.Error(err)
		}
		if err := d.PauseOutbox(ctx, "events", "an incident"); err != nil {
			t.Error(err)
		}
		hold := k.operated.holds[1]
		k.expect(t, "recorded", []any{hold.Lane, hold.Kind, hold.Reason}, []any{store.PauseOfOutbox("events"), store.OutboxPaused, "an incident"})
		add(t, d, nil, items("a", "1"))
		add(t, d, nil, items("b", "2"))
		add(t, d, nil, inOutbox("other", items("a", "3")))
		k.advance(time.Minute)
		k.expect(t, "outcomes", k.settles, "[[other 3 COMPLETED]]")
		k.expect(t, "claims", k.claimsOf(""), 0)
		lanes, _ := d.Lanes(LaneFilter{Group: &store.Group{Name: "a", Valid: true}}, 10)
		k.expect(t, "lanes", lanes, []LaneInfo{{
			LaneKey: nameOf("a").LaneKey, State: "paused", Rows: 1, Head: "1", Reason: "an incident", Since: hold.Since,
		}})
		if err := d.RetryNow(nameOf("a")); !errors.Is(err, ErrLaneState) {
			t.Error(err)
		}
		stats := d.OutboxStats("events")
		k.expect(t, "pause", *stats.Pause, hold)
		k.expect(t, "rows, waiting, paused lanes", []int{stats.Rows, stats.Waiting, stats.Paused}, []int{2, 2, 1})

		if err := d.ResumeOutbox(ctx, "events"); err != nil {
			t.Error(err)
		}
		k.advance(time.Second)
		k.expect(t, "outcomes after the resume", k.settles, "[[other 3 COMPLETED] [1 COMPLETED]]")
		k.expect(t, "holds", len(k.operated.holds), 1)
		if err := d.ResumeOutbox(ctx, "events"); !errors.Is(err, ErrNotPaused) {
			t.Error(err)
		}
	})
}

// A pause ends no request in flight, and begins none: neither its retry nor the lanes behind it.
func TestPauseOfOutboxDuringRequest(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				<-time.After(time.Second)
				return always(sink.Unavailable)(ids)
			}
		})
		add(t, d, nil, items("a", "first"))
		k.advance(500 * time.Millisecond)
		if err := d.PauseOutbox(context.Background(), "events", "down"); err != nil {
			t.Error(err)
		}
		addEach(t, d, nil, 20)
		k.advance(time.Hour)
		k.expect(t, "requests", len(k.requestInfos), 1)
		k.set(func() { k.answer = always(sink.Delivered) })
		if err := d.Skip(context.Background(), nameOf("a"), "not needed"); err != nil {
			t.Error(err)
		}
		k.expect(t, "outcomes", k.settles, "[[first FAILED]]")
	})
}

// A pause that was recorded before a restart holds the rows that the log brings again, and those
// that are spilled.
func TestPauseOfOutboxIsRestored(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		d.Restore([]store.Hold{{Lane: store.PauseOfOutbox("events"), Kind: store.OutboxPaused, Reason: "look"}})
		add(t, d, nil, items("a", "1"))
		k.advance(time.Minute)
		k.expect(t, "outcomes", len(k.settles), 0)
		if err := d.ResumeOutbox(context.Background(), "events"); err != nil {
			t.Error(err)
		}
		k.advance(time.Second)
		k.expect(t, "outcomes after the resume", k.settles, "[[1 COMPLETED]]")
	})
}

// A skipped outbox passes over what waits, spilled rows included, also behind an open breaker, and
// sends what comes later.
func TestSkipOutboxPassesOverWaitingRows(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = always(sink.Misconfigured) })
		for i, group := range []string{"a", "b", "c"} {
			rows := rowsWithSeq(10*i+1, items(group, group+"1", group+"2", group+"3"))
			add(t, d, nil, rows)
		}
		k.advance(time.Minute)
		k.set(func() { k.settles = nil })
		if n, err := d.SkipOutbox("events", "not needed"); n != 9 || err != nil {
			t.Errorf("skipped %d rows, %v", n, err)
		}
		k.advance(time.Minute)
		k.expect(t, "waiting rows", d.OutboxStats("events").Waiting, 0)
		failed := 0
		for _, o := range k.outcomes {
			if o.Status == store.Failed && o.Error == "not needed" {
				failed++
			}
		}
		k.expect(t, "FAILED rows", failed, 9)
		k.set(func() { k.answer, k.settles = always(sink.Delivered), nil })
		add(t, d, nil, rowsWithSeq(100, items("a", "later")))
		k.advance(time.Hour)
		k.expect(t, "outcomes of later rows", k.settles, "[[later COMPLETED]]")

		if err := d.PauseOutbox(context.Background(), "events", "x"); err != nil {
			t.Error(err)
		}
		if _, err := d.SkipOutbox("events", "not needed"); !errors.Is(err, ErrLaneState) {
			t.Error(err)
		}
	})
}
