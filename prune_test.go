package sluicebox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// fakeTables is a fake of tables with delivered rows, by their age. It records the
// calls.
type fakeTables struct {
	mu    sync.Mutex
	began time.Time
	rows  map[string][]time.Time
	takes time.Duration
	calls []time.Duration // end of each call
	walks []string        // outbox and time of each call that starts a pass
	fail  func(p store.PruneRequest) (store.PruneResult, error)
	seen  []string
	ahead time.Duration // the database's clock minus the relay's
}

func (a *fakeTables) Clock(context.Context) (time.Time, error) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.ahead == clockFails {
		return time.Time{}, errors.New("away")
	}
	return time.Now().Add(a.ahead), nil
}

// clockFails makes fakeTables fail to return its clock.
const clockFails = time.Duration(-1)

func (a *fakeTables) Prune(_ context.Context, epoch store.Epoch, p store.PruneRequest) (store.PruneResult, error) {
	if p.From == "" {
		a.set(func() { a.walks = append(a.walks, fmt.Sprint(p.Outbox, " ", time.Since(a.began).Round(time.Second))) })
	}

	time.Sleep(a.takes) // fake time
	a.mu.Lock()
	defer a.mu.Unlock()

	a.calls = append(a.calls, time.Since(a.began))
	if epoch != 7 || p.Limit != 500 {
		return store.PruneResult{}, fmt.Errorf("epoch %d, limit %d", epoch, p.Limit)
	}
	if a.fail != nil {
		if done, err := a.fail(p); err != nil {
			return done, err
		}
	}

	var done store.PruneResult
	a.rows[p.Outbox] = slices.DeleteFunc(a.rows[p.Outbox], func(at time.Time) bool {
		old := at.Before(p.Before) && done.Rows < p.Limit
		if old {
			done.Rows++
		}
		return old
	})

	if from, _ := strconv.Atoi(p.From); from < 3 { // parts of the table
		done.Next = strconv.Itoa(from + 1)
		if done.Rows == p.Limit {
			done.Next = strconv.Itoa(from)
		}
	}

	return done, nil
}

func (a *fakeTables) set(change func()) { a.mu.Lock(); defer a.mu.Unlock(); change() }

func (a *fakeTables) Pruned(outbox string, rows int) {
	a.set(func() { a.seen = append(a.seen, fmt.Sprint(outbox, " ", rows)) })
}

func (a *fakeTables) PruneFailed(outbox string, err error) {
	a.set(func() { a.seen = append(a.seen, fmt.Sprint(outbox, " ", err)) })
}

// withPruner prepares the tables, and runs a pruner in fake time while the test runs.
func withPruner(t *testing.T, want error, prepare, test func(a *fakeTables)) {
	synctest.Test(t, func(t *testing.T) {
		a := &fakeTables{began: time.Now(), rows: map[string][]time.Time{}, takes: 20 * time.Millisecond}
		for range 1200 {
			a.rows["week"] = append(a.rows["week"], a.began.Add(-8*24*time.Hour))
			a.rows["ever"] = append(a.rows["ever"], a.began.Add(-80*24*time.Hour))
		}
		r := &pruner{
			tables: a, epoch: 7, pruned: a.Pruned, failed: a.PruneFailed,
			outboxes: []store.Outbox{{Name: "ever"}, {Name: "week", Retention: 7 * 24 * time.Hour}, {Name: "hour", Retention: time.Hour}},
		}
		prepare(a)
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- r.run(ctx) }()
		test(a)
		cancel()
		if err := <-ran; !errors.Is(err, want) {
			t.Errorf("run returned %v, want %v", err, want)
		}
	})
}

