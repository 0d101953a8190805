package dispatch

import (
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// nextClaims begins requests and returns those to claim; see lane.Set.NextClaims. The
// caller reports each to claimed.
func (c *core) nextClaims(maxRows int, now time.Time) []*request {
	if !c.mayClaim(now) {
		return nil
	}
	c.late.decide(now)
	return c.lanes.NextClaims(maxRows, now)
}

// takeBackStale takes back a request with fresh rows that its sender did not send in time. Its
// lanes claim them now.
func (c *core) takeBackStale(req *request) {
	c.lanes.Withdraw(req)
	c.takeBack(req)
}

// suspend takes back a request that its sender may not send for now, and the probes that no sender has.
// Nothing is claimed or sent until Requests.Suspended is reset.
func (c *core) suspend(req *request) {
	c.lanes.Requests.Suspended = true
	c.lanes.Withdraw(req)
	probes := c.lanes.Requests.TakeUnsent(func(other *request) bool { return other.Probe != breaker.None })
	for _, req := range append(probes, req) {
		req.Receiver().Breaker.Withdraw(req.Probe)
		c.takeBack(req)
	}
}

// claimed takes the answers for a request, by position, and the timestamp written by the
// claim. In each lane the rows before the first one that must wait are sent. Settled rows
// are dropped.
func (c *core) claimed(req *request, answers []store.ClaimAnswer, at, now time.Time) {
	c.lanes.Requests.Claimed(req)
	recv := req.Receiver()
	kept := make([]*run, 0, len(req.Runs))
	for _, r := range req.Runs {
		n := len(r.Rows)
		if c.claimedRun(r, answers[:n], at, now) {
			kept = append(kept, r)
		}
		answers = answers[n:]
	}

	req.Runs = kept
	switch {
	case len(kept) > 0:
		for _, part := range c.lanes.Endpoints.Split(req) {
			switch {
			case part.Probe != breaker.None && c.lanes.Requests.Suspended:
				part.Receiver().Breaker.Withdraw(part.Probe)
				c.takeBack(part)
			case c.lanes.Requests.MaySend(part, recv):
				c.lanes.Requests.Push(part)
			default:
				c.takeBack(part)
			}
		}
	default:
		c.lanes.Memory.ReleaseLarge(req)
		recv.Breaker.Withdraw(req.Probe)
	}

	if recv.Breaker.Open() {
		c.cancelUnsent(recv)
	}
}

// noteStop keeps what an answer says of a lane's table and of the row that the table refused. stop is the
// answer that ended a claim, nil for none; all: no row is claimed.
func (c *core) noteStop(l *lanes.Lane, stop *store.ClaimAnswer, all bool, now time.Time) {
	if stop != nil && stop.Result == store.TableLocked {
		c.lockTable(l.Name.Outbox, now)
	}
	if stop != nil && stop.Error != "" && all {
		l.SetRefusal(stop.Error, now)
	} else {
		l.Refusal = ""
	}
}

// claimedRun reports whether rows of the run are to be sent.
func (c *core) claimedRun(r *run, answers []store.ClaimAnswer, at, now time.Time) bool {
	l, n := r.Lane, len(r.Rows)
	var stop *store.ClaimAnswer
	send := r.Rows[:0]
	for i, rw := range r.Rows {
		switch a := &answers[i]; a.Result {
		case store.Claimed:
			if c.lanes.RecordClaim(rw, a, at); stop == nil {
				send = append(send, rw)
				break
			}
			c.lanes.Memory.Shed(rw)
		case store.AlreadySettled, store.Gone:
			c.spill.Delete(rw)
			c.drop(rw)
		default:
			if a.Result == store.Held {
				rw.Claimed = time.Time{} // another owner's claim, not ours to give back
				c.lanes.Memory.Shed(rw)
			}
			if stop == nil {
				stop = a
			}
		}
	}

	l.RemoveDone(n)
	r.Rows = c.lanes.Endpoints.SameEndpoint(send)
	c.lanes.Memory.Shed(send[len(r.Rows):]...)
	send = r.Rows
	c.noteStop(l, stop, len(send) == 0, now)

	switch {
	case c.ended || stop == nil && len(send) == 0 || len(send) > 0 && (send[0].Skip != nil || c.lanes.OutboxPause(l.Name.Outbox) != nil):
		c.lanes.Memory.Shed(r.Rows...)
		c.release(l)
		return false
	case len(send) > 0:
		l.Send(len(send))
		return true
	case stop.Result == store.TableLocked:
		c.release(l)
		return false
	}

	c.wait(l, l.NextLookup(stop, now))
	if l.State == lanes.Waiting {
		l.HeldBy = stop.Result
	}
	return false
}
