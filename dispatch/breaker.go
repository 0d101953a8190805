package dispatch

import (
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// receiver is the core's state of one endpoint of the sink and of the lanes that wait for
// it.
type receiver struct {
	Endpoint    string
	Breaker     breaker.Breaker
	ready       fifo[*lane] // to be claimed
	readyReplay fifo[*lane] // ready replay lanes; in ready while the breaker is open
	tried       fifo[*lane] // probed since the breaker opened
	ReplayLanes int         // its replay lanes

	// Lanes counts the known lanes of the endpoint, Held the lanes among them on hold.
	Lanes, Held int

	Rotated int // lanes evicted to probe others since the breaker opened
}

// breakerConfig returns the limits of the circuit breakers.
func (c *core) breakerConfig() *breaker.Config {
	return &breaker.Config{
		Backoff: func(n int) time.Duration {
			return delay(n, c.cfg.BackoffInitial, c.cfg.BackoffMax, c.random)
		},
		RetryAfterMax:      c.cfg.RetryAfterMax,
		MaxConcurrentEager: max(1, c.cfg.MaxConcurrentGroups/2),
		PingInterval:       3 * c.cfg.BackoffInitial,
		MaxPings:           c.cfg.MaxRetries + 1,
	}
}

// receiver returns the receiver for rows of a kind.
func (c *core) receiver(kind string) *receiver {
	endpoint := c.limits(kind).Endpoint
	for _, recv := range c.receivers {
		if recv.Endpoint == endpoint {
			return recv
		}
	}
	recv := &receiver{Endpoint: endpoint, Breaker: breaker.New(c.breakerConfig())}
	c.receivers = append(c.receivers, recv)
	return recv
}

// queue puts a lane at the end of its receiver's queue.
func (c *core) queue(l *lane) {
	c.lastOrder++
	l.State, l.ReadyOrder = laneReady, c.lastOrder
	if t := c.lockedLanes[l.Name.Outbox]; t != nil && t.covers(l) {
		l.Locked = true
		t.ready.push(l)
		return
	}
	l.Receiver.push(l)
}

// push puts a lane into the queue that fits its state.
func (r *receiver) push(l *lane) {
	switch {
	case r.Breaker.Open() && l.TriedOpening == r.Breaker.Openings():
		r.tried.push(l)
	case !r.Breaker.Open() && l.Job != nil:
		r.readyReplay.push(l)
	default:
		r.ready.push(l)
	}
}

// waiting is how many lanes wait in its queues.
func (r *receiver) waiting() int { return r.ready.len() + r.readyReplay.len() + r.tried.len() }

// remove takes a lane out of its queue and reports whether it was in one.
func (r *receiver) remove(is func(*lane) bool) bool {
	return r.ready.remove(is) || r.readyReplay.remove(is) || r.tried.remove(is)
}

// recordResult passes the result of a request to the circuit breaker.
func (c *core) recordResult(req *request, res *sink.Result, now time.Time) {
	recv := req.Receiver()
	failed, accepted := firstFailure(req, res)
	c.breakerChanged(recv, recv.Breaker.Answered(&breaker.Answer{
		Started: req.Started, Probe: req.Probe,
		Accepted: accepted, Failure: failed, RetryAfter: res.RetryAfter,
		Proof: req.Runs[0].Rows[0].Proof, Untried: recv.ready.len() > 0,
	}, now))
}

// firstFailure returns the first failure of a request, and whether any of its rows was
// accepted.
func firstFailure(req *request, res *sink.Result) (failed sink.Outcome, accepted bool) {
	if res.Items == nil {
		return res.Outcome, res.Class == sink.Delivered
	}
	for i := range req.Size() {
		switch o := res.At(i); {
		case o.Class == sink.Delivered:
			accepted = true
		case failed.Class == 0:
			failed = o
		}
	}
	return failed, accepted
}

// breakerChanged moves the lanes of a receiver to the queues that fit the breaker.
func (c *core) breakerChanged(recv *receiver, change breaker.Change) {
	switch change {
	case breaker.Opened:
		for recv.readyReplay.len() > 0 {
			recv.ready.push(recv.readyReplay.pop())
		}
		c.requeueLarge(recv)
		recv.Rotated = 0
		c.cancelUnsent(recv)
	case breaker.Closed:
		waiting := slices.Concat(recv.ready.items, recv.tried.items)
		recv.ready, recv.tried = fifo[*lane]{}, fifo[*lane]{}
		for _, l := range waiting {
			recv.push(l)
		}
	}
}

// cancelUnsent takes back claimed requests for a receiver with an open breaker, except
// probes. Their lanes wait.
func (c *core) cancelUnsent(recv *receiver) {
	unsent := c.requests.toSend.removeAll(func(req *request) bool { return req.Probe == breaker.None && req.Receiver() == recv })
	for _, req := range unsent {
		c.releaseLarge(req)
		for _, r := range req.Runs {
			c.shedPayloads(r)
			c.release(r.Lane)
		}
	}
}

// nextProbe returns a single-row request to a receiver with an open breaker, or for a lane
// that an operator retries; nil if none is due.
func (c *core) nextProbe(now time.Time) *request {
	for c.urgent.len() > 0 {
		l := c.urgent.pop()
		if l.OnHold() && l.Rows[0].Skip == nil {
			l.Hold() // another row was inserted in front of the row to skip
			continue
		}
		return newProbe(l, breaker.Requested)
	}

	for _, recv := range c.receivers {
		if req := c.probeReceiver(recv, now); req != nil {
			return req
		}
	}

	return nil
}

// probeReceiver returns a probe of a receiver with an open breaker, if one is due. Untried
// lanes go first, in random order, because bad lanes may be adjacent. Lanes that were tried
// take turns.
func (c *core) probeReceiver(recv *receiver, now time.Time) *request {
	n := recv.ready.len()
	probe := recv.Breaker.ProbeDue(n > 0, now)
	switch {
	case probe == breaker.None:
	case n > 0:
		lanes := recv.ready.items
		i := min(n-1, int(c.random()*float64(n)))
		lanes[0], lanes[i] = lanes[i], lanes[0]
		if recv.Breaker.Probes() == 0 || c.fitsLarge(lanes[0].Rows[0]) {
			return newProbe(recv.ready.pop(), probe)
		}
	case recv.tried.len() > 0:
		return newProbe(recv.tried.pop(), probe)
	}
	return nil
}

func newProbe(l *lane, probe breaker.Probe) *request {
	rows, _ := l.Head(1, 0)
	req := &request{Probe: probe}
	req.add(l, rows)
	l.Probed = true
	l.Receiver.Breaker.Begin(probe)
	return req
}

// OpenBreaker is an endpoint of the sink with an open circuit breaker.
type OpenBreaker struct {
	Endpoint    string
	LastFailure sink.Outcome // its latest failure
	Since       time.Time

	// Idle: no row waits for the endpoint, so the open breaker delays nothing. The next row
	// is sent as a probe.
	Idle bool
}

// waitingLanes counts the lanes, in memory or spilled, that wait for a receiver. Lanes on
// hold do not count.
func (c *core) waitingLanes(recv *receiver) int {
	n := recv.Lanes - recv.Held
	for _, set := range c.spilledLanes {
		if set.lanes.n > 0 && c.receiver(set.kind) == recv {
			n += set.lanes.n
		}
	}
	return n
}

// openBreakers returns the endpoints with an open breaker.
func (c *core) openBreakers() (all []OpenBreaker) {
	for _, recv := range c.receivers {
		if b := &recv.Breaker; b.Open() {
			all = append(all, OpenBreaker{recv.Endpoint, b.LastFailure(), b.OpenedAt(), c.waitingLanes(recv) == 0})
		}
	}
	return all
}
