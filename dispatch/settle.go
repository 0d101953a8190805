package dispatch

import (
	"time"

	pending "github.com/sluicebox/sluicebox/dispatch/internal/outcome"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// outcome is a row's outcome on its way to the store.
type outcome = pending.Outcome[owner]

// owner is the row of an outcome.
type owner struct {
	row  *row
	lane *lane // waits for the write; nil if it went on
}

// answered handles the result of a request.
func (c *core) answered(req *request, res *sink.Result, now time.Time) {
	c.requests.answered(req)
	c.releaseLarge(req)
	c.recordResult(req, res, now)
	if res.Items == nil && res.Class != sink.Delivered && len(req.runs) > 1 {
		c.failSharedRequest(req, res, now)
		return
	}

	at := 0
	for _, r := range req.runs {
		c.answeredRun(req, r, res, at, now)
		at += len(r.rows)
	}
}

// failSharedRequest handles the failure of a request shared by lanes. No lane is blamed for
// the rows of another. If one row may be the cause, the request is halved until one lane is
// isolated; otherwise each lane retries separately.
func (c *core) failSharedRequest(req *request, res *sink.Result, now time.Time) {
	busy := res.RetryAfter > 0 && res.Class != sink.Rejected
	split := !req.receiver().breaker.Open() && (res.Class == sink.Rejected ||
		!busy && (res.Class == sink.Refused || res.Class == sink.Misconfigured))
	for _, r := range req.runs {
		for _, rw := range r.rows {
			rw.recordFailure(res.Class, now)
		}
		r.lane.isolated, r.lane.lastError = true, res.Detail
	}

	if split && !c.ended && !req.runs[0].lane.withdrawing() {
		half := len(req.runs) / 2
		c.requests.toSend.push(&request{runs: req.runs[:half:half], split: true})
		c.requests.toSend.push(&request{runs: req.runs[half:], split: true})
		return
	}

	for _, r := range req.runs {
		c.shedPayloads(r)
		c.backOffLane(r.lane, res.RetryAfter, now)
	}
}

// answeredRun handles the results of one lane's rows, which start at position at of the
// request. Delivered rows leave the lane. The first row that was not delivered decides the
// lane's next step.
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

	l.removeDone(n)
	if delivered > 0 {
		l.recordDelivered(delivered, c.cfg.APIBatchSize)
	}
	if failed < 0 || at+failed > 0 && res.At(at+failed).Class == sink.NotSent {
		c.shedPayloads(r)
		c.release(l)
		return
	}

	for i := failed + 1; i < n; i++ {
		if class := res.At(at + i).Class; !r.rows[i].done && class != sink.NotSent {
			r.rows[i].recordFailure(class, now)
		}
	}

	c.handleFailure(l, r.rows[failed], &failure{
		Outcome: res.At(at + failed), retryAfter: res.RetryAfter,
		single: n == 1 || res.Items != nil, bisecting: req.split,
	}, n, now)
}

