package dispatch

import (
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

const (
	// breakerFailures is how many failed requests in a row make a sink suspect.
	breakerFailures = 5
	// breakerRejections is how many rejected ones do: a receiver that has yet to take
	// a row may have been told the wrong wire, and must not cost a whole outbox.
	breakerRejections = 20
	// maxEagerProbes is how many lanes are tried without back-off once a sink is
	// suspect. If rows were to blame and not the sink, one of the others tells
	// so at once; if the sink is, more would be a storm.
	maxEagerProbes = 16
	// The longest pause between two probes while there are lanes that were not
	// tried yet, and after one that was rejected.
	maxUntriedPause, maxRejectedPause = time.Second, 2 * time.Second
)

// receiver is what the core knows of one endpoint of the sink, and the lanes that
// wait for it.
type receiver struct {
	endpoint    string
	ready       fifo[*lane] // to be claimed
	readyReplay fifo[*lane] // ready with replayed rows; while it is suspect they are with the others
	tried       fifo[*lane] // tried since the receiver became suspect
	replayLanes int         // lanes of replayed rows that go to it
	// lanes are all that go to it and are known, held those of them that somebody has
	// to let go.
	lanes, held int

	// lastAccepted is the latest beginning of a request of which it took a row.
	lastAccepted time.Time
	// failures counts failed requests since it last took or rejected a row, and
	// rejections those rejected since it took one.
	failures, rejections int

	// breakerOpen: nothing but probes is sent, until one is taken.
	breakerOpen bool
	openings    uint64 // counts the suspicions
	rotated     int    // lanes that made room for others to be tried
	openedAt    time.Time
	lastFailure sink.Outcome // of the latest failure
	// probes are under way, eagerLeft may go without back-off, misses have failed
	// with it. The next may go at nextProbe.
	probes, eagerLeft, failedProbes int
	nextProbe                       time.Time

	pings pingState
}

// receiver returns the receiver that rows of a kind go to.
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

// queue puts a lane at the end of those that wait for the receiver.
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

// push puts a lane in the queue that it belongs to.
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

// acceptedSince reports whether the receiver took a row in a request that began
// after t. A request that began earlier may have been answered late and proves
// nothing about the time between.
func (r *receiver) acceptedSince(t time.Time) bool {
	return !t.IsZero() && r.lastAccepted.After(t)
}

// recordResult takes the answer to a request into account: what it proves and what
// it makes suspect.
func (c *core) recordResult(req *request, res *sink.Result, now time.Time) {
	recv := req.receiver()
	if req.probe {
		recv.probes--
	}
	failed, taken := firstFailure(req, res)
	if taken {
		recv.recordSuccess(req.started)
		recv.rejections, recv.pings.proofs = 0, 0
		return
	}
	recv.failures++
	if failed.Class == sink.Rejected { // it reads rows and answers
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

// recordSuccess notes that the receiver took a request that began at a time.
func (r *receiver) recordSuccess(began time.Time) {
	r.lastAccepted = later(r.lastAccepted, began)
	r.failures = 0
	if !began.Before(r.openedAt) { // an older request proves nothing of now
		r.closeBreaker()
	}
}

// firstFailure returns the first failure of a request, and whether a row of it was
// taken.
func firstFailure(req *request, res *sink.Result) (failed sink.Outcome, taken bool) {
	if res.Items == nil {
		return res.Outcome, res.Class == sink.Delivered
	}
	for i := range req.size() {
		switch o := res.At(i); {
		case o.Class == sink.Delivered:
			taken = true
		case failed.Class == 0:
			failed = o
		}
	}
	return failed, taken
}

// cancelUnsent takes back what was claimed for a suspect receiver and is not a probe:
// its lanes wait.
func (c *core) cancelUnsent(recv *receiver) {
	for range c.toSend.len() {
		req := c.toSend.pop()
		if req.probe || req.receiver() != recv {
			c.toSend.push(req)
			continue
		}
		c.releaseLarge(req)
		for _, r := range req.runs {
			c.shedPayloads(r)
			c.release(r.lane)
		}
	}
}

// delayNextProbe puts the next probe off: for long only when every lane was tried, since
// each of them may be the one that shows the receiver to be well.
func (c *core) delayNextProbe(req *request, class sink.Class, retryAfter time.Duration, now time.Time) {
	recv := req.receiver()
	if req.probe && !req.eager {
		recv.failedProbes++
	}
	pause := delay(recv.failedProbes+1, c.cfg.BackoffInitial, c.cfg.BackoffMax, c.random)
	if recv.ready.len() > 0 {
		most := maxUntriedPause
		if class == sink.Rejected {
			most = maxRejectedPause // each costs its row an attempt
		}
		pause = min(pause, most)
	}
	recv.nextProbe = later(recv.nextProbe, now.Add(pause))
	c.applyRetryAfter(recv, retryAfter, now)
}

// applyRetryAfter obeys a receiver that names the time to come back.
func (c *core) applyRetryAfter(recv *receiver, after time.Duration, now time.Time) {
	if after = min(after, c.cfg.RetryAfterMax); after > 0 {
		recv.nextProbe = later(recv.nextProbe, now.Add(after))
		recv.eagerLeft = 0
	}
}

// closeBreaker ends a suspicion: the lanes that waited for the receiver go on.
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

// nextProbe takes a single row to a suspect receiver, or from a lane that an
// operator wants tried at once; nil if it is not the time.
func (c *core) nextProbe(now time.Time) *request {
	for c.urgent.len() > 0 {
		l := c.urgent.pop()
		if l.onHold() && l.rows[0].skip == nil {
			l.hold() // another row came in front of the one to pass over
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

// probeReceiver takes the next lane of a suspect receiver, if it is the time for one.
// Those that were not tried yet come first, in any order, for those to blame may
// stand together; and without back-off as long as there are few, but never by
// all senders, which others need. Those that were tried take turns.
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

// OpenBreaker is an endpoint of the sink that is suspect.
type OpenBreaker struct {
	Endpoint    string
	LastFailure sink.Outcome // its latest failure
	Since       time.Time
	// Idle: no row waits for the endpoint, so nothing is wrong for now. The next row
	// is sent as a probe.
	Idle bool
}

// waitingLanes counts the lanes with rows that wait for a receiver, in memory or parked,
// but for those that somebody has to let go.
func (c *core) waitingLanes(recv *receiver) int {
	n := recv.lanes - recv.held
	for _, away := range c.spilledLanes {
		if away.lanes.n > 0 && c.receiver(away.kind) == recv {
			n += away.lanes.n
		}
	}
	return n
}

// openBreakers returns the endpoints that are suspect.
func (c *core) openBreakers() (all []OpenBreaker) {
	for _, recv := range c.receivers {
		if recv.breakerOpen {
			all = append(all, OpenBreaker{recv.endpoint, recv.lastFailure, recv.openedAt, c.waitingLanes(recv) == 0})
		}
	}
	return all
}
