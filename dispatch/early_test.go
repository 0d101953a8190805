package dispatch

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// unwrittenClaim answers a claim that wrote nothing.
func unwrittenClaim(*store.ClaimRow) store.ClaimAnswer {
	return store.ClaimAnswer{Result: store.Claimed, Unwritten: true}
}

// hideRows makes the backend's table hide its rows.
func (d *fakeBackend) hideRows() {
	d.set(func() { d.latency, d.grant, d.settleResult = 0, unwrittenClaim, store.TooEarly })
}

func TestEarlyOutcomeIsRetriedSoon(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.hideRows()
		row := items("a", "1")
		row[0].Txn = 7
		var c counter
		add(t, d, &c, row)
		k.advance(4 * time.Second)
		for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000} {
			k.expect(t, "wait", k.statementTimes[i+2]-k.statementTimes[i+1], want*time.Millisecond)
		}
		k.expect(t, "rows done", c.n, 0)
		k.expect(t, "held", d.Held("events"), "[1]")
		k.expect(t, "observed", k.observed, "[]")
		k.expect(t, "failures", k.failures, "[]")
		k.expect(t, "its transaction", k.outcomes[0].Txn, store.Txn(7))
		k.set(func() { k.settleResult = store.Written })
		k.advance(time.Second)
		k.expect(t, "rows done", c.n, 1)
		k.expect(t, "observed", k.observed, "[1 COMPLETED]")
		k.expect(t, "requests", k.requests, "[[1]]")
	})
}

func TestEarlyOutcomesAreBatched(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.hideRows()
		var c counter
		add(t, d, &c, numberedRows("a", 300))
		k.advance(10 * time.Second)
		k.expect(t, "rows sent", len(k.messages), 300) // the lane has not waited
		k.set(func() { k.settleResult = store.Written })
		k.reset()
		k.advance(time.Second)
		k.expect(t, "rows done", c.n, 300)
		if n := len(k.settles); n > 10 {
			t.Errorf("%d statements for 300 outcomes", n)
		}
	})
}

// A lane waits for its early outcome if that is FAILED or a counted retry.
func TestLaneWaitsForEarlyOutcome(t *testing.T) {
	for _, retries := range []int{0, 1} {
		t.Run(fmt.Sprint("retries ", retries), func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.MaxRetries = retries
			drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				k.hideRows()
				k.set(func() {
					k.answer = func(ids []string) sink.Result {
						if ids[0] == "1" {
							return sink.Result{Items: []sink.Outcome{{Class: sink.Rejected}, {Class: sink.NotSent}}[:len(ids)]}
						}
						return always(sink.Delivered)(ids)
					}
				})
				var c counter
				add(t, d, &c, items("a", "1", "2"))
				k.advance(10 * time.Second)
				k.expect(t, "requests while it waits", len(k.requests), 1)
				k.set(func() { k.settleResult = store.Written })
				k.advance(10 * time.Second)
				k.expect(t, "rows done", c.n, 2)
				want := slices.Repeat([]string{"1 PENDING"}, retries)
				k.expect(t, "observed", k.observed, append(want, "1 FAILED", "2 COMPLETED"))
			})
		})
	}
}

// No row is claimed while half a buffer of rows is not yet visible.
func TestEarlyOutcomesAreBounded(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows, cfg.APIBatchSize = 40, 1
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.hideRows()
		k.set(func() { k.latency = time.Millisecond })
		var c counter
		add(t, d, &c, numberedRows("a", 60))
		k.advance(time.Minute)
		if n := len(k.messages); n < 20 || n > 30 {
			t.Errorf("%d rows were sent", n)
		}
		k.set(func() { k.settleResult = store.Written })
		k.advance(10 * time.Second)
		k.expect(t, "rows done", c.n, 60)
	})
}

func TestShutdownWritesEarlyOutcome(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, end func(error) error) {
		k.hideRows()
		var c counter
		add(t, d, &c, items("a", "1"))
		k.advance(300 * time.Millisecond)
		time.AfterFunc(300*time.Millisecond, func() { k.set(func() { k.settleResult = store.Written }) })
		if err := end(nil); err != nil {
			t.Error(err)
		}
		k.expect(t, "rows done", c.n, 1)
	})
}

func TestUnwrittenClaimIsNotGivenBack(t *testing.T) {
	for name, hinder := range map[string]func(k *fakeBackend){
		"waiting":  func(k *fakeBackend) { k.answer = always(sink.Unavailable) },
		"claiming": func(k *fakeBackend) { k.latency = 300 * time.Millisecond },
	} {
		t.Run(name, func(t *testing.T) {
			drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, end func(error) error) {
				k.set(func() { k.grant = unwrittenClaim; hinder(k) })
				add(t, d, nil, items("a", "1"))
				synctest.Wait()
				k.advance(100 * time.Millisecond)
				if err := end(nil); err != nil {
					t.Error(err)
				}
				k.expect(t, "outcomes", k.outcomes, "[]")
			})
		})
	}
}

// A spilled row stays spilled while its outcome is early.
func TestSpilledRowWithEarlyOutcome(t *testing.T) {
	now := time.Unix(1e9, 0)
	c := newTestCore(DefaultConfig(), newFakeBackend().Limits, func() float64 { return 0 })
	rows := items("a", "1")
	rows[0].Seq = 1
	c.append(rows, nil)
	c.spillForLog(true)
	c.nextSpills(10)
	c.spillsWritten(make([]bool, c.beingSpilled()))
	req := c.nextClaims(10, now)[0]
	c.claimed(req, []store.ClaimAnswer{{Result: store.Claimed, Unwritten: true}}, now, now)
	c.answered(c.nextRequest(now), &sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}, now)
	for i, result := range []store.SettleResult{store.TooEarly, store.Written} {
		c.tick(now.Add(time.Duration(i) * minVisibilityWait))
		if batch := c.nextOutcomes(10); len(batch) != 1 || batch[0].SpilledSeq != 1 {
			t.Fatalf("outcomes: %v", batch)
		}
		c.written([]store.SettleResult{result}, now)
		if s := c.stats(); s.Spilled != 1-i || s.Waiting != 1-i {
			t.Errorf("after %d: %d spilled, %d waiting", result, s.Spilled, s.Waiting)
		}
	}
}

// A row that was discarded while its FAILED was being written is checked in the table, even
// if claims are not written.
func TestDiscardedRowIsClaimedAgain(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxRetries = 0
	now := time.Unix(1e9, 0)
	c := newTestCore(cfg, newFakeBackend().Limits, func() float64 { return 0 })
	rows := items("a", "1")
	rows[0].Txn = 7
	c.append(rows, nil)
	req := c.nextClaims(10, now)[0]
	c.claimed(req, []store.ClaimAnswer{{Result: store.Claimed, Unwritten: true}}, now, now)
	c.answered(c.nextRequest(now), &sink.Result{Outcome: sink.Outcome{Class: sink.Rejected}}, now)
	c.nextOutcomes(10)
	c.releaseFixed([]store.Ref{rows[0].Ref}, now)
	c.written([]store.SettleResult{store.Written}, now)
	again := c.nextClaims(10, now)
	if len(again) != 1 {
		t.Fatalf("%d claims", len(again))
	}
	if txn := again[0].Runs[0].Rows[0].Txn; txn != 0 {
		t.Errorf("the claim names transaction %d: it would take the log's word for the row", txn)
	}
}