// handleFailure decides the next step of a lane whose head was not delivered. n is the
// number of its rows in the request.
func (c *core) handleFailure(l *lane, rw *row, f *failure, n int, now time.Time) {
	v := c.judge(l, rw, f, now)
	l.lastError = f.Detail
	l.isolated = true
	c.shedPayloads(&run{lane: l, rows: l.rows[:min(n, len(l.rows))]})

	status := store.Pending
	switch {
	case rw.skip != nil, v == verdictRetry:
		c.requestPing(l, f, now)
		c.detectStall(l, rw, f, now)
		c.backOffLane(l, f.retryAfter, now)
		return
	case v == verdictHalve:
		l.bisect(n)
		c.release(l) // the receiver works: bisect at once
		return
	case v == verdictSingle:
		l.limit, l.bisecting = 1, 0
		c.backOffLane(l, f.retryAfter, now)
		return
	case v == verdictGiveUp || rw.RetryCount >= c.cfg.MaxRetries:
		status = store.Failed
	default:
		c.requestPing(l, f, now)
		rw.RetryCount++
		rw.claimed = time.Time{}
	}

	waits := c.waitsForBreaker(l, f.retryAfter) && f.Class != sink.Rejected
	l.wakeAt = now
	switch {
	case status == store.Failed && f.Class != sink.Rejected:
		l.wakeAt = now.Add(min(f.retryAfter, c.cfg.RetryAfterMax)) // for the next row
	case status == store.Pending && !waits:
		l.wakeAt = now.Add(c.backoffDelay(l, f.retryAfter))
	}

	o := store.Outcome{Status: status, Error: f.Detail, Reason: f.Reason}
	if status == store.Failed && c.blocksOnFailed(l) {
		o.Block = &store.Hold{
			Lane: l.name.LaneKey, Kind: store.Blocked, ID: rw.ID,
			RetryCount: rw.RetryCount, Reason: f.Detail, Since: now,
		}
	}

	c.settle(rw, o, l, now)
}

// detectStall reports a row that holds up its lane: it has gone unanswered for proof-wait
// while the receiver accepted other rows. The row is not marked FAILED. Part of the
// receiver may be down, and every row that needs that part would become FAILED too.
func (c *core) detectStall(l *lane, rw *row, f *failure, now time.Time) {
	if l.stalled || f.isRefusal() || !f.single || !rw.proof || now.Sub(rw.firstFailed) < c.cfg.ProofWait {
		return
	}
	l.stalled = true
	c.newlyStalled = append(c.newlyStalled, c.laneInfo(l))
}

// blocksOnFailed reports whether a FAILED row blocks its lane.
func (c *core) blocksOnFailed(l *lane) bool { return c.cfg.OnFailed == Block && l.name.RowID == "" }

// backOffLane sets a lane aside after a failure.
func (c *core) backOffLane(l *lane, retryAfter time.Duration, now time.Time) {
	if c.waitsForBreaker(l, retryAfter) {
		c.release(l)
		return
	}
	c.wait(l, now.Add(c.backoffDelay(l, retryAfter)))
}

// waitsForBreaker reports whether the lane waits for the breaker instead of a timer of its
// own. It marks the lane as tried.
func (c *core) waitsForBreaker(l *lane, retryAfter time.Duration) bool {
	if l.receiver.breaker.Open() {
		l.triedOpening = l.receiver.breaker.Openings()
	}
	return l.receiver.breaker.Open() && retryAfter == 0
}

// backoffDelay is the lane's wait after a failure.
func (c *core) backoffDelay(l *lane, retryAfter time.Duration) time.Duration {
	l.failures++
	pause := delay(l.failures, c.cfg.BackoffInitial, c.cfg.BackoffMax, c.random)
	return max(pause, min(retryAfter, c.cfg.RetryAfterMax))
}

// settle queues an outcome. If l is not nil, the lane waits for the write.
func (c *core) settle(rw *row, o store.Outcome, l *lane, now time.Time) {
	if rw.job != nil {
		c.finishReplayRow(rw, o.Status, o.Error, l)
		return
	}
	if o.Status.Settled() {
		c.dropPayload(rw) // it is not sent again
	}
	o.Ref, o.Txn, o.RetryCount, o.At = rw.Ref, rw.Txn, rw.RetryCount, now
	if !rw.claimed.IsZero() {
		o.Txn = 0 // the claim found the row: if it is missing now, it is gone
	}
	c.enqueue(outcome{Outcome: o, Of: owner{rw, l}})
	if l != nil {
		l.state, l.inFlight = laneWriting, 1
		c.unclaimLane(l)
	}
}

