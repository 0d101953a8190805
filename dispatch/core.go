package dispatch

import (
	"time"

	pending "github.com/sluicebox/sluicebox/dispatch/internal/outcome"
	"github.com/sluicebox/sluicebox/dispatch/internal/replay"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// core is the pure state machine of one sink's lanes. It is not safe for concurrent use.
type core struct {
	cfg    Config
	limits func(kind string) sink.Limits
	random func() float64 // [0,1)

	lanes        map[LaneName]*lane
	blockedLanes map[store.Ref]*lane // by FAILED row
	urgent       fifo[*lane]         // claimed next, even if the breaker is open
	large        fifo[*lane]         // wait for room in the byte budget; see byte_budget.go
	waiting      timers
	requests     requests
	frozen       bool      // claims are suspended
	notBefore    time.Time // no claim before this time
	ended        bool
	receivers    []*receiver // one per endpoint
	lastOrder    uint64      // orders ready lanes
	outcomes     pending.Queue[owner]

	spillEnabled bool // rows with a refused outcome may be spilled

	lockedLanes map[string]*lockedLanes // by outbox whose table is locked

	spills spills
	copies copies

	// shrinking holds lanes that evict their rows once those are spilled.
	shrinking         map[*lane]bool
	requeuedUnwritten map[store.Ref]*row // set while reloaded rows are added
	spilledLanes      []*spilledLaneSet
	reloadTurn        int          // counts reloads, so that each kind comes first in turn
	reloadQueue       fifo[*lane]  // waiting to be reloaded
	reloading         []laneReload // being reloaded
	evictedAt         time.Time    // last eviction that made room for reloads

	jobs        replay.Jobs[owner] // the replays with rows in memory
	holds       replay.Holds[*row] // of ungrouped rows with their own lanes
	replayLanes map[LaneName]*lane

	canPing bool // the sink supports requests without rows
	toPing  fifo[*ping]

	newlyStalled []LaneInfo // stalled lanes not yet reported

	// leftSinceWatch holds rows that left their lanes since trackSettled; nil if off.
	leftSinceWatch map[store.Ref]bool

	doneRows int64 // total of finished rows
	memory   memory
}

func newCore(cfg Config, limits func(kind string) sink.Limits, random func() float64) *core {
	return &core{
		cfg: cfg, limits: limits, random: random, lanes: map[LaneName]*lane{}, blockedLanes: map[store.Ref]*lane{},
		shrinking: map[*lane]bool{}, copies: copies{settling: map[store.SpilledRef]bool{}},
		outcomes: pending.NewQueue[owner](visibilityWait), lockedLanes: map[string]*lockedLanes{}, jobs: replay.NewJobs[owner](), holds: replay.NewHolds[*row](), replayLanes: map[LaneName]*lane{},
	}
}

// append puts rows at the end of their lanes, in the given order. Each row is allocated
// separately, so that a row that waits for long does not retain its whole batch.
func (c *core) append(items []store.Item, t Ticket) {
	for i := range items {
		name := c.laneNameOf(&items[i])
		l := c.lanes[name]
		if l != nil && l.MergeRequeued(&items[i], t) {
			continue
		}
		rw := &row{Item: items[i], Ticket: t}
		c.countIn(rw, buffered)
		if l == nil {
			l = c.lane(name)
		}
		l.InternName(rw)
		c.add(l, rw)
	}
}

// add puts a row at the end of its lane.
func (c *core) add(l *lane, rw *row) {
	if l.HasSpilled {
		c.queueSpill(l, rw, false)
	} else {
		l.Rows = append(l.Rows, rw)
	}
	c.wake(l)
}

// MergeRequeued reports whether the log delivers a requeued row that already waits in the
// lane. The waiting row takes over the ticket.
func (l *lane) MergeRequeued(it *store.Item, t Ticket) bool {
	if l.HasSpilled {
		return false
	}
	for _, rw := range l.Rows {
		if !rw.Requeued {
			return false
		}
		if rw.ID == it.ID && rw.Ticket == nil && rw.Seq == 0 {
			rw.Ticket, rw.Seq = t, it.Seq
			return true
		}
	}
	return false
}

// insertFront puts requeued rows in front of their lanes, in the given order and behind a
// run in flight. These rows have no ticket.
func (c *core) insertFront(items []store.Item) {
	front, lanes := map[*lane][]*row{}, []*lane{}
	for i := range items {
		rw := &row{Item: items[i], Requeued: true}
		l := c.admit(rw)
		if front[l] == nil {
			lanes = append(lanes, l)
		}
		front[l] = append(front[l], rw)
	}
	for _, l := range lanes {
		l.Insert(front[l])
		c.wake(l)
	}
}

// admit counts a row and returns its lane.
func (c *core) admit(rw *row) *lane {
	c.countIn(rw, buffered)
	l := c.lane(c.laneNameOf(&rw.Item))
	l.InternName(rw)
	return l
}

// InternName lets a row share the strings of its lane's name.
func (l *lane) InternName(rw *row) { rw.Kind, rw.Group = l.Name.Kind, l.Name.Group }

// laneNameOf returns the name of an item's lane.
func (c *core) laneNameOf(it *store.Item) LaneName {
	name := LaneName{LaneKey: it.Lane()}
	if !it.Group.Valid && c.cfg.Ungrouped == Parallel {
		name.RowID = it.ID
	}
	return name
}

// lane returns the lane with a name and creates it if necessary.
func (c *core) lane(name LaneName) *lane {
	l := c.lanes[name]
	if l == nil {
		l = c.newLane(name)
		c.lanes[name] = l
		c.restoreSpilled(l)
	}
	return l
}

// drop removes a settled row from the counts and completes its ticket.
func (c *core) drop(rw *row) {
	c.removeRow(rw)
	c.doneRows++
	rw.Done = true
	rw.ReleaseTicket()
	rw.Skip.report()
}

// wake queues a lane unless it waits for something else.
func (c *core) wake(l *lane) {
	switch {
	case l.State != laneIdle:
	case c.skipHead(l):
	case l.OnHold() && (l.Job == nil || len(l.Rows) > 0):
		l.Hold()
	case len(l.Rows) > 0:
		if !l.Rows[0].Unclaiming {
			c.queue(l)
		}
	case !l.HasSpilled:
		c.removeLane(l)
	}

	if c.belowReloadMark(l) && !l.OnHold() {
		c.queueReload(l)
	}
}

// release ends the lane's current step. The lane is queued again, or removed if it is
// empty.
func (c *core) release(l *lane) {
	l.State, l.InFlight = laneIdle, 0
	if l.Withdrawing() {
		c.withdrawLane(l)
	}
	c.wake(l)
	c.unclaimLane(l)
}

// wait sets the lane aside until a time.
func (c *core) wait(l *lane, until time.Time) {
	l.State, l.InFlight, l.WakeAt = laneIdle, 0, until
	if c.ended || l.Withdrawing() || l.Rows[0].Skippable() || l.OnHold() && l.Rows[0].Skip == nil {
		c.release(l)
		return
	}
	l.State = laneWaiting
	c.waiting.add(l)
}

// dequeue takes a waiting lane out of its queue.
func (c *core) dequeue(l *lane) {
	switch l.State {
	case laneReady:
		is := func(other *lane) bool { return other == l }
		_ = l.Receiver.remove(is) || c.urgent.remove(is) || c.large.remove(is)
		if l.Locked {
			t := c.lockedLanes[l.Name.Outbox]
			_ = t.ready.remove(is) || t.urgent.remove(is)
			l.Locked = false
		}
	case laneWaiting:
		c.waiting.remove(l)
	case laneHeld:
		l.Unhold()
	default:
		return // it comes back by itself
	}

	l.State = laneIdle
}

// tick queues the lanes and outcomes that are due.
func (c *core) tick(now time.Time) {
	for o, ok := c.outcomes.Due(now); ok; o, ok = c.outcomes.Due(now) {
		c.requeueOutcome(o)
	}
	for l := c.waiting.due(now); l != nil; l = c.waiting.due(now) {
		c.release(l)
	}
}

// nextWake returns the time when tick or a probe is due next; false if none is.
func (c *core) nextWake() (at time.Time, ok bool) {
	sooner := func(t time.Time) {
		if !ok || t.Before(at) {
			at, ok = t, true
		}
	}

	if due, some := c.waiting.next(); some {
		sooner(due)
	}
	if due, some := c.outcomes.NextDue(); some {
		sooner(due)
	}
	if c.frozen || c.ended || c.tooManyUnwritten() || c.freeRequests() <= 0 {
		return at, ok
	}

	for _, recv := range c.receivers {
		switch open := recv.Breaker.Open(); {
		case recv.waiting() == 0:
		case open && recv.Breaker.Probes() == 0:
			sooner(later(recv.Breaker.NextProbe(), c.notBefore))
		case !open && !c.notBefore.IsZero():
			sooner(c.notBefore)
		}
	}

	return at, ok
}

// freeze suspends or resumes claims.
func (c *core) freeze(frozen bool) { c.frozen = frozen }

// mayClaim reports whether new runs may begin.
func (c *core) mayClaim(now time.Time) bool {
	if !now.Before(c.notBefore) {
		c.notBefore = time.Time{} // the takeover wait is over
	}
	return !c.frozen && !c.ended && c.notBefore.IsZero() && !c.tooManyUnwritten()
}

// tooManyUnwritten reports whether outcomes pile up, because the table accepts claims and
// refuses outcomes, or shows its rows much later than the log. The pile must not exhaust
// memory.
func (c *core) tooManyUnwritten() bool {
	return c.outcomes.Piled() > max(1, c.cfg.BufferRows/2)
}

// freeRequests is how many requests may begin. It exceeds the number of senders, so that a
// sender that finishes finds its next request already claimed.
func (c *core) freeRequests() int {
	return c.cfg.MaxConcurrentGroups + c.cfg.claimAhead() - c.requests.len()
}

// heldIDs returns the ids of an outbox that are in lanes or have an unwritten outcome.
func (c *core) heldIDs(outbox string) []string {
	var ids []string
	for _, l := range c.lanes {
		if l.Name.Outbox != outbox {
			continue
		}
		for _, rows := range [][]*row{l.Rows, l.UnspillableTail} {
			for _, rw := range rows {
				ids = append(ids, rw.ID)
			}
		}
	}

	for o := range c.outcomes.All() {
		if o.Outbox == outbox {
			ids = append(ids, o.ID)
		}
	}

	for p := range c.spills.all() {
		if p.Row.Outbox == outbox {
			ids = append(ids, p.Row.ID)
		}
	}

	return ids
}
