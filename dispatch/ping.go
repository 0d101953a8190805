package dispatch

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// On a quiet system no other row can prove that the receiver works. A row that is refused
// alone would then count once per proof-wait and hold up its group for minutes. A
// [sink.Pinger] has a request without rows, and an accepted ping is proof like an accepted
// row.
//
// A ping is weaker proof, because a receiver may accept an empty list and still fail on
// every row. So there are two limits:
//
//   - Only the refusal of a lone row triggers a ping: no other lane waits for the receiver.
//   - After MaxRetries+1 accepted pings, no ping is sent until the receiver accepts a row
//     again. That is as many as one row needs to become FAILED.
//
// An outage that answers pings therefore costs at most one row.

// ping is a request without rows to a receiver.
type ping struct {
	kind string // of the refused row
	to   *receiver

	// after is the time of the refusal that triggered it.
	after time.Time
}

// pings decides when a ping is sent and takes its answer.
type pings struct {
	core     *core
	possible bool // the sink supports requests without rows
	queue    lanes.Fifo[*ping]
}

// request queues a ping after the refusal of a lane's head, if it can be proof for the
// head's next attempt.
func (p *pings) request(l *lane, f *lanes.Failure, now time.Time) {
	b := &l.Receiver.Breaker
	switch {
	case !p.possible || p.core.ended || l.Receiver.Named || // a ping has no row that names its endpoint
		p.core.cfg.Retry.Compat != CompatNone:
	case !f.Single || f.Class != sink.Refused || !f.IsRefusal():
	case b.PingDue(now) && p.core.waitingLanes(l.Receiver) == 1:
		b.BeginPing()
		p.queue.Push(&ping{kind: l.Name.Kind, to: l.Receiver, after: now})
	}
}

// next returns a ping to send; nil if there is none. The caller reports it to answered.
func (p *pings) next() *ping {
	if p.core.ended || p.queue.Len() == 0 {
		return nil
	}
	return p.queue.Pop()
}

// answered handles the answer to a ping that began at a time. ok is false if the kind has no
// such request.
func (p *pings) answered(sent *ping, res *sink.Result, ok bool, began, now time.Time) {
	p.core.breakerChanged(sent.to, sent.to.Breaker.PingAnswered(&breaker.PingAnswer{
		Began:    later(began, sent.after.Add(1)), // it began after the refusal, even if the clock is coarse
		Accepted: res.Class == sink.Delivered, Unsupported: !ok, RetryAfter: res.RetryAfter,
	}, now))
}

// ping sends the core's pings, one at a time.
func (d *Dispatcher) ping(ctx context.Context, to sink.Pinger) error {
	for {
		d.mu.Lock()
		p := d.core.answers.pings.next()
		d.mu.Unlock()
		if p == nil {
			if err := await(ctx, d.toPing, time.Time{}); err != nil {
				return err
			}
			continue
		}
		if d.opt.Lease != nil {
			if err := d.opt.Lease.Await(ctx); err != nil {
				return err
			}
		}
		began := time.Now()
		res, ok := to.Ping(ctx, p.kind)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		d.change(func(c *core) { c.answers.pings.answered(p, &res, ok, began, time.Now()) })
		d.breakers.update()
	}
}