func TestPruner(t *testing.T) {
	withPruner(t, context.Canceled, func(a *fakeTables) {
		a.rows["hour"] = append(a.rows["hour"], a.began.Add(-30*time.Minute))
	}, func(a *fakeTables) {
		time.Sleep(59*time.Minute + time.Millisecond)
		a.mu.Lock()
		if n := len(a.rows["week"]); n != 0 {
			t.Errorf("%d rows left", n)
		}
		if n := len(a.rows["ever"]); n != 1200 {
			t.Errorf("%d of 1200 rows left of an outbox without a retention", n)
		}
		if fmt.Sprint(a.seen) != "[week 500 week 500 week 200]" {
			t.Errorf("seen: %v", a.seen)
		}
		for i, at := range a.calls[1:6] { // of one pass
			if pause := at - a.calls[i] - a.takes; pause < 200*time.Millisecond {
				t.Errorf("the pause after a batch of 20 ms was %s", pause)
			}
		}
		a.mu.Unlock()
		time.Sleep(2*time.Hour + time.Millisecond)
		a.mu.Lock()
		defer a.mu.Unlock()
		want := "[week 0s hour 1s week 1h0m2s hour 1h0m2s week 2h0m3s hour 2h0m4s]"
		if fmt.Sprint(a.walks) != want {
			t.Errorf("walks: %v, want %s", a.walks, want)
		}
		if n := len(a.rows["hour"]); n != 0 {
			t.Error("an expired row is left")
		}
	})
}

// TestPrunerUsesEarlierClock: a row is deleted when it is old by both clocks, the
// relay's and the database's. Either may be ahead by more than the retention.
func TestPrunerUsesEarlierClock(t *testing.T) {
	for _, ahead := range []time.Duration{-10 * 365 * 24 * time.Hour, 10 * 365 * 24 * time.Hour, clockFails} {
		withPruner(t, context.Canceled, func(a *fakeTables) {
			// A row that is old by one clock alone is young by the other.
			a.ahead = ahead
			for i := range a.rows["week"] {
				a.rows["week"][i] = time.Now().Add(min(ahead, 0) - time.Hour)
			}
		}, func(a *fakeTables) {
			time.Sleep(3 * time.Hour)
			a.mu.Lock()
			defer a.mu.Unlock()
			if n := len(a.rows["week"]); n != 1200 {
				t.Errorf("the database's clock is ahead by %s: %d of 1200 rows left", ahead, n)
			}
			if ahead == clockFails && len(a.seen) == 0 {
				t.Error("clock failure not reported")
			}
		})
	}
}

// TestPrunerRetries: a refused part is skipped and retried in the next pass. An
// unreachable database is retried soon, and both outboxes continue.
func TestPrunerRetries(t *testing.T) {
	withPruner(t, context.Canceled, func(a *fakeTables) {
		a.fail = func(p store.PruneRequest) (store.PruneResult, error) {
			if p.Outbox == "week" && p.From == "" {
				return store.PruneResult{Next: "1"}, &store.RefusedError{Err: errors.New("a trigger objects")}
			}
			return store.PruneResult{}, nil
		}
	}, func(a *fakeTables) {
		time.Sleep(30 * time.Minute)
		a.mu.Lock()
		if n := len(a.rows["week"]); n != 0 || fmt.Sprint(a.seen) != "[week a trigger objects week 500 week 500 week 200]" {
			t.Errorf("%d rows left, %v", n, a.seen)
		}
		if len(a.walks) != 2 {
			t.Errorf("walks: %v", a.walks)
		}
		a.mu.Unlock()
		a.set(func() {
			a.fail = func(store.PruneRequest) (store.PruneResult, error) { return store.PruneResult{}, errors.New("away") }
			a.seen, a.walks = nil, nil
		})
		time.Sleep(35 * time.Minute)
		a.mu.Lock()
		defer a.mu.Unlock()
		if n := len(a.walks); n < 6 || n > 14 || fmt.Sprint(a.seen[:2]) != "[week away hour away]" {
			t.Errorf("in 5 minutes without a database: %v, %v", a.walks, a.seen)
		}
	})
}

func TestPrunerEndsWithLeadership(t *testing.T) {
	withPruner(t, store.ErrNotLeader, func(*fakeTables) {}, func(a *fakeTables) {
		time.Sleep(time.Minute)
		a.set(func() {
			a.fail = func(store.PruneRequest) (store.PruneResult, error) {
				return store.PruneResult{}, fmt.Errorf("prune: %w", store.ErrNotLeader)
			}
		})
		time.Sleep(time.Hour)
	})
}

// flow is a table into which rows past their retention flow. A deletion takes a time per
// call and a time per row.
type flow struct {
	began       time.Time
	rate        int // rows per second
	perCall     time.Duration
	perRow      time.Duration
	deleted     int
	limits      []int
	busy        time.Duration
	refusesOver int // batches with more rows; 0 is none
	refused     int
}

