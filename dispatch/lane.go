package dispatch

import (
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	"github.com/sluicebox/sluicebox/dispatch/internal/replay"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Ticket is notified when rows of a batch settle; see checkpoint.Ticket.
type Ticket interface {
	Done(n int)
}

// row is one item in a lane, with its delivery state under this leader.
type row struct {
	store.Item
	Ticket Ticket // nil if the checkpoint does not depend on the row

	// Claimed is the time written by this leader's latest claim; zero once the claim is
	// given back.
	Claimed time.Time

	// Attempts counts the requests that carried the row.
	Attempts int

	// FirstFailed is the time of the row's first failed attempt, LastFailed of the latest.
	// LastRefused is the time of the last refusal that counted, or else of the first
	// refusal since a failure of another class.
	FirstFailed, LastFailed, LastRefused time.Time

	// Proof: the receiver accepted another row between the latest failure and the current
	// attempt.
	Proof bool

	// Seen: a claim found the row, so it is visible.
	Seen bool

	// RequeuedInFlight: an operator requeued or discarded the row while the write of its
	// FAILED was in flight.
	RequeuedInFlight bool

	// Skip is the operator's pending skip request, if any.
	Skip *skipRequest

	// Requeued: the row was reset to PENDING after FAILED.
	Requeued bool

	// Copy is the state of its spilled copy. PendingOutcome waits while it is written.
	Copy           copyState
	PendingOutcome *outcome

	// Unclaiming: its claim is being given back so that it may leave memory.
	Unclaiming bool

	// Account is the limit it counts against, as one row and weight more.
	Account account
	weight  int

	// Done: delivered, or found settled or gone; it leaves the lane.
	Done bool

	// Job is the replay that sends the row, as row number ReplayN; nil for a live row.
	Job     *replay.Job
	ReplayN int64
}

// failureMemo preserves the failures of a lane's head while the row is out of memory.
type failureMemo struct {
	ref                                  store.Ref
	retries                              int
	firstFailed, lastFailed, lastRefused time.Time
}

// SaveFailures records the failures of the lane's head.
func (l *lane) SaveFailures() {
	if rw := l.Rows[0]; !rw.LastFailed.IsZero() {
		l.memo = &failureMemo{rw.Ref, rw.RetryCount, rw.FirstFailed, rw.LastFailed, rw.LastRefused}
	}
}

// RestoreFailures restores them on the reloaded row.
func (l *lane) RestoreFailures(rw *row) {
	if m := l.memo; m != nil && m.ref == rw.Ref {
		rw.RetryCount = max(rw.RetryCount, m.retries)
		rw.FirstFailed, rw.LastFailed, rw.LastRefused = m.firstFailed, m.lastFailed, m.lastRefused
		l.memo = nil
	}
}

type laneState uint8

const (
	laneIdle     laneState = iota // no rows; not kept
	laneReady                     // queued, or waiting for a breaker or a locked table
	laneClaiming                  // in a request being claimed
	laneSending                   // in a request that waits for a sender or is being sent
	laneWriting                   // an outcome of its head is being written
	laneWaiting                   // until wakeAt
	laneHeld                      // blocked, paused, or held by a replay
	laneStates
)

// String names the state for metrics and operators. StateName tells apart the reasons of a
// held lane.
func (s laneState) String() string {
	return [...]string{"idle", "ready", "claiming", "sending", "writing", "waiting", "held"}[s]
}

// lane is the FIFO queue of one group. Rows in flight come first.
type lane struct {
	Name     LaneName
	Receiver *receiver
	State    laneState
	Rows     []*row

	// UnspillableTail holds rows behind spilled rows that the store refuses to spill.
	UnspillableTail []*row
	InFlight        int // rows of the run being claimed or sent, or the one being written

	// Limit is the maximum size of the next run; each success doubles it.
	Limit int

	// Bisecting is the number of leading rows that contain a row the receiver rejects; 0 if
	// unknown.
	Bisecting int

	// Isolated: its last request failed. It shares no request, so that other lanes do not
	// fail because of its rows.
	Isolated bool

	// Failures counts failed attempts since the last success, Lookups consecutive claims
	// that found the head not yet visible.
	Failures, Lookups int
	WakeAt            time.Time
	ReadyOrder        uint64 // its place among ready lanes
	TriedOpening      uint64 // the latest breaker opening during which it was probed
	LastError         string // the latest failure of its head

	// Stalled: its head has been unanswered for long while the receiver accepts other rows.
	Stalled bool

	// Refusal is the table's error for the claim or outcome of the head, since
	// RefusedSince; "" if none.
	Refusal         string
	RefusedSince    time.Time
	Blocked, Paused *store.Hold
	Job             *replay.Job // the replay it belongs to; nil for a live lane
	ReplayHolds     []string    // jobs that hold it

	CreatedOrder uint64 // orders lanes by creation

	// HasSpilled: more rows of the lane are spilled behind the rows in memory. SpilledRows
	// is their number, as far as known.
	HasSpilled   bool
	SpilledRows  int
	ReloadedUpTo store.Seq // no row up to it is reloaded

	// Spilling counts the lane's rows being spilled. After that a shrinking lane keeps
	// KeepRows rows in memory.
	Spilling, KeepRows int

	// NeedsReload: queued for a reload. Reloading: being read.
	NeedsReload, Reloading bool
	MissedDuringReload     bool // rows were spilled behind it during the reload
	memo                   *failureMemo
	HeadRequested          bool // an operator asked for its first row
	Probed                 bool // it was sent as a probe
	Locked                 bool // ready, but its table is locked; see lockedLanes
}

const (
	// stateSpilled is the state of a lane whose rows are all spilled.
	stateSpilled = "spilled"

	// stateReplaying is the state of a live lane held by a replay.
	stateReplaying = "replaying"

	// stateStalled is the state of a lane whose head goes unanswered while the receiver
	// accepts other rows.
	stateStalled = "stalled"
)

// StateName names the lane's state for metrics and operators.
func (l *lane) StateName() string {
	switch {
	case l.State == laneIdle:
		return stateSpilled
	case l.State != laneHeld && l.Stalled:
		return stateStalled
	case l.Locked:
		return laneWaiting.String()
	case l.State != laneHeld:
		return l.State.String()
	case l.Blocked != nil:
		return store.Blocked.String()
	case l.Paused != nil:
		return store.Paused.String()
	}

	return stateReplaying
}

// OnHold reports whether an operator, a FAILED row or a replay holds the lane.
func (l *lane) OnHold() bool { return l.Blocked != nil || l.Paused != nil || len(l.ReplayHolds) > 0 }

// Withdrawing reports whether the lane is giving up its rows.
func (l *lane) Withdrawing() bool { return l.Job != nil && l.Job.Withdrawing() }

// newLane creates a lane.
func (c *core) newLane(name LaneName) *lane {
	c.lastOrder++
	l := &lane{Name: name, Limit: c.cfg.APIBatchSize, Receiver: c.receiver(name.Kind), CreatedOrder: c.lastOrder}
	l.Receiver.Lanes++
	return l
}

// Hold keeps the lane from moving until unhold.
func (l *lane) Hold() {
	if l.State != laneHeld {
		l.Receiver.Held++
	}
	l.State = laneHeld
}

// Unhold ends a hold.
func (l *lane) Unhold() {
	l.Receiver.Held--
	l.State = laneIdle
}

// removeLane removes an empty lane.
func (c *core) removeLane(l *lane) {
	l.Receiver.Lanes--
	if l.Job != nil {
		l.Receiver.ReplayLanes--
		delete(c.replayLanes, l.Name)
		return
	}
	delete(c.lanes, l.Name)
	delete(c.shrinking, l)
}

// run is the head of a lane that is being claimed and sent.
type run struct {
	Lane *lane
	Rows []*row
}

// request is a set of runs sent together.
type request struct {
	Runs []*run

	// Probe: a single row that tests an endpoint with an open breaker.
	Probe breaker.Probe

	// Split: the request bisects an earlier failure.
	Split      bool
	Started    time.Time // when a sender received it
	LargeBytes int64     // its share of the budget for large rows
}

// Receiver is the endpoint that the request goes to.
func (r *request) Receiver() *receiver { return r.Runs[0].Lane.Receiver }

// Job is the replay that the rows belong to; nil for live rows.
func (r *request) Job() *replay.Job { return r.Runs[0].Lane.Job }

// Size is the number of rows in the request.
func (r *request) Size() int {
	n := 0
	for _, run := range r.Runs {
		n += len(run.Rows)
	}
	return n
}

// Messages builds the sink's messages.
func (r *request) Messages() []sink.Message {
	msgs := make([]sink.Message, 0, r.Size())
	for _, run := range r.Runs {
		for _, rw := range run.Rows {
			msgs = append(msgs, sink.Message{
				ID: rw.ID, Kind: rw.Kind, Group: rw.Group,
				Payload: rw.Payload, Attempt: rw.Attempts, Committed: rw.Committed,
				Replay: run.Lane.Name.Job,
			})
		}
	}
	return msgs
}

// Head returns at most maxRows leading rows with at most maxBytes of payload. A first row
// larger than maxBytes is returned alone. Head stops at a row whose claim is being given
// back.
func (l *lane) Head(maxRows, maxBytes int) (rows []*row, bytes int) {
	n := 0
	for n < len(l.Rows) && n < maxRows {
		size := l.Rows[n].PayloadSize
		if n > 0 && (bytes+size > maxBytes || l.Rows[n].Unclaiming) {
			break
		}
		bytes += size
		n++
	}
	return slices.Clone(l.Rows[:n]), bytes
}

// RemoveDone removes the finished rows among the first n.
func (l *lane) RemoveDone(n int) {
	kept := 0
	for _, rw := range l.Rows[:n] {
		switch {
		case !rw.Done:
			l.Rows[kept] = rw
			kept++
		case !rw.Requeued:
			l.ReloadedUpTo = max(l.ReloadedUpTo, rw.Seq)
		}
	}

	if kept == 0 {
		clear(l.Rows[:n])
		l.Rows = l.Rows[n:]
		return
	}

	l.Rows = slices.Delete(l.Rows, kept, n)
}

// Insert puts rows in front of the lane, behind rows in flight. Requeued rows also go
// behind rows that were requeued before them.
func (l *lane) Insert(rows []*row) {
	at := l.InFlight
	for rows[0].Requeued && at < len(l.Rows) && l.Rows[at].Requeued {
		at++
	}
	l.Rows = slices.Insert(l.Rows, at, rows...)
}

// RecordDelivered notes that the receiver accepted the first n rows of the lane.
func (l *lane) RecordDelivered(n, limit int) {
	l.ResetFailures()
	if l.Bisecting = max(0, l.Bisecting-n); l.Bisecting > 0 {
		l.Limit = max(1, l.Bisecting/2)
		return
	}
	l.Isolated = false
	l.Limit = min(2*l.Limit, limit)
}

// ResetFailures clears the failures of a head that has left the lane.
func (l *lane) ResetFailures() { l.Failures, l.LastError, l.Stalled = 0, "", false }

// Bisect starts to halve the first n rows, one of which caused the failure.
func (l *lane) Bisect(n int) {
	l.Bisecting, l.Limit, l.Isolated = n, max(1, n/2), true
}
