package dispatch

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// On a quiet system nothing proves that the receiver works, so a row that it refuses
// alone counts once in proof-wait, and its group stands for minutes. A [sink.Pinger]
// has a request without rows: taken, it is proof like a row that was taken.
//
// It is the weaker proof, because a receiver may take an empty list while it fails on
// every row. So a ping follows only the refusal of a lone row, one that no other row
// waits beside, and pings prove no more than one row needs to end until the receiver
// has taken a row again. An outage that answers pings costs one row at the most.

// ping is a request without rows to a receiver.
type ping struct {
	kind string // of the row that was refused
	to   *receiver
	// after is when the refusal came that asked for it.
	after time.Time
}

// pingState is what a receiver's pings have come to.
type pingState struct {
	inFlight    bool
	next        time.Time // earliest
	proofs      int       // pings that it took since it last took a row
	unsupported bool      // it has no such request
}

// requestPing asks for a ping after the refusal of a lane's head, if it may become proof
// for the head's next attempt.
func (c *core) requestPing(l *lane, f *failure, now time.Time) {
	p := &l.receiver.pings
	switch {
	case !c.canPing || c.ended || c.cfg.Compat != CompatNone:
	case !f.single || f.Class != sink.Refused || !f.isRefusal():
	case p.unsupported || p.inFlight || now.Before(p.next) || p.proofs > c.cfg.MaxRetries:
	case c.waitingLanes(l.receiver) == 1:
		p.inFlight = true
		c.toPing.push(&ping{kind: l.name.Kind, to: l.receiver, after: now})
	}
}

// nextPing takes a ping to send; nil if there is none. The caller reports it by pinged.
func (c *core) nextPing() *ping {
	if c.ended || c.toPing.len() == 0 {
		return nil
	}
	return c.toPing.pop()
}

// pinged takes the answer to a ping that began at a time. ok is false where the kind has
// no such request.
func (c *core) pinged(p *ping, res *sink.Result, ok bool, began, now time.Time) {
	recv := p.to
	recv.pings.inFlight = false
	recv.pings.next = now.Add(max(3*c.cfg.BackoffInitial, min(res.RetryAfter, c.cfg.RetryAfterMax)))
	recv.pings.unsupported = !ok
	if !ok || res.Class != sink.Delivered {
		return // what else it answers proves nothing
	}
	recv.pings.proofs++
	recv.recordSuccess(later(began, p.after.Add(1))) // it began behind the refusal, however coarse the clock
}

// ping sends the core's pings, one at a time.
func (d *Dispatcher) ping(ctx context.Context, to sink.Pinger) error {
	for {
		d.mu.Lock()
		p := d.core.nextPing()
		d.mu.Unlock()
		if p == nil {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-d.toPing:
			}
			continue
		}
		if d.Lease != nil {
			if err := d.Lease.Await(ctx); err != nil {
				return err
			}
		}
		began := time.Now()
		res, ok := to.Ping(ctx, p.kind)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		d.mu.Lock()
		d.core.pinged(p, &res, ok, began, time.Now())
		d.mu.Unlock()
		d.wakeWorkers()
		d.notifyBreakers()
	}
}
