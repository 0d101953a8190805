package lane

import (
	"cmp"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/outcome"
	"github.com/sluicebox/sluicebox/dispatch/internal/replay"
	"github.com/sluicebox/sluicebox/dispatch/internal/trail"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Ticket is notified when rows of a batch settle or are spilled.
type Ticket interface {
	Done(n int)
}

// Row is one item in a lane, with its delivery state under this leader. There are as many as the
// buffers hold, so fields of one byte stand together, and fields that few rows have are pointers.
type Row struct {
	store.Item
	Ticket Ticket // nil if the checkpoint does not depend on the row

	// Claimed is the time written by this leader's latest claim; zero once the claim is
	// given back.
	Claimed time.Time

	// FreshUntil is how long the row may be sent before it is claimed; see fresh.go. LateClaiming:
	// it is being claimed while its request is in flight, and its outcome waits.
	FreshUntil   time.Time
	LateClaiming bool

	// Proof: the receiver accepted another row between the latest failure and the current
	// attempt. It belongs to the attempt and is no state: each attempt sets it anew.
	Proof bool

	Sight  Sight
	Stage  Stage
	Origin Origin

	// Copy is the state of its spilled copy. PendingOutcome waits while it is written, or while
	// the row is claimed late.
	Copy Copy

	// Account is the limit it counts against, as one row and weight more. Only Memory
	// changes it.
	Account Account

	// Trail is the number of its record in the trail of the core; 0: none.
	Trail uint32

	// Endpoint is the endpoint of the row, once it is known: Routed. It needs the row's
	// attributes, and is remembered while they are not in memory. See Endpoints.Route.
	Routed   bool
	Endpoint string

	// Attempts counts the requests that carried the row.
	Attempts int
	weight   int

	failures       *FailureTimes // nil before a failed attempt
	Skip           *Skip         // the operator's pending skip request, if any
	PendingOutcome *Outcome

	// Job is the replay that sends the row, as row number ReplayN; nil for a live row.
	Job     *replay.Job
	ReplayN int64
}

// FailureTimes are the times of the failed attempts of a row, zero if there is none.
type FailureTimes struct {
	First, Last time.Time
	// Refused is the time of the last refusal that counted, or else of the first refusal since
	// a failure of another class.
	Refused time.Time

	// Attempts are the failed attempts of the row.
	Attempts *trail.Failures
}

// FailureTimes returns the times of its failed attempts.
func (rw *Row) FailureTimes() FailureTimes {
	if rw.failures == nil {
		return FailureTimes{}
	}
	return *rw.failures
}

// Sight is what this leader's claims have seen of a row. See the package comment for its
// transitions.
type Sight uint8

// Values of Sight.
const (
	Unseen     Sight = iota // no claim has found the row, so it may not be visible yet
	Seen                    // a claim found it
	Unclaiming              // its claim is being given back so that it may leave memory
)

// Stage is how far a row is in its lane.
type Stage uint8

// Stages of a row.
const (
	Open  Stage = iota
	Reset       // an operator requeued or discarded it while its FAILED was being written
	Done        // delivered, or found settled or gone; it leaves the lane
)

// Origin is where a row comes from.
type Origin uint8

// Origins of a row.
const (
	Logged   Origin = iota // the log, a table that is polled, a replay, or the spilled rows
	Requeued               // it was reset to PENDING after FAILED, so the log may not have it
)

// Owner is the row of an outcome.
type Owner struct {
	Row  *Row
	Lane *Lane // waits for the write; nil if it went on
}

// Outcome is a row's outcome on its way to the store.
type Outcome = outcome.Outcome[Owner]

// Copy is the state of a row's copy among the spilled rows of the store. The zero value is
// no copy. See dispatch/internal/spill for its transitions.
type Copy uint8

// States of a copy.
const (
	NoCopy Copy = iota
	CopyWriting
	CopyStored
	CopyRefused // by the store; the row stays in memory
)

// Skip is an operator's request to pass over a row.
type Skip struct {
	Reason  string
	At      time.Time
	Writing bool // FAILED is being written

	// Done is called when the row has left its lane. skipped is false if the row was
	// delivered after all.
	Done func(skipped bool)
}

// Report reports that the row has left its lane. It does nothing on a nil Skip.
func (s *Skip) Report() {
	if s != nil {
		s.Done(s.Writing)
	}
}

// Skippable reports whether a row to skip may be settled. A row that no claim has found may
// not be visible yet, and the store would report it as gone.
func (rw *Row) Skippable() bool { return rw.Skip != nil && (rw.Sight != Unseen || rw.Txn == 0) }

// SpilledRef identifies the spilled copy of a row.
func (rw *Row) SpilledRef() store.SpilledRef { return store.SpilledRef{Ref: rw.Ref, Seq: rw.Seq} }

// ReleaseTicket lets the checkpoint pass the row.
func (rw *Row) ReleaseTicket() {
	if rw.Ticket != nil {
		rw.Ticket.Done(1)
		rw.Ticket = nil
	}
}

// RecordFailure records a failed attempt, and returns the times to change. A failure other than a
// refusal restarts the interval in which refusals without proof count.
func (rw *Row) RecordFailure(class sink.Class, now time.Time) *FailureTimes {
	if rw.failures == nil {
		rw.failures = &FailureTimes{}
	}
	if rw.failures.First.IsZero() {
		rw.failures.First = now
	}
	rw.failures.Last = now
	if class != sink.Refused {
		rw.failures.Refused = time.Time{}
	}
	return rw.failures
}

// RecordAttempt records a failed attempt for operators, behind those of an earlier leader if there
// are any, and returns all of them.
func (rw *Row) RecordAttempt(a store.Attempt, earlier *trail.Failures) *trail.Failures {
	if rw.failures == nil {
		rw.failures = &FailureTimes{}
	}
	rw.failures.Attempts = cmp.Or(rw.failures.Attempts, earlier).Add(a)
	return rw.failures.Attempts
}

// Finish records that the row is delivered, or was found settled or gone.
func (rw *Row) Finish() { rw.Stage = Done }

// GiveBack records that the claim of the row is being given back, so that it may leave
// memory.
func (rw *Row) GiveBack() { rw.Sight = Unclaiming }

// GivenBack ends GiveBack and reports whether the claim was being given back.
func (rw *Row) GivenBack() bool {
	was := rw.Sight == Unclaiming
	if was {
		rw.Sight = Seen
	}
	return was
}

// ResetInFlight records that an operator requeued or discarded the row while its FAILED is
// being written. ResetFailed follows once that is known.
func (rw *Row) ResetInFlight() { rw.Stage = Reset }

// ResetFailed clears the failures of a row.
func (rw *Row) ResetFailed() {
	rw.Stage, rw.Claimed, rw.RetryCount = Open, time.Time{}, 0
	if rw.Ticket == nil { // it has no position in the log any more
		rw.Origin, rw.Seq = Requeued, 0
	}
	rw.failures = nil
	if s := rw.Skip; s != nil {
		rw.Skip = nil
		s.Report()
	}
}

// Pinned reports whether a row that is not in flight must stay in memory.
func (rw *Row) Pinned() bool {
	return rw.Sight == Unclaiming || rw.LateClaiming || !rw.Claimed.IsZero() || rw.Skip != nil || rw.Stage == Reset || rw.Origin == Requeued && rw.Seq != 0
}

// CommittedOrCaptured is the commit time of a row, or else its capture time.
func (rw *Row) CommittedOrCaptured() time.Time {
	if !rw.Committed.IsZero() {
		return rw.Committed
	}
	return rw.Captured
}

// failureMemo preserves the failures of a lane's head while the row is out of memory.
type failureMemo struct {
	ref      store.Ref
	retries  int
	failures *FailureTimes
}

// SaveFailures records the failures of the lane's head.
func (l *Lane) SaveFailures() {
	if rw := l.Rows[0]; rw.failures != nil {
		l.memo = &failureMemo{rw.Ref, rw.RetryCount, rw.failures}
	}
}

// RestoreFailures restores them on the reloaded row.
func (l *Lane) RestoreFailures(rw *Row) {
	if m := l.memo; m != nil && m.ref == rw.Ref {
		rw.RetryCount = max(rw.RetryCount, m.retries)
		rw.failures = m.failures
		l.memo = nil
	}
}
