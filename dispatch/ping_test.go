package dispatch

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// pingable is a desk whose receiver takes a request without rows.
type pingable struct {
	*desk
	class sink.Class
	none  bool
	pings []time.Duration // since the test began
}

func (p *pingable) Ping(context.Context, string) (sink.Result, bool) {
	p.set(func() { p.pings = append(p.pings, time.Since(p.began)) })
	return always(p.class)(nil), !p.none
}

// drivePinged is drive with a sink that can be pinged.
func drivePinged(t *testing.T, cfg Config, class sink.Class, test func(p *pingable, d *Dispatcher)) {
	var p *pingable
	driveSink(t, cfg, nil, func(k *desk) sink.Sink {
		p = &pingable{desk: k, class: class}
		return p
	}, func(_ *desk, d *Dispatcher, _ func(error) error) { test(p, d) })
}

// On a quiet system a row that is refused alone ends within seconds: a ping proves that
// the receiver works. The sink is never suspect meanwhile, so readiness stays.
func TestPingEndsALoneRefusedRow(t *testing.T) {
	drivePinged(t, DefaultConfig(), sink.Delivered, func(p *pingable, d *Dispatcher) {
		p.set(func() {
			p.answer = func(ids []string) sink.Result {
				if slices.Contains(ids, "bad") {
					return always(sink.Refused)(ids)
				}
				return always(sink.Delivered)(ids)
			}
		})
		var c counter
		add(t, d, &c, items("a", "bad", "next"))
		p.pass(15 * time.Second)
		p.expect(t, "FAILED", failed(p.outcomes), "[bad]")
		p.expect(t, "rows done", c.n, 2)
		p.expect(t, "suspicions", p.suspicions, "[]")
		if n := len(p.pings); n < 2 || n > 1+DefaultConfig().MaxRetries {
			t.Errorf("%d pings: %v", n, p.pings)
		}
	})
}

// A receiver may take an empty list and fail on every row. Pings then cost one row at
// the most: those of many groups wait as they do without pings, and once one row has
// ended by pings, the next needs a row that was taken.
func TestPingsOfAnOutageCostOneRowAtTheMost(t *testing.T) {
	for name, rows := range map[string]int{"many groups": 50, "one group": 1} {
		t.Run(name, func(t *testing.T) {
			drivePinged(t, DefaultConfig(), sink.Delivered, func(p *pingable, d *Dispatcher) {
				p.set(func() { p.answer = always(sink.Refused) })
				add(t, d, nil, grouped(rows))
				for i := range 4 {
					p.pass(time.Minute)
					if rows == 1 {
						add(t, d, nil, items("later", fmt.Sprint("l", i)))
					}
				}
				want := 0
				if rows == 1 {
					want = 1
				}
				p.expect(t, "FAILED", len(failed(p.outcomes)), want)
				if len(p.pings) > want*(1+DefaultConfig().MaxRetries) {
					t.Errorf("%d pings", len(p.pings))
				}
			})
		})
	}
}

// What a ping answers but Delivered proves nothing, and a receiver without such a
// request is not asked again.
func TestPingThatProvesNothing(t *testing.T) {
	for _, class := range []sink.Class{sink.Refused, sink.Rejected, sink.Unavailable, sink.Misconfigured} {
		for _, none := range []bool{false, true} {
			t.Run(fmt.Sprint(class, none), func(t *testing.T) {
				drivePinged(t, DefaultConfig(), class, func(p *pingable, d *Dispatcher) {
					p.set(func() { p.answer, p.none = always(sink.Refused), none })
					add(t, d, nil, items("a", "bad"))
					p.pass(4 * time.Minute)
					p.expect(t, "outcomes", p.settles, "[]")
					if n := len(p.pings); n == 0 || none && n > 1 || n > 20 {
						t.Errorf("%d pings", n)
					}
				})
			})
		}
	}
}
