package lane

import (
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// Receiver is one endpoint of the sink, with the lanes that wait for it.
type Receiver struct {
	Endpoint    string
	Breaker     breaker.Breaker
	ready       Fifo[*Lane] // to be claimed
	readyReplay Fifo[*Lane] // ready replay lanes; in ready while the breaker is open
	tried       Fifo[*Lane] // probed since the breaker opened
	ReplayLanes int         // its replay lanes

	// Lanes counts the known lanes of the endpoint, Held the lanes among them on hold.
	Lanes, Held int

	Rotated int // lanes evicted to probe others since the breaker opened

	// Named: rows name the endpoint. inFlight counts its requests, and accepted those that it
	// accepted since it was last unavailable; see Requests.hasRoom.
	Named              bool
	inFlight, accepted int
	lastAccepted       time.Time

	// usualAnswer is the average time of the latest accepted requests; zero before the first.
	usualAnswer time.Duration
}

// Untried returns the ready lanes. While the breaker is open they are the lanes that were
// not probed since it opened.
func (r *Receiver) Untried() []*Lane { return r.ready.Items() }

// Tried returns the lanes that were probed since the breaker opened.
func (r *Receiver) Tried() []*Lane { return r.tried.Items() }

// ReadyReplays returns the ready replay lanes while the breaker is closed.
func (r *Receiver) ReadyReplays() []*Lane { return r.readyReplay.Items() }

// push puts a lane into the queue that fits its state.
func (r *Receiver) push(l *Lane) {
	switch {
	case r.Breaker.Open() && l.TriedOpening == r.Breaker.Openings():
		r.tried.Push(l)
	case !r.Breaker.Open() && l.Job != nil:
		r.readyReplay.Push(l)
	default:
		r.ready.Push(l)
	}
}

// waiting is how many lanes wait in its queues.
func (r *Receiver) waiting() int { return r.ready.Len() + r.readyReplay.Len() + r.tried.Len() }

// remove takes a lane out of its queue and reports whether it was in one.
func (r *Receiver) remove(is func(*Lane) bool) bool {
	return r.ready.Remove(is) || r.readyReplay.Remove(is) || r.tried.Remove(is)
}

// RecordResult passes the result of a request to the circuit breaker and returns its
// effect; see Set.BreakerChanged.
func (r *Request) RecordResult(res *sink.Result, now time.Time) breaker.Change {
	recv := r.Receiver()
	if res.Unsent { // it says nothing about the receiver
		recv.Breaker.Withdraw(r.Probe)
		return breaker.Unchanged
	}
	failed, accepted := firstFailure(r, res)
	switch {
	case accepted:
		recv.accepted++
		recv.lastAccepted = now
		recv.learnAnswer(now.Sub(r.Started))
	case failed.Class == sink.Unavailable:
		recv.accepted = 0
	}
	return recv.Breaker.Answered(&breaker.Answer{
		Started: r.Started, Probe: r.Probe,
		Accepted: accepted, Failure: failed, RetryAfter: res.RetryAfter,
		Proof: r.Runs[0].Rows[0].Proof, Untried: recv.ready.Len() > 0,
	}, now)
}

// learnAnswer counts the time of an accepted request as an eighth of the average.
func (r *Receiver) learnAnswer(took time.Duration) {
	if r.usualAnswer == 0 {
		r.usualAnswer = took
	}
	r.usualAnswer = max(1, r.usualAnswer+(took-r.usualAnswer)/8)
}

// A lane hangs after minHang without an answer, or after hangFactor times the usual time of an
// answer if that is longer: a receiver that is slow for every lane makes none of them hang.
const (
	minHang    = 500 * time.Millisecond
	hangFactor = 4
)

// HangsAfter is how long a request goes unanswered until its lanes hang.
func (r *Receiver) HangsAfter() time.Duration {
	if r.usualAnswer == 0 {
		return hangFactor * minHang // it may be slow
	}
	return max(minHang, hangFactor*r.usualAnswer)
}

// firstFailure returns the first failure of a request, and whether any of its rows was
// accepted.
func firstFailure(req *Request, res *sink.Result) (failed sink.Outcome, accepted bool) {
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

// BreakerChanged moves the lanes of a receiver to the queues that fit the breaker.
func (s *Set) BreakerChanged(recv *Receiver, change breaker.Change) {
	switch change {
	case breaker.Opened:
		for recv.readyReplay.Len() > 0 {
			recv.ready.Push(recv.readyReplay.Pop())
		}
		for _, l := range s.large.RemoveAll(func(l *Lane) bool { return l.Receiver == recv }) {
			recv.push(l)
		}
		recv.Rotated = 0
	case breaker.Closed:
		waiting := slices.Concat(recv.ready.Items(), recv.tried.Items())
		recv.ready, recv.tried = Fifo[*Lane]{}, Fifo[*Lane]{}
		for _, l := range waiting {
			recv.push(l)
		}
	}
}

// nextProbe returns a single-row request to a receiver with an open breaker, or for a lane
// that is claimed first; nil if none is due.
func (s *Set) nextProbe(now time.Time) *Request {
	for s.urgent.Len() > 0 {
		l := s.urgent.Pop()
		s.Endpoints.Route(l)
		if l.OnHold() && l.Rows[0].Skip == nil {
			l.Hold() // another row was inserted in front of the row to skip
			continue
		}
		return s.newProbe(l, breaker.Requested)
	}

	e := &s.Endpoints
	mayProbe := e.mayProbe(now)
	for _, group := range []probeGroup{1 - e.lastProbe, e.lastProbe} { // they alternate
		turn := &e.probeTurn[group]
		for range e.all {
			*turn = (*turn + 1) % len(e.all)
			recv := e.all[*turn]
			if !recv.Breaker.Open() || recv.Named && !mayProbe[group] || groupOf(recv, now) != group {
				continue
			}
			if req := s.probeReceiver(recv, now); req != nil {
				e.lastProbe = group
				return req
			}
		}
	}

	return nil
}

// probeReceiver returns a probe of a receiver with an open breaker, if one is due. Untried
// lanes go first, in random order, because bad lanes may be adjacent. Lanes that were tried
// take turns.
func (s *Set) probeReceiver(recv *Receiver, now time.Time) *Request {
	n := recv.ready.Len()
	probe := recv.Breaker.ProbeDue(n > 0, now)
	switch {
	case probe == breaker.None:
	case n > 0:
		lanes := recv.ready.Items()
		i := min(n-1, int(s.cfg.Random()*float64(n)))
		lanes[0], lanes[i] = lanes[i], lanes[0]
		if s.reroute(&recv.ready) {
			return s.probeReceiver(recv, now)
		}
		if !recv.Breaker.Probing() || s.Memory.fitsLarge(lanes[0].Rows[0]) {
			return s.newProbe(recv.ready.Pop(), probe)
		}
	case s.reroute(&recv.tried):
		return s.probeReceiver(recv, now)
	case recv.tried.Len() > 0:
		return s.newProbe(recv.tried.Pop(), probe)
	}
	return nil
}

func (s *Set) newProbe(l *Lane, probe breaker.Probe) *Request {
	rows, _ := s.Endpoints.head(l, 1, 0)
	req := &Request{Probe: probe}
	req.add(l, rows)
	l.Probed = true
	l.Receiver.Breaker.Begin(probe)
	return req
}
