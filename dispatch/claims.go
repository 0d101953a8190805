package dispatch

import (
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// A row that is not yet visible is claimed again after minVisibilityWait, doubling up to
// maxVisibilityWait. Visibility follows the log by well under a millisecond, unless the
// server waits for a synchronous standby.
const (
	minVisibilityWait = time.Millisecond
	maxVisibilityWait = time.Second

	// maxSoloLookups is how often a row is claimed again on its own. Later tries are
	// aligned so that waiting rows share a statement, because another session may lock the
	// heads of many lanes.
	maxSoloLookups = 7
)

// nextClaims returns requests to claim while senders are free and the statement has fewer
// than maxRows rows. The caller reports each to claimed. Requests with replayed rows need
// no claim and go straight to the senders.
func (c *core) nextClaims(maxRows int, now time.Time) []*request {
	if !c.mayClaim(now) {
		return nil
	}

	var reqs []*request
	for n := 0; n < maxRows && c.freeRequests() > 0; {
		req := c.nextProbe(now)
		if req == nil {
			req = c.nextLarge()
		}
		if req == nil {
			req = c.buildRequest()
		}
		if req == nil {
			break
		}
		c.reserveLarge(req)
		state := laneClaiming
		if req.Job() != nil {
			state = laneSending
		}
		for _, r := range req.Runs {
			r.Lane.State, r.Lane.InFlight = state, len(r.Rows)
		}
		if state == laneSending {
			c.requests.toSend.push(req)
			continue
		}
		c.requests.claiming++
		n += req.Size()
		reqs = append(reqs, req)
	}

	return reqs
}

// buildRequest builds one request from the lanes whose turn it is; nil if none is ready.
// Each free sender takes its share of the ready lanes, as far as they fit. Rows of a replay
// job share requests only with rows of the same job, because the receiver sees a replay
// marker.
func (c *core) buildRequest() *request {
	ready, share := c.nextQueue()
	for ready != nil && c.waitsForLarge(ready.items[0]) {
		c.large.push(ready.pop())
		ready, share = c.nextQueue()
	}
	if ready == nil {
		return nil
	}
	kind, job := ready.items[0].Name.Kind, ready.items[0].Job
	limits := c.limits(kind)
	roomRows, roomBytes := max(1, min(c.cfg.APIBatchSize, limits.MaxItems)), limits.MaxBytes
	if job == nil {
		roomBytes = int(min(int64(roomBytes), c.requestShare()))
	}

	req := &request{}
	for range share {
		if ready.len() == 0 || roomRows == 0 {
			break
		}
		l := ready.items[0]
		if len(req.Runs) > 0 && (l.Isolated || l.Job != job || l.Name.Kind != kind || l.Rows[0].PayloadSize > roomBytes) {
			break
		}
		rows, bytes := l.Head(min(roomRows, l.MaxRunRows(limits.Mode)), roomBytes)
		req.add(ready.pop(), rows)
		roomRows -= len(rows)
		roomBytes -= bytes
		if l.Isolated {
			break
		}
	}

	return req
}

// nextQueue returns the queue of the lane that has waited longest and the number of lanes
// that share a request; nil if none is ready. Replay jobs get part of the senders.
func (c *core) nextQueue() (queue *fifo[*lane], share int) {
	var live, replay *fifo[*lane]
	lanes, replayLanes := 0, 0
	for _, recv := range c.receivers {
		if recv.Breaker.Open() {
			continue
		}
		live, replay = longerWaiting(live, &recv.ready), longerWaiting(replay, &recv.readyReplay)
		lanes += recv.ready.len()
		replayLanes += recv.readyReplay.len()
	}

	if replay != nil && longerWaiting(live, replay) == replay {
		if senders := c.replayRequestRoom(); senders > 0 {
			return replay, (replayLanes + senders - 1) / senders
		}
	}

	senders := max(1, c.freeRequests()-c.cfg.claimAhead())
	return live, (lanes + senders - 1) / senders
}

// longerWaiting returns the queue whose first lane has waited longer.
func longerWaiting(a, b *fifo[*lane]) *fifo[*lane] {
	if b.len() == 0 || a != nil && a.items[0].ReadyOrder < b.items[0].ReadyOrder {
		return a
	}
	return b
}

// replayRequestRoom is how many requests with replayed rows may begin. The limit keeps
// senders free for live lanes:
//
//   - a quarter of the senders while a live lane waits for one
//   - otherwise every sender not used by live requests, except a quarter
//
// Probes and halves of a failed request may exceed it.
func (c *core) replayRequestRoom() int {
	jobs := c.requests.replays()
	n := max(1, c.cfg.MaxConcurrentGroups/4)
	if !slices.ContainsFunc(c.receivers, func(r *receiver) bool { return !r.Breaker.Open() && r.ready.len() > 0 }) {
		live := c.requests.len() - jobs
		n = max(n, c.cfg.MaxConcurrentGroups-n-live)
	}
	return n - jobs
}

// MaxRunRows is the maximum number of rows in the lane's next run.
func (l *lane) MaxRunRows(mode sink.Mode) int {
	if mode == sink.PerItem || l.Lookups > 0 {
		// A receiver that accepts rows after a failed one would break the order. Behind a
		// row that is not visible nothing can be sent anyway.
		return 1
	}
	return l.Limit
}

func (r *request) add(l *lane, rows []*row) {
	r.Runs = append(r.Runs, &run{Lane: l, Rows: rows})
	r.Split = r.Split || l.Bisecting > 0
}

// claimed takes the answers for a request, by position, and the timestamp written by the
// claim. In each lane the rows before the first one that must wait are sent. Settled rows
// are dropped.
func (c *core) claimed(req *request, answers []store.ClaimAnswer, at, now time.Time) {
	c.requests.claiming--
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
		c.requests.toSend.push(req)
	default:
		c.releaseLarge(req)
		recv.Breaker.Withdraw(req.Probe)
	}

	if recv.Breaker.Open() {
		c.cancelUnsent(recv)
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
			if c.recordClaim(rw, a, at); stop == nil {
				send = append(send, rw)
				break
			}
			c.shedPayload(rw)
		case store.AlreadySettled, store.Gone:
			c.deleteSpilled(rw)
			c.drop(rw)
		default:
			if a.Result == store.Held {
				rw.Claimed = time.Time{} // another owner's claim, not ours to give back
				c.shedPayload(rw)
			}
			if stop == nil {
				stop = a
			}
		}
	}

	l.RemoveDone(n)
	r.Rows = send
	if stop != nil && stop.Result == store.TableLocked {
		c.lockTable(l.Name.Outbox, now)
	}
	if stop != nil && stop.Error != "" && len(send) == 0 {
		l.SetRefusal(stop.Error, now)
	} else {
		l.Refusal = ""
	}

	switch {
	case c.ended || stop == nil && len(send) == 0 || len(send) > 0 && send[0].Skip != nil:
		c.shedPayloads(r)
		c.release(l)
		return false
	case len(send) > 0:
		l.State, l.InFlight, l.Lookups = laneSending, len(send), 0
		return true
	case stop.Result == store.TableLocked:
		c.release(l)
		return false
	}

	c.wait(l, c.nextVisibilityCheck(l, stop, now))
	return false
}

