package lane

import (
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// Rows may name their endpoint (sink.Limits.EndpointOf). A lane then waits at the receiver of
// its head, and moves to another one when another row becomes the head:
//
//	Event                                            Receiver of the lane
//	the head's content is in memory                  that of the head
//	the content was dropped, and no claim has read   that of the kind, whose breaker never opens,
//	it since                                         so that a claim reads it
//	a claim reads the content                        that of the head
//
// The endpoint of a row is remembered while it is in memory, so a lane that waits for a dead
// endpoint is claimed only as a probe.
//
// A named endpoint that does not answer holds senders until its requests time out. So that the
// others go on,
//
//   - it has no more requests in flight than it accepted since it was last unavailable, plus one, and
//     at most half of those that all others leave free. One alone gets half, another one a
//     quarter.
//   - the probes of all named endpoints together take at most a quarter of the senders. Endpoints
//     that accepted a request in the last provenFor are probed in turn, and the others in turn.
//     Neither group takes the last probe from the other, so that an endpoint which works again does
//     not wait for many that never worked.
//
// The claim of a row whose endpoint is not known is subject to neither. It reads the endpoint, and if
// that has no room or an open breaker, the lane waits there, and the row is claimed once more.
//
// A receiver without lanes is forgotten if its breaker is closed and has counted nothing. Of
// the others the latest maxIdleReceivers are kept.

const (
	// maxIdleReceivers is how many named endpoints without lanes are remembered.
	maxIdleReceivers = 256

	// provenFor is how long an accepted request tells that an endpoint may work again.
	provenFor = 24 * time.Hour

	// maxAcceptances is how many forgotten receivers have their last acceptance kept.
	maxAcceptances = 10_000
)

// endpoints are the receivers by endpoint.
type endpoints struct {
	limits       map[string]sink.Limits // by kind; see limitsOf
	byEndpoint   map[string]*Receiver
	namedBreaker *breaker.Config // of named endpoints
	maxProbes    int             // of all named endpoints
	probeTurn    [2]int          // the receivers that were probed last, see probeGroup
	lastProbe    probeGroup
	idle         []*Receiver          // named and without lanes, the longest first
	acceptances  map[string]time.Time // latest, of forgotten receivers
}

// probeGroup is a group of receivers that are probed in turn.
type probeGroup int

const (
	unproven probeGroup = iota
	proven              // accepted a request in the last provenFor, or is not named
)

// maxLimits is how many kinds have their limits kept.
const maxLimits = 256

func newEndpoints(cfg *Config) endpoints {
	e := endpoints{limits: map[string]sink.Limits{}, byEndpoint: map[string]*Receiver{}, maxProbes: max(1, cfg.Senders/4), acceptances: map[string]time.Time{}}
	if cfg.Breaker != nil {
		named := *cfg.Breaker
		named.MaxConcurrentEager = max(1, e.maxProbes/4)
		e.namedBreaker = &named
	}
	return e
}

// limitsOf returns the limits of a kind. Each lane asks for them at each step, and a sink may
// take long to compute them.
func (s *Set) limitsOf(kind string) sink.Limits {
	limits, ok := s.limits[kind]
	if !ok {
		if len(s.limits) == maxLimits {
			clear(s.limits)
		}
		limits = s.cfg.Limits(kind)
		s.limits[kind] = limits
	}
	return limits
}

// hasRoom reports whether another request to a receiver may begin; see the comment above.
func (s *Set) hasRoom(recv *Receiver) bool {
	return !recv.Named || recv.inFlight == 0 || recv.inFlight < min(1+recv.accepted, s.FreeRequests())
}

// groupOf returns the group in which a receiver is probed.
func groupOf(recv *Receiver, now time.Time) probeGroup {
	if recv.Named && now.Sub(recv.lastAccepted) >= provenFor {
		return unproven
	}
	return proven
}

// mayProbe reports by group whether another probe of a named endpoint may begin.
func (s *Set) mayProbe(now time.Time) (may [2]bool) {
	var n [2]int
	for _, recv := range s.receivers {
		if recv.Named {
			n[groupOf(recv, now)] += recv.Breaker.Probes()
		}
	}
	for group := range may {
		may[group] = n[unproven]+n[proven] < s.maxProbes && n[group] < max(1, s.maxProbes-1)
	}
	return may
}

// Learn records the endpoint of a row whose content is in memory, or was just read.
func (s *Set) Learn(rw *Row) {
	if of := s.limitsOf(rw.Kind).EndpointOf; of != nil && !rw.Routed {
		msg := rw.message()
		rw.Endpoint, rw.Routed = of(&msg), true
	}
}

// learnInMemory records the endpoint of a row if its content is in memory.
func (s *Set) learnInMemory(rw *Row) {
	if rw.Payload != nil || rw.Attributes != nil {
		s.Learn(rw)
	}
}

// head returns the leading rows of a lane that one request may have; see Lane.head.
func (s *Set) head(l *Lane, maxRows, maxBytes int) (rows []*Row, bytes int) {
	if s.limitsOf(l.Name.Kind).EndpointOf != nil {
		for _, rw := range l.Rows[:min(maxRows, len(l.Rows))] {
			s.learnInMemory(rw)
		}
	}
	return l.head(maxRows, maxBytes)
}

// endpointOf returns the endpoint of a lane's head, and whether rows name it.
func (s *Set) endpointOf(l *Lane) (endpoint string, named bool) {
	limits := s.limitsOf(l.Name.Kind)
	if limits.EndpointOf == nil || len(l.Rows) == 0 {
		return l.Receiver.Endpoint, l.Receiver.Named
	}
	rw := l.Rows[0]
	s.learnInMemory(rw)
	if !rw.Routed || rw.Endpoint == limits.Endpoint {
		return limits.Endpoint, false
	}
	return rw.Endpoint, true
}

// isMisrouted reports whether a queued lane waits at another receiver than that of its head,
// because its head has changed meanwhile.
func (s *Set) isMisrouted(l *Lane) bool {
	endpoint, _ := s.endpointOf(l)
	return endpoint != l.Receiver.Endpoint
}

// reroute queues the first lane of a queue again if its head has changed, and reports whether
// it did.
func (s *Set) reroute(queue *Fifo[*Lane]) bool {
	if queue.Len() == 0 || !s.isMisrouted(queue.items[0]) {
		return false
	}
	s.Queue(queue.Pop())
	return true
}

// Reroute queues a ready lane again if its head has changed.
func (s *Set) Reroute(l *Lane) {
	if l.State == Ready && s.isMisrouted(l) {
		s.Dequeue(l)
		s.Queue(l)
	}
}

// Route moves a lane that is in no queue to the receiver of its head.
func (s *Set) Route(l *Lane) {
	from := l.Receiver
	endpoint, named := s.endpointOf(l)
	if endpoint == from.Endpoint {
		return
	}
	to := s.receiver(endpoint, named)
	if named {
		l.Rows[0].Endpoint = to.Endpoint // one text for all rows
	}
	from.Lanes--
	to.Lanes++
	if l.Job != nil {
		from.ReplayLanes--
		to.ReplayLanes++
	}
	if l.State == Held {
		from.Held--
		to.Held++
	}
	l.Receiver, l.TriedOpening = to, 0
	s.idle = slices.DeleteFunc(s.idle, func(recv *Receiver) bool { return recv == to })
	s.dropIdle(from)
}

// dropIdle forgets a receiver that is not needed any more.
func (s *Set) dropIdle(recv *Receiver) {
	if !recv.Named || recv.Lanes > 0 {
		return
	}
	if !recv.Breaker.Fresh() {
		s.idle = append(s.idle, recv)
		if len(s.idle) <= maxIdleReceivers {
			return
		}
		recv = s.idle[0]
		s.idle = s.idle[1:]
	}
	if !recv.lastAccepted.IsZero() {
		if len(s.acceptances) == maxAcceptances {
			clear(s.acceptances)
		}
		s.acceptances[recv.Endpoint] = recv.lastAccepted
	}
	delete(s.byEndpoint, recv.Endpoint)
	s.receivers = slices.DeleteFunc(s.receivers, func(other *Receiver) bool { return other == recv })
}

// Claimed records the answer to the claim of a request.
func (s *Set) Claimed(req *Request) {
	s.Requests.Claimed()
	req.Receiver().inFlight--
}

// SameEndpoint returns the leading rows that go to the endpoint of the first. Their contents
// were just read.
func (s *Set) SameEndpoint(rows []*Row) []*Row {
	if len(rows) == 0 || s.limitsOf(rows[0].Kind).EndpointOf == nil {
		return rows
	}
	for i, rw := range rows {
		if s.Learn(rw); rw.Endpoint != rows[0].Endpoint {
			return rows[:i]
		}
	}
	return rows
}

// Split moves the lanes of a claimed request to the receivers of their rows, and returns a
// request for each receiver. A probe that an operator asked for follows its lane; another one
// is withdrawn if its lane goes elsewhere.
func (s *Set) Split(req *Request) (all []*Request) {
	if s.limitsOf(req.Runs[0].Lane.Name.Kind).EndpointOf == nil {
		return []*Request{req}
	}
	from := req.Receiver()
	for _, r := range req.Runs {
		s.Route(r.Lane)
		to := r.Lane.Receiver
		i := slices.IndexFunc(all, func(other *Request) bool { return other.Receiver() == to })
		if i < 0 {
			i = len(all)
			all = append(all, &Request{Probe: req.Probe, Split: req.Split, LargeBytes: req.LargeBytes})
		}
		all[i].Runs = append(all[i].Runs, r)
	}
	for _, part := range all {
		if to := part.Receiver(); to != from {
			from.Breaker.Withdraw(req.Probe)
			if part.Probe != breaker.Requested {
				part.Probe = breaker.None
			}
			to.Breaker.Begin(part.Probe)
		}
	}
	return all
}

// MaySend reports whether a part of a request that was claimed for a receiver may be sent. If
// the claim showed another endpoint, that one may have an open breaker or no room.
func (s *Set) MaySend(part *Request, claimedFor *Receiver) bool {
	to := part.Receiver()
	return to == claimedFor || part.Probe != breaker.None || !to.Breaker.Open() && s.hasRoom(to)
}

// message returns the sink's message of a row, without what belongs to an attempt.
func (rw *Row) message() sink.Message {
	return sink.Message{
		ID: rw.ID, Kind: rw.OwnKind(), Group: rw.Group,
		Payload: rw.Payload, Attributes: rw.Attributes, Committed: rw.Committed,
	}
}

// mayFollow reports whether a row may be in a request with one before it, as far as is known.
func (rw *Row) mayFollow(first *Row) bool {
	return !rw.Routed || !first.Routed || rw.Endpoint == first.Endpoint
}
