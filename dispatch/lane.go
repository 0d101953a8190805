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
	ticket Ticket // nil if the checkpoint does not depend on the row

	// claimed is the time written by this leader's latest claim; zero once the claim is
	// given back.
	claimed time.Time

	// attempts counts the requests that carried the row.
	attempts int

	// firstFailed is the time of the row's first failed attempt, lastFailed of the latest.
	// lastRefused is the time of the last refusal that counted, or else of the first
	// refusal since a failure of another class.
	firstFailed, lastFailed, lastRefused time.Time

	// proof: the receiver accepted another row between the latest failure and the current
	// attempt.
	proof bool

	// seen: a claim found the row, so it is visible.
	seen bool

	// requeuedInFlight: an operator requeued or discarded the row while the write of its
	// FAILED was in flight.
	requeuedInFlight bool

	// skip is the operator's pending skip request, if any.
	skip *skipRequest

	// requeued: the row was reset to PENDING after FAILED.
	requeued bool

	// copy is the state of its spilled copy. pendingOutcome waits while it is written.
	copy           copyState
	pendingOutcome *outcome

	// unclaiming: its claim is being given back so that it may leave memory.
	unclaiming bool

	// account is the limit it counts against, as one row and weight more.
	account account
	weight  int

	// done: delivered, or found settled or gone; it leaves the lane.
	done bool

	// job is the replay that sends the row, as row number replayN; nil for a live row.
	job     *replay.Job
	replayN int64
}

// failureMemo preserves the failures of a lane's head while the row is out of memory.
type failureMemo struct {
	ref                                  store.Ref
	retries                              int
	firstFailed, lastFailed, lastRefused time.Time
}

// saveFailures records the failures of the lane's head.
func (l *lane) saveFailures() {
	if rw := l.rows[0]; !rw.lastFailed.IsZero() {
		l.memo = &failureMemo{rw.Ref, rw.RetryCount, rw.firstFailed, rw.lastFailed, rw.lastRefused}
	}
}

