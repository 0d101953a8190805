package sluicebox

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
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/raced"
)

// twoSinkIntake is an intake that feeds the dispatchers of two sinks in fake time.
type twoSinkIntake struct {
	*intake
	a, b    *fakeBackend
	da, db  *dispatch.Dispatcher
	tracker *checkpoint.Tracker
	in      chan capture.Batch
}

// runTwoSinks runs a test. Each of prepare is called before the intake runs.
func runTwoSinks(t *testing.T, cfg dispatch.Config, test func(s *twoSinkIntake), prepare ...func(s *twoSinkIntake)) {
	synctest.Test(t, func(t *testing.T) {
		s := &twoSinkIntake{a: newFakeBackend(), b: newFakeBackend(), tracker: checkpoint.NewTracker(store.Checkpoint{}), in: make(chan capture.Batch)}
		freed := make(chan struct{}, 1)
		s.da, s.db = dispatch.New(cfg, s.a.options(1, true, freed)), dispatch.New(cfg, s.b.options(1, true, freed))
		s.intake = newIntake(s.tracker, 1, map[string]*dispatch.Dispatcher{"a": s.da, "b": s.db}, freed, func(string, int) {})
		s.spillEnabled = true
		for _, change := range prepare {
			change(s)
		}
		end := runParts(t, s.da.Run, s.db.Run, func(ctx context.Context) error { return s.run(ctx, s.in) })
		test(s)
		end()
	})
}

// runOneSink runs an intake and the dispatcher of its only sink in fake time.
func runOneSink(t *testing.T, buffer, batch int, test func(k *fakeBackend, d *dispatch.Dispatcher, in chan<- capture.Batch)) {
	synctest.Test(t, func(t *testing.T) {
		k, freed, in := newFakeBackend(), make(chan struct{}, 1), make(chan capture.Batch)
		cfg := smallBuffer(buffer)
		cfg.APIBatchSize = batch
		d := dispatch.New(cfg, k.options(1, true, freed))
		f := newIntake(checkpoint.NewTracker(store.Checkpoint{}), 1, map[string]*dispatch.Dispatcher{"events": d}, freed, func(string, int) {})
		f.spillEnabled = true
		end := runParts(t, d.Run, func(ctx context.Context) error { return f.run(ctx, in) })
		test(k, d, in)
		end()
	})
}

