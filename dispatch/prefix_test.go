package dispatch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// limited is a sink of the backend with other limits.
type limited struct {
	*fakeBackend
	limits sink.Limits
}

func (s limited) Limits(string) sink.Limits { return s.limits }

// drivePrefix is drive with a sink that stores a prefix of each lane.
func drivePrefix(t *testing.T, cfg Config, test func(k *fakeBackend, d *Dispatcher)) {
	made := func(k *fakeBackend) sink.Sink {
		return limited{k, sink.Limits{Mode: sink.Prefix, MaxItems: 100, MaxBytes: 1 << 20}}
	}
	driveSink(t, cfg, nil, made, func(k *fakeBackend, d *Dispatcher, _ func(error) error) { test(k, d) })
}

// stopsAt answers like a receiver that stores each lane up to the row. The rows behind it in
// its lane have the class rest. The lane of a row is its id up to the last digit.
func stopsAt(id string, class, rest sink.Class) func([]string) sink.Result {
	lane := func(id string) string { return strings.TrimRight(id, "0123456789") }
	return func(ids []string) sink.Result {
		res := sink.Result{Items: make([]sink.Outcome, len(ids))}
		at := slices.Index(ids, id)
		for i := range ids {
			out := sink.Outcome{Class: sink.Delivered}
			switch {
			case at < 0 || i < at || lane(ids[i]) != lane(id):
			case i == at:
				out = sink.Outcome{Class: class, Detail: class.String()}
			default:
				out = sink.Outcome{Class: rest, Detail: rest.String()}
			}
			res.Items[i] = out
		}
		return res
	}
}

func laneOf(name string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint(name, i)
	}
	return ids
}

// A receiver that answers per item gets one row of a lane per round trip. If it stores a
// prefix, a lane of 1000 rows needs 10 full requests.
func TestAHotLaneIsSentInRuns(t *testing.T) {
	drivePrefix(t, senders(4), func(k *fakeBackend, d *Dispatcher) {
		var c counter
		add(t, d, &c, items("hot", laneOf("h", 1000)...))
		k.advance(time.Second)
		k.expect(t, "rows done", c.n, 1000)
		k.expect(t, "rows sent", slices.Concat(k.requests...), laneOf("h", 1000))
		if n := len(k.requests); n > 12 {
			t.Errorf("requests: got %d, want at most 12", n)
		}
	})
}

// The row at which the receiver stopped is retried in front of its lane. The rows behind it
// fail with it only if it is not alone to blame, and they keep their place. Rows before it
// and other lanes are sent once.
func TestTheRowThatWasNotStoredIsRetried(t *testing.T) {
	for _, rest := range []sink.Class{sink.NotSent, sink.Rejected} {
		t.Run(rest.String(), func(t *testing.T) {
			cfg := senders(1)
			cfg.MaxRetries = 2
			drivePrefix(t, cfg, func(k *fakeBackend, d *Dispatcher) {
				k.set(func() { k.answer = stopsAt("a3", sink.Rejected, rest) })
				var c counter
				d.Freeze(true)
				add(t, d, &c, items("a", laneOf("a", 8)...))
				add(t, d, &c, items("b", laneOf("b", 3)...))
				d.Freeze(false)
				k.advance(time.Minute)
				k.expect(t, "rows done", c.n, 11)
				k.expect(t, "FAILED", failedIDs(k.outcomes), "[a3]")
				k.expect(t, "first request", k.requests[0], slices.Concat(laneOf("a", 8), laneOf("b", 3)))

				counts, order := map[string]int{}, []string(nil)
				for _, ids := range k.requests {
					for _, id := range ids {
						counts[id]++
					}
				}
				for _, o := range k.outcomes {
					if strings.HasPrefix(o.ID, "a") && o.Status.Settled() {
						order = append(order, o.ID)
					}
					if o.ID != "a3" && (o.RetryCount > 0 || o.Error != "") {
						t.Errorf("row %s has %d retries, error %q", o.ID, o.RetryCount, o.Error)
					}
				}
				k.expect(t, "outcomes of a", order, laneOf("a", 8))
				for _, id := range []string{"a0", "a1", "a2", "b0", "b1", "b2"} {
					k.expect(t, "requests with "+id, counts[id], 1)
				}
				most := 1 + cfg.MaxRetries
				if rest == sink.Rejected {
					most += 3 // requests of 5, 2 and 1 rows find it
				}
				if counts["a3"] > most {
					t.Errorf("requests with a3: got %d, want at most %d", counts["a3"], most)
				}
			})
		})
	}
}