// recordClaim records a successful claim of the row.
func (c *core) recordClaim(rw *row, a *store.ClaimAnswer, at time.Time) {
	if rw.Seen = true; !a.Unwritten {
		rw.Claimed = at
	}
	rw.RetryCount = max(rw.RetryCount, a.RetryCount) // a table may have no column for it
	c.setPayload(rw, a.Payload)
}

// setPayload stores a payload that the claim read again.
func (c *core) setPayload(rw *row, payload []byte) {
	if payload == nil {
		return
	}
	c.memory.bytes += int64(len(payload) - len(rw.Payload))
	rw.Payload, rw.PayloadSize = payload, len(payload)
}

// nextVisibilityCheck returns when to claim again a row that must wait.
func (c *core) nextVisibilityCheck(l *lane, a *store.ClaimAnswer, now time.Time) time.Time {
	if a.Result == store.Held && a.Until.After(now) {
		return a.Until
	}
	l.Lookups++
	until := now.Add(visibilityWait(l.Lookups))
	if l.Lookups > maxSoloLookups {
		until = until.Truncate(visibilityWait(l.Lookups) / 8) // with others that wait as long
	}
	return until
}

// visibilityWait is the wait after the n-th consecutive claim that found a row not yet
// visible, n from 1.
func visibilityWait(n int) time.Duration {
	return min(minVisibilityWait<<min(n-1, 10), maxVisibilityWait)
}

// nextRequest returns a claimed request to send; nil if there is none or no sender is free.
// The caller reports it to answered.
func (c *core) nextRequest(now time.Time) *request {
	if c.requests.toSend.len() == 0 || c.requests.sending == c.cfg.MaxConcurrentGroups {
		return nil
	}
	req := c.requests.nextToSend()
	req.Started = now
	for _, r := range req.Runs {
		for _, rw := range r.Rows {
			rw.Attempts++
			rw.Proof = r.Lane.Receiver.Breaker.AcceptedSince(rw.LastFailed)
		}
	}

	return req
}
