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

// rowsWithSeq returns rows with consecutive seqs from first on.
func rowsWithSeq(first int, rows []store.Item) []store.Item {
	for i := range rows {
		rows[i].Seq = store.NewSeq(1, int64(first+i))
	}
	return rows
}

// A blocked lane leaves memory and completes its tickets. Once released, its rows are sent
// in order, before the rows that came meanwhile.
func TestBlockedLaneIsSpilledAndReloaded(t *testing.T) {
	cfg := DefaultConfig()
	cfg.OnFailed, cfg.BufferRows, cfg.APIBatchSize = Block, 10, 5
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = poisoned("0") })
		var reported counter
		add(t, d, &reported, rowsWithSeq(1, numberedRows("a", 12)))
		k.advance(time.Minute) // the first is FAILED and blocks
		d.SpillExcess(false)
		k.advance(time.Second)
		k.expect(t, "rows reported, rows in memory, rows spilled", []int{reported.n, d.Stats().Rows, d.Stats().Spilled}, "[12 0 11]")
		add(t, d, &reported, rowsWithSeq(100, items("a", "x", "y")))
		add(t, d, &reported, rowsWithSeq(200, items("b", "z")))
		k.advance(time.Second)
		k.expect(t, "rows reported, rows spilled", []int{reported.n, d.Stats().Spilled}, "[15 13]")
		k.set(func() { k.requests, k.answer = nil, always(sink.Delivered) })
		lane := LaneName{LaneKey: store.LaneKey{Outbox: "events", Kind: "EVENT", Group: store.GroupOf("a")}}
		if err := d.Skip(context.Background(), lane, "known"); err != nil {
			t.Fatal(err)
		}
		k.advance(time.Second)
		k.expect(t, "sent", slices.Concat(k.requests...), "[1 2 3 4 5 6 7 8 9 10 11 x y]")
		k.expect(t, "rows in memory, rows spilled, rows in the store", []int{d.Stats().Rows, d.Stats().Spilled, len(k.items)}, "[0 0 0]")
	})
}

// Spilled lanes are retried a few at a time while their receiver is down, and all once it
// is back.
func TestSpilledLanesReturnWithReceiver(t *testing.T) {
	const lanes = 500
	cfg := DefaultConfig()
	cfg.BufferRows = 100
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = always(sink.Unavailable) })
		var reported counter
		for i := range lanes {
			add(t, d, &reported, rowsWithSeq(2*i+1, items(fmt.Sprint("g", i), fmt.Sprint(i, " a"), fmt.Sprint(i, " b"))))
			if d.Room() <= 0 {
				advance(20 * time.Millisecond)
				d.SpillExcess(true)
				advance(20 * time.Millisecond)
			}
		}
		k.advance(10 * time.Minute)
		if s := d.Stats(); s.Rows > cfg.BufferRows*5/4 || s.Spilled < 2*lanes-cfg.BufferRows {
			t.Errorf("while the receiver is down: %+v", s)
		}
		k.set(func() { k.requests, k.answer = nil, always(sink.Delivered) })
		k.advance(10 * time.Minute)
		last := map[string]bool{}
		for _, id := range slices.Concat(k.requests...) {
			var n int
			var row string
			if _, err := fmt.Sscan(id, &n, &row); err != nil || row == "b" && !last[fmt.Sprint(n, " a")] || last[id] {
				t.Errorf("row %s is sent in front of its lane, or twice: %v", id, err)
			}
			last[id] = true
		}
		k.expect(t, "rows sent, rows reported", []int{len(last), reported.n}, []int{2 * lanes, 2 * lanes})
		if s := d.Stats(); s.Rows != 0 || s.Spilled != 0 || s.Lanes["spilled"] != 0 {
			t.Errorf("at rest: %+v", s)
		}
	})
}

// twoSinks runs a feed with two sinks in fake time.
type twoSinks struct {
	*Feed
	a, b    *fakeBackend
	da, db  *Dispatcher
	tracker *checkpoint.Tracker
	in      chan capture.Batch
}

