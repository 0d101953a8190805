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

// FAILED is in the table, and the core does not know it yet.
func TestRequeueDuringOutcomeWrite(t *testing.T) {
	cfg := DefaultConfig()
	cfg.OnFailed, cfg.MaxRetries = Block, 0
	now := time.Unix(1e9, 0)
	c := newTestCore(cfg, func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 100, MaxBytes: 1 << 20} }, func() float64 { return 0 })
	c.append(items("a", "1", "2"), nil)
	reqs := c.nextClaims(100, now)
	c.claimed(reqs[0], []store.ClaimAnswer{{Result: store.Claimed}, {Result: store.Claimed}}, now, now)
	req := c.nextRequest(now)
	c.answered(req, &sink.Result{Items: []sink.Outcome{{Class: sink.Rejected}, {Class: sink.NotSent}}}, now)
	batch := c.nextOutcomes(10)
	if len(batch) != 1 || batch[0].Status != store.Failed {
		t.Fatal(batch)
	}
	// Settle commits FAILED and the hold. Requeue commits PENDING and deletes the hold.
	c.requeue(items("a", "1"))
	c.releaseFixed([]store.Ref{{Outbox: "events", ID: "1"}}, now)
	c.written([]store.SettleResult{store.Written}, now)
	held := c.heldIDs("events")
	if !slices.Contains(held, "1") {
		t.Errorf("row 1 is PENDING in the table and in no lane: held %v", held)
	}
	if l := c.live()[nameOf("a")]; l.Blocked != nil {
		t.Errorf("lane is blocked by row %s, which is not FAILED", l.Blocked.ID)
	}
}

func TestDiscardDuringOutcomeWrite(t *testing.T) {
	cfg := DefaultConfig()
	cfg.OnFailed, cfg.MaxRetries = Block, 0
	now := time.Unix(1e9, 0)
	c := newTestCore(cfg, func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 100, MaxBytes: 1 << 20} }, func() float64 { return 0 })
	c.append(items("a", "1", "2"), nil)
	reqs := c.nextClaims(100, now)
	c.claimed(reqs[0], []store.ClaimAnswer{{Result: store.Claimed}, {Result: store.Claimed}}, now, now)
	req := c.nextRequest(now)
	c.answered(req, &sink.Result{Items: []sink.Outcome{{Class: sink.Rejected}, {Class: sink.NotSent}}}, now)
	c.nextOutcomes(10)
	c.releaseFixed([]store.Ref{{Outbox: "events", ID: "1"}}, now) // by Discard
	c.written([]store.SettleResult{store.Written}, now)
	if l := c.live()[nameOf("a")]; l.Blocked != nil {
		t.Errorf("lane is blocked by row %s, which was deleted", l.Blocked.ID)
	}
}

// TestRequeuedHeadIsSpilledInItsPlace: while polling, a head that an operator requeues while its FAILED is
// being written is spilled before the rows behind it, so that none of them passes it at a crash.
func TestRequeuedHeadIsSpilledInItsPlace(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxRetries = 0
	now := time.Unix(1e9, 0)
	c := newTestCore(cfg, func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 1, MaxBytes: 1 << 20} }, func() float64 { return 0 })
	c.spill.SpillWhole()
	c.append(rowsWithSeq(1, items("a", "1", "2", "3")), new(counter))
	c.claimed(c.nextClaims(100, now)[0], []store.ClaimAnswer{{Result: store.Claimed}}, now, now)
	c.answered(c.nextRequest(now), &sink.Result{Outcome: sink.Outcome{Class: sink.Rejected}}, now)
	if batch := c.nextOutcomes(10); len(batch) != 1 || batch[0].Status != store.Failed {
		t.Fatal(batch)
	}
	c.spillForLog(true)
	if early := c.spill.Next(10); len(early) > 0 {
		t.Fatalf("row %s is spilled while the failure of the head is being written", early[0].ID)
	}
	c.releaseFixed([]store.Ref{{Outbox: "events", ID: "1"}}, now)
	c.written([]store.SettleResult{store.Written}, now)
	var ids []string
	for _, it := range c.spill.Next(10) {
		ids = append(ids, it.ID)
	}
	if !slices.Equal(ids, []string{"1", "2", "3"}) {
		t.Errorf("spilled: got %v, want all rows in their order", ids)
	}
}

