package lane

import (
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Cause is why a row is where it is.
type Cause string

// Causes of a row in a lane, in the order in which they are decided. The words are part of the API.
const (
	InFlight       Cause = "in_flight"    // its request is being sent
	BeingClaimed   Cause = "claiming"     // the store is claiming it
	QueuedToSend   Cause = "queued"       // claimed; its request waits for a sender
	RateLimited    Cause = "rate_limited" // the rate limit does not allow a request yet
	Settling       Cause = "settling"     // its outcome or its counted retry is being written
	RefusedByTable Cause = "refused"      // the table refuses its claim or its outcome
	BlockedBy      Cause = "blocked"      // a FAILED row of its lane blocks the lane
	LanePaused     Cause = "lane_paused"  // an operator paused the lane
	RoutePaused    Cause = "route_paused" // an operator paused the route or the outbox
	HeldByReplay   Cause = "replaying"    // a replay holds the lane
	Behind         Cause = "behind"       // another row of its lane goes first
	TableLocked    Cause = "table_locked" // another session locks the table
	NotVisible     Cause = "not_visible"  // a claim did not find it yet, or it is locked
	HeldByOther    Cause = "held"         // another processor has claimed it
	Backoff        Cause = "backoff"      // it failed and waits for its next attempt
	BreakerOpen    Cause = "breaker_open" // the circuit breaker of its endpoint is open
	NoSender       Cause = "ready"        // it waits for a free sender or a claim
	SpilledRow     Cause = "spilled"      // it is in the relay's tables and will be reloaded
)

// Why is why a row is not delivered yet. Fields that do not fit the cause are zero.
type Why struct {
	Cause Cause

	// Ahead is the number of rows in memory that go first. First is the id of the next of them, or of
	// the FAILED row that blocks the lane, and FirstCause is why that one waits.
	Ahead      int
	First      string
	FirstCause Cause

	Since, Until time.Time
	Reason       string // of an operator; for replaying the replays
	Error        string // the latest failure of the head, or of the endpoint
	Class        string // of the failure that keeps the breaker open
	Endpoint     string
	Stalled      bool // the head got no usable answer while the receiver accepted other rows
}

// WhyOf returns why row number at of a lane is not delivered yet. A row that is spilled or that
// is about to be has a number from len(l.Rows) on. It changes nothing.
func WhyOf(s *Set, l *Lane, at int, now time.Time) Why {
	w := Why{Ahead: min(at, len(l.Rows))}
	switch {
	case at < l.InFlight:
		w.Ahead = 0
		w.inFlight(s, l, now)
		return w
	case l.Blocked != nil:
		w.Cause, w.First, w.Since, w.Error = BlockedBy, l.Blocked.ID, l.Blocked.Since, l.Blocked.Reason
		return w
	case l.Paused != nil:
		w.Cause, w.Since, w.Reason = LanePaused, l.Paused.Since, l.Paused.Reason
		return w
	case s.OutboxPause(l.Name.Outbox) != nil:
		h := s.OutboxPause(l.Name.Outbox)
		w.Cause, w.Since, w.Reason = RoutePaused, h.Since, h.Reason
		return w
	case len(l.ReplayHolds) > 0:
		w.Cause, w.Reason = HeldByReplay, strings.Join(l.ReplayHolds, ", ")
		return w
	}
	if at > 0 && len(l.Rows) > 0 {
		first := WhyOf(s, l, 0, now)
		first.Cause, first.FirstCause = Behind, first.Cause
		first.Ahead, first.First = w.Ahead, l.Rows[0].ID
		return first
	}
	w.head(s, l, now)
	return w
}

// inFlight is WhyOf for a row in the lane's current step.
func (w *Why) inFlight(s *Set, l *Lane, now time.Time) {
	switch l.State {
	case Claiming:
		w.Cause = BeingClaimed
	case Writing:
		if w.Cause = Settling; l.Refusal != "" {
			w.Cause, w.Error, w.Since = RefusedByTable, l.Refusal, l.RefusedSince
		}
	default:
		w.Since = l.SentAt
		if w.Cause = InFlight; !l.SentAt.IsZero() {
			return
		}
		w.Cause = QueuedToSend
		if at, waits := s.Requests.NextSend(); waits && at.After(now) {
			w.Cause, w.Until = RateLimited, at
		}
	}
}

// head is WhyOf for the first row of a lane that nothing holds, or for a spilled row of a lane
// without rows in memory.
func (w *Why) head(s *Set, l *Lane, now time.Time) {
	b := &l.Receiver.Breaker
	switch {
	case l.aside.tableLocked():
		w.Cause = TableLocked
	case l.State == Waiting && l.Refusal != "":
		w.Cause, w.Error, w.Since, w.Until = RefusedByTable, l.Refusal, l.RefusedSince, l.WakeAt
	case l.State == Waiting && l.HeldBy != 0:
		w.Cause, w.Until = NotVisible, l.WakeAt
		if l.HeldBy == store.Held {
			w.Cause = HeldByOther
		}
	case l.State == Waiting:
		w.Cause, w.Until, w.Error, w.Stalled = Backoff, l.WakeAt, l.LastError, l.Stalled
		if len(l.Rows) > 0 {
			w.Since = l.Rows[0].FailureTimes().First
		}
	case b.Open():
		failure := b.LastFailure()
		w.Cause, w.Since, w.Until = BreakerOpen, b.OpenedAt(), b.NextProbe()
		w.Class, w.Error, w.Endpoint, w.Stalled = failure.Class.String(), failure.Detail, l.Receiver.Endpoint, l.Stalled
	case len(l.Rows) == 0:
		w.Cause = SpilledRow
	default:
		w.Cause = NoSender
		if at, held := s.Requests.NextPacedClaim(now); held && at.After(now) {
			w.Cause, w.Until = RateLimited, at
		}
	}
}
