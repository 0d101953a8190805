package dispatch

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
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
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case req := <-s.requests:
			if s.d.opt.Lease != nil {
				if err := s.d.opt.Lease.Await(ctx); err != nil {
					return err
				}
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
		due := waits && !time.Now().Before(at)
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
