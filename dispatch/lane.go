package dispatch

import (
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Ticket is told when rows of a batch are settled; see checkpoint.Ticket.
type Ticket interface {
	Done(n int)
}

// row is one item in a lane, with what this leader knows of it.
type row struct {
	store.Item
	ticket Ticket // nil: nobody waits for it
	// claimed is the time written by this leader's latest claim; zero once the
	// row was given back.
	claimed time.Time
	// attempts counts the requests that carried the row.
	attempts int
	// firstFailed is when the first of the failures in a row ended that no success
	// of the row can follow, failed when the latest did, and refused when it was
	// last counted without proof or first refused.
	firstFailed, lastFailed, lastRefused time.Time
	// proof says that the receiver took another row between the latest failure
	// and the attempt under way.
	proof bool
	// seen: a claim has found it, so it is visible.
	seen bool
	// requeuedInFlight: somebody requeued or discarded it while its FAILED was on its way
	// back from the store.
	requeuedInFlight bool
	// skip is set when somebody waits for the row to be passed over.
	skip *skipRequest
	// requeued: it was FAILED, and somebody set it back.
	requeued bool
	// spilled: the store has it in its lane's parked rows; parking: it is being
	// put there, and late is its outcome, which waits for that.
	spilled, spilling bool
	pendingOutcome    *outcome
	// unspillable: the store does not take it.
	unspillable bool
	// reloaded: it was read back; returning: its claim is being given back, so that it
	// may leave memory; spilled: the table refuses its outcome, and it is parked and in
	// no lane.
	reloaded, unclaiming, detached bool
	// extraWeight is by how many rows more it counts, for its texts are long.
	extraWeight int
	// done: delivered, or found settled or gone; it leaves the lane.
	done bool
	// job sends the row again, as its n-th; nil: it is live.
	job     *job
	replayN int64
}

// failureMemo is what a failing row leaves behind in its lane when it leaves memory.
type failureMemo struct {
	ref                                  store.Ref
	retries                              int
	firstFailed, lastFailed, lastRefused time.Time
}

// saveFailures keeps what is known of the failures of the lane's first row.
func (l *lane) saveFailures() {
	if rw := l.rows[0]; !rw.lastFailed.IsZero() {
		l.memo = &failureMemo{rw.Ref, rw.RetryCount, rw.firstFailed, rw.lastFailed, rw.lastRefused}
	}
}

// restoreFailures gives it back to the row.
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
	laneReady                     // in the ready queue, or waiting for a suspect sink or a locked table
	laneClaiming                  // in a request that is being claimed
	laneSending                   // in a request that waits for a sender or is being sent
	laneWriting                   // an outcome of its head is being written
	laneWaiting                   // until wakeAt
	laneHeld                      // blocked, paused, or standing while a job replays its rows
	laneStates
)

// String names the state for metrics and operators. A held lane is blocked,
// paused or replayed; see lane.word.
func (s laneState) String() string {
	return [...]string{"idle", "ready", "claiming", "sending", "writing", "waiting", "held"}[s]
}

// lane is the FIFO of one group. The rows that are in flight are its first.
type lane struct {
	name     LaneName
	receiver *receiver
	state    laneState
	rows     []*row
	// unspillableTail are rows behind parked ones that the store does not take.
	unspillableTail []*row
	inFlight        int // rows of the run being claimed or sent, or the one being written
	// limit is the most rows in the next run, doubled by successes.
	limit int
	// bisecting is how many rows from the head on are known to hold one that the
	// receiver does not take; 0 if nothing is known.
	bisecting int
	// isolated: its last request failed. It shares none with other lanes, so that
	// they do not suffer for its rows.
	isolated bool
	// failures counts failed attempts since the last success, looks the claims
	// in a row that found the head not yet visible.
	failures, lookups int
	wakeAt            time.Time
	readyOrder        uint64 // its turn among those that are ready
	triedOpening      uint64 // the latest suspicion of its receiver under which it was tried
	lastError         string // the latest failure of its head
	// stalled: its head fails for want of an answer, for long, while the receiver
	// takes other rows.
	stalled bool
	// refusal says what the table has against the claim or the outcome of the head,
	// since then; "" if nothing.
	refusal         string
	refusedSince    time.Time
	blocked, paused *store.Hold
	job             *job     // whose rows it has; nil: it is live
	replayHolds     []string // jobs that keep it from moving

	createdOrder uint64 // orders lanes
	// hasSpilled: more rows of the lane are parked behind those in memory; beyond is
	// how many, as far as it is known.
	hasSpilled   bool
	spilledRows  int
	reloadedUpTo store.Seq // no row up to it is to be read back
	// spilling counts the lane's rows that are on their way to the store. Once
	// they are there, a lane that shrinks keeps keep rows in memory.
	spilling, keepRows int
	// needsReload: queued to be read back; reading: being read.
	needsReload, reloading bool
	missedDuringReload     bool // while it was being read, rows came behind it
	memo                   *failureMemo
	headRequested          bool // somebody wants to see its first row
	probed                 bool // it was sent as a probe
	locked                 bool // ready, and its table is locked; see lockedTable
}

