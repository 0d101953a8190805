package dispatch

import (
	"slices"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// breakerChanged moves the lanes of a receiver to the queues that fit its breaker.
func (c *core) breakerChanged(recv *receiver, change breaker.Change) {
	c.lanes.BreakerChanged(recv, change)
	if change == breaker.Opened {
		c.cancelUnsent(recv)
	}
}

// cancelUnsent takes back claimed requests for a receiver with an open breaker, except
// probes. Their lanes wait.
func (c *core) cancelUnsent(recv *receiver) {
	unsent := c.lanes.Requests.TakeUnsent(func(req *request) bool { return req.Probe == breaker.None && req.Receiver() == recv })
	for _, req := range unsent {
		c.takeBack(req)
	}
}

// takeBack takes back a claimed request that is in no queue. Its lanes wait.
func (c *core) takeBack(req *request) {
	c.lanes.Memory.ReleaseLarge(req)
	for _, r := range req.Runs {
		c.lanes.Memory.Shed(r.Rows...)
		c.release(r.Lane)
	}
}

// OpenBreaker is an endpoint of the sink with an open circuit breaker.
type OpenBreaker struct {
	Endpoint    string
	LastFailure sink.Outcome // its latest failure
	Since       time.Time

	// Idle: no row waits for the endpoint, so the open breaker delays nothing. The next row
	// is sent as a probe.
	Idle bool

	// Named: rows name the endpoint, which is none of the operator's own; see sink.Limits. The
	// others of the sink go on.
	Named bool
}

// waitingLanes counts the lanes, in memory or spilled, that wait for a receiver. Lanes on
// hold and those of paused outboxes do not count.
func (c *core) waitingLanes(recv *receiver) int {
	return recv.Lanes - recv.Held - c.lanes.PausedLanes(recv) + c.spill.LanesOf(recv)
}

// maxOpenBreakers is how many open breakers are reported. Rows may name any number of
// endpoints.
const maxOpenBreakers = 100

// openBreakers returns the endpoints with an open breaker. If they are many, it returns those
// that opened first.
func (c *core) openBreakers() (all []OpenBreaker) {
	for _, recv := range c.lanes.Endpoints.All() {
		if b := &recv.Breaker; b.Open() {
			all = append(all, OpenBreaker{recv.Endpoint, b.LastFailure(), b.OpenedAt(), c.waitingLanes(recv) == 0, c.lanes.Endpoints.Foreign(recv)})
		}
	}
	if len(all) > maxOpenBreakers {
		slices.SortStableFunc(all, func(a, b OpenBreaker) int { return a.Since.Compare(b.Since) })
		all = all[:maxOpenBreakers]
	}
	return all
}

// breakerReport tells the observer about the open circuit breakers, one call at a time.
type breakerReport struct {
	d    *Dispatcher
	mu   sync.Mutex
	open []OpenBreaker // as last reported
}

// update reports the open circuit breakers if they changed.
func (b *breakerReport) update() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.d.mu.Lock()
	now := b.d.core.openBreakers()
	b.d.mu.Unlock()
	same := slices.EqualFunc(now, b.open, func(x, y OpenBreaker) bool {
		return x.Endpoint == y.Endpoint && x.LastFailure.Class == y.LastFailure.Class && x.Idle == y.Idle
	})
	if b.open = now; !same {
		b.d.obs.BreakersChanged(now)
	}
}
