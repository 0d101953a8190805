package dispatch

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Each step of the search is one request, whether it finds the row among the rows it sends
// or among the rest.
func TestBisectFindsPoisonedRow(t *testing.T) {
	const rows, halvings = 64, 6
	for poison := range rows {
		id := fmt.Sprint(poison)
		t.Run(id, func(t *testing.T) {
			cfg := DefaultConfig()
			drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				k.set(func() { k.answer = poisoned(id) })
				var c counter
				add(t, d, &c, numberedRows("a", rows))
				k.advance(time.Minute)
				k.expect(t, "rows done", c.n, rows)
				search, alone, sound := 0, 0, 0
				for i, ids := range k.requests {
					switch {
					case !slices.Contains(ids, id):
						sound += len(ids)
					case len(ids) == 1:
						alone++
					default:
						search = i + 1
					}
				}
				k.expect(t, "rows sent where they were taken", sound, rows-1)
				k.expect(t, "requests of the row alone", alone, 1+cfg.MaxRetries)
				if search > 1+halvings {
					t.Errorf("%d requests until it was alone: %v", search, k.requests)
				}
				k.expect(t, "FAILED", failedIDs(k.outcomes), []string{id})
			})
		})
	}
}

// A row that its destination can never take is FAILED at the first attempt, and its group goes on.
func TestFinalRejectionFailsAtOnce(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				res := poisoned("1")(ids)
				res.Final = res.Class == sink.Rejected
				return res
			}
		})
		add(t, d, nil, numberedRows("a", 3))
		k.advance(time.Minute)
		alone := 0
		for _, ids := range k.requests {
			if slices.Equal(ids, []string{"1"}) {
				alone++
			}
		}
		k.expect(t, "requests of the row alone", alone, 1)
		k.expect(t, "FAILED", failedIDs(k.outcomes), []string{"1"})
		k.expect(t, "outcomes", len(k.outcomes), 3)
	})
}

// failedIDs returns the ids of the FAILED rows.
func failedIDs(outcomes []store.Outcome) (ids []string) {
	for _, o := range outcomes {
		if o.Status == store.Failed {
			ids = append(ids, o.ID)
		}
	}
	return ids
}

func TestRunsGrowAfterSuccess(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = poisoned("0") })
		add(t, d, nil, numberedRows("a", 64))
		k.advance(time.Minute)
		var sizes []int
		for _, ids := range k.requests {
			sizes = append(sizes, len(ids))
		}
		k.expect(t, "rows of each request", sizes, "[64 32 16 8 4 2 1 1 1 1 63]")
	})
}

func TestRefusedBatchIsBisected(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				if len(ids) > 2 {
					return always(sink.Refused)(ids)
				}
				return always(sink.Delivered)(ids)
			}
		})
		add(t, d, nil, items("a", "1", "2", "3"))
		k.advance(time.Minute)
		k.expect(t, "requests", k.requests, "[[1 2 3] [1] [2] [3]]")
	})
}

func TestCountedRetryIsWrittenAndWaits(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		rejection := sink.Outcome{Class: sink.Rejected, Reason: 3, Detail: "no such account"}
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				if ids[0] == "3" {
					return always(sink.Delivered)(ids)
				}
				res := sink.Result{Items: []sink.Outcome{rejection}}
				for range ids[1:] {
					res.Items = append(res.Items, sink.Outcome{Class: sink.NotSent})
				}
				return res
			}
		})
		add(t, d, nil, items("a", "1", "2", "3"))
		k.advance(time.Minute)
		ms := time.Millisecond
		if len(k.requestTimes) != 9 {
			t.Fatalf("%d requests: %v", len(k.requestTimes), k.requests)
		}
		expectBackoffs(t, k.requestTimes[:4], 200*ms, 400*ms, 800*ms)
		if gap := k.requestTimes[4] - k.requestTimes[3]; gap > 10*ms {
			t.Errorf("the next row left %s after the last attempt of the first", gap)
		}
		expectBackoffs(t, k.requestTimes[4:8], 200*ms, 400*ms, 800*ms) // restarted
		for i, o := range k.outcomes[:8] {
			want := store.Outcome{
				Ref: store.Ref{Outbox: "events", ID: fmt.Sprint(1 + i/4)}, Status: store.Pending, RetryCount: i%4 + 1,
				Error: rejection.Detail, Reason: rejection.Reason, At: k.began.Add(k.requestTimes[i]),
			}
			if i%4 == 3 {
				want.Status, want.RetryCount = store.Failed, 3
				if o.Row == nil || o.Row.Ref != want.Ref || o.Row.Group.Name != "a" || o.Row.Payload != nil {
					t.Errorf("row of the outcome FAILED: %+v", o.Row)
				}
				o.Row = nil
			}
			k.expect(t, "outcome", o, want)
		}
		k.expect(t, "last outcome", k.outcomes[8], store.Outcome{
			Ref: store.Ref{Outbox: "events", ID: "3"}, Status: store.Completed, At: k.began.Add(k.requestTimes[8]),
		})
	})
}

