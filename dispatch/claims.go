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
		if req.job() != nil {
			state = laneSending
		}
		for _, r := range req.runs {
			r.lane.state, r.lane.inFlight = state, len(r.rows)
		}
		if state == laneSending {
			c.requests.toSend.push(req)
			continue
		}
		c.requests.claiming++
		n += req.size()
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
	kind, job := ready.items[0].name.Kind, ready.items[0].job
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
		if len(req.runs) > 0 && (l.isolated || l.job != job || l.name.Kind != kind || l.rows[0].PayloadSize > roomBytes) {
			break
		}
		rows, bytes := l.head(min(roomRows, l.maxRunRows(limits.Mode)), roomBytes)
		req.add(ready.pop(), rows)
		roomRows -= len(rows)
		roomBytes -= bytes
		if l.isolated {
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
		if recv.breaker.Open() {
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
	if b.len() == 0 || a != nil && a.items[0].readyOrder < b.items[0].readyOrder {
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
	if !slices.ContainsFunc(c.receivers, func(r *receiver) bool { return !r.breaker.Open() && r.ready.len() > 0 }) {
		live := c.requests.len() - jobs
		n = max(n, c.cfg.MaxConcurrentGroups-n-live)
	}
	return n - jobs
}

// maxRunRows is the maximum number of rows in the lane's next run.
func (l *lane) maxRunRows(mode sink.Mode) int {
	if mode == sink.PerItem || l.lookups > 0 {
		// A receiver that accepts rows after a failed one would break the order. Behind a
		// row that is not visible nothing can be sent anyway.
		return 1
	}
	return l.limit
}

func (r *request) add(l *lane, rows []*row) {
	r.runs = append(r.runs, &run{lane: l, rows: rows})
	r.split = r.split || l.bisecting > 0
}

// claimed takes the answers for a request, by position, and the timestamp written by the
// claim. In each lane the rows before the first one that must wait are sent. Settled rows
// are dropped.
func (c *core) claimed(req *request, answers []store.ClaimAnswer, at, now time.Time) {
	c.requests.claiming--
	recv := req.receiver()
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
		c.requests.toSend.push(req)
	default:
		c.releaseLarge(req)
		recv.breaker.Withdraw(req.probe)
	}

	if recv.breaker.Open() {
		c.cancelUnsent(recv)
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
				rw.claimed = time.Time{} // another owner's claim, not ours to give back
				c.shedPayload(rw)
			}
			if stop == nil {
				stop = a
			}
		}
	}

	l.removeDone(n)
	r.rows = send
	if stop != nil && stop.Result == store.TableLocked {
		c.lockTable(l.name.Outbox, now)
	}
	if stop != nil && stop.Error != "" && len(send) == 0 {
		l.setRefusal(stop.Error, now)
	} else {
		l.refusal = ""
	}

	switch {
	case c.ended || stop == nil && len(send) == 0 || len(send) > 0 && send[0].skip != nil:
		c.shedPayloads(r)
		c.release(l)
		return false
	case len(send) > 0:
		l.state, l.inFlight, l.lookups = laneSending, len(send), 0
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
	if rw.seen = true; !a.Unwritten {
		rw.claimed = at
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
	l.lookups++
	until := now.Add(visibilityWait(l.lookups))
	if l.lookups > maxSoloLookups {
		until = until.Truncate(visibilityWait(l.lookups) / 8) // with others that wait as long
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
	req.started = now
	for _, r := range req.runs {
		for _, rw := range r.rows {
			rw.attempts++
			rw.proof = r.lane.receiver.breaker.AcceptedSince(rw.lastFailed)
		}
	}

	return req
}