// runParts starts functions. end cancels their context and waits for them.
func runParts(t *testing.T, parts ...func(context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, len(parts))
	for _, run := range parts {
		go func() { done <- run(ctx) }()
	}
	return func() {
		cancel()
		for range parts {
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	}
}

// send offers n batches of one row for each outbox. It returns how many were taken before
// nothing moved any more.
func (s *twoSinkIntake) send(from, n int, outboxes ...string) (taken int) {
	for i := range n {
		var rows []store.Item
		for _, outbox := range outboxes {
			rows = append(rows, rowsOf(outbox, fmt.Sprint("g", i%7), fmt.Sprint(from+i))...)
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

func smallBuffer(rows int) dispatch.Config {
	cfg := dispatch.DefaultConfig()
	cfg.BufferRows = rows
	return cfg
}

// A dead sink takes no room from the other: its rows are spilled, and the checkpoint passes
// them.
func TestDeadSinkSpillsBesideLiveSink(t *testing.T) {
	const buffer = 50
	runTwoSinks(t, smallBuffer(buffer), func(s *twoSinkIntake) {
		s.a.set(func() { s.a.answer = always(sink.Unavailable) })
		if n := s.send(1, 1000, "a", "b"); n != 1000 {
			t.Fatalf("%d of 1000 batches were taken", n)
		}
		s.b.set(func() { expectEqual(t, "rows that the live sink got", len(s.b.sent), 1000) })
		if st := s.da.Stats(); st.Rows > 2*buffer || st.Spilled < 900 {
			t.Errorf("the dead sink holds %+v", st)
		}
		s.setLogPressure(true)
		s.da.Spill(true)
		advance(time.Minute)
		cp, _ := s.tracker.Watermark()
		expectEqual(t, "the checkpoint", cp.Position, "1000")
		s.a.set(func() { s.a.sent, s.a.answer = nil, always(sink.Delivered) })
		advance(time.Hour)
		s.a.set(func() { expectEqual(t, "rows that the dead sink got once it was back", len(s.a.sent), 1000) })
	})
}

// If every buffer is full the source is paused and nothing is spilled, until the log has
// reached its limit.
func TestFullBuffersPauseSource(t *testing.T) {
	const buffer = 50
	runTwoSinks(t, smallBuffer(buffer), func(s *twoSinkIntake) {
		for _, k := range []*fakeBackend{s.a, s.b} {
			k.set(func() { k.answer = always(sink.Unavailable) })
		}
		n := s.send(1, 1000, "a", "b")
		if n < buffer || n > buffer+1 || !s.isPaused() {
			t.Errorf("%d batches were taken, paused %v", n, s.isPaused())
		}
		expectEqual(t, "rows spilled", s.a.rowsSpilled+s.b.rowsSpilled, 0)
		s.setLogPressure(true)
		if n = s.send(n+1, 1000, "a", "b"); n != 1000 || s.isPaused() {
			t.Errorf("under pressure %d batches were taken, paused %v", n, s.isPaused())
		}
		s.setLogPressure(false)
		for _, k := range []*fakeBackend{s.a, s.b} {
			k.set(func() { k.answer = always(sink.Delivered) })
		}
		advance(time.Hour)
		expectEqual(t, "rows spilled at the end", s.da.Stats().Spilled+s.db.Stats().Spilled, 0)
	})
}

// The room for rows that no route matches is no reason to read more, or to spill rows of a sink that is
// slow.
func TestRoomAsidePausesSource(t *testing.T) {
	runTwoSinks(t, smallBuffer(50), func(s *twoSinkIntake) {
		s.a.set(func() { s.a.latency = 5 * time.Second })
		s.send(1, 1000, "a")
		advance(time.Hour)
		s.a.set(func() { expectEqual(t, "rows sent, rows spilled", []int{len(s.a.sent), s.a.rowsSpilled}, "[1000 0]") })
	}, func(s *twoSinkIntake) { s.setAside([]*dispatch.Dispatcher{s.db}) })
}

// A live sink of which some rows stand still gets its other rows, although another sink is dead.
func TestDeadSinkBesideParkedRows(t *testing.T) {
	runTwoSinks(t, smallBuffer(50), func(s *twoSinkIntake) {
		s.a.set(func() { s.a.answer = always(sink.Unavailable) })
		s.in <- capture.Batch{Position: "0", Items: rowsOf("c", "p", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10")}
		s.send(1, 1000, "a", "b")
		advance(time.Hour)
		s.b.set(func() { expectEqual(t, "rows of the live sink", len(s.b.sent), "1000") })
	}, func(s *twoSinkIntake) {
		s.routes["c"] = s.db
		s.db.Restore([]store.Hold{{Lane: store.PauseOfOutbox("c"), Kind: store.OutboxPaused, Reason: "operator", Since: time.Now()}})
	})
}

// A slow sink that catches up spills nothing.
func TestCatchUpSpillsNothing(t *testing.T) {
	runTwoSinks(t, smallBuffer(50), func(s *twoSinkIntake) {
		s.a.set(func() { s.a.latency = 100 * time.Millisecond })
		if n := s.send(1, 2000, "a"); n != 2000 {
			t.Fatalf("%d of 2000 batches were taken", n)
		}
		advance(time.Hour)
		s.a.set(func() { expectEqual(t, "rows sent, rows spilled", []int{len(s.a.sent), s.a.rowsSpilled}, "[2000 0]") })
	})
}

// Many rows of a group whose receiver does not answer, or sends Retry-After, fill the buffer of the
// only sink.
// They are spilled, and rows of other groups behind them arrive within a second.
func TestHangingGroupDelaysNoOther(t *testing.T) {
	const request, bulk, buffer = 30 * time.Second, 1000, 100
	for name, dead := range map[string]func([]string) sink.Result{
		"no answer": func(ids []string) sink.Result { time.Sleep(request); return always(sink.Unavailable)(ids) },
		"Retry-After": func([]string) sink.Result {
			return sink.Result{Outcome: sink.Outcome{Class: sink.Unavailable}, RetryAfter: request}
		},
	} {
		t.Run(name, func(t *testing.T) {
			runOneSink(t, buffer, buffer/10, func(k *fakeBackend, d *dispatch.Dispatcher, in chan<- capture.Batch) {
				var arrived time.Time
				k.answer = func(ids []string) sink.Result {
					if ids[0][0] == 'd' {
						return dead(ids)
					}
					k.set(func() { arrived = time.Now() })
					return always(sink.Delivered)(ids)
				}
				in <- capture.Batch{Items: rowsOf("events", "other", "first")}
				advance(time.Second)
				began := time.Now()
				for i := range bulk {
					in <- capture.Batch{Items: rowsOf("events", "dead", fmt.Sprint("d", i))}
				}
				in <- capture.Batch{Position: "1", Items: rowsOf("events", "other", "last")}
				advance(time.Minute)
				if wait := arrived.Sub(began); arrived.IsZero() || wait > time.Second {
					t.Errorf("row of another group arrived after %s, want at most 1s", wait)
				}
				if n := d.Stats().Rows; n > maxBufferFactor*buffer {
					t.Errorf("rows in memory: got %d, want at most %d", n, maxBufferFactor*buffer)
				}
				k.set(func() { k.answer = always(sink.Delivered) })
				advance(time.Hour)
				if _, delivered := k.count('d'); delivered != bulk {
					t.Errorf("rows of the group once it works: got %d, want %d", delivered, bulk)
				}
			})
		})
	}
}

// A receiver that is slow for every group is no reason to spill: capture pauses.
func TestSlowReceiverSpillsNothing(t *testing.T) {
	const rows, buffer = 2000, 100
	runOneSink(t, buffer, buffer/20, func(k *fakeBackend, _ *dispatch.Dispatcher, in chan<- capture.Batch) {
		k.answer = func(ids []string) sink.Result {
			time.Sleep(1500 * time.Millisecond)
			return always(sink.Delivered)(ids)
		}
		for i := range rows {
			in <- capture.Batch{Items: rowsOf("events", fmt.Sprint("group ", i%7), fmt.Sprint("d", i))}
		}
		advance(time.Hour)
		_, delivered := k.count('d')
		k.set(func() { expectEqual(t, "rows delivered, rows spilled", []int{delivered, k.rowsSpilled}, "[2000 0]") })
	})
}

// A table that refuses outcomes fills its buffer; the other sink goes on.
func TestRefusedOutcomesDoNotStopTheOtherSink(t *testing.T) {
	runTwoSinks(t, smallBuffer(50), func(s *twoSinkIntake) {
		s.a.set(func() { s.a.refusesOutcome = true })
		s.send(0, 1000, "a", "b")
		if got, _ := s.b.count(0); got < 1000 {
			t.Errorf("the other sink got %d of 1000 rows; the refused one: %+v", got, s.da.Stats())
		}
	})
}

// Measures the wait of rows for a working sink beside a slow one whose breaker is closed.
func TestSlowSinkDelaysNoOther(t *testing.T) {
	runTwoSinks(t, smallBuffer(1000), func(s *twoSinkIntake) {
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
				rows = append(rows, rowsOf("a", "one", fmt.Sprint("a", n, "-", i))...)
			}
			row := rowsOf("b", fmt.Sprint("g", n%7), fmt.Sprint("b", n))
			s.b.set(func() { came[row[0].ID] = due })
			s.in <- capture.Batch{Position: store.Position(fmt.Sprint(n)), Items: append(rows, row...)}
		}
		advance(time.Minute)
		s.b.set(func() { slices.Sort(waits) })
		p := func(q float64) time.Duration { return waits[int(q*float64(len(waits)-1))] }
		t.Logf("rows of the working sink waited p50 %s, p90 %s, p99 %s, most %s", p(.5), p(.9), p(.99), p(1))
		if p(1) > 2*slowBufferAfter || p(.5) > 10*time.Millisecond {
			t.Error("the working sink waits for the slow one")
		}
	})
}

// Rows of a locked table are spilled, and rows of another outbox of the same sink go on.
func TestLockedTableDoesNotFillBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeBackend()
		k.lockedTables = map[string]bool{"events": true}
		freed := make(chan struct{}, 1)
		d := dispatch.New(smallBuffer(50), k.options(1, true, freed))
		f := newIntake(checkpoint.NewTracker(store.Checkpoint{}), 1, map[string]*dispatch.Dispatcher{"events": d, "other": d}, freed, func(string, int) {})
		f.spillEnabled = true
		in := make(chan capture.Batch)
		end := runParts(t, d.Run, func(ctx context.Context) error { return f.run(ctx, in) })
		taken := 0
		for full := false; taken < 500 && !full; {
			rows := append(rowsOf("events", fmt.Sprint("g", taken%100), fmt.Sprint("p", taken)), rowsOf("other", "h", fmt.Sprint("o", taken))...)
			select {
			case in <- capture.Batch{Position: store.Position(fmt.Sprint(taken)), Items: rows}:
				taken++
			case <-time.After(time.Minute):
				full = true
			}
		}
		advance(time.Minute)
		expectEqual(t, "batches taken", taken, 500)
		_, completed := k.count('o')
		expectEqual(t, "rows of the free table", completed, 500)
		k.set(func() { k.lockedTables = nil })
		advance(time.Minute)
		_, completed = k.count('p')
		expectEqual(t, "rows of the locked table once it is free", completed, 500)
		end()
	})
}

// A table that refuses every outcome must not fill memory, however long the log is. Sends
// stop at half a buffer of refused outcomes, held without their payloads, plus the rows in
// the buffer at that time. If spilling is allowed and the log is at its limit, the whole
// log is still read. Otherwise the source waits.
func TestTableRefusesEveryOutcome(t *testing.T) {
	for _, spills := range []bool{true, false} {
		t.Run(fmt.Sprint("spills ", spills), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { refuseEveryOutcome(t, spills) })
		})
	}
}

