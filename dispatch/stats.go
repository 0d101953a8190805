package dispatch

import (
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/dispatch/internal/trail"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Stats is a snapshot of the rows a dispatcher holds, without replayed rows.
type Stats struct {
	Rows    int // in memory, until their outcome is written
	Spilled int // in the spilled rows of the store; some are in memory too

	// Unspillable rows are in memory because the store refuses to spill them.
	Unspillable int
	Waiting     int            // in memory or spilled, each counted once
	Bytes       int64          // payloads in memory
	InFlight    int            // claims and requests, replays included
	Lanes       map[string]int // by state

	// Oldest is the commit time of the oldest row in memory, or its capture time if the log
	// has no commit time. It is zero if no row is in memory. Rows that are only in the
	// store do not count.
	Oldest       time.Time
	OpenBreakers []OpenBreaker // endpoints with an open circuit breaker
}

// Stats counts the rows that the dispatcher holds. The time is linear in the rows in
// memory.
func (d *Dispatcher) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.stats()
}

func (c *core) stats() Stats {
	spilled := c.spill.Counts()
	s := Stats{
		Rows: c.lanes.Memory.Total(), Spilled: spilled.Stored, Unspillable: spilled.Unspillable, Bytes: c.lanes.Memory.Bytes(), InFlight: c.lanes.Requests.Busy(),
		Lanes:        map[string]int{lanes.Spilled: 0, lanes.Replaying: 0, lanes.Stalled: 0, store.Blocked.String(): 0, store.Paused.String(): 0},
		OpenBreakers: c.openBreakers(),
	}

	for st := lanes.Ready; st < lanes.Held; st++ {
		s.Lanes[st.String()] = 0
	}
	s.Lanes[lanes.Spilled] += spilled.Lanes
	copies := 0 // spilled rows that are also in memory
	see := func(rw *row) {
		if rw.Copy == lanes.CopyStored {
			copies++
		}
		if since := rw.CommittedOrCaptured(); !since.IsZero() && (s.Oldest.IsZero() || since.Before(s.Oldest)) {
			s.Oldest = since
		}
	}

	for _, l := range c.lanes.Live() {
		s.Lanes[l.StateName()]++
		for _, rw := range l.Rows {
			see(rw)
		}
		for _, rw := range l.UnspillableTail {
			see(rw)
		}
	}

	for o := range c.outcomes.All() {
		// Its lane has gone on without it. Rows whose claim is given back have left memory
		// or are still in their lane.
		if o.Of.Lane == nil && o.Status.Settled() {
			see(o.Of.Row)
		}
	}

	s.Waiting = max(0, s.Rows+s.Spilled-copies)
	return s
}

// trailRows is how many of the rows that were settled last a dispatcher remembers for operators,
// about 150 bytes each.
const trailRows = 10_000

// recordFailures records the failed attempts of the rows of a request.
func (c *core) recordFailures(req *request, res *sink.Result, now time.Time) {
	if req.Job() != nil || res.Items == nil && res.Class == sink.Delivered {
		return
	}
	i := 0
	for rw := range req.Rows() {
		if out := res.At(i); out.Class != sink.Delivered && out.Class != sink.NotSent {
			rw.RecordAttempt(trail.Attempt{Started: req.Started, Took: now.Sub(req.Started), Class: out.Class, Error: out.Detail})
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
	if o.Status == store.Completed {
		c.trail.Settle(rw.Trail, &rw.Ref, now)
		return
	}
	if result == store.Written {
		c.trail.Add(&trail.Record{
			Ref: rw.Ref, Committed: trail.Nanos(rw.Committed), Captured: trail.Nanos(rw.Captured), Attempts: rw.Attempts,
			Failures: rw.FailureTimes().Attempts, Status: store.Failed, Error: o.Error, Settled: now.UnixNano(),
		})
	}
}

// Attempt is a request that carried a row.
type Attempt = trail.Attempt

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

	// Attempts are the latest attempts, the oldest first; Sent counts all since this leader began.
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
	if in, known := d.core.rowInfo(it.Ref, time.Now()); known {
		return in
	}
	in := RowInfo{Lane: d.core.lanes.NameOf(it), Committed: it.Committed, RetryCount: it.RetryCount, Spilled: true}
	in.Cause = lanes.SpilledRow
	if l := d.core.lanes.Get(in.Lane); l != nil {
		in.Why = lanes.WhyOf(d.core.lanes, l, len(l.Rows), time.Now())
	} else if h := d.core.lanes.OutboxPause(it.Outbox); h != nil {
		in.Cause, in.Reason, in.Since = lanes.RoutePaused, h.Reason, h.Since
	} else if b := &d.core.lanes.Endpoints.Of(it.Kind).Breaker; b.Open() {
		in.Cause, in.Since, in.Until = lanes.BreakerOpen, b.OpenedAt(), b.NextProbe()
		in.Class, in.Error = b.LastFailure().Class.String(), b.LastFailure().Detail
	}
	return in
}

func (c *core) rowInfo(ref store.Ref, now time.Time) (RowInfo, bool) {
	if l, at := c.findRow(ref); l != nil {
		in := infoOf(l.Rows[at])
		in.Lane, in.Why = l.Name, lanes.WhyOf(c.lanes, l, at, now)
		if in.Cause == lanes.NoSender {
			in.Cause = c.whyNoClaim()
		}
		return in, true
	}
	rec := c.trail.Find(ref)
	if rw := c.findOutside(ref); rw != nil && (rec == nil || rw.Trail == 0) {
		in := infoOf(rw)
		in.Lane = c.lanes.NameOf(&rw.Item)
		in.Cause = lanes.Settling
		if l := c.lanes.Get(in.Lane); l != nil && rw.Stage == lanes.Open {
			in.Why = lanes.WhyOf(c.lanes, l, len(l.Rows), now)
		}
		return in, true
	}
	if rec == nil {
		return RowInfo{}, false
	}
	return recordInfo(rec), true
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
func infoOf(rw *row) RowInfo {
	return RowInfo{
		Committed: rw.Committed, Captured: rw.Captured, RetryCount: rw.RetryCount, Spilled: rw.Copy == lanes.CopyStored,
		Attempts: rw.FailureTimes().Attempts.Latest(), Sent: rw.Attempts,
	}
}

// recordInfo returns what the trail says of a row.
func recordInfo(rec *trail.Record) RowInfo {
	in := RowInfo{
		Committed: trail.Time(rec.Committed), Captured: trail.Time(rec.Captured), Settled: trail.Time(rec.Settled),
		Attempts: rec.Failures.Latest(), Sent: rec.Attempts, FailedAs: rec.Error,
	}
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
			Started: trail.Time(rec.Started), Took: time.Duration(rec.Answered - rec.Started), Class: sink.Delivered,
		})
	}
	return in
}
