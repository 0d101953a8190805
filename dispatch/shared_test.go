package dispatch

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// rowsInOwnGroups returns rows "0" to "n-1", each in its own group.
func rowsInOwnGroups(n int) (rows []store.Item) {
	for i := range n {
		rows = append(rows, items(fmt.Sprint("g", i), fmt.Sprint(i))...)
	}
	return rows
}

// senders returns a configuration with n senders.
func senders(n int) Config {
	cfg := DefaultConfig()
	cfg.MaxConcurrentGroups = n
	return cfg
}

func TestLanesShareRequestsWhenSendersAreFew(t *testing.T) {
	tests := map[string]struct {
		rows, senders, batch int
		want                 string
	}{
		"as many lanes as senders":      {4, 4, 100, "[1 1 1 1]"},
		"a share for each sender":       {9, 4, 100, "[3 2 2 2]"},
		"as far as a request goes":      {6, 2, 3, "[3 3]"},
		"one sender takes all":          {50, 1, 100, "[50]"},
		"and one row a request is kept": {3, 1, 1, "[1 1 1]"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := senders(tt.senders)
			cfg.APIBatchSize = tt.batch
			drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				d.Freeze(true)
				add(t, d, nil, rowsInOwnGroups(tt.rows))
				d.Freeze(false)
				k.advance(time.Minute)
				var sizes []int
				for _, ids := range k.requests {
					sizes = append(sizes, len(ids))
				}
				slices.SortFunc(sizes, func(a, b int) int { return b - a })
				k.expect(t, "rows of each request", sizes, tt.want)
			})
		})
	}
}

func TestKindsDoNotShareARequest(t *testing.T) {
	drive(t, senders(1), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		d.Freeze(true)
		rows := rowsInOwnGroups(6)
		for i := range rows {
			rows[i].Kind = []string{"EVENT", "JOB"}[i%2]
		}
		add(t, d, nil, rows)
		d.Freeze(false)
		k.advance(time.Second)
		k.expect(t, "requests", k.requests, "[[0 2 4] [1 3 5]]")
	})
}

// A receiver refuses every request with the poisoned row. Whatever the class, the other
// lanes pay at most for one search.
func TestBisectFindsPoisonedLane(t *testing.T) {
	const rows, halvings = 64, 6
	for _, class := range []sink.Class{sink.Rejected, sink.Refused} {
		for _, poison := range []string{"0", "17", "63"} {
			t.Run(class.String()+" "+poison, func(t *testing.T) {
				cfg := senders(1)
				cfg.ProofWait = time.Second
				drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
					k.set(func() {
						k.answer = func(ids []string) sink.Result {
							if slices.Contains(ids, poison) {
								return always(class)(ids)
							}
							return always(sink.Delivered)(ids)
						}
					})
					var c counter
					d.Freeze(true)
					add(t, d, &c, rowsInOwnGroups(rows))
					d.Freeze(false)
					k.advance(time.Minute)
					k.expect(t, "rows done", c.n, rows)
					k.expect(t, "FAILED", failedIDs(k.outcomes), []string{poison})
					sent, alone, bad := map[string]int{}, 0, 0
					for _, ids := range k.requests {
						if !slices.Contains(ids, poison) {
							for _, id := range ids {
								sent[id]++
							}
							continue
						}
						if bad++; len(ids) == 1 {
							alone++
						}
					}
					for id, n := range sent {
						if n != 1 {
							t.Errorf("row %s was taken %d times", id, n)
						}
					}
					// Once the others are delivered, refusals count only once per
					// proof-wait.
					most := map[sink.Class]int{sink.Rejected: 1 + cfg.MaxRetries, sink.Refused: 12}[class]
					if bad-alone != halvings || alone < 1+cfg.MaxRetries || alone > most {
						t.Errorf("%d requests with the row among others, %d with it alone: %v", bad-alone, alone, k.requests)
					}
				})
			})
		}
	}
}

// An unreachable receiver starts no search. The lanes go on separately, and none counts a
// failure of another.
func TestTimeoutIsolatesLanes(t *testing.T) {
	cfg := senders(1)
	cfg.ProofWait = time.Second
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				if slices.Contains(ids, "3") {
					return always(sink.Unavailable)(ids)
				}
				return always(sink.Delivered)(ids)
			}
		})
		var c counter
		d.Freeze(true)
		add(t, d, &c, rowsInOwnGroups(8))
		d.Freeze(false)
		k.advance(time.Minute)
		k.expect(t, "rows done", c.n, 7) // without other traffic nothing proves that the receiver works
		k.expect(t, "first request", len(k.requests[0]), 8)
		for _, ids := range k.requests[1:] {
			k.expect(t, "rows of a later request", len(ids), 1)
		}
		for range 8 {
			add(t, d, &c, items("other", "x"))
			k.advance(30 * time.Second)
		}
		k.expect(t, "FAILED", failedIDs(k.outcomes), "[]")
		k.expect(t, "rows done", c.n, 15)
		k.expect(t, "stalled", k.stalled, "[3]") // reported once
	})
}

// A lane that waits for a retry shares no request, so other lanes do not fail with it.
func TestFailingLaneSharesNoRequest(t *testing.T) {
	drive(t, senders(1), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = poisoned("bad") })
		add(t, d, nil, items("bad", "bad"))
		k.advance(10 * time.Millisecond)
		for i := range 200 {
			d.Freeze(true)
			add(t, d, nil, items("a", fmt.Sprint("a", i)))
			add(t, d, nil, items("b", fmt.Sprint("b", i)))
			d.Freeze(false)
			k.advance(20 * time.Millisecond)
		}
		tries := 0
		for _, ids := range k.requests {
			if slices.Contains(ids, "bad") {
				tries++
				k.expect(t, "rows with the bad one", len(ids), 1)
			}
		}
		k.expect(t, "tries", tries, 1+DefaultConfig().MaxRetries)
	})
}

func TestRowsWithoutAGroup(t *testing.T) {
	for ungrouped, want := range map[Ungrouped]string{FIFO: "[[1 2 3]]", Parallel: "[[1] [2] [3]]"} {
		t.Run(string(ungrouped), func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Ungrouped = ungrouped
			drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				rows := items("", "1", "2", "3")
				for i := range rows {
					rows[i].Group = store.Group{}
				}
				add(t, d, nil, rows)
				k.advance(time.Second)
				slices.SortFunc(k.requests, slices.Compare)
				k.expect(t, "requests", k.requests, want)
			})
		})
	}
}
