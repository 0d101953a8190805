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

// Endpoints are the receivers of a sink. They know the endpoint of each row, and move a lane to
// the receiver of its head.
type Endpoints struct {
	askLimits    func(kind string) sink.Limits
	limits       map[string]sink.Limits // by kind; see limitsOf
	own          bool                   // rows name parts of one destination; see sink.Limits
	all          []*Receiver            // one per endpoint
	byEndpoint   map[string]*Receiver
	breaker      *breaker.Config
	namedBreaker *breaker.Config // of named endpoints
	breakers     *breaker.Shared
	maxProbes    int    // of all named endpoints
	probeTurn    [2]int // the receivers that were probed last, see probeGroup
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

func newEndpoints(cfg *Config) Endpoints {
	e := Endpoints{
		askLimits: cfg.Limits, limits: map[string]sink.Limits{}, byEndpoint: map[string]*Receiver{},
		breaker: cfg.Breaker, breakers: cfg.Breakers, maxProbes: max(1, cfg.Senders/4), acceptances: map[string]time.Time{},
	}
	if e.breakers == nil {
		e.breakers = new(breaker.Shared)
	}
	if cfg.Breaker != nil {
		named := *cfg.Breaker
		named.MaxConcurrentEager = max(1, e.maxProbes/4)
		e.namedBreaker = &named
	}
	return e
}

// limitsOf returns the limits of a kind. Each lane asks for them at each step, and a sink may
// take long to compute them.
func (e *Endpoints) limitsOf(kind string) sink.Limits {
	limits, ok := e.limits[kind]
	if !ok {
		if len(e.limits) == maxLimits {
			clear(e.limits)
		}
		limits = e.askLimits(kind)
		e.limits[kind] = limits
		e.own = e.own || limits.OwnEndpoints
	}
	return limits
}

// Of returns the receiver for rows of a kind, or for those whose endpoint is not known.
func (e *Endpoints) Of(kind string) *Receiver { return e.receiver(e.limitsOf(kind).Endpoint, false) }

// Foreign reports whether a receiver is one of the endpoints that rows name, and none of the
// operator's own.
func (e *Endpoints) Foreign(recv *Receiver) bool { return recv.Named && !e.own }

// receiver returns the receiver of an endpoint.
func (e *Endpoints) receiver(endpoint string, named bool) *Receiver {
	recv := e.byEndpoint[endpoint]
	if recv == nil {
		recv = &Receiver{Endpoint: endpoint, Named: named}
		if named {
			recv.Breaker, recv.lastAccepted = e.breakers.Breaker("named "+endpoint, e.namedBreaker), e.acceptances[endpoint]
			delete(e.acceptances, endpoint)
		} else {
			recv.Breaker = e.breakers.Breaker(endpoint, e.breaker)
		}
		e.byEndpoint[endpoint] = recv
		e.all = append(e.all, recv)
	}
	return recv
}

// Mode is how the destination of a row answers.
func (e *Endpoints) Mode(rw *Row) sink.Mode { return e.limitsOf(rw.Kind).Mode }

// All returns the receivers of all lanes so far. The slice belongs to the endpoints.
func (e *Endpoints) All() []*Receiver { return e.all }

// groupOf returns the group in which a receiver is probed.
func groupOf(recv *Receiver, now time.Time) probeGroup {
	if recv.Named && now.Sub(recv.lastAccepted) >= provenFor {
		return unproven
	}
	return proven
}

// mayProbe reports by group whether another probe of a named endpoint may begin.
func (e *Endpoints) mayProbe(now time.Time) (may [2]bool) {
	var n [2]int
	for _, recv := range e.all {
		if recv.Named {
			n[groupOf(recv, now)] += recv.Breaker.Probes()
		}
	}
	for group := range may {
		may[group] = n[unproven]+n[proven] < e.maxProbes && n[group] < max(1, e.maxProbes-1)
	}
	return may
}

// Learn records the endpoint of a row whose content is in memory, or was just read.
func (e *Endpoints) Learn(rw *Row) {
	if of := e.limitsOf(rw.Kind).EndpointOf; of != nil && !rw.Routed {
		msg := rw.message()
		rw.Endpoint, rw.Routed = of(&msg), true
	}
}

// learnInMemory records the endpoint of a row if its content is in memory.
func (e *Endpoints) learnInMemory(rw *Row) {
	if rw.Payload != nil || rw.Attributes != nil {
		e.Learn(rw)
	}
}

// head returns the leading rows of a lane that one request may have; see Lane.head.
func (e *Endpoints) head(l *Lane, maxRows, maxBytes int) (rows []*Row, bytes int) {
	if e.limitsOf(l.Name.Kind).EndpointOf != nil {
		for _, rw := range l.Rows[:min(maxRows, len(l.Rows))] {
			e.learnInMemory(rw)
		}
	}
	return l.head(maxRows, maxBytes)
}

// endpointOf returns the endpoint of a lane's head, and whether rows name it.
func (e *Endpoints) endpointOf(l *Lane) (endpoint string, named bool) {
	limits := e.limitsOf(l.Name.Kind)
	if limits.EndpointOf == nil || len(l.Rows) == 0 {
		return l.Receiver.Endpoint, l.Receiver.Named
	}
	rw := l.Rows[0]
	e.learnInMemory(rw)
	if !rw.Routed || rw.Endpoint == limits.Endpoint {
		return limits.Endpoint, false
	}
	return rw.Endpoint, true
}

// isMisrouted reports whether a queued lane waits at another receiver than that of its head,
// because its head has changed meanwhile.
func (e *Endpoints) isMisrouted(l *Lane) bool {
	endpoint, _ := e.endpointOf(l)
	return endpoint != l.Receiver.Endpoint
}

// Route moves a lane that is in no queue to the receiver of its head.
func (e *Endpoints) Route(l *Lane) {
	from := l.Receiver
	endpoint, named := e.endpointOf(l)
	if endpoint == from.Endpoint {
		return
	}
	to := e.receiver(endpoint, named)
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
	e.idle = slices.DeleteFunc(e.idle, func(recv *Receiver) bool { return recv == to })
	e.dropIdle(from)
}

// dropIdle forgets a receiver that is not needed any more.
func (e *Endpoints) dropIdle(recv *Receiver) {
	if !recv.Named || recv.Lanes > 0 {
		return
	}
	if !recv.Breaker.Fresh() {
		e.idle = append(e.idle, recv)
		if len(e.idle) <= maxIdleReceivers {
			return
		}
		recv = e.idle[0]
		e.idle = e.idle[1:]
	}
	if !recv.lastAccepted.IsZero() {
		if len(e.acceptances) == maxAcceptances {
			clear(e.acceptances)
		}
		e.acceptances[recv.Endpoint] = recv.lastAccepted
	}
	recv.Breaker.Leave()
	delete(e.byEndpoint, recv.Endpoint)
	e.all = slices.DeleteFunc(e.all, func(other *Receiver) bool { return other == recv })
}

// SameEndpoint returns the leading rows that go to the endpoint of the first. Their contents
// were just read.
func (e *Endpoints) SameEndpoint(rows []*Row) []*Row {
	if len(rows) == 0 || e.limitsOf(rows[0].Kind).EndpointOf == nil {
		return rows
	}
	for i, rw := range rows {
		if e.Learn(rw); rw.Endpoint != rows[0].Endpoint {
			return rows[:i]
		}
	}
	return rows
}

// Split moves the lanes of a claimed request to the receivers of their rows, and returns a
// request for each receiver. A probe that an operator asked for follows its lane; another one
// is withdrawn if its lane goes elsewhere.
func (e *Endpoints) Split(req *Request) (all []*Request) {
	if e.limitsOf(req.Runs[0].Lane.Name.Kind).EndpointOf == nil {
		return []*Request{req}
	}
	from := req.Receiver()
	for _, r := range req.Runs {
		e.Route(r.Lane)
		to := r.Lane.Receiver
		i := slices.IndexFunc(all, func(other *Request) bool { return other.Receiver() == to })
		if i < 0 {
			i = len(all)
			part := *req
			part.Runs = nil
			all = append(all, &part)
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

// message returns the sink's message of a row, without what belongs to an attempt.
func (rw *Row) message() sink.Message {
	return sink.Message{
		Outbox: rw.Outbox, ID: rw.ID, Kind: rw.OwnKind(), Group: rw.Group,
		Payload: rw.Payload, Attributes: rw.Attributes, Committed: rw.Committed, Captured: rw.Captured, Claimed: rw.Claimed,
	}
}

// mayFollow reports whether a row may be in a request with one before it, as far as is known.
func (rw *Row) mayFollow(first *Row) bool {
	return !rw.Routed || !first.Routed || rw.Endpoint == first.Endpoint
}
