package dispatch

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// pingableBackend is a backend whose receiver accepts a request without rows.
type pingableBackend struct {
	*fakeBackend
	class sink.Class
	none  bool
	pings []time.Duration // since the start of the test
}

func (p *pingableBackend) Ping(context.Context, string) (sink.Result, bool) {
	p.set(func() { p.pings = append(p.pings, time.Since(p.began)) })
	return always(p.class)(nil), !p.none
}

// drivePingable is drive with a sink that can be pinged.
func drivePingable(t *testing.T, cfg Config, class sink.Class, test func(p *pingableBackend, d *Dispatcher)) {
	var p *pingableBackend
	driveSink(t, cfg, nil, func(k *fakeBackend) sink.Sink {
		p = &pingableBackend{fakeBackend: k, class: class}
		return p
	}, func(_ *fakeBackend, d *Dispatcher, _ func(error) error) { test(p, d) })
}

// On a quiet system a row that is refused alone ends within seconds, because a ping proves
// that the receiver works. The breaker stays closed meanwhile, so readiness stays.
func TestPingEndsLoneRefusedRow(t *testing.T) {
	drivePingable(t, DefaultConfig(), sink.Delivered, func(p *pingableBackend, d *Dispatcher) {
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
		p.advance(15 * time.Second)
		p.expect(t, "FAILED", failedIDs(p.outcomes), "[bad]")
		p.expect(t, "rows done", c.n, 2)
		p.expect(t, "breaker reports", p.breakerReports, "[]")
		if n := len(p.pings); n < 2 || n > 1+DefaultConfig().MaxRetries {
			t.Errorf("%d pings: %v", n, p.pings)
		}
	})
}

// A receiver may accept an empty list and fail on every row. Pings then cost at most one
// row. Rows of several groups wait as they do without pings, and after one row has become
// FAILED by pings, the next needs an accepted row.
func TestPingsDuringOutageCostAtMostOneRow(t *testing.T) {
	for name, rows := range map[string]int{"many groups": 50, "one group": 1} {
		t.Run(name, func(t *testing.T) {
			drivePingable(t, DefaultConfig(), sink.Delivered, func(p *pingableBackend, d *Dispatcher) {
				p.set(func() { p.answer = always(sink.Refused) })
				add(t, d, nil, rowsInOwnGroups(rows))
				for i := range 4 {
					p.advance(time.Minute)
					if rows == 1 {
						add(t, d, nil, items("later", fmt.Sprint("l", i)))
					}
				}
				want := 0
				if rows == 1 {
					want = 1
				}
				p.expect(t, "FAILED", len(failedIDs(p.outcomes)), want)
				if len(p.pings) > want*(1+DefaultConfig().MaxRetries) {
					t.Errorf("%d pings", len(p.pings))
				}
			})
		})
	}
}

// Any other answer to a ping than Delivered proves nothing, and a receiver without such a
// request gets no further ping.
func TestFailedPingProvesNothing(t *testing.T) {
	for _, class := range []sink.Class{sink.Refused, sink.Rejected, sink.Unavailable, sink.Misconfigured} {
		for _, none := range []bool{false, true} {
			t.Run(fmt.Sprint(class, none), func(t *testing.T) {
				drivePingable(t, DefaultConfig(), class, func(p *pingableBackend, d *Dispatcher) {
					p.set(func() { p.answer, p.none = always(sink.Refused), none })
					add(t, d, nil, items("a", "bad"))
					p.advance(4 * time.Minute)
					p.expect(t, "outcomes", p.settles, "[]")
					if n := len(p.pings); n == 0 || none && n > 1 || n > 20 {
						t.Errorf("%d pings", n)
					}
				})
			})
		}
	}
}