// restoreFailures restores them on the reloaded row.
func (l *lane) restoreFailures(rw *row) {
	if m := l.memo; m != nil && m.ref == rw.Ref {
		rw.RetryCount = max(rw.RetryCount, m.retries)
		rw.firstFailed, rw.lastFailed, rw.lastRefused = m.firstFailed, m.lastFailed, m.lastRefused
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

// String names the state for metrics and operators. stateName tells apart the reasons of a
// held lane.
func (s laneState) String() string {
	return [...]string{"idle", "ready", "claiming", "sending", "writing", "waiting", "held"}[s]
}

// lane is the FIFO queue of one group. Rows in flight come first.
type lane struct {
	name     LaneName
	receiver *receiver
	state    laneState
	rows     []*row

	// unspillableTail holds rows behind spilled rows that the store refuses to spill.
	unspillableTail []*row
	inFlight        int // rows of the run being claimed or sent, or the one being written

	// limit is the maximum size of the next run; each success doubles it.
	limit int

	// bisecting is the number of leading rows that contain a row the receiver rejects; 0 if
	// unknown.
	bisecting int

	// isolated: its last request failed. It shares no request, so that other lanes do not
	// fail because of its rows.
	isolated bool

	// failures counts failed attempts since the last success, lookups consecutive claims
	// that found the head not yet visible.
	failures, lookups int
	wakeAt            time.Time
	readyOrder        uint64 // its place among ready lanes
	triedOpening      uint64 // the latest breaker opening during which it was probed
	lastError         string // the latest failure of its head

	// stalled: its head has been unanswered for long while the receiver accepts other rows.
	stalled bool

	// refusal is the table's error for the claim or outcome of the head, since
	// refusedSince; "" if none.
	refusal         string
	refusedSince    time.Time
	blocked, paused *store.Hold
	job             *replay.Job // the replay it belongs to; nil for a live lane
	replayHolds     []string    // jobs that hold it

	createdOrder uint64 // orders lanes by creation

	// hasSpilled: more rows of the lane are spilled behind the rows in memory. spilledRows
	// is their number, as far as known.
	hasSpilled   bool
	spilledRows  int
	reloadedUpTo store.Seq // no row up to it is reloaded

	// spilling counts the lane's rows being spilled. After that a shrinking lane keeps
	// keepRows rows in memory.
	spilling, keepRows int

	// needsReload: queued for a reload. reloading: being read.
	needsReload, reloading bool
	missedDuringReload     bool // rows were spilled behind it during the reload
	memo                   *failureMemo
	headRequested          bool // an operator asked for its first row
	probed                 bool // it was sent as a probe
	locked                 bool // ready, but its table is locked; see lockedLanes
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

// stateName names the lane's state for metrics and operators.
func (l *lane) stateName() string {
	switch {
	case l.state == laneIdle:
		return stateSpilled
	case l.state != laneHeld && l.stalled:
		return stateStalled
	case l.locked:
		return laneWaiting.String()
	case l.state != laneHeld:
		return l.state.String()
	case l.blocked != nil:
		return store.Blocked.String()
	case l.paused != nil:
		return store.Paused.String()
	}

	return stateReplaying
}

// onHold reports whether an operator, a FAILED row or a replay holds the lane.
func (l *lane) onHold() bool { return l.blocked != nil || l.paused != nil || len(l.replayHolds) > 0 }

// withdrawing reports whether the lane is giving up its rows.
func (l *lane) withdrawing() bool { return l.job != nil && l.job.Withdrawing() }

// newLane creates a lane.
func (c *core) newLane(name LaneName) *lane {
	c.lastOrder++
	l := &lane{name: name, limit: c.cfg.APIBatchSize, receiver: c.receiver(name.Kind), createdOrder: c.lastOrder}
	l.receiver.lanes++
	return l
}

// hold keeps the lane from moving until unhold.
func (l *lane) hold() {
	if l.state != laneHeld {
		l.receiver.held++
	}
	l.state = laneHeld
}

// unhold ends a hold.
func (l *lane) unhold() {
	l.receiver.held--
	l.state = laneIdle
}

// removeLane removes an empty lane.
func (c *core) removeLane(l *lane) {
	l.receiver.lanes--
	if l.job != nil {
		l.receiver.replayLanes--
		delete(c.replayLanes, l.name)
		return
	}
	delete(c.lanes, l.name)
	delete(c.shrinking, l)
}

// run is the head of a lane that is being claimed and sent.
type run struct {
	lane *lane
	rows []*row
}

// request is a set of runs sent together.
type request struct {
	runs []*run

	// probe: a single row that tests an endpoint with an open breaker.
	probe breaker.Probe

	// split: the request bisects an earlier failure.
	split      bool
	started    time.Time // when a sender received it
	largeBytes int64     // its share of the budget for large rows
}

// receiver is the endpoint that the request goes to.
func (r *request) receiver() *receiver { return r.runs[0].lane.receiver }

// job is the replay that the rows belong to; nil for live rows.
func (r *request) job() *replay.Job { return r.runs[0].lane.job }

// size is the number of rows in the request.
func (r *request) size() int {
	n := 0
	for _, run := range r.runs {
		n += len(run.rows)
	}
	return n
}

// messages builds the sink's messages.
func (r *request) messages() []sink.Message {
	msgs := make([]sink.Message, 0, r.size())
	for _, run := range r.runs {
		for _, rw := range run.rows {
			msgs = append(msgs, sink.Message{
				ID: rw.ID, Kind: rw.Kind, Group: rw.Group,
				Payload: rw.Payload, Attempt: rw.attempts, Committed: rw.Committed,
				Replay: run.lane.name.Job,
			})
		}
	}
	return msgs
}

// head returns at most maxRows leading rows with at most maxBytes of payload. A first row
// larger than maxBytes is returned alone. head stops at a row whose claim is being given
// back.
func (l *lane) head(maxRows, maxBytes int) (rows []*row, bytes int) {
	n := 0
	for n < len(l.rows) && n < maxRows {
		size := l.rows[n].PayloadSize
		if n > 0 && (bytes+size > maxBytes || l.rows[n].unclaiming) {
			break
		}
		bytes += size
		n++
	}
	return slices.Clone(l.rows[:n]), bytes
}

// removeDone removes the finished rows among the first n.
func (l *lane) removeDone(n int) {
	kept := 0
	for _, rw := range l.rows[:n] {
		switch {
		case !rw.done:
			l.rows[kept] = rw
			kept++
		case !rw.requeued:
			l.reloadedUpTo = max(l.reloadedUpTo, rw.Seq)
		}
	}

	if kept == 0 {
		clear(l.rows[:n])
		l.rows = l.rows[n:]
		return
	}

	l.rows = slices.Delete(l.rows, kept, n)
}

// insert puts rows in front of the lane, behind rows in flight. Requeued rows also go
// behind rows that were requeued before them.
func (l *lane) insert(rows []*row) {
	at := l.inFlight
	for rows[0].requeued && at < len(l.rows) && l.rows[at].requeued {
		at++
	}
	l.rows = slices.Insert(l.rows, at, rows...)
}

// recordDelivered notes that the receiver accepted the first n rows of the lane.
func (l *lane) recordDelivered(n, limit int) {
	l.resetFailures()
	if l.bisecting = max(0, l.bisecting-n); l.bisecting > 0 {
		l.limit = max(1, l.bisecting/2)
		return
	}
	l.isolated = false
	l.limit = min(2*l.limit, limit)
}

// resetFailures clears the failures of a head that has left the lane.
func (l *lane) resetFailures() { l.failures, l.lastError, l.stalled = 0, "", false }

// bisect starts to halve the first n rows, one of which caused the failure.
func (l *lane) bisect(n int) {
	l.bisecting, l.limit, l.isolated = n, max(1, n/2), true
}
