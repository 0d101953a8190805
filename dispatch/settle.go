package dispatch

import (
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	pending "github.com/sluicebox/sluicebox/dispatch/internal/outcome"
	"github.com/sluicebox/sluicebox/store"
)

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
// being spilled the outcome waits, because the spilled copy must not outlive the row. While the
// row is claimed late it waits too, because another session writes the claim.
func (c *core) Enqueue(o outcome) {
	rw := o.Of.Row
	switch {
	case rw.Copy == lanes.CopyWriting || rw.LateClaiming:
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

// wrote handles the results of a writer's batch of outcomes. A row found settled or gone is
// done, whatever its outcome. A deferred outcome is retried later, and a lane that waits
// for it keeps waiting.
func (c *core) wrote(writer int, results []store.SettleResult, now time.Time) {
	batch := c.outcomes.Written(writer)
	c.late.writeEnded(writer)
	for i := range batch {
		o := &batch[i]
		final := o.Status.Settled() || results[i] != store.Written
		if !results[i].NeedsRetry() {
			if o.WasRefused() && o.Of.Lane != nil {
				o.Of.Lane.Refusal = ""
			}
			if o.Status.Settled() {
				c.recordSettled(o, results[i], now)
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
			c.lanes.LockTable(o.Outbox)
		case step == pending.Deferred:
		case o.Of.Lane == nil && o.Status == store.Pending:
			c.unclaimed(o.Of.Row, now) // the row stays in its lane, unsettled
		case o.Of.Lane == nil:
			c.drop(o.Of.Row)
		case final:
			c.finishHead(o, results[i], now)
		default:
			c.wait(o.Of.Lane, later(o.Of.Lane.WakeAt, now))
			c.spill.Retried(o.Of.Lane)
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
		c.spill.Retried(l)
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
