package dispatch

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// runRestarted runs a dispatcher that starts with spilled rows.
func runRestarted(t *testing.T, cfg Config, spilled []store.Item, test func(k *fakeBackend, d *Dispatcher)) {
	runRestartedSink(t, cfg, spilled, func(k *fakeBackend) sink.Sink { return k }, test)
}

// runRestartedSink is runRestarted with a sink built from the backend.
func runRestartedSink(t *testing.T, cfg Config, spilled []store.Item, made func(*fakeBackend) sink.Sink, test func(k *fakeBackend, d *Dispatcher)) {
	synctest.Test(t, func(t *testing.T) {
		k := newFakeBackend()
		_ = k.Spill(context.Background(), 1, spilled)
		opt := k.options(2)
		opt.Sink = made(k)
		d := New(cfg, opt)
		d.RestoreSpilled(k.lanes()...)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		test(k, d)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// delivered counts the delivered rows of groups with a prefix.
func (d *fakeBackend) delivered(prefix byte) int {
	seen := map[string]bool{}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range d.outcomes {
		if o.Status == store.Completed && o.ID[0] == prefix {
			seen[o.ID] = true
		}
	}
	return len(seen)
}

// Groups that crash the receiver are reloaded first. The good groups, all spilled, must be
// reloaded too.
func TestBadLanesDoNotStarveSpilledLanes(t *testing.T) {
	for _, class := range []sink.Class{sink.Unavailable, sink.Refused, sink.Misconfigured} {
		t.Run(class.String(), func(t *testing.T) {
			cfg := DefaultConfig() // a buffer of 10000
			var rows []store.Item
			for i := range 40 {
				rows = append(rows, items(fmt.Sprint("p", i), fmt.Sprint("p", i))...)
			}
			for i := range 300 {
				rows = append(rows, items(fmt.Sprint("w", i), fmt.Sprint("w", i))...)
			}
			runRestarted(t, cfg, rowsWithSeq(1, rows), func(k *fakeBackend, d *Dispatcher) {
				k.set(func() {
					k.answer = func(ids []string) sink.Result {
						for _, id := range ids {
							if id[0] == 'p' {
								return always(class)(ids)
							}
						}
						return always(sink.Delivered)(ids)
					}
				})
				k.advance(2 * time.Hour)
				if n := k.delivered('w'); n < 300 {
					t.Errorf("%d of 300 rows of well groups were delivered in two hours: %+v", n, d.Stats())
				}
			})
		})
	}
}

// The same with reloads of 10 ms. The breaker opens before the good lanes are in memory,
// and then only 32 lanes are kept in memory.
func TestProbesReachSpilledLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &slowSpill{fakeBackend: newFakeBackend(), spilling: 10 * time.Millisecond}
		var rows []store.Item
		for i := range 450 {
			rows = append(rows, items(fmt.Sprint("p", i), fmt.Sprint("p", i))...)
		}
		for i := range 300 {
			rows = append(rows, items(fmt.Sprint("w", i), fmt.Sprint("w", i))...)
		}
		_ = k.fakeBackend.Spill(context.Background(), 1, rowsWithSeq(1, rows))
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				for _, id := range ids {
					if id[0] == 'p' {
						return always(sink.Unavailable)(ids)
					}
				}
				return always(sink.Delivered)(ids)
			}
		})
		d := New(DefaultConfig(), k.options(2))
		d.RestoreSpilled(k.lanes()...)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		k.advance(24 * time.Hour)
		if n := k.delivered('w'); n < 300 {
			t.Errorf("%d of 300 rows of well groups were delivered in a day: %+v", n, d.Stats())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// The receiver works, but it fails on as many groups as half the buffer holds.
func TestFailingLanesLeaveRoomForReloads(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows = 100
	var rows []store.Item
	for i := range 60 {
		rows = append(rows, items(fmt.Sprint("p", i), fmt.Sprint("p", i), fmt.Sprint("p", i, "b"))...)
	}
	for i := range 60 {
		rows = append(rows, items(fmt.Sprint("w", i), fmt.Sprint("w", i))...)
	}
	runRestarted(t, cfg, rowsWithSeq(1, rows), func(k *fakeBackend, d *Dispatcher) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				for _, id := range ids {
					if id[0] == 'p' {
						return always(sink.Unavailable)(ids)
					}
				}
				return always(sink.Delivered)(ids)
			}
		})
		live := 0
		for range 600 { // other groups move all the time: the breaker soon closes again
			live++
			add(t, d, nil, rowsWithSeq(1000+live, items(fmt.Sprint("l", live%50), fmt.Sprint("l", live))))
			k.advance(100 * time.Millisecond)
		}
		k.advance(time.Hour)
		if n := k.delivered('w'); n < 60 {
			t.Errorf("%d of 60 rows of good spilled groups were delivered (and %d of %d live ones): %+v", n, k.delivered('l'), live, d.Stats())
		}
	})
}