func TestBackoffDoublesUpToCap(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Backoff.Max = time.Second
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = always(sink.Unavailable) })
		add(t, d, nil, items("a", "1"))
		k.advance(10 * time.Second)
		ms := time.Millisecond
		expectBackoffs(t, k.requestTimes[:5], 200*ms, 400*ms, 800*ms, 1000*ms)
		expectBackoffs(t, k.requestTimes[4:], 200*ms, 400*ms, 800*ms, 1000*ms, 1000*ms) // breaker open
		k.set(func() { k.answer = always(sink.Delivered) })
		add(t, d, nil, items("a", "2"))
		k.advance(10 * time.Second)
		k.set(func() { k.answer, k.requestTimes = always(sink.Unavailable), nil })
		add(t, d, nil, items("a", "3"))
		k.advance(time.Second)
		expectBackoffs(t, k.requestTimes, 200*ms, 400*ms)
	})
}

func TestUnsentRestOfRequestCountsNoAttempt(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				res := sink.Result{Items: make([]sink.Outcome, len(ids))}
				for i := range ids {
					res.Items[i].Class = sink.Delivered
					if i >= 2 {
						res.Items[i].Class = sink.NotSent
					}
				}
				return res
			}
		})
		var c counter
		add(t, d, &c, items("a", "1", "2", "3", "4", "5"))
		k.advance(100 * time.Millisecond)
		k.expect(t, "requests", k.requests, "[[1 2 3 4 5] [3 4 5] [5]]")
		k.expect(t, "rows done", c.n, 5)
		for _, m := range k.messages {
			k.expect(t, "attempt of "+m.ID, m.Attempt, 1)
		}
	})
}

func TestAttemptsAreCounted(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = always(sink.Unavailable) })
		add(t, d, nil, items("a", "1"))
		k.advance(2 * time.Second)
		for i, m := range k.messages {
			k.expect(t, "attempt", m.Attempt, i+1)
		}
	})
}

func TestDeliveredPrefixIsSettled(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				if len(ids) < 3 {
					return always(sink.Delivered)(ids)
				}
				of := func(c sink.Class) sink.Outcome { return sink.Outcome{Class: c} }
				return sink.Result{Items: []sink.Outcome{of(sink.Delivered), of(sink.Unavailable), of(sink.NotSent)}}
			}
		})
		add(t, d, nil, items("a", "1", "2", "3"))
		k.advance(time.Second)
		k.expect(t, "requests", k.requests, "[[1 2 3] [2 3]]")
		expectBackoffs(t, k.requestTimes, 200*time.Millisecond)
	})
}

func TestBackoffRestartsAfterSuccess(t *testing.T) {
	cfg := DefaultConfig()
	cfg.APIBatchSize = 1
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		n := 0
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				if n++; n == 4 {
					return always(sink.Delivered)(ids)
				}
				return always(sink.Unavailable)(ids)
			}
		})
		add(t, d, nil, items("a", "1", "2"))
		k.advance(3 * time.Second)
		ms := time.Millisecond
		expectBackoffs(t, k.requestTimes[:4], 200*ms, 400*ms, 800*ms)
		expectBackoffs(t, k.requestTimes[4:], 200*ms, 400*ms)
	})
}

func TestRowFailedInBatchHasProof(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				if slices.Contains(ids, "2") {
					return always(sink.Refused)(ids)
				}
				return always(sink.Delivered)(ids)
			}
		})
		add(t, d, nil, items("a", "1", "2"))
		k.advance(300 * time.Millisecond)
		k.expect(t, "outcomes", k.settles, "[[1 COMPLETED] [2 PENDING]]")
	})
}

// A row fails at 10 ms and again after its backoff. The requests of two other rows begin at
// 1 and 20 ms and end in the opposite order.
func TestProofNeedsRequestAfterFailure(t *testing.T) {
	ms := time.Millisecond
	tests := map[string]struct {
		young bool
		want  string
	}{
		"a late answer to an old request": {want: "[]"},
		"and one to a younger before it":  {young: true, want: "[x]"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				takes := map[string]time.Duration{"old": 100 * ms, "x": 9 * ms, "young": ms}
				k.set(func() {
					k.answer = func(ids []string) sink.Result {
						<-time.After(takes[ids[0]])
						if ids[0] == "x" {
							return always(sink.Refused)(ids)
						}
						return always(sink.Delivered)(ids)
					}
				})
				add(t, d, nil, items("a", "old"))
				add(t, d, nil, items("b", "x"))
				k.advance(20 * ms)
				if tt.young {
					add(t, d, nil, items("c", "young"))
				}
				k.advance(280 * ms)
				var counted []string
				for _, o := range k.outcomes {
					if o.Status == store.Pending {
						counted = append(counted, o.ID)
					}
				}
				k.expect(t, "counted", counted, tt.want)
			})
		})
	}
}
