package dispatch

import (
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/dispatch/internal/trail"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// trailRows is how many of the rows that were settled last a dispatcher remembers for operators,
// about 150 bytes each. keptRows is how many failing and FAILED rows have their attempts in the store.
const (
	trailRows = 10_000
	keptRows  = 1000
)

// recordFailures records the failed attempts of the rows of a request.
func (c *core) recordFailures(req *request, res *sink.Result, now time.Time) {
	if req.Job() != nil || res.Items == nil && res.Class == sink.Delivered {
		return
	}
	i := 0
	for rw := range req.Rows() {
		if out := res.At(i); out.Class != sink.Delivered && out.Class != sink.NotSent {
			a := Attempt{Started: req.Started, Took: now.Sub(req.Started), Class: out.Class.String(), Error: out.Detail}
			c.kept.Failing(rw.Ref, rw.RecordAttempt(a, c.kept.Of(&rw.Ref)))
		}
		i++
	}
}

// recordDelivery records that the receiver accepted a row.
func (c *core) recordDelivery(rw *row, started, now time.Time) {
	if rw.Job != nil {
		return
	}
	rw.Trail = c.trail.Add(&trail.Record{
		Ref: rw.Ref, Committed: trail.Nanos(rw.Committed), Captured: trail.Nanos(rw.Captured), Attempts: rw.Attempts,
		Started: started.UnixNano(), Answered: now.UnixNano(), Failures: rw.FailureTimes().Attempts, Status: store.Completed,
	})
}

// recordSettled records that a row is settled.
func (c *core) recordSettled(o *outcome, result store.SettleResult, now time.Time) {
	rw := o.Of.Row
	if o.Status == store.Completed || result != store.Written {
		c.kept.Ended(&rw.Ref)
	}
	switch {
	case o.Status == store.Completed:
		c.trail.Settle(rw.Trail, &rw.Ref, now)
	case result == store.Written:
		c.kept.Failed(rw.Ref)
		c.trail.Add(&trail.Record{
			Ref: rw.Ref, Committed: trail.Nanos(rw.Committed), Captured: trail.Nanos(rw.Captured), Attempts: rw.Attempts,
			Failures: rw.FailureTimes().Attempts, Status: store.Failed, Error: o.Error, Settled: now.UnixNano(),
		})
	}
}

// Attempt is a request that carried a row.
type Attempt = store.Attempt

// Why is why a row is not delivered yet.
type Why = lanes.Why

// Cause is why a row is where it is. Its values in a lane are those of package lane.
type Cause = lanes.Cause

// Causes that operators of a row meet; those of a row in a lane are in package lane.
const (
	CauseDelivered Cause = "delivered" // the receiver has it and COMPLETED is in the table
	CauseFailed    Cause = "failed"
	CauseStopping  Cause = "stopping"  // the dispatcher stops, or has not begun to claim
	CauseUnwritten Cause = "unwritten" // nothing is sent, because the tables refuse too many outcomes
)

// RowInfo is what a dispatcher knows of a row of an outbox or a leg.
type RowInfo struct {
	Why
	Lane                LaneName // zero for a row that has left its lane
	Committed, Captured time.Time
	RetryCount          int
	Spilled             bool // the store has a copy

	// Attempts are the latest attempts, the oldest first. Sent counts all, without those of earlier
	// leaders whose attempts are not kept.
	Attempts []Attempt
	Sent     int

	// Settled is when the outcome was known to be in the store. FailedAs is the error of a FAILED
	// row.
	Settled  time.Time
	FailedAs string
}

// Row returns what the dispatcher knows of a row, false if nothing. The time is linear in the rows
// in memory.
func (d *Dispatcher) Row(ref store.Ref) (RowInfo, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.rowInfo(ref, time.Now())
}

// SpilledRow is Row for a row that the caller found among the spilled rows.
func (d *Dispatcher) SpilledRow(it *store.Item) RowInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	c, now := d.core, time.Now()
	if in, known := c.rowInfo(it.Ref, now); known {
		return in
	}
	in := RowInfo{Lane: c.lanes.NameOf(it), Committed: it.Committed, RetryCount: it.RetryCount, Spilled: true}
	in.addFailures(c.kept.Of(&it.Ref))
	in.Cause = lanes.SpilledRow
	if l := c.lanes.Get(in.Lane); l != nil {
		in.Why = lanes.WhyOf(c.lanes, l, len(l.Rows), now)
	} else if h := c.lanes.OutboxPause(it.Outbox); h != nil {
		in.Cause, in.Reason, in.Since = lanes.RoutePaused, h.Reason, h.Since
	} else if b := &c.lanes.Endpoints.Of(it.Kind).Breaker; b.Open() {
		in.Cause, in.Since, in.Until = lanes.BreakerOpen, b.OpenedAt(), b.NextProbe()
		in.Class, in.Error = b.LastFailure().Class.String(), b.LastFailure().Detail
	}
	return in
}