func refuseEveryOutcome(t *testing.T, spills bool) {
	const buffer = 200
	rows := 20_000
	if raced.Enabled {
		rows = 4000 // the detector makes this test a minute long
	}
	const inFlight = (4 + 1) * 10 // requests, one of them claimed ahead, of ten rows
	cfg := smallBuffer(buffer)
	cfg.APIBatchSize, cfg.MaxConcurrentGroups = 10, 4
	k := newFakeBackend()
	k.refusesOutcome = true
	freed := make(chan struct{}, 1)
	d := dispatch.New(cfg, k.options(1, spills, freed))
	tracker := checkpoint.NewTracker(store.Checkpoint{})
	f := newIntake(tracker, 1, map[string]*dispatch.Dispatcher{"events": d}, freed, func(string, int) {})
	f.spillEnabled = spills
	in := make(chan capture.Batch)
	end := runParts(t, d.Run, func(ctx context.Context) error { return f.run(ctx, in) }, func(ctx context.Context) error {
		for i := range rows {
			batch := capture.Batch{Position: store.Position(fmt.Sprintf("%06d", i)), Items: rowsOf("events", fmt.Sprint(i%1000), fmt.Sprint(i))}
			select {
			case in <- batch:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	most, began := 0, time.Now()
	for range 300 {
		f.setLogPressure(spills)
		if spills {
			d.Spill(time.Since(began) > 2*time.Second)
		}
		advance(200 * time.Millisecond)
		most = max(most, d.Stats().Rows)
	}
	sent, _ := k.count(0)
	t.Logf("%d rows in memory at the most, %d sent, %d spilled", most, sent, d.Stats().Spilled)
	// The buffer, the rows in it when the first outcome was refused, half a buffer of
	// refused outcomes and half a buffer of reloaded rows. Requests in flight come on top,
	// twice: which rows go out while outcomes are tried one by one depends on the scheduler.
	held := maxBufferFactor*buffer + 2*inFlight
	if most > 2*held+buffer || sent > held+buffer {
		t.Errorf("%d rows in memory, at most %d wanted; %d were sent, at most %d wanted", most, 2*held+buffer, sent, held+buffer)
	}
	if n := d.Stats().Bytes; n > int64(2*held) { // two per row
		t.Errorf("%d bytes of payload are held", n)
	}
	read, _ := tracker.LastRead()
	if cp, _ := tracker.Watermark(); spills {
		expectEqual(t, "read", read, fmt.Sprintf("%06d", rows-1))
		expectEqual(t, "checkpoint", cp.Position, read)
	} else if k.rowsSpilled > 0 || d.Stats().Rows > buffer+inFlight {
		t.Errorf("%d rows were spilled, %d are in memory", k.rowsSpilled, d.Stats().Rows)
	}
	k.set(func() { k.refusesOutcome = false })
	advance(10 * time.Minute)
	expectEqual(t, "rows in memory, spilled", []int{d.Stats().Rows, d.Stats().Spilled}, "[0 0]")
	k.set(func() { expectEqual(t, "rows sent", len(k.sent), rows) })
	end()
}
