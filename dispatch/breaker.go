package dispatch

import (
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

const (
	// breakerFailures is the number of consecutive failed requests that opens a breaker.
	breakerFailures = 5

	// breakerRejections is the number of consecutive rejected requests that opens it,
	// because a new receiver may be configured for another wire format. That must not turn
	// a whole outbox into dead letters.
	breakerRejections = 20

	// maxEagerProbes is the number of lanes probed without backoff once a breaker opens. If
	// the rows were bad and not the receiver, another lane closes the breaker at once. If
	// the receiver is down, more probes would only add load.
	maxEagerProbes = 16

	// Maximum pause between two probes while untried lanes are left, in general and after a
	// rejected probe.
	maxUntriedPause, maxRejectedPause = time.Second, 2 * time.Second
)

// receiver is the core's state of one endpoint of the sink and of the lanes that wait for
// it.
type receiver struct {
	endpoint    string
	ready       fifo[*lane] // to be claimed
	readyReplay fifo[*lane] // ready replay lanes; in ready while the breaker is open
	tried       fifo[*lane] // probed since the breaker opened
	replayLanes int         // its replay lanes

	// lanes counts the known lanes of the endpoint, held the lanes among them on hold.
	lanes, held int

	// lastAccepted is the latest start of a request with an accepted row.
	lastAccepted time.Time

	// failures counts failed requests since the receiver last accepted or rejected a row,
	// rejections the rejected requests since it last accepted one.
	failures, rejections int

	// breakerOpen: only probes are sent, until one is accepted.
	breakerOpen bool
	openings    uint64 // counts breaker openings
	rotated     int    // lanes evicted to probe others
	openedAt    time.Time
	lastFailure sink.Outcome // the latest failure

	// probes are in flight, eagerLeft more may skip the backoff, and failedProbes have
	// failed with it. The next probe may go at nextProbe.
	probes, eagerLeft, failedProbes int
	nextProbe                       time.Time

	pings pingState
}

// receiver returns the receiver for rows of a kind.
func (c *core) receiver(kind string) *receiver {
	endpoint := c.limits(kind).Endpoint
	for _, recv := range c.receivers {
		if recv.endpoint == endpoint {
			return recv
		}
	}
	recv := &receiver{endpoint: endpoint}
	c.receivers = append(c.receivers, recv)
	return recv
}

// queue puts a lane at the end of its receiver's queue.
func (c *core) queue(l *lane) {
	c.lastOrder++
	l.state, l.readyOrder = laneReady, c.lastOrder
	if t := c.tableLock(l.name.Outbox); t != nil && t.covers(l) {
		l.locked = true
		t.ready.push(l)
		return
	}
	l.receiver.push(l)
}

// push puts a lane into the queue that fits its state.
func (r *receiver) push(l *lane) {
	switch {
	case r.breakerOpen && l.triedOpening == r.openings:
		r.tried.push(l)
	case !r.breakerOpen && l.job != nil:
		r.readyReplay.push(l)
	default:
		r.ready.push(l)
	}
}

// acceptedSince reports whether the receiver accepted a row in a request that began after
// t. An earlier request may have been answered late and proves nothing about the time
// since.
func (r *receiver) acceptedSince(t time.Time) bool {
	return !t.IsZero() && r.lastAccepted.After(t)
}

// recordResult updates the receiver with the result of a request: proof, failure counts and
// the circuit breaker.
func (c *core) recordResult(req *request, res *sink.Result, now time.Time) {
	recv := req.receiver()
	if req.probe {
		recv.probes--
	}
	failed, accepted := firstFailure(req, res)
	if accepted {
		recv.recordSuccess(req.started)
		recv.rejections, recv.pings.proofs = 0, 0
		return
	}

	recv.failures++
	if failed.Class == sink.Rejected { // the receiver is up: it parsed the rows and answered
		recv.failures = 0
		recv.rejections++
	}
	recv.lastFailure = failed
	if recv.breakerOpen {
		c.delayNextProbe(req, failed.Class, res.RetryAfter, now)
		return
	}
	proof := recv.lastAccepted.After(req.started) || req.runs[0].rows[0].proof
	if recv.failures >= breakerFailures || recv.rejections >= breakerRejections || failed.Class == sink.Misconfigured && !proof {
		recv.breakerOpen, recv.openedAt = true, now
		recv.openings++
		for recv.readyReplay.len() > 0 {
			recv.ready.push(recv.readyReplay.pop())
		}
		c.requeueLarge(recv)
		recv.rotated = 0
		recv.eagerLeft, recv.failedProbes = maxEagerProbes, 0
		recv.nextProbe = now.Add(delay(1, c.cfg.BackoffInitial, c.cfg.BackoffMax, c.random))
		c.applyRetryAfter(recv, res.RetryAfter, now)
		c.cancelUnsent(recv)
	}
}

// recordSuccess records that the receiver accepted a request that began at a time.
func (r *receiver) recordSuccess(began time.Time) {
	r.lastAccepted = later(r.lastAccepted, began)
	r.failures = 0
	if !began.Before(r.openedAt) { // an older request proves nothing about now
		r.closeBreaker()
	}
}

// firstFailure returns the first failure of a request, and whether any of its rows was
// accepted.
func firstFailure(req *request, res *sink.Result) (failed sink.Outcome, accepted bool) {
	if res.Items == nil {
		return res.Outcome, res.Class == sink.Delivered
	}
	for i := range req.size() {
		switch o := res.At(i); {
		case o.Class == sink.Delivered:
			accepted = true
		case failed.Class == 0:
			failed = o
		}
	}
	return failed, accepted
}

// cancelUnsent takes back claimed requests for a receiver with an open breaker, except
// probes. Their lanes wait.
func (c *core) cancelUnsent(recv *receiver) {
	unsent := c.requests.toSend.removeAll(func(req *request) bool { return !req.probe && req.receiver() == recv })
	for _, req := range unsent {
		c.releaseLarge(req)
		for _, r := range req.runs {
			c.shedPayloads(r)
			c.release(r.lane)
		}
	}
}

// delayNextProbe schedules the next probe. The pause is long only once every lane was
// tried, because each untried lane may be the one that closes the breaker.
func (c *core) delayNextProbe(req *request, class sink.Class, retryAfter time.Duration, now time.Time) {
	recv := req.receiver()
	if req.probe && !req.eager {
		recv.failedProbes++
	}
	pause := delay(recv.failedProbes+1, c.cfg.BackoffInitial, c.cfg.BackoffMax, c.random)
	if recv.ready.len() > 0 {
		limit := maxUntriedPause
		if class == sink.Rejected {
			limit = maxRejectedPause // each costs its row an attempt
		}
		pause = min(pause, limit)
	}

	recv.nextProbe = later(recv.nextProbe, now.Add(pause))
	c.applyRetryAfter(recv, retryAfter, now)
}

// applyRetryAfter obeys the receiver's Retry-After.
func (c *core) applyRetryAfter(recv *receiver, after time.Duration, now time.Time) {
	if after = min(after, c.cfg.RetryAfterMax); after > 0 {
		recv.nextProbe = later(recv.nextProbe, now.Add(after))
		recv.eagerLeft = 0
	}
}

// closeBreaker closes the breaker and queues the lanes that waited for it.
func (r *receiver) closeBreaker() {
	if !r.breakerOpen {
		return
	}
	r.breakerOpen = false
	waiting := slices.Concat(r.ready.items, r.tried.items)
	r.ready, r.tried = fifo[*lane]{}, fifo[*lane]{}
	for _, l := range waiting {
		r.push(l)
	}
}

// nextProbe returns a single-row request to a receiver with an open breaker, or for a lane
// that an operator retries; nil if none is due.
func (c *core) nextProbe(now time.Time) *request {
	for c.urgent.len() > 0 {
		l := c.urgent.pop()
		if l.onHold() && l.rows[0].skip == nil {
			l.hold() // another row was inserted in front of the row to skip
			continue
		}
		return newProbe(l, true)
	}

	for _, recv := range c.receivers {
		if req := c.probeReceiver(recv, now); req != nil {
			return req
		}
	}

	return nil
}

// probeReceiver returns a probe of a receiver with an open breaker, if one is due.
//
//   - Untried lanes go first, in random order, because bad lanes may be adjacent.
//   - The first maxEagerProbes of them skip the backoff, on at most half the senders.
//   - Lanes that were tried take turns, one probe at a time.
func (c *core) probeReceiver(recv *receiver, now time.Time) *request {
	if !recv.breakerOpen {
		return nil
	}
	eager := recv.eagerLeft > 0 && recv.ready.len() > 0 && recv.probes < max(1, c.cfg.MaxConcurrentGroups/2)
	if !eager && (recv.probes > 0 || now.Before(recv.nextProbe)) {
		return nil
	}
	if n := recv.ready.len(); n > 0 {
		lanes := recv.ready.items
		i := min(n-1, int(c.random()*float64(n)))
		lanes[0], lanes[i] = lanes[i], lanes[0]
		if recv.probes > 0 && !c.fitsLarge(lanes[0].rows[0]) {
			return nil
		}
		if eager {
			recv.eagerLeft--
		}
		return newProbe(recv.ready.pop(), eager)
	}

	if recv.tried.len() > 0 {
		return newProbe(recv.tried.pop(), false)
	}
	return nil
}

func newProbe(l *lane, eager bool) *request {
	rows, _ := l.head(1, 0)
	req := &request{probe: true, eager: eager}
	req.add(l, rows)
	l.probed = true
	l.receiver.probes++
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
	n := recv.lanes - recv.held
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
		if recv.breakerOpen {
			all = append(all, OpenBreaker{recv.endpoint, recv.lastFailure, recv.openedAt, c.waitingLanes(recv) == 0})
		}
	}
	return all
}
