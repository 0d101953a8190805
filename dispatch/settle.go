package dispatch

import (
	"container/heap"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// answered takes the result of a run's request. Delivered rows leave the lane;
// the first row that was not delivered decides what the lane does next.
func (c *core) answered(r *run, res *sink.Result, now time.Time) {
	c.inUse--
	l, n := r.lane, len(r.rows)
	failed := -1
	for i, rw := range r.rows {
		switch res.At(i).Class {
		case sink.Delivered:
			rw.done = true
			c.recv.accepted = later(c.recv.accepted, r.started)
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
	if failed != 0 {
		l.failures = 0
		l.limit = min(2*l.limit, c.cfg.APIBatchSize)
	}
	if failed < 0 || failed > 0 && res.At(failed).Class == sink.NotSent {
		c.release(l)
		c.giveBack(l)
		return
	}
	for i := failed + 1; i < n; i++ {
		if !r.rows[i].done && res.At(i).Class != sink.NotSent {
			r.rows[i].failed = now
		}
	}
	c.failed(l, r.rows[failed], res.At(failed), failure{
		alone: n == 1 || res.Items != nil, rows: n, retryAfter: res.RetryAfter,
	}, now)
}

// failure is what is known of a failed attempt besides its outcome.
type failure struct {
	alone      bool // it is about the head row and no other
	rows       int  // in the request
	retryAfter time.Duration
}

// failed decides what becomes of a lane whose head was not delivered.
func (c *core) failed(l *lane, rw *row, out sink.Outcome, f failure, now time.Time) {
	f.retryAfter = min(f.retryAfter, c.cfg.RetryAfterMax)
	v := judge(rw, out.Class, f, &c.recv, c.cfg.ProofWait, now)
	switch v {
	case halve:
		l.limit = max(1, f.rows/2)
		c.release(l) // the receiver is well: look for the row at once
		c.giveBack(l)
		return
	case single:
		l.limit = 1
	}
	l.failures++
	pause := delay(l.failures, c.cfg.BackoffInitial, c.cfg.BackoffMax, c.random)
	l.wakeAt = now.Add(max(pause, f.retryAfter))
	switch {
	case v != count && c.ended:
		c.release(l)
		c.giveBack(l)
	case v != count:
		c.wait(l, l.wakeAt)
	case rw.RetryCount < c.cfg.MaxRetries:
		rw.RetryCount++
		rw.claimed = time.Time{}
		c.settle(rw, store.Outcome{Status: store.Pending, Error: out.Detail, Reason: out.Reason}, l, now)
	default:
		c.settle(rw, store.Outcome{Status: store.Failed, Error: out.Detail, Reason: out.Reason}, l, now)
	}
}

// settle queues an outcome to be written. With a lane, the lane waits for it.
func (c *core) settle(rw *row, o store.Outcome, l *lane, now time.Time) {
	o.Ref, o.RetryCount, o.At = rw.Ref, rw.RetryCount, now
	c.outcomes = append(c.outcomes, outcome{Outcome: o, row: rw, lane: l})
	if l != nil {
		l.state, l.inFlight = laneWriting, 1
		c.giveBack(l)
	}
}

// refusalFirst and refusalMost bound the wait before an outcome that the store
// refused is tried again.
const (
	refusalFirst = time.Second
	refusalMost  = time.Minute
)

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
	c.outcomes = c.outcomes[n:]
	return c.writing
}

// written takes the results of the batch of nextOutcomes. A row that was found
// settled or gone is done with, whatever its outcome said. One that the store
// refused is tried again later, and its lane, if it waits for it, goes on
// waiting.
func (c *core) written(results []store.SettleResult, now time.Time) {
	batch := c.writing
	c.writing = nil
	for i := range batch {
		o := &batch[i]
		if results[i] == store.Refused {
			o.due = now.Add(min(refusalFirst<<min(o.tries, 10), refusalMost))
			o.tries++
			heap.Push(&c.refused, *o)
			continue
		}
		final := o.Status.Settled() || results[i] != store.Written
		switch {
		case o.lane == nil && o.Status == store.Pending:
			// Given back at the end: the row stays in its lane and unsettled.
		case o.lane == nil:
			c.drop(o.row)
		case final:
			o.lane.failures = 0
			c.drop(o.row)
			o.lane.prune(1)
			c.release(o.lane)
		default:
			c.wait(o.lane, later(o.lane.wakeAt, now))
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