// enqueue queues an outcome, or the delete of a spilled row without one. While the row is
// being spilled the outcome waits, because the spilled copy must not outlive the row.
func (c *core) enqueue(o outcome) {
	rw := o.Of.row
	switch {
	case rw.copy == copyWriting:
		late := o // keeps o itself off the heap
		rw.pendingOutcome = &late
	case o.Status == 0:
		c.deleteSpilled(rw)
	default:
		if rw.copy == copyStored {
			o.SpilledSeq = rw.Seq
			if o.Status.Settled() {
				c.copies.settle(rw)
			}
		}
		c.outcomes.Add(o)
	}
}

// nextOutcomes returns at most limit outcomes to write. The caller reports them to written.
// Only one such batch is in flight. An outcome that the store refused before is written
// alone.
func (c *core) nextOutcomes(limit int) []outcome { return c.outcomes.Next(limit) }

// written handles the results of the batch of nextOutcomes. A row found settled or gone is
// done, whatever its outcome. A deferred outcome is retried later, and a lane that waits
// for it keeps waiting.
func (c *core) written(results []store.SettleResult, now time.Time) {
	batch := c.outcomes.Written()
	for i := range batch {
		o := &batch[i]
		final := o.Status.Settled() || results[i] != store.Written
		if !results[i].NeedsRetry() {
			if o.WasRefused() && o.Of.lane != nil {
				o.Of.lane.refusal = ""
			}
			switch {
			case o.SpilledSeq != 0:
				c.recordSpilledWrite(o, final)
			case o.Of.row.copy == copyStored && o.Status.Settled(): // its copy was found meanwhile
				c.deleteSpilled(o.Of.row)
			}
		}
		switch step := c.outcomes.Handle(o, results[i], now); {
		case step == pending.Refused:
			c.recordRefusal(o, now)
		case step == pending.TableLocked:
			c.setAside(o.Outbox)
		case step == pending.Deferred:
		case o.Of.lane == nil && o.Status == store.Pending:
			c.unclaimed(o.Of.row, now) // the row stays in its lane, unsettled
		case o.Of.lane == nil:
			c.drop(o.Of.row)
		case final:
			c.finishHead(o, results[i], now)
		default:
			c.wait(o.Of.lane, later(o.Of.lane.wakeAt, now))
		}
	}

	c.outcomes.Recycle(batch)
}

// recordSpilledWrite records that the outcome of a spilled row is written. If the outcome
// settles the row, its spilled copy is gone.
func (c *core) recordSpilledWrite(o *outcome, final bool) {
	switch {
	case o.Status.Settled():
		c.spilledDeleted(store.SpilledRef{Ref: o.Ref, Seq: o.SpilledSeq})
		c.setCopy(o.Of.row, noCopy)
	case final && o.Of.lane != nil: // found settled or gone
		c.deleteSpilled(o.Of.row)
	}
}

// finishHead moves a lane past its settled or deleted head, unless the head blocks it.
func (c *core) finishHead(o *outcome, result store.SettleResult, now time.Time) {
	l := o.Of.lane
	if o.Of.row.requeuedInFlight {
		o.Of.row.resetFailed()
		o.Of.row.Txn = 0 // it was visible: unwritten claims check it again
		c.release(l)     // its claim finds the current status
		return
	}
	c.drop(o.Of.row)
	if o.Block != nil && result != store.WasGone {
		c.block(l, o.Block)
	}
	c.advancePastHead(l, now)
	c.unclaimed(o.Of.row, now) // an operator skipped it before its claim was given back
}

// advancePastHead removes a head that failed for good and lets the lane go on.
func (c *core) advancePastHead(l *lane, now time.Time) {
	l.removeDone(1)
	l.resetFailures()
	if l.bisecting > 0 || l.isolated {
		l.bisecting, l.isolated, l.limit = 0, false, c.cfg.APIBatchSize // the head was the bad row
	}
	if len(l.rows) > 0 && l.wakeAt.After(now) {
		c.wait(l, l.wakeAt) // the receiver sent Retry-After
		return
	}
	c.release(l)
}