// slowSpill is a backend whose spill statements are slow.
type slowSpill struct {
	*fakeBackend
	spilling time.Duration
	log      []string // "spill" or "read", with the number of rows
}

func (s *slowSpill) Spill(ctx context.Context, e store.Epoch, rows []store.Item) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(s.spilling):
	}
	return s.fakeBackend.Spill(ctx, e, rows)
}

func (s *slowSpill) ReadSpilled(ctx context.Context, from []store.SpilledRange, each int) ([][]store.Item, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(s.spilling):
	}
	answers, err := s.fakeBackend.ReadSpilled(ctx, from, each)
	n := 0
	for _, a := range answers {
		n += len(a)
	}
	s.set(func() { s.log = append(s.log, fmt.Sprint("read ", n)) })
	return answers, err
}

// A lane that was spilled while its receiver was down is reloaded although new rows keep
// coming.
func TestLaneWithSteadyInflowIsReloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.BufferRows = 100
		k := &slowSpill{fakeBackend: newFakeBackend(), spilling: 10 * time.Millisecond}
		opt := k.options(1)
		opt.Store = k
		d := New(cfg, opt)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		k.set(func() { k.answer = always(sink.Unavailable) })
		n := 0
		more := func(rows int) {
			for range rows {
				n++
				add(t, d, nil, rowsWithSeq(n, items("a", fmt.Sprint("w", n))))
				k.advance(4 * time.Millisecond) // 250 rows per second in one group
			}
		}
		more(150)
		d.SpillExcess(true)
		more(1500)
		k.set(func() { k.answer = always(sink.Delivered) })
		more(250 * 20) // 20 s with a working receiver
		if got := k.delivered('w'); got < n/2 {
			t.Errorf("%d of %d rows were delivered after 20 s with a working receiver: %+v, behind %d", got, n, d.Stats(), n-got)
			d.mu.Lock()
			for _, l := range d.core.live() {
				t.Logf("lane %s: %s, %d rows, spilling %d, shrinking %v, has spilled %v", l.Name, l.StateName(), len(l.Rows), l.Spilling, d.core.isShrinking(l), l.HasSpilled)
			}
			d.mu.Unlock()
		}
		k.advance(time.Minute)
		if got := k.delivered('w'); got < n {
			t.Errorf("%d of %d rows were delivered a minute after the last one came", got, n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A requeued row gets a seq when the log delivers it again. If it is then spilled, the
// reload must not add it a second time.
func TestRequeuedRowFromLogIsNotReloadedTwice(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows = 10
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		lane := LaneName{LaneKey: store.LaneKey{Outbox: "events", Kind: "EVENT", Group: store.GroupOf("a")}}
		if err := d.Pause(context.Background(), lane, "wait"); err != nil {
			t.Fatal(err)
		}
		k.set(func() { k.operated.failed = items("a", "r") })
		if _, err := d.Requeue(context.Background(), store.DeadLetterFilter{}, 1, true); err != nil {
			t.Fatal(err)
		}
		add(t, d, nil, rowsWithSeq(1, items("a", "r"))) // behind the checkpoint of the last session
		add(t, d, nil, rowsWithSeq(2, numberedRows("a", 12)))
		k.advance(time.Second)
		d.SpillExcess(true)
		k.advance(time.Second)
		if err := d.Resume(context.Background(), lane); err != nil {
			t.Fatal(err)
		}
		k.advance(time.Hour)
		k.expect(t, "sent", slices.Concat(k.requests...), "[r 0 1 2 3 4 5 6 7 8 9 10 11]")
	})
}