// failingLogRow returns a core whose row 1 is FAILED in the records of a log-only outbox, which
// the core does not know yet.
func failingLogRow(t *testing.T, now time.Time) *core {
	t.Helper()
	cfg := DefaultConfig()
	cfg.OnFailed, cfg.MaxRetries = Block, 0
	c := newTestCore(cfg, func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 100, MaxBytes: 1 << 20} }, func() float64 { return 0 })
	c.lanes.Memory.LogOnly = map[string]bool{"events": true}
	rows := items("a", "1", "2")
	rows[0].Seq, rows[1].Seq = 1, 2
	c.append(rows, nil)
	reqs := c.nextClaims(100, now)
	c.claimed(reqs[0], []store.ClaimAnswer{{Result: store.Claimed}, {Result: store.Claimed}}, now, now)
	req := c.nextRequest(now)
	c.answered(req, &sink.Result{Items: []sink.Outcome{{Class: sink.Rejected}, {Class: sink.NotSent}}}, now)
	batch := c.nextOutcomes(10)
	if len(batch) != 1 || batch[0].Status != store.Failed || string(batch[0].Row.Payload) != "{}" {
		t.Fatalf("outcomes %+v, want FAILED with the payload", batch)
	}
	return c
}

// TestRequeueOfLogRowDuringOutcomeWrite: the row is in its lane once, as a spilled row, and in
// front.
func TestRequeueOfLogRowDuringOutcomeWrite(t *testing.T) {
	now := time.Unix(1e9, 0)
	c := failingLogRow(t, now)
	again := items("a", "1")
	again[0].Seq = 1
	c.requeue(again)
	c.releaseFixed([]store.Ref{{Outbox: "events", ID: "1"}}, now)
	c.written([]store.SettleResult{store.Written}, now)
	l := c.live()[nameOf("a")]
	if held := c.heldIDs("events"); !slices.Equal(held, []string{"1", "2"}) || l.Blocked != nil {
		t.Fatalf("held %v, blocked %v; want 1 and 2", held, l.Blocked)
	}
	reqs := c.nextClaims(100, now)
	c.claimed(reqs[0], []store.ClaimAnswer{{Result: store.Claimed}, {Result: store.Claimed}}, now, now)
	c.answered(c.nextRequest(now), &sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}, now)
	if batch := c.nextOutcomes(10); len(batch) != 2 || batch[0].ID != "1" || batch[0].SpilledSeq != 1 || batch[1].SpilledSeq != 0 {
		t.Errorf("outcomes %+v, want that of row 1 to delete its spilled copy", batch)
	}
}

// TestDiscardOfLogRowDuringOutcomeWrite: no claim could find the row deleted, so it must leave
// its lane.
func TestDiscardOfLogRowDuringOutcomeWrite(t *testing.T) {
	now := time.Unix(1e9, 0)
	c := failingLogRow(t, now)
	c.releaseFixed([]store.Ref{{Outbox: "events", ID: "1"}}, now) // by Discard
	c.written([]store.SettleResult{store.Written}, now)
	if held, l := c.heldIDs("events"), c.live()[nameOf("a")]; !slices.Equal(held, []string{"2"}) || l.Blocked != nil {
		t.Errorf("held %v, blocked %v; want only 2", held, l.Blocked)
	}
}

func TestRequeueAfterShutdown(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, end func(error) error) {
		k.set(func() { k.operated.failed = items("b", "3") })
		if err := end(nil); err != nil {
			t.Error(err)
		}
		n, err := d.Requeue(context.Background(), store.DeadLetterFilter{Outbox: "events"}, 10, true)
		if !errors.Is(err, ErrStopped) || len(k.operated.failed) != 1 {
			t.Errorf("requeued %d, error %v; rows still FAILED %d", n, err, len(k.operated.failed))
		}
	})
}

