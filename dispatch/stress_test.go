package dispatch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// memStore is a store in memory. Statements take a little time before and after they
// commit.
type memStore struct {
	spilledTable
	mu    sync.Mutex
	rows  map[string]store.Status
	items map[string]store.Item
	holds map[store.LaneKey]store.Hold
	pause map[store.LaneKey]bool
}

func sleepBriefly() { <-time.After(time.Duration(1+rand.IntN(300)) * time.Microsecond) }

func (s *memStore) do(f func()) { sleepBriefly(); s.mu.Lock(); f(); s.mu.Unlock(); sleepBriefly() }

func (s *memStore) ReadUntried(_ context.Context, rows []store.ClaimRow) (untried []bool, _ error) {
	s.do(func() {
		for _, r := range rows {
			untried = append(untried, s.rows[r.ID] == store.Pending)
		}
	})
	return untried, nil
}

func (s *memStore) Claim(_ context.Context, _ store.Epoch, _ time.Time, rows []store.ClaimRow) (out []store.ClaimAnswer, _ error) {
	s.do(func() {
		for _, r := range rows {
			a := store.ClaimAnswer{Result: store.Claimed}
			switch st, ok := s.rows[r.ID]; {
			case !ok:
				a.Result = store.Gone
			case st.Settled():
				a.Result = store.AlreadySettled
			default:
				s.rows[r.ID] = store.Processing
			}
			out = append(out, a)
		}
	})
	return out, nil
}

// AwaitTable returns at once, because no table is locked.
func (s *memStore) AwaitTable(context.Context, string) error { return nil }

func (s *memStore) Settle(_ context.Context, _ store.Epoch, os []store.Outcome) (out []store.SettleResult, _ error) {
	s.do(func() {
		for _, o := range os {
			st, ok := s.rows[o.ID]
			r := store.Written
			switch {
			case !ok:
				r = store.WasGone
			case st.Settled():
				r = store.WasSettled
			default:
				s.rows[o.ID] = o.Status
			}
			if o.Block != nil && s.rows[o.ID] == store.Failed {
				s.holds[o.Block.Lane] = o.Hold()
			}
			out = append(out, r)
		}
	})
	return out, nil
}
func (s *memStore) LoadHolds(context.Context) ([]store.Hold, error) { return nil, nil }
func (s *memStore) Hold(_ context.Context, _ store.Epoch, h store.Hold) error {
	s.do(func() { s.pause[h.Lane] = true })
	return nil
}
func (s *memStore) Release(_ context.Context, _ store.Epoch, l store.LaneKey, k store.HoldKind) error {
	s.do(func() {
		if k == store.Paused {
			delete(s.pause, l)
		} else {
			delete(s.holds, l)
		}
	})
	return nil
}
func (s *memStore) CountFailed(context.Context, store.DeadLetterFilter) (int, error) { return 0, nil }
func (s *memStore) Failed(context.Context, store.DeadLetterFilter, int, bool) ([]store.DeadLetter, error) {
	return nil, nil
}
func (s *memStore) some(limit int, do func(id string)) (items []store.Item) {
	s.do(func() {
		for id, st := range s.rows {
			if st == store.Failed && len(items) < limit {
				it := s.items[id]
				it.Payload, it.Txn = nil, 0
				items = append(items, it)
				do(id)
				for l, h := range s.holds {
					if h.ID == id {
						delete(s.holds, l)
					}
				}
			}
		}
	})
	return items
}
func (s *memStore) Requeue(_ context.Context, _ store.Epoch, _ store.DeadLetterFilter, limit int) ([]store.Item, error) {
	return s.some(limit, func(id string) { s.rows[id] = store.Pending }), nil
}
func (s *memStore) Discard(_ context.Context, _ store.Epoch, _ store.DeadLetterFilter, limit int) (refs []store.Ref, _ error) {
	for _, it := range s.some(limit, func(id string) { delete(s.rows, id) }) {
		refs = append(refs, it.Ref)
	}
	return refs, nil
}