// Ungrouped rows in parallel: a spilled row that another session settled and an operator
// requeued is kept.
func TestRequeuedSpilledRowIsKept(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Ungrouped, cfg.BufferRows = Parallel, 10
	c := newTestCore(cfg, func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 10, MaxBytes: 1000} }, func() float64 { return 0 })
	row := items("", "1")[0]
	row.Group = store.Group{}
	row.Seq = 1
	var table spilledTable
	_ = table.Spill(context.Background(), 1, []store.Item{row})
	c.addSpilledLanes(table.lanes())
	again := row
	again.Seq = 0
	c.requeue([]store.Item{again}) // a processor beside the relay marked it FAILED
	from, each := c.nextReloads(time.Unix(1, 0))
	answers, _ := table.ReadSpilled(context.Background(), from, each)
	c.addReloaded(answers, each)
	for _, l := range c.lanesByAge() {
		c.shrink(l, 0) // the buffer is full
	}
	for range 5 {
		if from, each := c.nextReloads(time.Unix(2, 0)); len(from) > 0 {
			answers, _ := table.ReadSpilled(context.Background(), from, each)
			c.addReloaded(answers, each)
		}
	}
	if len(c.live()) == 0 && table.has("1") {
		t.Errorf("row 1 is PENDING and spilled, so no sweep finds it; and no lane knows it: %d lanes, spilled lanes %v", len(c.live()), c.hasSpilledLanes())
	}
}

// The head of a paused lane can be skipped while it is in memory, and also once the lane is
// spilled.
func TestSkipHeadOfPausedSpilledLane(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows = 10
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		lane := LaneName{LaneKey: store.LaneKey{Outbox: "events", Kind: "EVENT", Group: store.GroupOf("a")}}
		if err := d.Pause(context.Background(), lane, "wait"); err != nil {
			t.Fatal(err)
		}
		add(t, d, nil, rowsWithSeq(1, numberedRows("a", 12)))
		k.advance(time.Second)
		d.SpillExcess(false)
		k.advance(time.Second)
		var err error
		for range 10 { // the error asks for a retry
			if err = d.Skip(context.Background(), lane, "known"); err == nil {
				return
			}
			k.advance(time.Minute)
		}
		t.Errorf("after ten tries in ten minutes: %v", err)
	})
}

// A replay must not starve spilled lanes either: its lanes are not among those an open
// breaker keeps in memory.
func TestReplayDoesNotStarveSpilledLanes(t *testing.T) {
	limits := func(string) sink.Limits { return sink.Limits{Mode: sink.Atomic, MaxItems: 1, MaxBytes: 1 << 20} }
	c, now := newTestCore(DefaultConfig(), limits, func() float64 { return 0 }), time.Unix(1e9, 0)
	c.replay("job", replayOf(1, rowsInOwnGroups(2*maxProbeLanes)))
	for !isOpen(c.endpoints()[0]) {
		c.nextClaims(maxStatementRows, now)
		for req := c.nextRequest(now); req != nil; req = c.nextRequest(now) {
			c.answered(req, &sink.Result{Outcome: sink.Outcome{Class: sink.Unavailable}}, now)
		}
		now = now.Add(time.Minute)
		c.tick(now)
	}
	key := group("w")
	c.addSpilledLanes([]store.SpilledLane{{Outbox: "events", Kind: "EVENT", Hash: key.Hash(), Rows: 1}})
	from, _ := c.nextReloads(now)
	if len(from) != 1 {
		t.Fatalf("%d lanes are read back beside %d that are replayed", len(from), c.endpoints()[0].ReplayLanes)
	}
	c.addReloaded([][]store.Item{rowsWithSeq(1, items("w", "well"))}, 1)
	if l := c.live()[nameOf("w")]; l == nil || l.State != laneReady {
		t.Errorf("no retry is due for the lane: %+v", l)
	}
}