func TestRequeueDuringDrain(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, end func(error) error) {
		k.set(func() { k.hang = true; k.operated.failed = items("b", "3") })
		add(t, d, nil, items("a", "1"))
		k.advance(100 * time.Millisecond)
		result := make(chan error, 1)
		go func() { result <- end(nil) }()
		k.advance(100 * time.Millisecond) // draining, 1 is in flight
		n, err := d.Requeue(context.Background(), store.DeadLetterFilter{Outbox: "events"}, 10, true)
		if !errors.Is(err, ErrStopped) || len(k.operated.failed) != 1 {
			t.Errorf("requeued %d, error %v; rows still FAILED %d", n, err, len(k.operated.failed))
		}
		waitEnded(t, result)
	})
}

func TestSkipWaitsForVisibility(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.grant = func(*store.ClaimRow) store.ClaimAnswer { return store.ClaimAnswer{Result: store.NotYetVisible} }
			k.settleResult = store.WasGone // Settle's result for a row that its snapshot does not show
		})
		row := items("a", "1")
		row[0].Txn = 7
		var c counter
		add(t, d, &c, row)
		k.advance(time.Second)
		go func() { _ = d.Skip(context.Background(), nameOf("a"), "x") }()
		k.advance(time.Second)
		if c.n != 0 {
			t.Errorf("the row is done with, and neither FAILED nor delivered nor gone")
		}
		k.set(func() { k.settleResult = store.Written; k.grant = newFakeBackend().grant })
	})
}

func TestPauseOfSingleRowLaneFails(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		lane := LaneName{LaneKey: store.LaneKey{Outbox: "events", Kind: "EVENT"}, RowID: "1"}
		err := d.Pause(context.Background(), lane, "x")
		if err == nil {
			rows := items("", "1")
			rows[0].Group = store.Group{}
			add(t, d, nil, rows)
			k.advance(time.Second)
			t.Errorf("Pause succeeded, the row was sent all the same: %v; kept %+v", k.requests, k.operated.holds)
		}
	})
}

func TestRequeuedRowFromLogIsMerged(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		d.Freeze(true)
		k.set(func() { k.operated.failed = items("a", "1") })
		if _, err := d.Requeue(context.Background(), store.DeadLetterFilter{Outbox: "events"}, 10, true); err != nil {
			t.Error(err)
		}
		var c counter
		add(t, d, &c, items("a", "1", "2")) // the checkpoint was below row 1
		d.Freeze(false)
		k.advance(time.Second)
		k.expect(t, "requests", k.requests, "[[1 2]]")
	})
}

func TestRowSettledElsewhereDoesNotBlock(t *testing.T) {
	cfg := DefaultConfig()
	cfg.OnFailed, cfg.MaxRetries = Block, 0
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer, k.settleResult = poisoned("1"), store.WasSettled })
		add(t, d, nil, items("a", "1", "2"))
		k.advance(time.Second)
		k.expect(t, "blocked lanes", d.Stats().Lanes["blocked"], 0)
	})
}

// waitEnded waits for a dispatcher that the test has ended.
func waitEnded(t *testing.T, done <-chan error) {
	t.Helper()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// unsureStore spills the requeued row and loses the answer.
type unsureStore struct {
	Store
	row *store.Item
}

func (s *unsureStore) Requeue(context.Context, store.Epoch, store.DeadLetterFilter, int) ([]store.Item, error) {
	s.row = &items("a", "1")[0]
	return nil, fmt.Errorf("%w: connection lost", store.ErrUnsure)
}

// TestLostRequeueAnswerEndsRun: the row is among the spilled rows, and only a new session finds it.
func TestLostRequeueAnswerEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeBackend()
		opt := k.options(1)
		opt.LogOnly = map[string]bool{"events": true}
		s := &unsureStore{Store: opt.Store}
		opt.Store = s
		d := New(DefaultConfig(), opt)
		done := make(chan error, 1)
		go func() { done <- d.Run(t.Context()) }()
		k.advance(time.Second)
		left, leave := context.WithCancel(t.Context())
		leave() // the caller does not wait for the answer
		if _, err := d.Requeue(left, store.DeadLetterFilter{Outbox: "events"}, 10, true); !errors.Is(err, store.ErrUnsure) || s.row == nil {
			t.Errorf("requeue: got %v, %v", s.row, err)
		}
		if err := <-done; !errors.Is(err, store.ErrUnsure) {
			t.Errorf("Run: got %v", err)
		}
	})
}