// One lane of the request is unavailable, for example because a partition has no leader. It
// waits alone: the breaker stays closed, the other lane goes on, and no row is to blame.
func TestALaneThatIsUnavailableWaitsAlone(t *testing.T) {
	drivePrefix(t, senders(1), func(k *fakeBackend, d *Dispatcher) {
		k.set(func() { k.answer = stopsAt("a2", sink.Unavailable, sink.Unavailable) })
		var c counter
		for i := range 900 {
			d.Freeze(true)
			if i == 0 {
				add(t, d, &c, items("a", laneOf("a", 6)...))
			}
			add(t, d, &c, items("b", fmt.Sprint("b", i)))
			d.Freeze(false)
			k.advance(time.Second)
		}
		k.expect(t, "rows done", c.n, 902)
		k.expect(t, "breakers", k.breakerReports, "[]")
		k.expect(t, "FAILED", failedIDs(k.outcomes), "[]")
		k.expect(t, "stalled", k.stalled, "[a2]")
		k.set(func() { k.answer = always(sink.Delivered) })
		k.advance(time.Hour)
		k.expect(t, "rows done", c.n, 906)
		attempts := map[string]int{}
		for _, m := range k.messages {
			attempts[m.ID] = m.Attempt
		}
		if attempts["a2"] < 3 || attempts["a5"] > 2 {
			t.Errorf("attempts: got %v, want those of a2 only", attempts)
		}
	})
}

// Half of the lanes are unavailable, and each request with one of them takes a second until
// it times out. They share requests, so that they do not keep every sender from the others.
func TestUnavailableLanesShareRequests(t *testing.T) {
	const lanes = 60
	drivePrefix(t, senders(2), func(k *fakeBackend, d *Dispatcher) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				res := sink.Result{Items: make([]sink.Outcome, len(ids))}
				for i, id := range ids {
					if res.Items[i].Class = sink.Delivered; strings.HasPrefix(id, "away") {
						res.Items[i] = sink.Outcome{Class: sink.Unavailable, Detail: "no leader"}
					}
				}
				if slices.ContainsFunc(ids, func(id string) bool { return strings.HasPrefix(id, "away") }) {
					<-time.After(time.Second)
				}
				return res
			}
		})
		var c counter
		d.Freeze(true)
		for i := range lanes {
			add(t, d, nil, items(fmt.Sprint("away", i), fmt.Sprint("away", i)))
			add(t, d, &c, items(fmt.Sprint("here", i), fmt.Sprint("here", i)))
		}
		d.Freeze(false)
		for i := range 60 {
			for j := range lanes {
				add(t, d, &c, items(fmt.Sprint("here", j), fmt.Sprint("here", i, "-", j)))
			}
			k.advance(time.Second)
			// The first requests mix the lanes, because none has failed yet.
			c.mu.Lock()
			done := c.n
			c.mu.Unlock()
			if done < (i-4)*lanes {
				t.Errorf("after %d s: got %d rows done, want %d", i+1, done, (i+1)*lanes)
				break
			}
		}
		for _, ids := range k.requests[4:] {
			away := len(slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !strings.HasPrefix(id, "away") }))
			if away > 0 && away < len(ids) {
				t.Errorf("a request mixes %d lanes that failed with %d others", away, len(ids)-away)
			}
		}
		k.expect(t, "FAILED", failedIDs(k.outcomes), "[]")
	})
}

// Messages carry the number of their lane, and a request has no more lanes than the
// destination takes.
func TestLanesOfARequest(t *testing.T) {
	for most, want := range map[int]string{0: "[[0 0 1 2]]", 2: "[[0 0 1] [0]]", 1: "[[0 0] [0] [0]]"} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			made := func(k *fakeBackend) sink.Sink {
				return limited{k, sink.Limits{Mode: sink.Atomic, MaxItems: 100, MaxBytes: 1 << 20, MaxLanes: most}}
			}
			driveSink(t, senders(1), nil, made, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				d.Freeze(true)
				add(t, d, nil, slices.Concat(items("a", "a0"), items("b", "b0"), items("c", "c0"), items("a", "a1")))
				d.Freeze(false)
				k.advance(time.Second)
				var got [][]int
				messages := k.messages
				for _, ids := range k.requests {
					var numbers []int
					for _, m := range messages[:len(ids)] {
						numbers = append(numbers, m.Lane)
					}
					got, messages = append(got, numbers), messages[len(ids):]
				}
				k.expect(t, "lanes of the messages of each request", got, want)
			})
		})
	}
}

// Each delivered row is written with its own receipt, also after the table refused the outcome
// for a while. A row that was not delivered has none.
func TestReceiptsReachTheStore(t *testing.T) {
	cfg := senders(1)
	cfg.MaxRetries = 0
	drivePrefix(t, cfg, func(k *fakeBackend, d *Dispatcher) {
		receipt := func(id string) []sink.Receipt { return []sink.Receipt{{Name: "offset", Value: id}} }
		answer := stopsAt("a3", sink.Rejected, sink.NotSent)
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				res := answer(ids)
				for i := range res.Items {
					if res.Items[i].Class == sink.Delivered {
						res.Items[i].Receipt = receipt(ids[i])
					}
				}
				return res
			}
		})
		k.refuseStatus("a1", store.Completed)
		var c counter
		add(t, d, &c, items("a", laneOf("a", 6)...))
		k.advance(time.Second)
		k.set(func() { k.refusesOutcome = nil })
		k.advance(time.Minute)
		k.expect(t, "rows done", c.n, 6)
		got, want := map[string][]sink.Receipt{}, map[string][]sink.Receipt{}
		for _, o := range k.outcomes {
			got[o.ID] = o.Receipt
		}
		for _, id := range laneOf("a", 6) {
			want[id] = receipt(id)
		}
		want["a3"] = nil
		k.expect(t, "receipts", got, want)
	})
}
