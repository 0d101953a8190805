package dispatch

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// sending sends claimed requests and passes the answers to the core.
type sending struct {
	d        *Dispatcher
	requests chan *request // to be sent
}

// run is one sender.
func (s *sending) run(ctx context.Context) error {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case req := <-s.requests:
			if sure, err := s.awaitLease(ctx, ended, req); err != nil {
				return err
			} else if !sure {
				continue
			}
			began := time.Now()
			if req.IsStale(began) {
				s.d.change(func(c *core) { c.takeBackStale(req) })
				continue
			}
			res := deliver(ctx, s.d.opt.Sink, req.Messages())
			if ctx.Err() != nil {
				return ctx.Err() // canceled: the result is unknown
			}
			s.answered(req, &res, began)
		}
	}
}

// awaitLease waits until this relay certainly leads, and reports whether the request may be sent then. A
// request for a shared destination whose sender would have to wait is taken back, so that the others have
// its slot and may probe. ended is a context that has ended.
func (s *sending) awaitLease(ctx, ended context.Context, req *request) (sure bool, err error) {
	lease := s.d.opt.Lease
	switch {
	case lease == nil:
		return true, nil
	case s.d.member == nil:
		return true, lease.Await(ctx)
	case lease.Await(ended) == nil:
		return true, nil
	}
	s.d.change(func(c *core) { c.suspend(req) })
	if err := lease.Await(ctx); err != nil {
		return false, err
	}
	s.d.change(func(c *core) {
		c.lanes.Requests.Suspended = false
		s.dispatch(time.Now())
	})
	return false, nil
}

// answered passes a result to the core.
func (s *sending) answered(req *request, res *sink.Result, began time.Time) {
	now := time.Now()
	info := RequestInfo{Kind: req.Runs[0].Rows[0].Kind, Rows: req.Size(), Lanes: len(req.Runs), Probe: req.Probe != breaker.None, Split: req.Split}
	s.d.obs.Requested(info, res, now.Sub(began))
	s.d.mu.Lock()
	s.d.core.answers.take(req, res, now)
	s.d.core.late.start(now)
	s.dispatch(now)
	stalled, ping := s.d.core.answers.takeStalled(), s.d.core.answers.pings.queue.Len() > 0
	s.d.mu.Unlock()
	if ping {
		notify(s.d.toPing)
	}
	s.d.wakeWorkers()

	for i := range stalled {
		s.d.obs.Stalled(&stalled[i])
	}
	s.d.breakers.update()
}

// dispatch passes claimed requests to the senders. It never blocks, because the
// channel has room for all requests that may be in flight. The caller holds the lock.
func (s *sending) dispatch(now time.Time) (sent bool) {
	for req := s.d.core.lanes.Requests.Next(now); req != nil; req = s.d.core.lanes.Requests.Next(now) {
		s.requests <- req
		sent = true
	}
	if _, waits := s.d.core.lanes.Requests.NextSend(); waits {
		notify(s.d.toPace)
	}
	return sent
}

// pace passes claimed requests to the senders when the rate limit allows it.
func (s *sending) pace(ctx context.Context) error {
	for {
		s.d.mu.Lock()
		at, waits := s.d.core.lanes.Requests.NextSend()
		s.d.mu.Unlock()
		if !waits {
			at = time.Time{}
		}
		if err := await(ctx, s.d.toPace, at); err != nil {
			return err
		}
		s.d.mu.Lock()
		at, waits = s.d.core.lanes.Requests.NextSend()
		due := waits && !time.Now().Before(at) || !waits && s.d.member != nil // a slot may be free
		if due && s.dispatch(time.Now()) {
			notify(s.d.toClaim) // more may be claimed
		}
		s.d.mu.Unlock()
	}
}

// deliver sends the messages up to the first that its source could not read. If that is the
// first of all, it is rejected, so that it becomes FAILED as any row that cannot be sent.
func deliver(ctx context.Context, to sink.Sink, msgs []sink.Message) sink.Result {
	for i := range msgs {
		reason, unreadable := msgs[i].Attributes.Get(store.AttributeUnreadable)
		switch {
		case !unreadable:
		case i == 0:
			return sink.RejectFirst(len(msgs), "not sent: "+reason)
		default:
			res := to.Deliver(ctx, msgs[:i])
			return res.Pad(i, len(msgs))
		}
	}
	return to.Deliver(ctx, msgs)
}

// Destination is a destination to which several relays of a process send: the dispatchers that have it
// share the requests in flight, the rate limit and the circuit breakers. A dispatcher with many rows
// takes turns with the others, request by request. The configuration of the latest dispatcher holds for
// all. A Destination is safe for concurrent use and starts nothing.
type Destination struct {
	slots    *lanes.Slots
	breakers breaker.Shared

	mu       sync.Mutex
	members  map[*member]bool
	reserved int // dispatchers to come
}

// NewDestination returns a destination. With other, not nil, the two share their requests and their
// rate limit, but no circuit breaker: for example the one before its address changed.
func NewDestination(other *Destination) *Destination {
	d := &Destination{members: map[*member]bool{}, slots: lanes.NewSlots(1, 0)}
	if other != nil {
		d.slots = other.slots
	}
	d.breakers.Changed = d.changed
	return d
}

// DestinationStats is the state of a destination.
type DestinationStats struct {
	InFlight, Limit int // requests
	Waiting         int // dispatchers with a request that waits for others
	OpenBreakers    int
	Members         int // dispatchers that share it, also those to come
}

// Stats returns the present state.
func (d *Destination) Stats() (s DestinationStats) {
	s.InFlight, s.Limit, s.Waiting = d.slots.Usage()
	s.OpenBreakers = d.breakers.Open()
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Members = len(d.members) + d.reserved
	return s
}

// member is a dispatcher of a destination.
type member struct {
	share   *lanes.Share
	changed chan struct{} // signals that a breaker changed, or that a probe or ping ended
}

// Reserve counts a dispatcher that New will return as one that shares the destination.
func (d *Destination) Reserve() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reserved++
}

func (d *Destination) join(cfg Config, mayTake chan<- struct{}) *member {
	d.slots.Configure(cfg.MaxConcurrentGroups, float64(cfg.RateLimit))
	m := &member{share: d.slots.Join(func() { notify(mayTake) }), changed: make(chan struct{}, 1)}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.members[m] = true
	d.reserved = max(0, d.reserved-1)
	return m
}

// changed tells all dispatchers that a breaker changed, or that a probe or ping ended.
func (d *Destination) changed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for m := range d.members {
		notify(m.changed)
	}
}

// follow takes over what other dispatchers learnt about the destination.
func (m *member) follow(ctx context.Context, d *Dispatcher) error {
	for {
		if err := await(ctx, m.changed, time.Time{}); err != nil {
			return err
		}
		d.change(func(c *core) {
			for _, recv := range slices.Clone(c.lanes.Endpoints.All()) { // a change may drop some
				for change := recv.Breaker.Follow(); change != breaker.Unchanged; change = recv.Breaker.Follow() {
					c.breakerChanged(recv, change)
				}
			}
		})
		d.breakers.update()
	}
}

// Close leaves a destination that others share. It gives back the requests that were canceled. Call it
// after Run has returned, or instead of Run.
func (d *Dispatcher) Close() {
	if d.member == nil {
		return
	}
	to := d.opt.Destination
	to.mu.Lock()
	delete(to.members, d.member)
	to.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.member.share.Leave()
	for _, recv := range d.core.lanes.Endpoints.All() {
		recv.Breaker.Leave()
	}
}
