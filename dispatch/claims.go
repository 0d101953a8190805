package dispatch

import (
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// A row that is not yet visible is asked for again after lookFirst, doubling to
// lookMost: visibility follows the log by well under a millisecond, unless the
// server waits for a synchronous standby.
const (
	lookFirst = time.Millisecond
	lookMost  = time.Second
)

// nextClaims takes requests to claim, as long as senders are free and the
// statement stays below maxRows. The caller reports each by claimed.
func (c *core) nextClaims(maxRows int, now time.Time) []*request {
	if !c.mayClaim(now) {
		return nil
	}
	var reqs []*request
	for n := 0; n < maxRows && c.free() > 0; {
		req := c.nextProbe(now)
		if req == nil {
			req = c.gather()
		}
		if req == nil {
			break
		}
		for _, r := range req.runs {
			r.lane.state, r.lane.inFlight = laneClaiming, len(r.rows)
		}
		c.claiming++
		n += req.size()
		reqs = append(reqs, req)
	}
	return reqs
}

// gather makes one request of the lanes whose turn it is; nil if none is ready.
// Each free sender takes its share of the ready lanes, as far as they fit.
func (c *core) gather() *request {
	var turn *receiver // that of the lane that has waited longest
	lanes := 0
	for _, recv := range c.receivers {
		if recv.suspect || recv.ready.len() == 0 {
			continue
		}
		lanes += recv.ready.len()
		if turn == nil || recv.ready.items[0].queued < turn.ready.items[0].queued {
			turn = recv
		}
	}
	if turn == nil {
		return nil
	}
	idle := max(1, c.free()-c.cfg.ahead()) // senders
	share := (lanes + idle - 1) / idle
	ready := &turn.ready
	kind := ready.items[0].name.Kind
	limits := c.limits(kind)
	roomRows, roomBytes := max(1, min(c.cfg.APIBatchSize, limits.MaxItems)), limits.MaxBytes
	req := &request{}
	for range share {
		if ready.len() == 0 || roomRows == 0 {
			break
		}
		l := ready.items[0]
		if len(req.runs) > 0 && (l.apart || l.name.Kind != kind || l.rows[0].PayloadSize > roomBytes) {
			break
		}
		rows, bytes := l.head(min(roomRows, l.most(limits.Mode)), roomBytes)
		req.add(ready.pop(), rows)
		roomRows -= len(rows)
		roomBytes -= bytes
		if l.apart {
			break
		}
	}
	return req
}

// most is how many rows the lane's next run may have.
func (l *lane) most(mode sink.Mode) int {
	if mode == sink.PerItem || l.looks > 0 {
		// A receiver that takes what comes after a failure would break the
		// order; behind a row that is not visible nothing can go out anyway.
		return 1
	}
	return l.limit
}

func (r *request) add(l *lane, rows []*row) {
	r.runs = append(r.runs, &run{lane: l, rows: rows})
	r.split = r.split || l.doubt > 0
}

// claimed takes the answers for a request, by position, and the time at that the
// claim wrote. In each lane, the rows up to the first that may not be sent yet go
// out; settled ones are dropped.
func (c *core) claimed(req *request, answers []store.ClaimAnswer, at, now time.Time) {
	c.claiming--
	recv := req.to()
	kept := make([]*run, 0, len(req.runs))
	for _, r := range req.runs {
		n := len(r.rows)
		if c.claimedRun(r, answers[:n], at, now) {
			kept = append(kept, r)
		}
		answers = answers[n:]
	}
	req.runs = kept
	switch {
	case len(kept) > 0:
		c.toSend.push(req)
	case req.probe:
		recv.probes--
	}
	if recv.suspect {
		c.dissolve(recv)
	}
}

// claimedRun reports whether rows of the run are to be sent.
func (c *core) claimedRun(r *run, answers []store.ClaimAnswer, at, now time.Time) bool {
	l, n := r.lane, len(r.rows)
	var stop *store.ClaimAnswer
	send := r.rows[:0]
	for i, rw := range r.rows {
		switch a := &answers[i]; a.Result {
		case store.Claimed:
			if rw.seen = true; !a.Unmarked {
				rw.claimed = at
			}
			rw.RetryCount = max(rw.RetryCount, a.RetryCount) // a table may have no column for it
			c.refresh(rw, a.Payload)
			if stop == nil {
				send = append(send, rw)
			}
		case store.AlreadySettled, store.Gone:
			c.unpark(rw)
			c.drop(rw)
		default:
			if a.Result == store.Held {
				rw.claimed = time.Time{} // it is somebody else's, and not ours to give back
				c.shed(rw)
			}
			if stop == nil {
				stop = a
			}
		}
	}
	l.prune(n)
	r.rows = send
	switch {
	case c.ended || stop == nil && len(send) == 0 || len(send) > 0 && send[0].skip != nil:
		c.release(l)
		return false
	case len(send) > 0:
		l.state, l.inFlight, l.looks = laneSending, len(send), 0
		return true
	}
	c.wait(l, c.lookAgain(l, stop, now))
	return false
}

// refresh keeps a payload that the claim read again.
func (c *core) refresh(rw *row, payload []byte) {
	if payload == nil {
		return
	}
	c.bytes += int64(len(payload) - len(rw.Payload))
	rw.Payload, rw.PayloadSize = payload, len(payload)
}

// lookAgain returns when to claim again after an answer that says wait.
func (c *core) lookAgain(l *lane, a *store.ClaimAnswer, now time.Time) time.Time {
	if a.Result == store.Held && a.Until.After(now) {
		return a.Until
	}
	l.looks++
	return now.Add(lookPause(l.looks))
}

// lookPause is the wait after a row was not yet visible for the n-th time in a
// row, n from 1.
func lookPause(n int) time.Duration { return min(lookFirst<<min(n-1, 10), lookMost) }

// nextRequest takes a claimed request to send; nil if there is none or no sender
// is free. The caller reports it by answered.
func (c *core) nextRequest(now time.Time) *request {
	if c.toSend.len() == 0 || c.sending == c.cfg.MaxConcurrentGroups {
		return nil
	}
	req := c.toSend.pop()
	c.sending++
	req.started = now
	for _, r := range req.runs {
		for _, rw := range r.rows {
			rw.attempts++
			rw.proof = r.lane.to.livedSince(rw.failed)
		}
	}
	return req
}
