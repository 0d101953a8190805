package dispatch

import (
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
)

// receiver is what the core knows of the sink's receiver.
type receiver struct {
	// accepted is the latest beginning of a request of which it took a row.
	accepted time.Time
	// fails counts failed requests since it last took or rejected a row, and
	// rejections those rejected since it took one.
	fails, rejections int

	// suspect: nothing but probes is sent, until one is taken.
	suspect bool
	round   uint64 // counts the suspicions
	since   time.Time
	why     sink.Outcome // of the latest failure
	// probes are under way, atOnce may go without back-off, misses have failed
	// with it. The next may go at nextProbe.
	probes, atOnce, misses int
	nextProbe              time.Time
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
	recv := &c.recv
	if req.probe {
		recv.probes--
	}
	failed, taken := worst(req, res)
	if taken {
		recv.accepted = later(recv.accepted, req.started)
		recv.fails, recv.rejections = 0, 0
		if !req.started.Before(recv.since) { // an older request proves nothing of now
			c.trust()
		}
		return
	}
	recv.fails++
	if failed.Class == sink.Rejected { // it reads rows and answers
		recv.fails = 0
		recv.rejections++
	}
	recv.why = failed
	if recv.suspect {
		c.missed(req, res, now)
		return
	}
	proof := recv.accepted.After(req.started) || req.runs[0].rows[0].proof
	if recv.fails >= suspectAfter || recv.rejections >= rejectedAfter || failed.Class == sink.Misconfigured && !proof {
		recv.suspect, recv.since = true, now
		recv.round++
		recv.atOnce, recv.misses = probesAtOnce, 0
		recv.nextProbe = now.Add(delay(1, c.cfg.BackoffInitial, c.cfg.BackoffMax, c.random))
		c.comeBack(res, now)
		c.dissolve()
	}
}

// dissolve takes back what was claimed and is not a probe: its lanes wait for
// the suspect sink.
func (c *core) dissolve() {
	for range c.toSend.len() {
		req := c.toSend.pop()
		if req.probe {
			c.toSend.push(req)
			continue
		}
		for _, r := range req.runs {
			c.release(r.lane)
		}
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

// missed puts the next probe off.
func (c *core) missed(req *request, res *sink.Result, now time.Time) {
	if req.probe && !req.eager {
		c.recv.misses++
	}
	pause := delay(c.recv.misses+1, c.cfg.BackoffInitial, c.cfg.BackoffMax, c.random)
	c.recv.nextProbe = later(c.recv.nextProbe, now.Add(pause))
	c.comeBack(res, now)
}

// comeBack obeys a receiver that names the time to come back.
func (c *core) comeBack(res *sink.Result, now time.Time) {
	if after := min(res.RetryAfter, c.cfg.RetryAfterMax); after > 0 {
		c.recv.nextProbe = later(c.recv.nextProbe, now.Add(after))
		c.recv.atOnce = 0
	}
}

// trust ends a suspicion: the lanes that waited for the sink go on.
func (c *core) trust() {
	if !c.recv.suspect {
		return
	}
	c.recv.suspect = false
	for c.tried.len() > 0 {
		c.ready.push(c.tried.pop(c.tried.longest()))
	}
}

// nextProbe takes a single row to a suspect sink, or from a lane that an
// operator wants tried at once; nil if it is not the time. Lanes take turns:
// those that were not tried yet come first, and without back-off as long as
// there are few.
func (c *core) nextProbe(now time.Time) *request {
	if c.urgent.len() > 0 {
		return c.probe(c.urgent.pop(), true)
	}
	recv := &c.recv
	if !recv.suspect {
		return nil
	}
	atOnce := recv.atOnce > 0 && c.ready.len() > 0
	if !atOnce && (recv.probes > 0 || now.Before(recv.nextProbe)) {
		return nil
	}
	if atOnce {
		recv.atOnce--
	}
	for _, q := range []*queue{&c.ready, &c.tried} {
		if q.len() > 0 {
			return c.probe(q.pop(q.longest()), atOnce)
		}
	}
	return nil
}

func (c *core) probe(l *lane, eager bool) *request {
	rows, _ := l.head(1, 0)
	req := &request{probe: true, eager: eager}
	req.add(l, rows)
	c.recv.probes++
	return req
}
