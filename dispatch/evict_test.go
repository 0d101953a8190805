package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Payloads of reloaded rows count.
func TestReloadedPayloadsAreCounted(t *testing.T) {
	cfg := DefaultConfig()
	c := newCore(cfg, func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 10, MaxBytes: 1000} }, func() float64 { return 0 })
	row := items("a", "1")[0]
	row.Seq = 1
	key := row.Lane()
	c.addSpilledLanes([]store.SpilledLane{{Outbox: row.Outbox, Kind: row.Kind, Hash: key.Hash(), Rows: 1}})
	_, each := c.nextReloads(time.Unix(1, 0))
	c.addReloaded([][]store.Item{{row}}, each) // of an outbox without states: with its payload
	if c.bytes != int64(len(row.Payload)) {
		t.Errorf("%d bytes are counted, %d are held", c.bytes, len(row.Payload))
	}
	for _, l := range c.lanesByAge() {
		c.shrink(l, 0)
	}
	if c.bytes != 0 {
		t.Errorf("%d bytes are counted, none is held", c.bytes)
	}
}

// refusingBackend is a backend whose table accepts claims and refuses outcomes.
type refusingBackend struct{ *fakeBackend }

func (n refusingBackend) Settle(context.Context, store.Epoch, []store.Outcome) ([]store.SettleResult, error) {
	return nil, &store.RefusedError{Err: fmt.Errorf("a trigger objects")}
}

// A table that refuses outcomes fills its buffer; the other sink goes on.
func TestRefusedOutcomesDoNotStopTheOtherSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.BufferRows = 50
		a, b := newFakeBackend(), newFakeBackend()
		da, db := New(cfg, refusingBackend{a}, a, 1, a, time.Second), New(cfg, b, b, 1, b, time.Second)
		f := NewFeed(checkpoint.NewTracker(store.Checkpoint{}), 1, map[string]*Dispatcher{"a": da, "b": db}, func(string, int) {})
		f.SpillEnabled = true
		in := make(chan capture.Batch)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 3)
		for _, run := range []func(context.Context) error{da.Run, db.Run, func(ctx context.Context) error { return f.Run(ctx, in) }} {
			go func() { done <- run(ctx) }()
		}
		for n := range 1000 {
			var rows []store.Item
			for _, outbox := range []string{"a", "b"} {
				row := items(fmt.Sprint("g", n%7), fmt.Sprint(n))
				row[0].Outbox = outbox
				rows = append(rows, row...)
			}
			select {
			case in <- capture.Batch{Position: store.Position(fmt.Sprint(n)), Items: rows}:
				continue
			case <-time.After(2 * time.Hour):
			}
			break
		}
		advance(time.Minute)
		b.set(func() {})
		if got := len(slices.Concat(b.requests...)); got < 1000 {
			t.Errorf("the other sink got %d of 1000 rows; the one that is refused: %+v, %d refused", got, da.Stats(), len(da.core.retryQueue))
		}
		cancel()
		for range cap(done) {
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	})
}

// Requeued rows lie in front of reloaded ones. Such lanes fill the buffer of a dead
// receiver, and the other sink must not be affected.
func TestLaneOfRequeuedAndReloadedRowsCanBeEvicted(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows = 40
	c := newCore(cfg, func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 10, MaxBytes: 1000} }, func() float64 { return 0 })
	var table spilledTable
	var requeued []store.Item
	for i := range 15 {
		row := rowsWithSeq(i+1, items(fmt.Sprint("g", i), fmt.Sprint("spilled ", i)))
		_ = table.Spill(context.Background(), 1, row)
		for k := range 4 {
			requeued = append(requeued, items(fmt.Sprint("g", i), fmt.Sprint("set back ", i, "-", k))...)
		}
	}
	c.addSpilledLanes(table.lanes())
	c.requeue(requeued)
	now := time.Unix(1000, 0)
	for range 10 {
		if from, each := c.nextReloads(now); len(from) > 0 {
			answers, _ := table.ReadSpilled(context.Background(), from, each)
			c.addReloaded(answers, each)
		}
		now = now.Add(time.Second)
	}
	for _, recv := range c.receivers { // it is down by now
		recv.breakerOpen, recv.openings = true, 1
	}
	for range 10 {
		c.spillExcess(true)
	}
	if n := c.bufferedRows(); n > cfg.BufferRows/2 {
		t.Errorf("%d rows count against a buffer of %d after it was relieved: %d in memory, %d read back", n, cfg.BufferRows, c.rows, c.reloadedRows)
	}
}

