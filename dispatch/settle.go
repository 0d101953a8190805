package dispatch

import (
	"container/heap"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// answered takes the result of a request.
func (c *core) answered(req *request, res *sink.Result, now time.Time) {
	c.sending--
	c.over(req)
	if req.job() != nil {
		c.replaying--
	}
	c.observe(req, res, now)
	if res.Items == nil && res.Class != sink.Delivered && len(req.runs) > 1 {
		c.failedTogether(req, res, now)
		return
	}
	at := 0
	for _, r := range req.runs {
		c.answeredRun(req, r, res, at, now)
		at += len(r.rows)
	}
}

// failedTogether is a failure of a request that lanes shared. None is blamed for
// another: what may be one row's fault is halved until one lane stands alone;
// otherwise each lane tries again by itself.
func (c *core) failedTogether(req *request, res *sink.Result, now time.Time) {
	busy := res.RetryAfter > 0 && res.Class != sink.Rejected
	split := !req.to().suspect && (res.Class == sink.Rejected ||
		!busy && (res.Class == sink.Refused || res.Class == sink.Misconfigured))
	for _, r := range req.runs {
		for _, rw := range r.rows {
			rw.fail(res.Class, now)
		}
		r.lane.apart, r.lane.problem = true, res.Detail
	}
	if split && !c.ended && !req.runs[0].lane.leaving() {
		half := len(req.runs) / 2
		c.toSend.push(&request{runs: req.runs[:half:half], split: true})
		c.toSend.push(&request{runs: req.runs[half:], split: true})
		return
	}
	for _, r := range req.runs {
		c.shedRun(r)
		c.rest(r.lane, res.RetryAfter, now)
	}
}

// answeredRun takes the answers to the rows of one lane, which begin at a place
// of the request. Delivered rows leave the lane; the first row that was not
// delivered decides what the lane does next.
func (c *core) answeredRun(req *request, r *run, res *sink.Result, at int, now time.Time) {
	l, n := r.lane, len(r.rows)
	failed, delivered := -1, 0
	for i, rw := range r.rows {
		switch res.At(at + i).Class {
		case sink.Delivered:
			rw.done = true
			delivered++
			c.settle(rw, store.Outcome{Status: store.Completed}, nil, now)
			continue
		case sink.NotSent:
			rw.attempts--
		}
		if failed < 0 {
			failed = i
		}
	}
	l.prune(n)
	if delivered > 0 {
		l.passed(delivered, c.cfg.APIBatchSize)
	}
	if failed < 0 || at+failed > 0 && res.At(at+failed).Class == sink.NotSent {
		c.shedRun(r)
		c.release(l)
		return
	}
	for i := failed + 1; i < n; i++ {
		if class := res.At(at + i).Class; !r.rows[i].done && class != sink.NotSent {
			r.rows[i].fail(class, now)
		}
	}
	c.failed(l, r.rows[failed], &failure{
		Outcome: res.At(at + failed), retryAfter: res.RetryAfter,
		alone: n == 1 || res.Items != nil, searching: req.split,
	}, n, now)
}

// failed decides what becomes of a lane whose head was not delivered in a
// request with n rows of the lane.
func (c *core) failed(l *lane, rw *row, f *failure, n int, now time.Time) {
	v := c.judge(l, rw, f, now)
	l.problem = f.Detail
	l.apart = true
	c.shedRun(&run{lane: l, rows: l.rows[:min(n, len(l.rows))]})
	status := store.Pending
	switch {
	case rw.skip != nil, v == again:
		c.askAfter(l, f, now)
		c.stall(l, rw, f, now)
		c.rest(l, f.retryAfter, now)
		return
	case v == halve:
		l.search(n)
		c.release(l) // the receiver is well: look for the row at once
		return
	case v == single:
		l.limit, l.doubt = 1, 0
		c.rest(l, f.retryAfter, now)
		return
	case v == giveUp || rw.RetryCount >= c.cfg.MaxRetries:
		status = store.Failed
	default:
		c.askAfter(l, f, now)
		rw.RetryCount++
		rw.claimed = time.Time{}
	}
	waits := c.waitsForSink(l, f.retryAfter) && f.Class != sink.Rejected
	l.wakeAt = now
	switch {
	case status == store.Failed && f.Class != sink.Rejected:
		l.wakeAt = now.Add(min(f.retryAfter, c.cfg.RetryAfterMax)) // for the next row
	case status == store.Pending && !waits:
		l.wakeAt = now.Add(c.backOff(l, f.retryAfter))
	}
	o := store.Outcome{Status: status, Error: f.Detail, Reason: f.Reason}
	if status == store.Failed && c.blocks(l) {
		o.Block = &store.Hold{
			Lane: l.name.LaneKey, Kind: store.Blocked, ID: rw.ID,
			RetryCount: rw.RetryCount, Reason: f.Detail, Since: now,
		}
	}
	c.settle(rw, o, l, now)
}

// stall raises the alarm for a row that holds up its lane: the receiver takes other
// rows and has left this one unanswered for proof-wait. Such a row is not FAILED,
// because a part of the receiver may be away, and every row that waits for it would
// follow.
func (c *core) stall(l *lane, rw *row, f *failure, now time.Time) {
	if l.stalled || f.refusal() || !f.alone || !rw.proof || now.Sub(rw.failing) < c.cfg.ProofWait {
		return
	}
	l.stalled = true
	c.stalled = append(c.stalled, c.info(l))
}

// blocks reports whether a FAILED row blocks its lane.
func (c *core) blocks(l *lane) bool { return c.cfg.OnFailed == Block && l.name.RowID == "" }

// rest puts a lane aside after a failure.
func (c *core) rest(l *lane, retryAfter time.Duration, now time.Time) {
	if c.waitsForSink(l, retryAfter) {
		c.release(l)
		return
	}
	c.wait(l, now.Add(c.backOff(l, retryAfter)))
}

// waitsForSink reports whether the lane has no wait of its own: while the sink
// is suspect, lanes wait for it among those that were tried.
func (c *core) waitsForSink(l *lane, retryAfter time.Duration) bool {
	if l.to.suspect {
		l.tried = l.to.round
	}
	return l.to.suspect && retryAfter == 0
}

// backOff is how long a lane rests after a failure.
func (c *core) backOff(l *lane, retryAfter time.Duration) time.Duration {
	l.failures++
	pause := delay(l.failures, c.cfg.BackoffInitial, c.cfg.BackoffMax, c.random)
	return max(pause, min(retryAfter, c.cfg.RetryAfterMax))
}

// settle queues an outcome to be written. With a lane, the lane waits for it.
func (c *core) settle(rw *row, o store.Outcome, l *lane, now time.Time) {
	if rw.job != nil {
		c.replayed(rw, o.Status, o.Error, l)
		return
	}
	if o.Status.Settled() {
		c.dropPayload(rw) // it is not sent again
	}
	o.Ref, o.Txn, o.RetryCount, o.At = rw.Ref, rw.Txn, rw.RetryCount, now
	if !rw.claimed.IsZero() {
		o.Txn = 0 // its claim has found it: if it is not there, it is gone
	}
	c.enqueue(outcome{Outcome: o, row: rw, lane: l})
	if l != nil {
		l.state, l.inFlight = laneWriting, 1
		c.giveBack(l)
	}
}

// enqueue queues an outcome, or the end of a parked row that has none. That of a
// row that is being parked waits: the parked row must not outlive it.
func (c *core) enqueue(o outcome) {
	rw := o.row
	switch {
	case rw.parking:
		late := o // o itself stays off the heap
		rw.late = &late
	case o.Status == 0:
		c.unpark(rw)
	default:
		if rw.parked {
			o.Parked = rw.Seq
			if o.Status.Settled() {
				c.settling[store.ParkedRef{Ref: rw.Ref, Seq: rw.Seq}] = true
			}
		}
		c.post(o)
	}
}

// nextOutcomes takes at most most outcomes to write. The caller reports them by
// written; there is one such batch at a time. One that the store has refused
// before comes alone.
func (c *core) nextOutcomes(most int) []outcome {
	if len(c.writing) > 0 || len(c.outcomes) == 0 {
		return nil
	}
	n := 1
	for n < min(most, len(c.outcomes)) && c.outcomes[0].tries == 0 && c.outcomes[n].tries == 0 {
		n++
	}
	c.writing = c.outcomes[:n:n]
	if c.outcomes = c.outcomes[n:]; len(c.outcomes) == 0 {
		c.outcomes, c.spare = c.spare, nil
	}
	return c.writing
}

// written takes the results of the batch of nextOutcomes. A row that was found
// settled or gone is done with, whatever its outcome said. An outcome that is to be
// written again is tried later, and its lane, if it waits for it, goes on waiting.
func (c *core) written(results []store.SettleResult, now time.Time) {
	batch := c.writing
	c.writing = nil
	for i := range batch {
		o := &batch[i]
		final := o.Status.Settled() || results[i] != store.Written
		if !results[i].Again() {
			c.accepted(o)
			switch {
			case o.Parked != 0:
				c.wrote(o, final)
			case o.row.parked && o.Status.Settled(): // its copy was found meanwhile
				c.unpark(o.row)
			}
		}
		switch {
		case c.tooEarly(o, results[i], now), c.putOff(o, results[i], now):
		case results[i] == store.Refused:
			c.refuse(o, now)
		case o.lane == nil && o.Status == store.Pending:
			c.returned(o.row, now) // and stays in its lane, unsettled
		case o.lane == nil:
			c.drop(o.row)
		case final:
			c.passHead(o, results[i], now)
		default:
			c.wait(o.lane, later(o.lane.wakeAt, now))
		}
	}
	clear(batch)
	c.spare = batch[:0]
}

// wrote is told that the outcome of a parked row is in the store, and with one
// that settles it the row is parked no more.
func (c *core) wrote(o *outcome, final bool) {
	switch {
	case o.Status.Settled():
		c.unparked(store.ParkedRef{Ref: o.Ref, Seq: o.Parked})
		o.row.parked = false
	case final && o.lane != nil: // found settled or gone
		c.unpark(o.row)
	}
}

// passHead lets a lane go on behind its head, which is settled or gone, unless
// the head blocks it.
func (c *core) passHead(o *outcome, result store.SettleResult, now time.Time) {
	l := o.lane
	if o.row.mended {
		o.row.mend()
		o.row.Txn = 0 // it has been seen: where claims are not written, they look all the same
		c.release(l)  // its claim tells what it is now
		return
	}
	c.drop(o.row)
	if o.Block != nil && result != store.WasGone {
		c.block(l, o.Block)
	}
	c.goOn(l, now)
}

// goOn takes a head out of its lane that failed for good, and lets the lane go on.
func (c *core) goOn(l *lane, now time.Time) {
	l.prune(1)
	l.recover()
	if l.doubt > 0 || l.apart {
		l.doubt, l.apart, l.limit = 0, false, c.cfg.APIBatchSize // it was the one to blame
	}
	if len(l.rows) > 0 && l.wakeAt.After(now) {
		c.wait(l, l.wakeAt) // the receiver asked for it
		return
	}
	c.release(l)
}

// tooEarly puts an outcome aside if the store does not see its row yet. It asks
// again as a claim does that finds its row not visible.
func (c *core) tooEarly(o *outcome, result store.SettleResult, now time.Time) bool {
	if o.looks > 0 {
		c.early--
	}
	if result != store.TooEarly {
		o.looks = 0
		return false
	}
	c.early++
	o.looks++
	o.due = now.Add(lookPause(o.looks))
	heap.Push(&c.refused, *o)
	return true
}
