package dispatch

import (
	"container/heap"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// core is the pure state machine of one sink's lanes. It is not safe for
// concurrent use.
type core struct {
	cfg    Config
	limits func(kind string) sink.Limits
	random func() float64 // [0,1)

	lanes        map[LaneName]*lane
	blockedLanes map[store.Ref]*lane // by the FAILED row
	urgent       fifo[*lane]         // to be claimed at once, suspect sink or not
	large        fifo[*lane]         // whose heads wait for others that are as large; see large.go
	toSend       fifo[*request]      // claimed
	waiting      timers
	// claiming and sending count the requests that are being claimed and sent.
	claiming, sending int
	replaying         int       // of those being sent, with replayed rows
	frozen            bool      // nothing is claimed for now
	notBefore         time.Time // nothing is claimed until then
	ended             bool
	receivers         []*receiver // one for each endpoint
	lastOrder         uint64      // orders what is ready

	outcomes        []outcome   // to be written
	writing         []outcome   // being written
	spareOutcomes   []outcome   // empty; its memory is used again
	retryQueue      outcomeHeap // that the store refused or that were too early, until they are tried again
	earlyOutcomes   int         // that were too early when they were last tried, wherever they are
	refusedOutcomes int         // that the store has refused, wherever they are
	// spillEnabled: rows may be parked. spilled counts those of the stuck rows that are parked
	// and in no lane; see refused.go.
	spillEnabled bool
	detachedRows int

	// tableLocks are the outboxes whose table is locked or was so, by name.
	tableLocks map[string]*lockedTable

	toSpill      []pendingSpill // rows on their way to the parked table, in order
	spilling     []pendingSpill // being parked
	directSpills int            // rows among both that the lanes do not keep
	// shrinking are the lanes that leave rows to the store once they are parked.
	shrinking       map[*lane]bool
	toDeleteSpilled []store.SpilledRef
	// settlingSpilled are the parked rows whose outcome or unparking is on its way, and
	// left those of which it was written while a reading is under way.
	settlingSpilled, deletedDuringReload map[store.SpilledRef]bool
	requeuedUnwritten                    map[store.Ref]*row // while the rows of a reading are taken
	spilledRows                          int                // in the store
	spilledLanes                         []*spilledLaneSet
	reloadTurn                           int          // counts readings: kinds come first in turn
	unspillableRows                      int          // rows in memory that the store does not take
	reloadQueue                          fifo[*lane]  // to be read back
	reloading                            []laneReload // being read
	reloadedRows                         int          // rows in memory that were read back
	evictedAt                            time.Time    // when room was last made for more of them

	// jobs are the replays with rows in memory. Of their rows done are to be written
	// down and noting are being so.
	jobs                      map[string]*job
	replayDone, recordingDone []finishedReplayRow
	// inFlightAtHold are rows without a group that were under way when a job came to
	// theirs.
	inFlightAtHold map[store.LaneKey]map[*row]bool
	// replayChanged: rows of a job left memory, or a lane was paused or goes on. restless: a
	// lane was not yet still.
	replayChanged, awaitingQuiescence bool

	canPing bool // the sink has requests without rows
	toPing  fifo[*ping]

	newlyStalled []LaneInfo // lanes that stalled and that nobody was told of yet

	// leftSinceWatch are the rows that left their lanes since watch; nil while nobody
	// asks.
	leftSinceWatch map[store.Ref]bool

	doneRows   int64 // rows that were done with
	rows       int   // in lanes or with an outcome unwritten
	bytes      int64 // their payloads in memory
	largeBytes int64 // payloads of the requests under way that are large
	// extraWeight is by how many rows more those count whose texts are long, and extraReloaded
	// those of them that were read back.
	extraWeight, extraReloaded int
}

// outcome is a row's outcome on its way to the store.
type outcome struct {
	store.Outcome
	row  *row
	lane *lane // waits for the write; nil if it went on
	// tries counts the times that the store refused it, looks those in a row that
	// it was too early, locks those that its row was locked, and due is when it is
	// tried again.
	tries, earlyTries, lockedTries int
	due                            time.Time
	// refusal is what the database said when it last refused it, since the first time.
	refusal string
	since   time.Time
	// maybeWritten: the answer to a try was lost, and it may be written since.
	maybeWritten bool
}

func newCore(cfg Config, limits func(kind string) sink.Limits, random func() float64) *core {
	return &core{
		cfg: cfg, limits: limits, random: random, lanes: map[LaneName]*lane{}, blockedLanes: map[store.Ref]*lane{},
		shrinking: map[*lane]bool{}, settlingSpilled: map[store.SpilledRef]bool{},
		tableLocks: map[string]*lockedTable{}, jobs: map[string]*job{}, inFlightAtHold: map[store.LaneKey]map[*row]bool{},
	}
}

// append puts rows at the end of their lanes, in the given order. Each row has
// memory of its own: one that waits for long must not hold its batch's.
func (c *core) append(items []store.Item, t Ticket) {
	for i := range items {
		name := c.laneNameOf(&items[i])
		l := c.lanes[name]
		if l != nil && l.mergeRequeued(&items[i], t) {
			continue
		}
		rw := &row{Item: items[i], ticket: t}
		c.countIn(rw)
		if l == nil {
			l = c.lane(name)
		}
		l.internName(rw)
		c.add(l, rw)
	}
}

// add puts a row at the end of its lane.
func (c *core) add(l *lane, rw *row) {
	if l.hasSpilled {
		c.spillBehind(l, rw)
	} else {
		l.rows = append(l.rows, rw)
	}
	c.wake(l)
}

// mergeRequeued reports whether the log brings a row that was requeued and waits already;
// whoever waits for the one is told of the other.
func (l *lane) mergeRequeued(it *store.Item, t Ticket) bool {
	if l.hasSpilled {
		return false
	}
	for _, rw := range l.rows {
		if !rw.requeued {
			return false
		}
		if rw.ID == it.ID && rw.ticket == nil && rw.Seq == 0 {
			rw.ticket, rw.Seq = t, it.Seq
			return true
		}
	}
	return false
}

// insertFront puts rows that were set back in front of their lanes, in the given order,
// behind a run in flight. Nobody waits for them.
func (c *core) insertFront(items []store.Item) {
	front, lanes := map[*lane][]*row{}, []*lane{}
	for i := range items {
		rw := &row{Item: items[i], requeued: true}
		l := c.admit(rw)
		if front[l] == nil {
			lanes = append(lanes, l)
		}
		front[l] = append(front[l], rw)
	}
	for _, l := range lanes {
		l.insert(front[l])
		c.wake(l)
	}
}

// admit counts a row in and returns its lane.
func (c *core) admit(rw *row) *lane {
	c.countIn(rw)
	l := c.lane(c.laneNameOf(&rw.Item))
	l.internName(rw)
	return l
}

// internName lets a row share the memory of its lane's name.
func (l *lane) internName(rw *row) { rw.Kind, rw.Group = l.name.Kind, l.name.Group }

// laneNameOf returns the lane that an item goes to.
func (c *core) laneNameOf(it *store.Item) LaneName {
	name := LaneName{LaneKey: it.Lane()}
	if !it.Group.Valid && c.cfg.Ungrouped == Parallel {
		name.RowID = it.ID
	}
	return name
}

// lane returns the lane of a name, made if there is none.
func (c *core) lane(name LaneName) *lane {
	l := c.lanes[name]
	if l == nil {
		l = c.newLane(name)
		c.lanes[name] = l
		c.restoreSpilled(l)
	}
	return l
}

// drop counts a settled row out.
func (c *core) drop(rw *row) {
	c.removeRow(rw)
	c.doneRows++
	rw.done = true
	rw.releaseTicket()
	rw.skip.report()
}

// wake queues a lane that has nothing else to wait for.
func (c *core) wake(l *lane) {
	switch {
	case l.state != laneIdle:
	case c.skipHead(l):
	case l.onHold() && (l.job == nil || len(l.rows) > 0):
		l.hold()
	case len(l.rows) > 0:
		if !l.rows[0].unclaiming {
			c.queue(l)
		}
	case !l.hasSpilled:
		c.removeLane(l)
	}
	if c.belowReloadMark(l) && !l.onHold() {
		c.queueReload(l)
	}
}

// release gives up what the lane was doing; it queues again, or is forgotten
// when it is empty.
func (c *core) release(l *lane) {
	l.state, l.inFlight = laneIdle, 0
	if l.withdrawing() {
		c.withdrawLane(l)
	}
	c.wake(l)
	c.unclaimLane(l)
}

// wait puts the lane aside until a time.
func (c *core) wait(l *lane, until time.Time) {
	l.state, l.inFlight, l.wakeAt = laneIdle, 0, until
	if c.ended || l.withdrawing() || l.rows[0].skippable() || l.onHold() && l.rows[0].skip == nil {
		c.release(l)
		return
	}
	l.state = laneWaiting
	heap.Push(&c.waiting, l)
}

// dequeue takes a lane that waits for its turn or for a time out of its queue.
func (c *core) dequeue(l *lane) {
	switch l.state {
	case laneReady:
		is := func(other *lane) bool { return other == l }
		_ = l.receiver.ready.remove(is) || l.receiver.readyReplay.remove(is) || l.receiver.tried.remove(is) || c.urgent.remove(is) || c.large.remove(is)
		if l.locked {
			t := c.tableLocks[l.name.Outbox]
			_ = t.ready.remove(is) || t.urgent.remove(is)
			l.locked = false
		}
	case laneWaiting:
		heap.Remove(&c.waiting, slices.Index(c.waiting, l))
	case laneHeld:
		l.unhold()
	default:
		return // it comes back by itself
	}
	l.state = laneIdle
}

// tick queues the lanes and the outcomes whose wait is over.
func (c *core) tick(now time.Time) {
	for len(c.retryQueue) > 0 && !c.retryQueue[0].due.After(now) {
		c.requeueOutcome(heap.Pop(&c.retryQueue).(outcome))
	}
	for len(c.waiting) > 0 && !c.waiting[0].wakeAt.After(now) {
		c.release(heap.Pop(&c.waiting).(*lane))
	}
}

// nextWake returns when tick or a probe has something to do; false if nothing
// waits.
func (c *core) nextWake() (at time.Time, ok bool) {
	sooner := func(t time.Time) {
		if !ok || t.Before(at) {
			at, ok = t, true
		}
	}
	if len(c.waiting) > 0 {
		sooner(c.waiting[0].wakeAt)
	}
	if len(c.retryQueue) > 0 {
		sooner(c.retryQueue[0].due)
	}
	if c.frozen || c.ended || c.tooManyUnwritten() || c.freeRequests() <= 0 {
		return at, ok
	}
	for _, recv := range c.receivers {
		switch {
		case recv.ready.len()+recv.readyReplay.len()+recv.tried.len() == 0:
		case recv.breakerOpen && recv.probes == 0:
			sooner(later(recv.nextProbe, c.notBefore))
		case !recv.breakerOpen && !c.notBefore.IsZero():
			sooner(c.notBefore)
		}
	}
	return at, ok
}

// freeze keeps new runs from being claimed, until it is called with false.
func (c *core) freeze(frozen bool) { c.frozen = frozen }

// mayClaim reports whether new runs may begin.
func (c *core) mayClaim(now time.Time) bool {
	if !now.Before(c.notBefore) {
		c.notBefore = time.Time{} // nothing waits for it any more
	}
	return !c.frozen && !c.ended && c.notBefore.IsZero() && !c.tooManyUnwritten()
}

// tooManyUnwritten reports whether the table takes claims and refuses outcomes, or shows
// its rows much later than the log: what waits must not fill the memory.
func (c *core) tooManyUnwritten() bool {
	return max(len(c.retryQueue), c.refusedOutcomes, c.earlyOutcomes) > max(1, c.cfg.BufferRows/2)
}

// freeRequests is how many requests may begin: as many as there are senders, and some more,
// so that a sender that has its answer finds the next one claimed.
func (c *core) freeRequests() int {
	return c.cfg.MaxConcurrentGroups + c.cfg.claimAhead() - c.claiming - c.sending - c.toSend.len()
}

// heldIDs returns the ids of an outbox that lanes hold or whose outcome is not
// written.
func (c *core) heldIDs(outbox string) []string {
	var ids []string
	for _, l := range c.lanes {
		if l.name.Outbox != outbox {
			continue
		}
		for _, rows := range [][]*row{l.rows, l.unspillableTail} {
			for _, rw := range rows {
				ids = append(ids, rw.ID)
			}
		}
	}
	for o := range c.unwrittenOutcomes() {
		if o.Outbox == outbox {
			ids = append(ids, o.ID)
		}
	}
	for _, queue := range [][]pendingSpill{c.toSpill, c.spilling} {
		for i := range queue {
			if rw := queue[i].row; rw.Outbox == outbox {
				ids = append(ids, rw.ID)
			}
		}
	}
	return ids
}
