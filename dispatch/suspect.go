package dispatch

import (
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

const (
	// suspectAfter is how many failed requests in a row make a sink suspect.
	suspectAfter = 5
	// rejectedAfter is how many rejected ones do: a receiver that has yet to take
	// a row may have been told the wrong wire, and must not cost a whole outbox.
	rejectedAfter = 20
	// probesAtOnce is how many lanes are tried without back-off once a sink is
	// suspect. If rows were to blame and not the sink, one of the others tells
	// so at once; if the sink is, more would be a storm.
	probesAtOnce = 16
	// The longest pause between two probes while there are lanes that were not
	// tried yet, and after one that was rejected.
	untriedPause, rejectedPause = time.Second, 2 * time.Second
)

// receiver is what the core knows of one endpoint of the sink, and the lanes that
// wait for it.
type receiver struct {
	endpoint string
	ready    fifo[*lane] // to be claimed
	again    fifo[*lane] // ready with replayed rows; while it is suspect they are with the others
	tried    fifo[*lane] // tried since the receiver became suspect
	shadows  int         // lanes of replayed rows that go to it
	// lanes are all that go to it and are known, held those of them that somebody has
	// to let go.
	lanes, held int

	// accepted is the latest beginning of a request of which it took a row.
	accepted time.Time
	// fails counts failed requests since it last took or rejected a row, and
	// rejections those rejected since it took one.
	fails, rejections int

	// suspect: nothing but probes is sent, until one is taken.
	suspect bool
	round   uint64 // counts the suspicions
	rotated int    // lanes that made room for others to be tried
	since   time.Time
	why     sink.Outcome // of the latest failure
	// probes are under way, atOnce may go without back-off, misses have failed
	// with it. The next may go at nextProbe.
	probes, atOnce, misses int
	nextProbe              time.Time

	pinging pinging
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
	c.stamp++
	l.state, l.queued = laneReady, c.stamp
	if t := c.lockOf(l.name.Outbox); t != nil && t.has(l) {
		l.locked = true
		t.ready.push(l)
		return
	}
	l.to.push(l)
}

// push puts a lane in the queue that it belongs to.
func (r *receiver) push(l *lane) {
	switch {
	case r.suspect && l.tried == r.round:
		r.tried.push(l)
	case !r.suspect && l.job != nil:
		r.again.push(l)
	default:
		r.ready.push(l)
	}
}

// livedSince reports whether the receiver took a row in a request that began
// after t. A request that began earlier may have been answered late and proves
// nothing about the time between.
func (r *receiver) livedSince(t time.Time) bool {
	return !t.IsZero() && r.accepted.After(t)
}

// observe takes the answer to a request into account: what it proves and what
// it makes suspect.
func (c *core) observe(req *request, res *sink.Result, now time.Time) {
	recv := req.to()
	if req.probe {
		recv.probes--
	}
	failed, taken := worst(req, res)
	if taken {
		recv.lives(req.started)
		recv.rejections, recv.pinging.proofs = 0, 0
		return
	}
	recv.fails++
	if failed.Class == sink.Rejected { // it reads rows and answers
		recv.fails = 0
		recv.rejections++
	}
	recv.why = failed
	if recv.suspect {
		c.missed(req, failed.Class, res.RetryAfter, now)
		return
	}
	proof := recv.accepted.After(req.started) || req.runs[0].rows[0].proof
	if recv.fails >= suspectAfter || recv.rejections >= rejectedAfter || failed.Class == sink.Misconfigured && !proof {
		recv.suspect, recv.since = true, now
		recv.round++
		for recv.again.len() > 0 {
			recv.ready.push(recv.again.pop())
		}
		c.comeOut(recv)
		recv.rotated = 0
		recv.atOnce, recv.misses = probesAtOnce, 0
		recv.nextProbe = now.Add(delay(1, c.cfg.BackoffInitial, c.cfg.BackoffMax, c.random))
		c.comeBack(recv, res.RetryAfter, now)
		c.dissolve(recv)
	}
}

// lives notes that the receiver took a request that began at a time.
func (r *receiver) lives(began time.Time) {
	r.accepted = later(r.accepted, began)
	r.fails = 0
	if !began.Before(r.since) { // an older request proves nothing of now
		r.trust()
	}
}

// worst returns the first failure of a request, and whether a row of it was
// taken.
func worst(req *request, res *sink.Result) (failed sink.Outcome, taken bool) {
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

// dissolve takes back what was claimed for a suspect receiver and is not a probe:
// its lanes wait.
func (c *core) dissolve(recv *receiver) {
	for range c.toSend.len() {
		req := c.toSend.pop()
		if req.probe || req.to() != recv {
			c.toSend.push(req)
			continue
		}
		c.over(req)
		for _, r := range req.runs {
			c.shedRun(r)
			c.release(r.lane)
		}
	}
}

// missed puts the next probe off: for long only when every lane was tried, since
// each of them may be the one that shows the receiver to be well.
func (c *core) missed(req *request, class sink.Class, retryAfter time.Duration, now time.Time) {
	recv := req.to()
	if req.probe && !req.eager {
		recv.misses++
	}
	pause := delay(recv.misses+1, c.cfg.BackoffInitial, c.cfg.BackoffMax, c.random)
	if recv.ready.len() > 0 {
		most := untriedPause
		if class == sink.Rejected {
			most = rejectedPause // each costs its row an attempt
		}
		pause = min(pause, most)
	}
	recv.nextProbe = later(recv.nextProbe, now.Add(pause))
	c.comeBack(recv, retryAfter, now)
}

// comeBack obeys a receiver that names the time to come back.
func (c *core) comeBack(recv *receiver, after time.Duration, now time.Time) {
	if after = min(after, c.cfg.RetryAfterMax); after > 0 {
		recv.nextProbe = later(recv.nextProbe, now.Add(after))
		recv.atOnce = 0
	}
}

// trust ends a suspicion: the lanes that waited for the receiver go on.
func (r *receiver) trust() {
	if !r.suspect {
		return
	}
	r.suspect = false
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
		if l.standing() && l.rows[0].skip == nil {
			l.hold() // another row came in front of the one to pass over
			continue
		}
		return probe(l, true)
	}
	for _, recv := range c.receivers {
		if req := c.probeOf(recv, now); req != nil {
			return req
		}
	}
	return nil
}

// probeOf takes the next lane of a suspect receiver, if it is the time for one.
// Those that were not tried yet come first, in any order, for those to blame may
// stand together; and without back-off as long as there are few, but never by
// all senders, which others need. Those that were tried take turns.
func (c *core) probeOf(recv *receiver, now time.Time) *request {
	if !recv.suspect {
		return nil
	}
	eager := recv.atOnce > 0 && recv.ready.len() > 0 && recv.probes < max(1, c.cfg.MaxConcurrentGroups/2)
	if !eager && (recv.probes > 0 || now.Before(recv.nextProbe)) {
		return nil
	}
	if n := recv.ready.len(); n > 0 {
		lanes := recv.ready.items
		i := min(n-1, int(c.random()*float64(n)))
		lanes[0], lanes[i] = lanes[i], lanes[0]
		if recv.probes > 0 && !c.fits(lanes[0].rows[0]) {
			return nil
		}
		if eager {
			recv.atOnce--
		}
		return probe(recv.ready.pop(), eager)
	}
	if recv.tried.len() > 0 {
		return probe(recv.tried.pop(), false)
	}
	return nil
}

func probe(l *lane, eager bool) *request {
	rows, _ := l.head(1, 0)
	req := &request{probe: true, eager: eager}
	req.add(l, rows)
	l.probed = true
	l.to.probes++
	return req
}

// Suspicion is an endpoint of the sink that is suspect.
type Suspicion struct {
	Endpoint string
	Why      sink.Outcome // its latest failure
	Since    time.Time
	// Idle: no row waits for the endpoint, so nothing is wrong for now. The next row
	// is sent as a probe.
	Idle bool
}

// waitingFor counts the lanes with rows that wait for a receiver, in memory or parked,
// but for those that somebody has to let go.
func (c *core) waitingFor(recv *receiver) int {
	n := recv.lanes - recv.held
	for _, away := range c.away {
		if away.lanes.n > 0 && c.receiver(away.kind) == recv {
			n += away.lanes.n
		}
	}
	return n
}

// suspicions returns the endpoints that are suspect.
func (c *core) suspicions() (all []Suspicion) {
	for _, recv := range c.receivers {
		if recv.suspect {
			all = append(all, Suspicion{recv.endpoint, recv.why, recv.since, c.waitingFor(recv) == 0})
		}
	}
	return all
}
