package dispatch

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// The endpoint of one kind is down, the other works.
func TestDeadEndpointStarvesNoOther(t *testing.T) {
	for _, class := range []sink.Class{sink.Unavailable, sink.Misconfigured, sink.Refused, sink.Rejected} {
		t.Run(class.String(), func(t *testing.T) {
			drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				k.set(func() {
					k.answer = func(ids []string) sink.Result {
						if ids[0][0] == 'j' {
							return always(class)(ids)
						}
						return always(sink.Delivered)(ids)
					}
				})
				var jobs []store.Item
				for i := range 200 {
					it := items(fmt.Sprint("g", i), fmt.Sprint("j", i))[0]
					it.Kind = "JOB"
					jobs = append(jobs, it)
				}
				add(t, d, nil, jobs)
				var c counter
				for i := range 600 { // ten events per second for a minute
					add(t, d, &c, items(fmt.Sprint("e", i%10), fmt.Sprint("e", i)))
					k.advance(100 * time.Millisecond)
				}
				if c.n < 590 {
					t.Errorf("%d of 600 events were delivered within a minute", c.n)
				}
				k.advance(30 * time.Minute)
				if n := len(failedIDs(k.outcomes)); n > 0 && class != sink.Rejected {
					t.Errorf("%d jobs FAILED", n)
				}
			})
		})
	}
}

// Some groups hold a row that crashes the receiver; the others are good.
func TestPoisonedLanesStarveNoOther(t *testing.T) {
	for _, class := range []sink.Class{sink.Unavailable, sink.Misconfigured, sink.Refused, sink.Rejected} {
		for _, poisons := range []int{5, 20, 100} {
			t.Run(fmt.Sprint(class, " ", poisons), func(t *testing.T) {
				drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
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
					for i := range poisons {
						add(t, d, nil, items(fmt.Sprint("p", i), fmt.Sprint("p", i)))
					}
					var c counter
					worst := 0
					for i := range 600 * 5 { // ten rows per second for five minutes
						add(t, d, &c, items(fmt.Sprint("e", i%50), fmt.Sprint("e", i)))
						k.advance(100 * time.Millisecond)
						worst = max(worst, i+1-c.n)
					}
					if worst > 300 { // probes are picked at random
						t.Errorf("healthy rows wait for over %d s", worst/10)
					}
				})
			})
		}
	}
}

// One of the receiver's servers is down: every second request times out.
func TestPartialOutageMakesNoDeadLetters(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		var n atomic.Uint32
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				if n.Add(2654435769)>>31 == 0 {
					return always(sink.Unavailable)(ids)
				}
				return always(sink.Delivered)(ids)
			}
		})
		total := 0
		for i := range 600 {
			for g := range 10 {
				add(t, d, nil, items(fmt.Sprint("g", i%20, "-", g), fmt.Sprint(i, "-", g)))
				total++
			}
			k.advance(100 * time.Millisecond)
		}
		k.advance(2 * time.Minute)
		if n := len(failedIDs(k.outcomes)); n > 0 {
			t.Errorf("%d of %d rows FAILED in a minute of 50%% time-outs", n, total)
		}
	})
}
