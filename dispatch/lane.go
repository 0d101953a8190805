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
	// failing is when the first of the failures in a row ended that no success
	// of the row can follow, failed when the latest did, and refused when it was
	// last counted without proof or first refused.
	failing, failed, refused time.Time
	// proof says that the receiver took another row between the latest failure
	// and the attempt under way.
	proof bool
	// seen: a claim has found it, so it is visible.
	seen bool
	// mended: somebody requeued or discarded it while its FAILED was on its way
	// back from the store.
	mended bool
	// skip is set when somebody waits for the row to be passed over.
	skip *skip
	// requeued: it was FAILED, and somebody set it back.
	requeued bool
	// parked: the store has it in its lane's parked rows; parking: it is being
	// put there, and late is its outcome, which waits for that.
	parked, parking bool
	late            *outcome
	// unparkable: the store does not take it.
	unparkable bool
	// back: it was read back; returning: its claim is being given back, so that it
	// may leave memory; spilled: the table refuses its outcome, and it is parked and in
	// no lane.
	back, returning, spilled bool
	// extra is by how many rows more it counts, for its texts are long.
	extra int
	// done: delivered, or found settled or gone; it leaves the lane.
	done bool
	// job sends the row again, as its n-th; nil: it is live.
	job *job
	n   int64
}

// memo is what a failing row leaves behind in its lane when it leaves memory.
type memo struct {
	ref                      store.Ref
	retries                  int
	failing, failed, refused time.Time
}

// note keeps what is known of the failures of the lane's first row.
func (l *lane) note() {
	if rw := l.rows[0]; !rw.failed.IsZero() {
		l.memo = &memo{rw.Ref, rw.RetryCount, rw.failing, rw.failed, rw.refused}
	}
}

// recall gives it back to the row.
func (l *lane) recall(rw *row) {
	if m := l.memo; m != nil && m.ref == rw.Ref {
		rw.RetryCount = max(rw.RetryCount, m.retries)
		rw.failing, rw.failed, rw.refused = m.failing, m.failed, m.refused
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
	name  LaneName
	to    *receiver
	state laneState
	rows  []*row
	// tail are rows behind parked ones that the store does not take.
	tail     []*row
	inFlight int // rows of the run being claimed or sent, or the one being written
	// limit is the most rows in the next run, doubled by successes.
	limit int
	// doubt is how many rows from the head on are known to hold one that the
	// receiver does not take; 0 if nothing is known.
	doubt int
	// apart: its last request failed. It shares none with other lanes, so that
	// they do not suffer for its rows.
	apart bool
	// failures counts failed attempts since the last success, looks the claims
	// in a row that found the head not yet visible.
	failures, looks int
	wakeAt          time.Time
	queued          uint64 // its turn among those that are ready
	tried           uint64 // the latest suspicion of its receiver under which it was tried
	problem         string // the latest failure of its head
	// stalled: its head fails for want of an answer, for long, while the receiver
	// takes other rows.
	stalled bool
	// refusal says what the table has against the claim or the outcome of the head,
	// since then; "" if nothing.
	refusal         string
	refusedSince    time.Time
	blocked, paused *store.Hold
	job             *job     // whose rows it has; nil: it is live
	replays         []string // jobs that keep it from moving

	born uint64 // orders lanes
	// behind: more rows of the lane are parked behind those in memory; beyond is
	// how many, as far as it is known.
	behind bool
	beyond int
	after  store.Seq // no row up to it is to be read back
	// parking counts the lane's rows that are on their way to the store. Once
	// they are there, a lane that shrinks keeps keep rows in memory.
	parking, keep int
	// hungry: queued to be read back; reading: being read.
	hungry, reading bool
	missed          bool // while it was being read, rows came behind it
	memo            *memo
	asked           bool // somebody wants to see its first row
	probed          bool // it was sent as a probe
	locked          bool // ready, and its table is locked; see lockedTable
}

const (
	// parkedWord names the state of a lane whose rows are all parked.
	parkedWord = "parked"
	// replayingWord names that of a lane that stands while a job replays its rows.
	replayingWord = "replaying"
	// stalledWord names that of a lane whose head the receiver leaves unanswered while
	// it takes other rows.
	stalledWord = "stalled"
)

// word names the lane's state for metrics and operators.
func (l *lane) word() string {
	switch {
	case l.state == laneIdle:
		return parkedWord
	case l.state != laneHeld && l.stalled:
		return stalledWord
	case l.locked:
		return laneWaiting.String()
	case l.state != laneHeld:
		return l.state.String()
	case l.blocked != nil:
		return store.Blocked.String()
	case l.paused != nil:
		return store.Paused.String()
	}
	return replayingWord
}

// standing reports whether somebody has to let the lane go.
func (l *lane) standing() bool { return l.blocked != nil || l.paused != nil || len(l.replays) > 0 }

// leaving reports whether the lane is to give up its rows.
func (l *lane) leaving() bool { return l.job != nil && l.job.leaving }

// newLane makes the lane of a name.
func (c *core) newLane(name LaneName) *lane {
	c.stamp++
	l := &lane{name: name, limit: c.cfg.APIBatchSize, to: c.receiver(name.Kind), born: c.stamp}
	l.to.lanes++
	return l
}

// hold keeps the lane until somebody lets it go.
func (l *lane) hold() {
	if l.state != laneHeld {
		l.to.held++
	}
	l.state = laneHeld
}

// letGo ends hold.
func (l *lane) letGo() {
	l.to.held--
	l.state = laneIdle
}

// forget drops a lane that has nothing left.
func (c *core) forget(l *lane) {
	l.to.lanes--
	if l.job != nil {
		l.to.shadows--
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
	split   bool
	started time.Time // when it was handed to a sender
	heavy   int64     // what it takes of the bytes for large rows
}

// to is the receiver that the request goes to.
func (r *request) to() *receiver { return r.runs[0].lane.to }

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
		if n > 0 && (bytes+size > maxBytes || l.rows[n].returning) {
			break
		}
		bytes += size
		n++
	}
	return slices.Clone(l.rows[:n]), bytes
}

// prune takes the rows that are done out of the first n of the lane.
func (l *lane) prune(n int) {
	kept := 0
	for _, rw := range l.rows[:n] {
		switch {
		case !rw.done:
			l.rows[kept] = rw
			kept++
		case !rw.requeued:
			l.after = max(l.after, rw.Seq)
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

// passed notes that the receiver took the first n rows of the lane.
func (l *lane) passed(n, most int) {
	l.recover()
	if l.doubt = max(0, l.doubt-n); l.doubt > 0 {
		l.limit = max(1, l.doubt/2)
		return
	}
	l.apart = false
	l.limit = min(2*l.limit, most)
}

// recover forgets the failures of a head that has left the lane.
func (l *lane) recover() { l.failures, l.problem, l.stalled = 0, "", false }

// search halves the first n rows of the lane, one of which is to blame.
func (l *lane) search(n int) {
	l.doubt, l.limit, l.apart = n, max(1, n/2), true
}