func (f *flow) Clock(context.Context) (time.Time, error) { return time.Now(), nil }

func (f *flow) left() int { return int(time.Since(f.began).Seconds()*float64(f.rate)) - f.deleted }

func (f *flow) Prune(_ context.Context, _ store.Epoch, p store.PruneRequest) (store.PruneResult, error) {
	n := min(p.Limit, f.left())
	took := f.perCall + time.Duration(n)*f.perRow
	time.Sleep(took) // fake time
	f.busy += took
	f.limits = append(f.limits, p.Limit)
	if f.refusesOver > 0 && n > f.refusesOver {
		f.refused++
		return store.PruneResult{Next: "later"}, &store.RefusedError{Err: errors.New("a trigger objects")}
	}
	f.deleted += n
	if n < p.Limit {
		return store.PruneResult{Rows: n}, nil
	}
	return store.PruneResult{Rows: n, Next: "more"}, nil
}

// runFlow runs a pruner on a flow for some time.
func runFlow(t *testing.T, f *flow, d time.Duration, check func(t *testing.T, failures int)) {
	synctest.Test(t, func(t *testing.T) {
		f.began = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		failures := 0
		r := &pruner{
			tables: f, pruned: func(string, int) {}, failed: func(string, error) { failures++ },
			outboxes: []store.Outbox{{Name: "a", Retention: time.Hour}},
		}
		if err := r.run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("run returned %v", err)
		}
		check(t, failures)
	})
}

// TestPrunerKeepsUp: as many rows as the relay delivers are deleted, at an eleventh of a
// core where that is enough, and at half of one where it is not.
func TestPrunerKeepsUp(t *testing.T) {
	for name, c := range map[string]struct {
		flow
		share float64 // of a core, at most
	}{
		"quiet": {flow{rate: 100, perCall: 2 * time.Millisecond, perRow: 5 * time.Microsecond}, 0.01},
		"busy":  {flow{rate: 10_000, perCall: 2 * time.Millisecond, perRow: 5 * time.Microsecond}, 0.1},
		"full":  {flow{rate: 46_000, perCall: 2 * time.Millisecond, perRow: 5 * time.Microsecond}, 0.4},
		"slow":  {flow{rate: 5_000, perCall: 2 * time.Millisecond, perRow: 50 * time.Microsecond}, 0.4},
	} {
		t.Run(name, func(t *testing.T) {
			const d = 6 * time.Hour // the fullest table catches up in the fifth
			runFlow(t, &c.flow, d, func(t *testing.T, _ int) {
				if hours := float64(c.left()) / float64(c.rate) / 3600; hours > d.Hours()/3 {
					t.Errorf("rows stay for %.1f h after their retention", hours)
				}
				if share := float64(c.busy) / float64(d); share > c.share {
					t.Errorf("pruning takes %.2f of a core, want at most %.2f", share, c.share)
				}
			})
		})
	}
}

// TestPruneBatches: a batch takes 5 to 20 ms where its bounds allow that.
func TestPruneBatches(t *testing.T) {
	for perRow, want := range map[time.Duration]int{
		0:                      maxPruneRows,
		4 * time.Microsecond:   1000,
		2 * time.Millisecond:   minPruneRows,
		200 * time.Microsecond: minPruneRows,
	} {
		t.Run(perRow.String(), func(t *testing.T) {
			f := &flow{deleted: -1e9, rate: 1, perCall: time.Millisecond, perRow: perRow}
			runFlow(t, f, time.Minute, func(t *testing.T, _ int) {
				if got := f.limits[len(f.limits)-1]; got != want {
					t.Errorf("rows of a batch: got %d, want %d", got, want)
				}
			})
		})
	}
}

// TestARefusedBatchIsMadeSmaller: a row that cannot be deleted keeps only the rows of a
// small batch, and the refusal of a larger one is no failure.
func TestARefusedBatchIsMadeSmaller(t *testing.T) {
	f := &flow{rate: 1000, refusesOver: minPruneRows}
	runFlow(t, f, 10*time.Hour, func(t *testing.T, failures int) {
		if f.refused == 0 || failures > 0 || f.left() > 2*3600*f.rate {
			t.Errorf("refused %d, failures %d, left %d", f.refused, failures, f.left())
		}
	})
}
