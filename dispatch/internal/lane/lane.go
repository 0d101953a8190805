package lane

import (
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/replay"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Name identifies a lane.
type Name struct {
	store.LaneKey

	// RowID identifies the lane of a single row, if ungrouped rows have a lane each.
	RowID string `json:"row_id,omitempty"`

	// Job is the replay that owns the lane; "" for a live lane.
	Job string `json:"-"`
}

// State is the state of a lane.
type State uint8

// States of a lane. See the package comment for their transitions.
const (
	Idle     State = iota // no rows; not kept
	Ready                 // queued, or waiting for a breaker or a locked table
	Claiming              // in a request being claimed
	Sending               // in a request that waits for a sender or is being sent
	Writing               // an outcome of its head is being written
	Waiting               // until WakeAt
	Held                  // blocked, paused, or held by a replay
)

// String names the state for metrics and operators. StateName tells apart the reasons of a
// held lane.
func (s State) String() string {
	return [...]string{"idle", "ready", "claiming", "sending", "writing", "waiting", "held"}[s]
}

// Names of states that depend on more than State.
const (
	// Spilled is the state of a lane whose rows are all spilled.
	Spilled = "spilled"

	// Replaying is the state of a live lane held by a replay.
	Replaying = "replaying"

	// Stalled is the state of a lane whose head goes unanswered while the receiver accepts
	// other rows.
	Stalled = "stalled"
)

// Lane is the FIFO queue of one group. Rows in flight come first.
type Lane struct {
	Name     Name
	Receiver *Receiver
	State    State
	Rows     []*Row
	InFlight int         // rows of the run being claimed or sent, or the one being written
	Job      *replay.Job // the replay it belongs to; nil for a live lane

	Batch
	Trouble
	Holds
	Spill

	WakeAt       time.Time
	SentAt       time.Time   // when its latest request began; zero while the next waits for a sender
	CreatedOrder uint64      // orders lanes by creation
	ReadyOrder   uint64      // its place among ready lanes
	staleUpTo    store.Seq   // rows up to it are claimed before they are sent; see MarkStale
	TriedOpening uint64      // the latest breaker opening during which it was probed
	Probed       bool        // it was sent as a probe
	aside        *asideLanes // ready, but its table is locked or its outbox is paused
}

// Batch is the size of a lane's next run.
type Batch struct {
	// Limit is the maximum size of the next run; each success doubles it.
	Limit int

	// Bisecting is the number of leading rows that contain a row the receiver rejects; 0 if
	// unknown.
	Bisecting int

	// Isolated: its last request failed. It shares no request, so that other lanes do not
	// fail because of its rows; see sharesNone.
	Isolated bool
}

// Trouble is the trouble with the head of a lane.
type Trouble struct {
	// Failures counts failed attempts since the last success, Lookups consecutive claims
	// that found the head not yet visible.
	Failures, Lookups int
	LastError         string // its latest failure

	// HeldBy is the answer of the claim for which the lane waits; 0: it waits for another reason.
	HeldBy store.ClaimResult

	// Stalled: its head has been unanswered for long while the receiver accepts other rows.
	Stalled bool

	// Refusal is the table's error for the claim or outcome of the head, since
	// RefusedSince; "" if none.
	Refusal      string
	RefusedSince time.Time
}

// Holds are the reasons why a lane may not move.
type Holds struct {
	Blocked, Paused *store.Hold
	ReplayHolds     []string // jobs that hold it
}

// Spill describes the spilled rows of a lane.
type Spill struct {
	// HasSpilled: more rows of the lane are spilled behind the rows in memory. SpilledRows
	// is their number, as far as known.
	HasSpilled   bool
	SpilledRows  int
	ReloadedUpTo store.Seq // no row up to it is reloaded

	// UnspillableTail holds rows behind spilled rows that the store refuses to spill.
	UnspillableTail []*Row

	// Covered is how many leading rows need no look when a row behind them is spilled: they are
	// spilled or to be spilled, or may not be.
	Covered int

	// Spilling counts the lane's rows being spilled. After that a shrinking lane keeps
	// KeepRows rows in memory.
	Spilling, KeepRows int

	// NeedsReload: queued for a reload. Reloading: being read.
	NeedsReload, Reloading bool
	MissedDuringReload     bool // rows were spilled behind it during the reload
	HeadRequested          bool // an operator asked for its first row
	memo                   *failureMemo
}

// StateName names the lane's state for metrics and operators.
func (l *Lane) StateName() string {
	switch {
	case l.State == Idle:
		return Spilled
	case l.OutboxPause() != nil:
		return store.Paused.String()
	case l.State != Held && l.Stalled:
		return Stalled
	case l.IsAside():
		return Waiting.String()
	case l.State != Held:
		return l.State.String()
	case l.Blocked != nil:
		return store.Blocked.String()
	case l.Paused != nil:
		return store.Paused.String()
	}

	return Replaying
}

// IsAside reports whether the lane is ready, but waits for a locked table or a paused outbox.
func (l *Lane) IsAside() bool { return l.aside != nil }

// OutboxPause returns the pause of its outbox for which the lane is set aside, or nil.
func (l *Lane) OutboxPause() *store.Hold {
	if l.aside == nil {
		return nil
	}
	return l.aside.paused
}

// OnHold reports whether an operator, a FAILED row or a replay holds the lane.
func (l *Lane) OnHold() bool { return l.Blocked != nil || l.Paused != nil || len(l.ReplayHolds) > 0 }

// Withdrawing reports whether the lane is giving up its rows.
func (l *Lane) Withdrawing() bool { return l.Job != nil && l.Job.Withdrawing() }

// IsWaiting reports whether the lane waits for a time, an open breaker, a locked table, a
// paused outbox, or a table that refuses the outcome of its head.
func (l *Lane) IsWaiting() bool {
	return l.State == Waiting || l.State == Ready && (l.Receiver.Breaker.Open() || l.IsAside()) || l.WaitsForRefused()
}

// WaitsForRefused reports whether the lane waits for an outcome that the table refuses.
func (l *Lane) WaitsForRefused() bool { return l.State == Writing && l.Refusal != "" }

// SetRefusal records that the table refuses the claim or the outcome of the lane's head.
func (l *Lane) SetRefusal(reason string, now time.Time) {
	if l.Refusal == "" {
		l.RefusedSince = now
	}
	l.Refusal = reason
}

// Hold keeps the lane from moving until Unhold.
func (l *Lane) Hold() {
	if l.State != Held {
		l.Receiver.Held++
	}
	l.State = Held
}

// Unhold ends a hold.
func (l *Lane) Unhold() {
	l.Receiver.Held--
	l.State = Idle
}

// Rest ends the lane's current step. The caller moves it on at once.
func (l *Lane) Rest() { l.State, l.InFlight, l.HeldBy = Idle, 0, 0 }

// Send begins to send the first n rows, which are claimed.
func (l *Lane) Send(n int) { l.State, l.InFlight, l.Lookups, l.SentAt = Sending, n, 0, time.Time{} }

// Write begins to write the outcome of the head.
func (l *Lane) Write() { l.State, l.InFlight = Writing, 1 }

// MergeRequeued reports whether the log delivers a requeued row that already waits in the
// lane. The waiting row takes over the ticket.
func (l *Lane) MergeRequeued(it *store.Item, t Ticket) bool {
	if l.HasSpilled {
		return false
	}
	for _, rw := range l.Rows {
		if rw.Origin != Requeued {
			return false
		}
		if rw.ID == it.ID && rw.Ticket == nil && rw.Seq == 0 {
			rw.Ticket, rw.Seq = t, it.Seq
			l.Covered = 0
			return true
		}
	}
	return false
}

// InternName lets a row share the strings of its lane's name.
func (l *Lane) InternName(rw *Row) { rw.Kind, rw.Group = l.Name.Kind, l.Name.Group }

// head returns at most maxRows leading rows with at most maxBytes of payload. A first row
// larger than maxBytes is returned alone. head stops at a row whose claim is being given
// back.
func (l *Lane) head(maxRows, maxBytes int) (rows []*Row, bytes int) {
	n := 0
	for n < len(l.Rows) && n < maxRows {
		size := l.Rows[n].PayloadSize
		if n > 0 && (bytes+size > maxBytes || l.Rows[n].Sight == Unclaiming || !l.Rows[n].mayFollow(l.Rows[0])) {
			break
		}
		bytes += size
		n++
	}
	return slices.Clone(l.Rows[:n]), bytes
}

// maxRunRows is the maximum number of rows in the lane's next run.
func (l *Lane) maxRunRows(mode sink.Mode) int {
	if mode == sink.PerItem || l.Lookups > 0 {
		// A receiver that accepts rows after a failed one would break the order. Behind a
		// row that is not visible nothing can be sent anyway.
		return 1
	}
	return l.Limit
}

// sharesNone reports whether the lane has a request of its own. If lanes do not affect each
// other, those that failed share requests, but not with others: a thousand lanes of a
// partition that is away must not take every sender until they time out one by one.
func (l *Lane) sharesNone(mode sink.Mode) bool {
	return l.Isolated && (mode != sink.Prefix || l.Bisecting > 0)
}

// RemoveDone removes the finished rows among the first n.
func (l *Lane) RemoveDone(n int) {
	kept := 0
	for _, rw := range l.Rows[:n] {
		switch {
		case rw.Stage != Done:
			l.Rows[kept] = rw
			kept++
		case rw.Origin != Requeued:
			l.ReloadedUpTo = max(l.ReloadedUpTo, rw.Seq)
		}
	}

	l.Covered = max(0, l.Covered-(n-kept))
	if kept == 0 {
		clear(l.Rows[:n])
		l.Rows = l.Rows[n:]
		return
	}

	l.Rows = slices.Delete(l.Rows, kept, n)
}

// Insert puts rows in front of the lane, behind rows in flight. Requeued rows also go
// behind rows that were requeued before them.
func (l *Lane) Insert(rows []*Row) {
	at := l.InFlight
	for rows[0].Origin == Requeued && at < len(l.Rows) && l.Rows[at].Origin == Requeued {
		at++
	}
	l.Rows, l.Covered = slices.Insert(l.Rows, at, rows...), min(l.Covered, at)
}

// RecordDelivered notes that the receiver accepted the first n rows of the lane.
func (l *Lane) RecordDelivered(n, limit int) {
	l.ResetFailures()
	if l.Bisecting = max(0, l.Bisecting-n); l.Bisecting > 0 {
		l.Limit = max(1, l.Bisecting/2)
		return
	}
	l.Isolated = false
	l.Limit = min(2*l.Limit, limit)
}

// ResetFailures clears the failures of a head that has left the lane.
func (l *Lane) ResetFailures() { l.Failures, l.LastError, l.Stalled = 0, "", false }

// Bisect starts to halve the first n rows, one of which caused the failure.
func (l *Lane) Bisect(n int) {
	l.Bisecting, l.Limit, l.Isolated = n, max(1, n/2), true
}

// RecordFailure notes that a request with the head failed. The lane shares no request until
// rows are delivered.
func (l *Lane) RecordFailure(detail string) { l.Isolated, l.LastError = true, detail }

// SendSingly sends one row next, because one of several may be bad.
func (l *Lane) SendSingly() { l.Limit, l.Bisecting = 1, 0 }

// EndBisection ends the search once its bad row has left the lane.
func (l *Lane) EndBisection(limit int) {
	if l.Bisecting > 0 || l.Isolated {
		l.Bisecting, l.Isolated, l.Limit = 0, false, limit
	}
}

// WaitsForBreaker reports whether the lane waits for the breaker instead of a timer of its
// own. It marks the lane as tried.
func (l *Lane) WaitsForBreaker(retryAfter time.Duration) bool {
	if l.Receiver.Breaker.Open() {
		l.TriedOpening = l.Receiver.Breaker.Openings()
	}
	return l.Receiver.Breaker.Open() && retryAfter == 0
}

// AllReloaded reports whether all rows of the lane in memory are reloaded ones. The first
// and the last row decide it.
func (l *Lane) AllReloaded() bool {
	return len(l.Rows) > 0 && l.Rows[0].Account == Reloaded && l.Rows[len(l.Rows)-1].Account == Reloaded
}

// LastSeq is the seq of the last row of the lane that is or was in memory.
func (l *Lane) LastSeq() store.Seq {
	for _, rw := range slices.Backward(l.Rows) {
		if rw.Origin != Requeued {
			return max(l.ReloadedUpTo, rw.Seq)
		}
	}
	return l.ReloadedUpTo
}

// MergeTail appends rows of the unspillable tail with a lower seq, so that they return to
// their place.
func (l *Lane) MergeTail(before store.Seq) {
	n := 0
	for n < len(l.UnspillableTail) && l.UnspillableTail[n].Seq < before {
		n++
	}
	l.Rows = append(l.Rows, l.UnspillableTail[:n]...)
	l.UnspillableTail = slices.Delete(l.UnspillableTail, 0, n)
}

// PinnedRows is how many leading rows stay in memory while the lane shrinks.
func (l *Lane) PinnedRows() int {
	for i, rw := range slices.Backward(l.Rows) {
		if i < max(l.KeepRows, l.InFlight) || rw.Pinned() || rw.Copy != CopyStored && rw.Copy != CopyWriting {
			return i + 1
		}
	}
	return 0
}

// SpillingInMemory reports whether rows in memory are being spilled. Rows spilled behind
// them do not count, because such rows may keep coming.
func (l *Lane) SpillingInMemory() bool {
	return slices.ContainsFunc(l.Rows, func(rw *Row) bool { return rw.Copy == CopyWriting })
}

// LeavingRows is how many rows leave memory while the lane shrinks.
func (l *Lane) LeavingRows() int {
	n := len(l.Rows) - l.PinnedRows()
	for _, rw := range l.Rows[min(l.KeepRows, len(l.Rows)):] {
		if rw.Sight == Unclaiming {
			n++
		}
	}
	return min(n, len(l.Rows))
}