const (
	// stateSpilled names the state of a lane whose rows are all parked.
	stateSpilled = "spilled"
	// stateReplaying names that of a lane that stands while a job replays its rows.
	stateReplaying = "replaying"
	// stateStalled names that of a lane whose head the receiver leaves unanswered while
	// it takes other rows.
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

// onHold reports whether somebody has to let the lane go.
func (l *lane) onHold() bool { return l.blocked != nil || l.paused != nil || len(l.replayHolds) > 0 }

// withdrawing reports whether the lane is to give up its rows.
func (l *lane) withdrawing() bool { return l.job != nil && l.job.withdrawing }

// newLane makes the lane of a name.
func (c *core) newLane(name LaneName) *lane {
	c.lastOrder++
	l := &lane{name: name, limit: c.cfg.APIBatchSize, receiver: c.receiver(name.Kind), createdOrder: c.lastOrder}
	l.receiver.lanes++
	return l
}

// hold keeps the lane until somebody lets it go.
func (l *lane) hold() {
	if l.state != laneHeld {
		l.receiver.held++
	}
	l.state = laneHeld
}

// unhold ends hold.
func (l *lane) unhold() {
	l.receiver.held--
	l.state = laneIdle
}

// removeLane drops a lane that has nothing left.
func (c *core) removeLane(l *lane) {
	l.receiver.lanes--
	if l.job != nil {
		l.receiver.replayLanes--
		delete(l.job.lanes, l.name)
		return
	}
	delete(c.lanes, l.name)
	delete(c.shrinking, l)
}

// run is the head of a lane on its way through claim and request.
type run struct {
	lane *lane
	rows []*row
}

// request is the runs that share one request.
type request struct {
	runs []*run
	// probe: a single row, to see whether a suspect sink has come back; eager:
	// one that did not wait for its time.
	probe, eager bool
	// split: it looks for the row to blame for an earlier failure.
	split      bool
	started    time.Time // when it was handed to a sender
	largeBytes int64     // what it takes of the bytes for large rows
}

// receiver is the receiver that the request goes to.
func (r *request) receiver() *receiver { return r.runs[0].lane.receiver }

// job is the replay whose rows the request carries; nil: they are live.
func (r *request) job() *job { return r.runs[0].lane.job }

// size is how many rows the request carries.
func (r *request) size() int {
	n := 0
	for _, run := range r.runs {
		n += len(run.rows)
	}
	return n
}

// messages builds what the sink sends.
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

// head returns the first rows of the lane: at most maxRows, and no more than
// maxBytes of payload, but for a first row that alone has more, and none behind one
// whose claim is being given back.
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

// removeDone takes the rows that are done out of the first n of the lane.
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

// insert puts rows in front of the lane, but behind those in flight, and behind
// rows that were requeued before them if they are so too.
func (l *lane) insert(rows []*row) {
	at := l.inFlight
	for rows[0].requeued && at < len(l.rows) && l.rows[at].requeued {
		at++
	}
	l.rows = slices.Insert(l.rows, at, rows...)
}

// recordDelivered notes that the receiver took the first n rows of the lane.
func (l *lane) recordDelivered(n, most int) {
	l.resetFailures()
	if l.bisecting = max(0, l.bisecting-n); l.bisecting > 0 {
		l.limit = max(1, l.bisecting/2)
		return
	}
	l.isolated = false
	l.limit = min(2*l.limit, most)
}

// resetFailures forgets the failures of a head that has left the lane.
func (l *lane) resetFailures() { l.failures, l.lastError, l.stalled = 0, "", false }

// bisect halves the first n rows of the lane, one of which is to blame.
func (l *lane) bisect(n int) {
	l.bisecting, l.limit, l.isolated = n, max(1, n/2), true
}
