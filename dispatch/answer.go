package dispatch

import (
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// answers decides what the receiver's answer to a request means for each of its rows and lanes.
type answers struct {
	core    *core
	policy  lanes.Policy
	pings   pings
	stalled []LaneInfo // newly stalled lanes that are not yet reported
}

// take handles the result of a request.
func (a *answers) take(req *request, res *sink.Result, now time.Time) {
	a.core.lanes.Requests.Answered(req)
	a.core.lanes.Memory.ReleaseLarge(req)
	a.core.breakerChanged(req.Receiver(), req.RecordResult(res, now))
	a.core.recordFailures(req, res, now)
	if res.Items == nil && res.Class != sink.Delivered && len(req.Runs) > 1 {
		a.failShared(req, res, now)
		return
	}

	at := 0
	for _, r := range req.Runs {
		a.takeRun(req, r, res, at, now)
		at += len(r.Rows)
	}
}

// failShared handles the failure of a request shared by lanes. No lane is blamed for
// the rows of another. If one row may be the cause, the request is halved until one lane is
// isolated; otherwise each lane retries separately.
func (a *answers) failShared(req *request, res *sink.Result, now time.Time) {
	busy := res.RetryAfter > 0 && res.Class != sink.Rejected
	split := !req.Receiver().Breaker.Open() && (res.Class == sink.Rejected ||
		!busy && (res.Class == sink.Refused || res.Class == sink.Misconfigured))
	for _, r := range req.Runs {
		for _, rw := range r.Rows {
			rw.RecordFailure(res.Class, now)
		}
		r.Lane.RecordFailure(res.Detail)
	}

	if split && !a.core.ended && !req.Runs[0].Lane.Withdrawing() && !a.core.pausedIn(req) {
		push := a.core.lanes.Requests.Push
		if req.Unclaimed {
			push = a.core.lanes.Requests.PushUnclaimed // a row that was tried is claimed first
		}
		first, second := req.Halves()
		push(first)
		push(second)
		return
	}

	for _, r := range req.Runs {
		a.core.lanes.Memory.Shed(r.Rows...)
		a.backOff(r.Lane, res.RetryAfter, now)
	}
}

// takeRun handles the results of one lane's rows, which start at position at of the
// request. Delivered rows leave the lane. The first row that was not delivered decides the
// lane's next step.
func (a *answers) takeRun(req *request, r *run, res *sink.Result, at int, now time.Time) {
	l, n := r.Lane, len(r.Rows)
	a.core.lanes.Requests.Accept(r, func(i int) bool { return res.At(at+i).Class == sink.Delivered })
	failed, delivered := -1, 0
	for i, rw := range r.Rows {
		switch out := res.At(at + i); out.Class {
		case sink.Delivered:
			rw.Finish()
			delivered++
			a.core.recordDelivery(rw, req.Started, now)
			a.core.settle(rw, store.Outcome{Status: store.Completed, Receipt: out.Receipt}, nil, now)
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
		if l.Job == nil {
			a.core.delivered[l.Name.Outbox] = now
		}
		l.RecordDelivered(delivered, a.core.cfg.APIBatchSize)
	}
	if failed < 0 || at+failed > 0 && res.At(at+failed).Class == sink.NotSent {
		a.core.lanes.Memory.Shed(r.Rows...)
		a.core.release(l)
		return
	}

	prefix := res.Items != nil && a.core.lanes.Endpoints.Mode(r.Rows[failed]) == sink.Prefix
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
	a.core.lanes.Memory.Shed(l.Rows[:min(n, len(l.Rows))]...)
	a.fail(l, r.Rows[failed], &lanes.Failure{
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

// fail decides the next step of a lane whose head was not delivered. The failure
// concerns its first n rows.
func (a *answers) fail(l *lane, rw *row, f *lanes.Failure, n int, now time.Time) {
	v := a.policy.Judge(l, rw, f, now)
	l.RecordFailure(f.Detail)

	status := store.Pending
	switch {
	case rw.Skip != nil, v == lanes.Retry:
		a.pings.request(l, f, now)
		a.detectStall(l, rw, f, now)
		a.backOff(l, f.RetryAfter, now)
		return
	case v == lanes.Halve:
		l.Bisect(n)
		a.core.release(l) // the receiver works: bisect at once
		return
	case v == lanes.Single:
		l.SendSingly()
		a.backOff(l, f.RetryAfter, now)
		return
	case v == lanes.GiveUp || rw.RetryCount >= a.core.cfg.MaxRetries:
		status = store.Failed
	default:
		a.pings.request(l, f, now)
		rw.RetryCount++
		rw.Claimed = time.Time{}
	}

	waits := l.WaitsForBreaker(f.RetryAfter) && f.Class != sink.Rejected
	l.WakeAt = now
	switch {
	case status == store.Failed && f.Class != sink.Rejected:
		l.WakeAt = now.Add(min(f.RetryAfter, a.core.cfg.RetryAfterMax)) // for the next row
	case status == store.Pending && !waits:
		l.WakeAt = now.Add(a.core.lanes.Backoff(l, f.RetryAfter))
	}

	o := store.Outcome{Status: status, Error: f.Detail, Reason: f.Reason}
	if status == store.Failed && a.blocksOnFailed(l) {
		o.Block = &store.Hold{
			Lane: l.Name.LaneKey, Kind: store.Blocked, ID: rw.ID,
			RetryCount: rw.RetryCount, Reason: f.Detail, Since: now,
		}
	}

	a.core.settle(rw, o, l, now)
}

// detectStall reports a row that holds up its lane: it has gone unanswered for proof-wait
// while the receiver accepted other rows. The row is not marked FAILED. Part of the
// receiver may be down, and every row that needs that part would become FAILED too.
func (a *answers) detectStall(l *lane, rw *row, f *lanes.Failure, now time.Time) {
	if l.Stalled || f.IsRefusal() || !f.Single || !rw.Proof || now.Sub(rw.FailureTimes().First) < a.core.cfg.ProofWait {
		return
	}
	l.Stalled = true
	a.stalled = append(a.stalled, laneInfo(l))
}

// blocksOnFailed reports whether a FAILED row blocks its lane.
func (a *answers) blocksOnFailed(l *lane) bool {
	return a.core.cfg.OnFailed == Block && l.Name.RowID == ""
}

// backOff sets a lane aside after a failure.
func (a *answers) backOff(l *lane, retryAfter time.Duration, now time.Time) {
	if l.WaitsForBreaker(retryAfter) {
		a.core.release(l)
		return
	}
	a.core.wait(l, now.Add(a.core.lanes.Backoff(l, retryAfter)))
}

// takeStalled returns the lanes that stalled since the last call.
func (a *answers) takeStalled() []LaneInfo {
	stalled := a.stalled
	a.stalled = nil
	return stalled
}
