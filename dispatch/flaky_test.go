package dispatch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Half of all requests fail at random because the receiver is unavailable, and each row is
// refused once when it is alone. No row becomes FAILED, and none has more than that one
// retry: unavailability never uses up max-retries, however many other rows are accepted.
func TestFlakyReceiverMakesNoDeadLetters(t *testing.T) {
	const rows, groups = 600, 60
	cfg := DefaultConfig()
	cfg.Backoff.Max, cfg.ProofWait, cfg.MaxRetries = time.Second, time.Second, 1
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		random, refused := rand.New(rand.NewPCG(1, 2)), map[string]bool{}
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				k.mu.Lock()
				defer k.mu.Unlock()
				switch n := random.IntN(6); {
				case n < 3:
					class := []sink.Class{sink.Unavailable, sink.Misconfigured, 0}[n]
					return always(class)(ids)
				case n == 3 && len(ids) == 1 && !refused[ids[0]]:
					refused[ids[0]] = true
					return always(sink.Refused)(ids)
				}
				return always(sink.Delivered)(ids)
			}
		})
		var c counter
		for i := range rows {
			add(t, d, &c, items(fmt.Sprint("g", i%groups), fmt.Sprint(i)))
		}
		k.advance(time.Hour)
		k.expect(t, "rows done", c.n, rows)
		k.expect(t, "FAILED", failedIDs(k.outcomes), "[]")
		for _, o := range k.outcomes {
			if o.Status == store.Pending && (o.RetryCount > 1 || !refused[o.ID]) {
				t.Errorf("row %s has %d retries, refused %t", o.ID, o.RetryCount, refused[o.ID])
			}
		}
		if !slices.ContainsFunc(k.outcomes, func(o store.Outcome) bool { return o.RetryCount == 1 }) {
			t.Error("no refusal was counted: the test proves nothing")
		}
	})
}

// A row that goes unanswered while other rows are accepted is not FAILED. Its group stalls
// and is reported, the others go on, and an operator may skip the row.
func TestUnansweredRowStallsItsGroupAlone(t *testing.T) {
	for class, word := range map[sink.Class]string{sink.Unavailable: "[1]", sink.Misconfigured: "[1]"} {
		t.Run(class.String(), func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.ProofWait = time.Minute
			drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				k.set(func() {
					k.answer = func(ids []string) sink.Result {
						if slices.Contains(ids, "1") {
							return always(class)(ids)
						}
						return always(sink.Delivered)(ids)
					}
				})
				add(t, d, nil, items("a", "1", "2"))
				for i := range 50 {
					add(t, d, nil, items("b", fmt.Sprint("b", i)))
					k.advance(10 * time.Second)
					if i == 4 {
						k.expect(t, "stalled too early", k.stalled, "[]")
					}
				}
				k.expect(t, "stalled", k.stalled, word)
				k.expect(t, "FAILED", failedIDs(k.outcomes), "[]")
				k.expect(t, "rows left", d.Stats().Rows, 2)
				k.expect(t, "lanes stalled", d.Stats().Lanes["stalled"], 1)
				lanes, n := d.Lanes(LaneFilter{State: "stalled"}, 9)
				if n != 1 || lanes[0].Head != "1" || lanes[0].Error != class.String() || time.Since(lanes[0].Since) < 8*time.Minute {
					t.Errorf("stalled lanes: %+v", lanes)
				}
				if err := d.Skip(context.Background(), nameOf("a"), "known"); err != nil {
					t.Error(err)
				}
				k.advance(time.Second)
				k.expect(t, "rows left after skip", d.Stats().Rows, 0)
				k.expect(t, "lanes stalled after skip", d.Stats().Lanes["stalled"], 0)
			})
		})
	}
}