type flaky struct{ sink.Sink }

func (flaky) Limits(string) sink.Limits {
	return sink.Limits{Mode: sink.Atomic, MaxItems: 10, MaxBytes: 1 << 20}
}
func (flaky) Deliver(context.Context, []sink.Message) sink.Result {
	sleepBriefly()
	c := sink.Delivered
	switch rand.IntN(6) {
	case 0:
		c = sink.Rejected
	case 1:
		c = sink.Unavailable
	}
	return sink.Result{Outcome: sink.Outcome{Class: c, Detail: "x"}}
}

// Operators do everything at once beside a flaky sink. No row may stay in the table that no
// lane knows.
func TestOperatorsBesideFlakySink(t *testing.T) {
	for _, mode := range []OnFailed{Continue, Block} {
		t.Run(string(mode), func(t *testing.T) {
			s := &memStore{rows: map[string]store.Status{}, items: map[string]store.Item{}, holds: map[store.LaneKey]store.Hold{}, pause: map[store.LaneKey]bool{}}
			cfg := DefaultConfig()
			cfg.OnFailed, cfg.MaxRetries, cfg.Backoff.Initial, cfg.Backoff.Max = mode, 0, time.Millisecond, 4*time.Millisecond
			d := New(cfg, Options{Store: s, Sink: flaky{}, Observer: newFakeBackend(), Epoch: 1, DrainTimeout: time.Second})
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- d.Run(ctx) }()
			acting, stop := context.WithTimeout(context.Background(), 2*time.Second)
			defer stop()
			var wg sync.WaitGroup
			act := func(f func()) {
				wg.Go(func() {
					for acting.Err() == nil {
						f()
						sleepBriefly()
					}
				})
			}
			lane := func() LaneName { return nameOf(fmt.Sprint("g", rand.IntN(20))) }
			n := 0
			act(func() {
				if d.Room() < 9000 {
					return
				}
				n++
				id := fmt.Sprint(n)
				it := items(fmt.Sprint("g", n%20), id)
				s.mu.Lock()
				s.rows[id], s.items[id] = store.Pending, it[0]
				s.mu.Unlock()
				d.Append(it, nil)
			})
			act(func() {
				c, stop := context.WithTimeout(acting, 50*time.Millisecond)
				defer stop()
				_ = d.Skip(c, lane(), "x")
			})
			act(func() { l := lane(); _ = d.Pause(acting, l, "x"); sleepBriefly(); _ = d.Resume(acting, l) })
			act(func() { _, _ = d.Requeue(acting, store.DeadLetterFilter{}, 10, true) })
			act(func() { _, _ = d.Discard(acting, store.DeadLetterFilter{}, 1); <-time.After(5 * time.Millisecond) })
			act(func() { _ = d.RetryNow(lane()); d.Stats(); d.Lanes(LaneFilter{}, 10); d.Held("events") })
			wg.Wait()
			// After the last action: release all holds and requeue FAILED rows until all is
			// done.
			for i := 0; i < 300 && d.Stats().Rows > 0; i++ {
				for g := range 20 {
					l := nameOf(fmt.Sprint("g", g))
					_ = d.Resume(ctx, l)
					if in, _ := d.Lanes(LaneFilter{Group: &l.Group, State: "blocked"}, 1); len(in) > 0 {
						_ = d.Skip(ctx, l, "x")
					}
				}
				<-time.After(10 * time.Millisecond)
			}
			held := map[string]bool{}
			for _, id := range d.Held("events") {
				held[id] = true
			}
			count := map[string]int{}
			s.mu.Lock()
			for id, st := range s.rows {
				if !st.Settled() && !held[id] {
					count["lost "+st.String()]++
				}
				count[st.String()]++
			}
			t.Logf("%d rows: %v; left %d; stats %+v", n, count, len(held), d.Stats())
			if count["lost PENDING"]+count["lost PROCESSING"] > 0 {
				t.Errorf("rows lost")
			}
			s.mu.Unlock()
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
