package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// No more requests per second go out than configured, retries included, and all rows arrive.
func TestRateLimit(t *testing.T) {
	cfg := DefaultConfig()
	cfg.RateLimit, cfg.APIBatchSize = 20, 1
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		failures := 0
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				if failures++; failures%10 == 0 {
					return always(sink.Unavailable)(ids)
				}
				return always(sink.Delivered)(ids)
			}
		})
		var c counter
		for i := range 200 {
			add(t, d, &c, items(fmt.Sprint("g", i), fmt.Sprint(i)))
		}
		for second := range 8 {
			k.advance(time.Second)
			k.set(func() {
				if n, most := len(k.requests), 20*(second+1)+1; n > most || n < most-2 {
					t.Errorf("%d requests in %d s", n, second+1)
				}
			})
		}
		k.advance(5 * time.Second)
		if c.n != 200 {
			t.Errorf("%d of 200 rows were delivered", c.n)
		}
	})
}

// A claim is not held for long by a slow rate: a row is claimed at most a second before it may
// be sent.
func TestRateLimitClaimsFewRows(t *testing.T) {
	cfg := DefaultConfig()
	cfg.RateLimit, cfg.APIBatchSize = 0.1, 1
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		for i := range 100 {
			add(t, d, nil, items(fmt.Sprint("g", i), fmt.Sprint(i)))
		}
		for range 12 {
			k.advance(8 * time.Second)
			k.set(func() {
				claimed := 0
				for _, ids := range k.claims {
					claimed += len(ids)
				}
				if claimed > len(k.requests)+1 {
					t.Errorf("%d rows are claimed after %d requests", claimed, len(k.requests))
				}
			})
		}
		k.set(func() {
			if n := len(k.requests); n < 9 || n > 10 {
				t.Errorf("%d requests in 96 s", n)
			}
		})
	})
}