func runTwoSinks(t *testing.T, cfg Config, test func(s *twoSinks)) {
	synctest.Test(t, func(t *testing.T) {
		s := &twoSinks{a: newFakeBackend(), b: newFakeBackend(), tracker: checkpoint.NewTracker(store.Checkpoint{}), in: make(chan capture.Batch)}
		s.da, s.db = New(cfg, s.a, s.a, 1, s.a, time.Second), New(cfg, s.b, s.b, 1, s.b, time.Second)
		s.Feed = NewFeed(s.tracker, 1, map[string]*Dispatcher{"a": s.da, "b": s.db}, func(string, int) {})
		s.SpillEnabled = true
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 3)
		for _, run := range []func(context.Context) error{s.da.Run, s.db.Run, func(ctx context.Context) error { return s.Run(ctx, s.in) }} {
			go func() { done <- run(ctx) }()
		}
		test(s)
		cancel()
		for range cap(done) {
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	})
}

// send offers n batches of one row for each outbox. It returns how many were taken before
// nothing moved any more.
func (s *twoSinks) send(from, n int, outboxes ...string) (taken int) {
	for i := range n {
		var rows []store.Item
		for _, outbox := range outboxes {
			row := items(fmt.Sprint("g", i%7), fmt.Sprint(from+i))
			row[0].Outbox = outbox
			rows = append(rows, row...)
		}
		select {
		case s.in <- capture.Batch{Position: store.Position(fmt.Sprint(from + i)), Items: rows}:
		case <-time.After(2 * time.Hour):
			return i
		}
	}
	advance(time.Minute)
	return n
}

// A dead sink takes no room from the other: its rows are spilled, and the checkpoint passes
// them.
func TestDeadSinkSpillsBesideLiveSink(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows = 50
	runTwoSinks(t, cfg, func(s *twoSinks) {
		s.a.set(func() { s.a.answer = always(sink.Unavailable) })
		if n := s.send(1, 1000, "a", "b"); n != 1000 {
			t.Fatalf("%d of 1000 batches were taken", n)
		}
		s.b.set(func() {})
		s.b.expect(t, "rows that the living sink got", len(slices.Concat(s.b.requests...)), 1000)
		if st := s.da.Stats(); st.Rows > 2*cfg.BufferRows || st.Spilled < 900 {
			t.Errorf("the dead sink holds %+v", st)
		}
		s.SetLogPressure(true)
		s.da.Spill(true)
		advance(time.Minute)
		cp, _ := s.tracker.Watermark()
		s.b.expect(t, "the checkpoint", cp.Position, "1000")
		s.a.set(func() { s.a.requests, s.a.answer = nil, always(sink.Delivered) })
		advance(time.Hour)
		s.a.expect(t, "rows that the dead sink got once it was back", len(slices.Concat(s.a.requests...)), 1000)
	})
}

// If every buffer is full the source is paused and nothing is spilled, until the log has
// reached its limit.
func TestFullBuffersPauseSource(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows = 50
	runTwoSinks(t, cfg, func(s *twoSinks) {
		for _, k := range []*fakeBackend{s.a, s.b} {
			k.set(func() { k.answer = always(sink.Unavailable) })
		}
		n := s.send(1, 1000, "a", "b")
		if n < cfg.BufferRows || n > cfg.BufferRows+1 || !s.Paused() {
			t.Errorf("%d batches were taken, paused %v", n, s.Paused())
		}
		s.a.expect(t, "rows spilled", s.a.rowsSpilled+s.b.rowsSpilled, 0)
		s.SetLogPressure(true)
		if n = s.send(n+1, 1000, "a", "b"); n != 1000 || s.Paused() {
			t.Errorf("under pressure %d batches were taken, paused %v", n, s.Paused())
		}
		s.SetLogPressure(false)
		for _, k := range []*fakeBackend{s.a, s.b} {
			k.set(func() { k.requests, k.answer = nil, always(sink.Delivered) })
		}
		advance(time.Hour)
		s.a.set(func() {})
		s.a.expect(t, "rows spilled at the end", s.da.Stats().Spilled+s.db.Stats().Spilled, 0)
	})
}

// A slow sink that catches up spills nothing.
func TestCatchUpSpillsNothing(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows = 50
	runTwoSinks(t, cfg, func(s *twoSinks) {
		s.a.set(func() { s.a.latency = 100 * time.Millisecond })
		if n := s.send(1, 2000, "a"); n != 2000 {
			t.Fatalf("%d of 2000 batches were taken", n)
		}
		advance(time.Hour)
		s.a.expect(t, "rows sent, rows spilled", []int{len(slices.Concat(s.a.requests...)), s.a.rowsSpilled}, "[2000 0]")
	})
}