func (c *core) rowInfo(ref store.Ref, now time.Time) (RowInfo, bool) {
	if l, at := c.findRow(ref); l != nil {
		in := c.infoOf(l.Rows[at])
		in.Lane, in.Why = l.Name, lanes.WhyOf(c.lanes, l, at, now)
		if in.Cause == lanes.NoSender {
			in.Cause = c.whyNoClaim()
		}
		return in, true
	}
	rec, rw := c.trail.Find(ref), c.findOutside(ref)
	if rw == nil && rec == nil {
		return RowInfo{}, false
	}
	var in RowInfo
	if rec != nil && (rw == nil || rw.Trail != 0) {
		in = recordInfo(rec)
	} else {
		in = c.infoOf(rw)
	}
	if rw != nil {
		in.Lane, in.Cause = c.lanes.NameOf(&rw.Item), lanes.Settling
		if l := c.lanes.Get(in.Lane); l != nil && rw.Stage == lanes.Open {
			in.Why = lanes.WhyOf(c.lanes, l, len(l.Rows), now)
		}
	}
	if in.Cause == lanes.Settling {
		c.whyUnwritten(&in, ref)
	}
	return in, true
}

// whyUnwritten finds out why the outcome of a row that has left its lane is not written yet.
func (c *core) whyUnwritten(in *RowInfo, ref store.Ref) {
	if c.lanes.TableLocked(ref.Outbox) {
		in.Cause = lanes.TableLocked
	}
	for o := range c.eachRefusedOutcome() {
		if o.Ref == ref {
			in.Cause, in.Error, in.Since, in.Until = lanes.RefusedByTable, o.Refusal, o.Since, o.Due()
		}
	}
}

// whyNoClaim is why a ready lane is not claimed.
func (c *core) whyNoClaim() Cause {
	switch {
	case c.ended || !c.notBefore.IsZero():
		return CauseStopping
	case c.tooManyUnwritten():
		return CauseUnwritten
	}
	return lanes.NoSender
}

// findRow returns the live lane of a row in memory and its place, nil if there is none.
func (c *core) findRow(ref store.Ref) (*lane, int) {
	for name, l := range c.lanes.Live() {
		if name.Outbox != ref.Outbox {
			continue
		}
		for i, rw := range l.Rows {
			if rw.ID == ref.ID && rw.Stage != lanes.Done {
				return l, i
			}
		}
	}
	return nil, 0
}

// findOutside returns a row in memory that is in no lane, or behind the spilled rows of one; nil if
// there is none.
func (c *core) findOutside(ref store.Ref) *row {
	for o := range c.outcomes.All() {
		if o.Ref == ref {
			return o.Of.Row
		}
	}
	for rw := range c.lanes.Requests.Fresh.All() {
		if rw.Ref == ref {
			return rw
		}
	}
	for p := range c.spill.All() {
		if p.Row.Ref == ref {
			return p.Row
		}
	}
	for _, l := range c.lanes.Live() {
		for _, rw := range l.UnspillableTail {
			if rw.Ref == ref {
				return rw
			}
		}
	}
	return nil
}

// infoOf returns what a row in memory says.
func (c *core) infoOf(rw *row) RowInfo {
	in := RowInfo{
		Committed: rw.Committed, Captured: rw.Captured, RetryCount: rw.RetryCount, Spilled: rw.Copy == lanes.CopyStored,
		Sent: rw.Attempts,
	}
	failures := rw.FailureTimes().Attempts
	if failures == nil {
		failures = c.kept.Of(&rw.Ref)
	}
	in.addFailures(failures)
	return in
}

// addFailures adds failed attempts.
func (in *RowInfo) addFailures(f *trail.Failures) {
	in.Attempts, in.Sent = f.Latest(), max(in.Sent, f.Total())
}

// recordInfo returns what the trail says of a row.
func recordInfo(rec *trail.Record) RowInfo {
	in := RowInfo{
		Committed: trail.Time(rec.Committed), Captured: trail.Time(rec.Captured), Settled: trail.Time(rec.Settled),
		Sent: rec.Attempts, FailedAs: rec.Error,
	}
	in.addFailures(rec.Failures)
	switch {
	case rec.Status == store.Failed:
		in.Cause = CauseFailed
	case rec.Settled == 0:
		in.Cause = lanes.Settling
	default:
		in.Cause = CauseDelivered
	}
	if rec.Answered != 0 {
		in.Attempts = append(in.Attempts, Attempt{
			Started: trail.Time(rec.Started), Took: time.Duration(rec.Answered - rec.Started), Class: sink.Delivered.String(),
		})
		in.Sent = max(in.Sent, rec.Failures.Total()+1)
	}
	return in
}

// LoadAttempts takes over the attempts that the store has. Call it before Run.
func (d *Dispatcher) LoadAttempts(saved *store.FailedAttempts) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.core.kept.Load(saved)
}

// TakeAttempts returns what the store is to keep since the last call: the attempts of at most limit
// rows that failed, and the rows that have ended. The caller writes both.
func (d *Dispatcher) TakeAttempts(limit int) (save []store.FailedAttempts, drop []store.Ref) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.kept.Take(limit)
}

// KeptRows returns the rows whose attempts are kept although they do not fail now. They are FAILED, or
// an earlier leader had them.
func (d *Dispatcher) KeptRows() []store.Ref {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.kept.Settled()
}

// DropAttempts drops the attempts of rows that are delivered or gone.
func (d *Dispatcher) DropAttempts(rows []store.Ref) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range rows {
		d.core.kept.Ended(&rows[i])
	}
}
