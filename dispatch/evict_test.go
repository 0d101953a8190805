package dispatch

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Payloads of reloaded rows count.
func TestReloadedPayloadsAreCounted(t *testing.T) {
	cfg := DefaultConfig()
	c := newTestCore(cfg, func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 10, MaxBytes: 1000} }, func() float64 { return 0 })
	row := items("a", "1")[0]
	row.Seq = 1
	key := row.Lane()
	c.addSpilledLanes([]store.SpilledLane{{Outbox: row.Outbox, Kind: row.Kind, Hash: key.Hash(), Rows: 1}})
	_, each := c.nextReloads(time.Unix(1, 0))
	c.addReloaded([][]store.Item{{row}}, each) // of an outbox without states: with its payload
	if c.heldBytes() != int64(len(row.Payload)) {
		t.Errorf("%d bytes are counted, %d are held", c.heldBytes(), len(row.Payload))
	}
	for _, l := range c.lanesByAge() {
		c.shrink(l, 0)
	}
	if c.heldBytes() != 0 {
		t.Errorf("%d bytes are counted, none is held", c.heldBytes())
	}
}

// Requeued rows lie in front of reloaded ones. Such lanes fill the buffer of a dead
// receiver, and the other sink must not be affected.
func TestLaneOfRequeuedAndReloadedRowsCanBeEvicted(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows = 40
	c := newTestCore(cfg, func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 10, MaxBytes: 1000} }, func() float64 { return 0 })
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
	for _, recv := range c.endpoints() { // it is down by now
		forceOpen(recv)
	}
	for range 10 {
		c.spillExcess(true)
	}
	if n := c.bufferedRows(); n > cfg.BufferRows/2 {
		t.Errorf("%d rows count against a buffer of %d after it was relieved: %d in memory, %d read back", n, cfg.BufferRows, c.heldRows(), c.spillCounts().reloaded)
	}
}

// An operator skips a row while its claim is being given back, and the table refuses that
// outcome. The lane must be reloaded without it.
func TestSkippedRowIsNotGivenBack(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows = 4
	c := newTestCore(cfg, func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 1, MaxBytes: 1000} }, func() float64 { return 0 })
	now := time.Unix(1000, 0)
	c.append(rowsWithSeq(1, items("a", "1", "2", "3")), nil)
	for _, req := range c.nextClaims(10, now) {
		c.claimed(req, []store.ClaimAnswer{{Result: store.Claimed}}, now, now)
	}
	c.answered(c.nextRequest(now), &sink.Result{Outcome: sink.Outcome{Class: sink.Unavailable}}, now)
	l := c.live()[nameOf("a")]
	c.shrink(l, 0)
	if given := c.nextOutcomes(10); len(given) != 1 || given[0].Status != store.Pending {
		t.Fatalf("outcomes: got %v, want one PENDING", given)
	}
	c.nextSpills(10)
	c.spillsWritten(make([]bool, c.beingSpilled()))
	c.written([]store.SettleResult{store.Refused}, now)
	if _, err := c.skip(l, "known", now); err != nil {
		t.Fatal(err)
	}
	if skipped := c.nextOutcomes(10); len(skipped) != 1 || skipped[0].Status != store.Failed {
		t.Fatalf("outcomes: got %v, want one FAILED", skipped)
	}
	c.written([]store.SettleResult{store.Written}, now)
	if from, _ := c.nextReloads(now); len(from) != 1 {
		t.Errorf("lanes to reload: got %d, want 1; shrinking %v", len(from), c.isShrinking(l))
	}
}

// Ungrouped rows in parallel: some spilled rows leave memory while others are being read.
// All of them must be reloaded.
func TestRowsEvictedDuringReloadComeBack(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Ungrouped, cfg.BufferRows, cfg.APIBatchSize = Parallel, 20, 1
	c := newTestCore(cfg, func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 10, MaxBytes: 1000} }, func() float64 { return 0 })
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
	c.spillsWritten(make([]bool, c.beingSpilled()))
	leave := func(id string) { // the buffer is full
		l := c.live()[LaneName{LaneKey: all[0].Lane(), RowID: id}]
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
		l := c.live()[LaneName{LaneKey: name.LaneKey}]
		if c.live()[name] == nil && (l == nil || !l.HasSpilled || l.ReloadedUpTo >= all[i].Seq) {
			t.Errorf("row %d is in no lane and not to be read", i)
		}
	}
}
