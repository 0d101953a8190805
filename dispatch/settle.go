package dispatch

import (
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	pending "github.com/sluicebox/sluicebox/dispatch/internal/outcome"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// answered handles the result of a request.
func (c *core) answered(req *request, res *sink.Result, now time.Time) {
	c.lanes.Requests.Answered(req)
	c.lanes.Memory.ReleaseLarge(req)
	c.breakerChanged(req.Receiver(), req.RecordResult(res, now))
	if res.Items == nil && res.Class != sink.Delivered && len(req.Runs) > 1 {
		c.failSharedRequest(req, res, now)
		return
	}

	at := 0
	for _, r := range req.Runs {
		c.answeredRun(req, r, res, at, now)
		at += len(r.Rows)
	}
}

// failSharedRequest handles the failure of a request shared by lanes. No lane is blamed for
// the rows of another. If one row may be the cause, the request is halved until one lane is
// isolated; otherwise each lane retries separately.
func (c *core) failSharedRequest(req *request, res *sink.Result, now time.Time) {
	busy := res.RetryAfter > 0 && res.Class != sink.Rejected
	split := !req.Receiver().Breaker.Open() && (res.Class == sink.Rejected ||
		!busy && (res.Class == sink.Refused || res.Class == sink.Misconfigured))
	for _, r := range req.Runs {
		for _, rw := range r.Rows {
			rw.RecordFailure(res.Class, now)
		}
		r.Lane.RecordFailure(res.Detail)
	}

	if split && !c.ended && !req.Runs[0].Lane.Withdrawing() {
		first, second := req.Halves()
		c.lanes.Requests.Push(first)
		c.lanes.Requests.Push(second)
		return
	}

	for _, r := range req.Runs {
		c.lanes.Memory.Shed(r.Rows...)
		c.backOffLane(r.Lane, res.RetryAfter, now)
	}
}

// answeredRun handles the results of one lane's rows, which start at position at of the
// request. Delivered rows leave the lane. The first row that was not delivered decides the
// lane's next step.
func (c *core) answeredRun(req *request, r *run, res *sink.Result, at int, now time.Time) {
	l, n := r.Lane, len(r.Rows)
	failed, delivered := -1, 0
	for i, rw := range r.Rows {
		switch res.At(at + i).Class {
		case sink.Delivered:
			rw.Finish()
			delivered++
			c.settle(rw, store.Outcome{Status: store.Completed}, nil, now)
			continue
		case sink.NotSent:
			rw.Attempts--
		}
		if failed < 0 {
			failed = i
		}
	}

	l.RemoveDone(n)
	if delivered > 0 {
		l.RecordDelivered(delivered, c.cfg.APIBatchSize)
	}
	if failed < 0 || at+failed > 0 && res.At(at+failed).Class == sink.NotSent {
		c.lanes.Memory.Shed(r.Rows...)
		c.release(l)
		return
	}

	prefix := res.Items != nil && c.lanes.Endpoints.Mode(r.Rows[failed]) == sink.Prefix
	for i := failed + 1; i < n && !prefix; i++ {
		if class := res.At(at + i).Class; r.Rows[i].Stage != lanes.Done && class != sink.NotSent {
			r.Rows[i].RecordFailure(class, now)
		}
	}

	rows := 1 // that the failure concerns
	switch {
	case prefix:
		rows = sameClass(res, at+failed, at+n)
	case res.Items == nil:
		rows = n
	}
	c.lanes.Memory.Shed(l.Rows[:min(n, len(l.Rows))]...)
	c.handleFailure(l, r.Rows[failed], &lanes.Failure{
		Outcome: res.At(at + failed), RetryAfter: res.RetryAfter,
		Single: rows == 1, Bisecting: req.Split,
	}, rows, now)
}

// sameClass is how many messages from the first one on have its class, up to end.
func sameClass(res *sink.Result, first, end int) int {
	n := 1
	for first+n < end && res.At(first+n).Class == res.At(first).Class {
		n++
	}
	return n
}

// handleFailure decides the next step of a lane whose head was not delivered. The failure
// concerns its first n rows.
func (c *core) handleFailure(l *lane, rw *row, f *lanes.Failure, n int, now time.Time) {
	v := c.policy.Judge(l, rw, f, now)
	l.RecordFailure(f.Detail)

	status := store.Pending
	switch {
	case rw.Skip != nil, v == lanes.Retry:
		c.requestPing(l, f, now)
		c.detectStall(l, rw, f, now)
		c.backOffLane(l, f.RetryAfter, now)
		return
	case v == lanes.Halve:
		l.Bisect(n)
		c.release(l) // the receiver works: bisect at once
		return
	case v == lanes.Single:
		l.SendSingly()
		c.backOffLane(l, f.RetryAfter, now)
		return
	case v == lanes.GiveUp || rw.RetryCount >= c.cfg.MaxRetries:
		status = store.Failed
	default:
		c.requestPing(l, f, now)
		rw.RetryCount++
		rw.Claimed = time.Time{}
	}

	waits := l.WaitsForBreaker(f.RetryAfter) && f.Class != sink.Rejected
	l.WakeAt = now
	switch {
	case status == store.Failed && f.Class != sink.Rejected:
		l.WakeAt = now.Add(min(f.RetryAfter, c.cfg.RetryAfterMax)) // for the next row
	case status == store.Pending && !waits:
		l.WakeAt = now.Add(c.lanes.Backoff(l, f.RetryAfter))
	}

	o := store.Outcome{Status: status, Error: f.Detail, Reason: f.Reason}
	if status == store.Failed && c.blocksOnFailed(l) {
		o.Block = &store.Hold{
			Lane: l.Name.LaneKey, Kind: store.Blocked, ID: rw.ID,
			RetryCount: rw.RetryCount, Reason: f.Detail, Since: now,
		}
	}

	c.settle(rw, o, l, now)
}

// detectStall reports a row that holds up its lane: it has gone unanswered for proof-wait
// while the receiver accepted other rows. The row is not marked FAILED. Part of the
// receiver may be down, and every row that needs that part would become FAILED too.
func (c *core) detectStall(l *lane, rw *row, f *lanes.Failure, now time.Time) {
	if l.Stalled || f.IsRefusal() || !f.Single || !rw.Proof || now.Sub(rw.FirstFailed) < c.cfg.ProofWait {
		return
	}
	l.Stalled = true
	c.newlyStalled = append(c.newlyStalled, laneInfo(l))
}

// blocksOnFailed reports whether a FAILED row blocks its lane.
func (c *core) blocksOnFailed(l *lane) bool { return c.cfg.OnFailed == Block && l.Name.RowID == "" }

// backOffLane sets a lane aside after a failure.
func (c *core) backOffLane(l *lane, retryAfter time.Duration, now time.Time) {
	if l.WaitsForBreaker(retryAfter) {
		c.release(l)
		return
	}
	c.wait(l, now.Add(c.lanes.Backoff(l, retryAfter)))
}

// settle queues an outcome. If l is not nil, the lane waits for the write.
func (c *core) settle(rw *row, o store.Outcome, l *lane, now time.Time) {
	if rw.Job != nil {
		c.replays.finish(rw, o.Status, o.Error, l)
		return
	}
	var row *store.Item
	if o.Status == store.Failed {
		row = new(store.Item)
		*row = rw.Item
	}
	if o.Status.Settled() {
		c.lanes.Memory.DropPayload(rw) // it is not sent again
	}
	if o.Row = row; row != nil {
		row.Payload = rw.Payload // the attributes have the row's own kind
	}
	o.Ref, o.Txn, o.RetryCount, o.At = rw.Ref, rw.Txn, rw.RetryCount, now
	if !rw.Claimed.IsZero() {
		o.Txn = 0 // the claim found the row: if it is missing now, it is gone
	}
	c.Enqueue(outcome{Outcome: o, Of: owner{Row: rw, Lane: l}})
	if l != nil {
		l.Write()
		c.unclaimLane(l)
	}
}

// Enqueue queues an outcome, or the delete of a spilled row without one. While the row is
// being spilled the outcome waits, because the spilled copy must not outlive the row.
func (c *core) Enqueue(o outcome) {
	rw := o.Of.Row
	switch {
	case rw.Copy == lanes.CopyWriting:
		late := o // keeps o itself off the heap
		rw.PendingOutcome = &late
	case o.Status == 0:
		c.spill.Delete(rw)
	default:
		if rw.Copy == lanes.CopyStored {
			o.SpilledSeq = rw.Seq
			if o.Status.Settled() {
				c.spill.Settling(rw)
			}
		}
		c.outcomes.Add(o)
	}
}

// written handles the results of the batch of outcomes. A row found settled or gone is
// done, whatever its outcome. A deferred outcome is retried later, and a lane that waits
// for it keeps waiting.
func (c *core) written(results []store.SettleResult, now time.Time) {
	batch := c.outcomes.Written()
	for i := range batch {
		o := &batch[i]
		final := o.Status.Settled() || results[i] != store.Written
		if !results[i].NeedsRetry() {
			if o.WasRefused() && o.Of.Lane != nil {
				o.Of.Lane.Refusal = ""
			}
			switch {
			case o.SpilledSeq != 0:
				c.recordSpilledWrite(o, final)
			case o.Of.Row.Copy == lanes.CopyStored && o.Status.Settled(): // its copy was found meanwhile
				c.spill.Delete(o.Of.Row)
			}
		}
		switch step := c.outcomes.Handle(o, results[i], now); {
		case step == pending.Refused:
			c.recordRefusal(o, now)
		case step == pending.TableLocked:
			c.lanes.SetAside(o.Outbox)
		case step == pending.Deferred:
		case o.Of.Lane == nil && o.Status == store.Pending:
			c.unclaimed(o.Of.Row, now) // the row stays in its lane, unsettled
		case o.Of.Lane == nil:
			c.drop(o.Of.Row)
		case final:
			c.finishHead(o, results[i], now)
		default:
			c.wait(o.Of.Lane, later(o.Of.Lane.WakeAt, now))
		}
	}

	c.outcomes.Recycle(batch)
}

// recordSpilledWrite records that the outcome of a spilled row is written. If the outcome
// settles the row, its spilled copy is gone.
func (c *core) recordSpilledWrite(o *outcome, final bool) {
	switch {
	case o.Status.Settled():
		c.spill.Settled(o.Of.Row, o.SpilledSeq)
	case final && o.Of.Lane != nil: // found settled or gone
		c.spill.Delete(o.Of.Row)
	}
}

// finishHead moves a lane past its settled or deleted head, unless the head blocks it.
func (c *core) finishHead(o *outcome, result store.SettleResult, now time.Time) {
	l := o.Of.Lane
	reset := o.Of.Row.Stage == lanes.Reset
	if reset && !c.lanes.Memory.LogOnly[o.Outbox] {
		o.Of.Row.ResetFailed()
		o.Of.Row.Txn = 0 // it was visible: unwritten claims check it again
		c.release(l)     // its claim finds the current status
		return
	}
	c.drop(o.Of.Row)
	// No claim could tell what an operator did with a row that only the log had. If it was
	// requeued, it is in its lane once more.
	if o.Block != nil && result != store.WasGone && !reset {
		c.operator.block(l, o.Block)
	}
	c.advancePastHead(l, now)
	c.unclaimed(o.Of.Row, now) // an operator skipped it before its claim was given back
}

// advancePastHead removes a head that failed for good and lets the lane go on.
func (c *core) advancePastHead(l *lane, now time.Time) {
	l.RemoveDone(1)
	l.ResetFailures()
	l.EndBisection(c.cfg.APIBatchSize) // the head was the bad row
	if len(l.Rows) > 0 && l.WakeAt.After(now) {
		c.wait(l, l.WakeAt) // the receiver sent Retry-After
		return
	}
	c.release(l)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