// Measures the wait of rows for a working sink beside a slow one whose breaker is closed.
func TestSlowSinkDelaysNoOther(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows = 1000 // the seed's
	runTwoSinks(t, cfg, func(s *twoSinks) {
		s.a.set(func() {
			s.a.answer = func(ids []string) sink.Result { time.Sleep(2 * time.Second); return always(sink.Delivered)(ids) }
		})
		came := map[string]time.Time{}
		var waits []time.Duration
		s.b.set(func() {
			s.b.answer = func(ids []string) sink.Result {
				s.b.set(func() { // several senders call it
					for _, id := range ids {
						waits = append(waits, time.Since(came[id]))
					}
				})
				return always(sink.Delivered)(ids)
			}
		})
		// 4000 rows per second for one sink and 500 for the other, for 2 s
		began := time.Now()
		for n := range 2 * 500 {
			due := began.Add(time.Duration(n) * 2 * time.Millisecond)
			time.Sleep(time.Until(due))
			var rows []store.Item
			for i := range 8 {
				row := items("one", fmt.Sprint("a", n, "-", i))
				row[0].Outbox = "a"
				rows = append(rows, row...)
			}
			row := items(fmt.Sprint("g", n%7), fmt.Sprint("b", n))
			row[0].Outbox = "b"
			s.b.set(func() { came[row[0].ID] = due })
			s.in <- capture.Batch{Position: store.Position(fmt.Sprint(n)), Items: append(rows, row...)}
		}
		advance(time.Minute)
		s.b.set(func() { slices.Sort(waits) })
		p := func(q float64) time.Duration { return waits[int(q*float64(len(waits)-1))] }
		t.Logf("rows of the well sink waited p50 %s, p90 %s, p99 %s, most %s", p(.5), p(.9), p(.99), p(1))
		if p(1) > 2*slowBufferAfter || p(.5) > 10*time.Millisecond {
			t.Error("the well sink waits for the slow one")
		}
	})
}

// Ungrouped rows in parallel: some spilled rows leave memory while others are being read.
// All of them must be reloaded.
func TestRowsEvictedDuringReloadComeBack(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Ungrouped, cfg.BufferRows, cfg.APIBatchSize = Parallel, 20, 1
	c := newCore(cfg, func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 10, MaxBytes: 1000} }, func() float64 { return 0 })
	var table spilledTable
	ctx := context.Background()
	var all []store.Item
	for i := range 12 {
		row := items("", fmt.Sprint(i))[0]
		row.Group, row.Seq = store.Group{}, store.Seq(i+1)
		all = append(all, row)
	}
	c.append(all, nil) // from the log
	c.spillForLog(true)
	_ = table.Spill(ctx, 1, c.nextSpills(100))
	c.spillsWritten(make([]bool, len(c.spilling)))
	leave := func(id string) { // the buffer is full
		l := c.lanes[LaneName{LaneKey: all[0].Lane(), RowID: id}]
		c.shrink(l, 0)
	}
	leave("10")
	leave("11")
	now := time.Unix(1000, 0)
	from, each := c.nextReloads(now)
	answers, _ := table.ReadSpilled(ctx, from, each)
	c.addReloaded(answers, each) // the first rows are in memory, the lane goes on behind them
	from, each = c.nextReloads(now)
	answers, _ = table.ReadSpilled(ctx, from, each)
	leave("1")
	leave("2")
	c.addReloaded(answers, each)
	for range 20 {
		if from, each := c.nextReloads(now); len(from) > 0 {
			answers, _ := table.ReadSpilled(ctx, from, each)
			c.addReloaded(answers, each)
		}
	}
	for i := range all {
		name := c.laneNameOf(&all[i])
		l := c.lanes[LaneName{LaneKey: name.LaneKey}]
		if c.lanes[name] == nil && (l == nil || !l.hasSpilled || l.reloadedUpTo >= all[i].Seq) {
			t.Errorf("row %d is in no lane and not to be read", i)
		}
	}
}
