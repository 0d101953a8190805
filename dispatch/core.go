package dispatch

import (
	"container/heap"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// A row that is not yet visible is asked for again after lookFirst, doubling to
// lookMost: visibility follows the log by well under a millisecond, unless the
// server waits for a synchronous standby.
const (
	lookFirst = time.Millisecond
	lookMost  = time.Second
)

// core is the pure state machine of one sink's lanes. It is not safe for
// concurrent use.
type core struct {
	cfg    Config
	limits func(kind string) sink.Limits
	random func() float64 // [0,1)

	lanes   map[store.LaneKey]*lane
	ready   fifo[*lane]
	toSend  fifo[*run]
	waiting timers
	inUse   int // senders
	held    bool
	ended   bool
	recv    receiver

	outcomes []outcome // to be written
	writing  []outcome // being written
	refused  refusals  // that the store refused, until they are tried again

	rows  int   // in lanes or with an outcome unwritten
	bytes int64 // their payloads
}

// outcome is a row's outcome on its way to the store.
type outcome struct {
	store.Outcome
	row  *row
	lane *lane // waits for the write; nil if it went on
	// tries counts the times that the store refused it, and due is when it is
	// tried again.
	tries int
	due   time.Time
}

func newCore(cfg Config, limits func(kind string) sink.Limits, random func() float64) *core {
	return &core{cfg: cfg, limits: limits, random: random, lanes: map[store.LaneKey]*lane{}}
}

// room reports whether the buffer takes more rows.
func (c *core) room() bool {
	return c.rows < c.cfg.BufferRows && c.bytes < c.cfg.BufferBytes
}

// append puts rows at the end of their lanes, in the given order. Each row has
// memory of its own: one that waits for long must not hold its batch's.
func (c *core) append(items []store.Item, t Ticket) {
	for i := range items {
		rw := &row{Item: items[i], ticket: t}
		l := c.take(rw)
		l.rows = append(l.rows, rw)
		c.wake(l)
	}
}

// prepend puts rows in front of their lanes, in the given order, behind a run in
// flight.
func (c *core) prepend(items []store.Item, t Ticket) {
	front := map[*lane][]*row{}
	for i := range items {
		rw := &row{Item: items[i], ticket: t}
		l := c.take(rw)
		front[l] = append(front[l], rw)
	}
	for l, rows := range front {
		l.insert(rows)
		c.wake(l)
	}
}

// take counts a row in and returns its lane.
func (c *core) take(rw *row) *lane {
	c.rows++
	c.bytes += int64(rw.PayloadSize)
	key := rw.Lane()
	l := c.lanes[key]
	if l == nil {
		l = &lane{key: key, limit: c.cfg.APIBatchSize}
		c.lanes[key] = l
	}
	return l
}

// drop counts a settled row out.
func (c *core) drop(rw *row) {
	c.rows--
	c.bytes -= int64(rw.PayloadSize)
	rw.Payload, rw.done = nil, true
	if rw.ticket != nil {
		rw.ticket.Done(1)
	}
}

// wake queues a lane that has nothing else to wait for.
func (c *core) wake(l *lane) {
	if l.state == laneIdle && len(l.rows) > 0 {
		l.state = laneReady
		c.ready.push(l)
	}
}

// release gives up what the lane was doing; it queues again, or is forgotten
// when it is empty.
func (c *core) release(l *lane) {
	l.state, l.inFlight = laneIdle, 0
	if len(l.rows) == 0 {
		delete(c.lanes, l.key)
		return
	}
	c.wake(l)
}

// wait puts the lane aside until a time.
func (c *core) wait(l *lane, until time.Time) {
	l.state, l.inFlight, l.wakeAt = laneWaiting, 0, until
	heap.Push(&c.waiting, l)
}

// tick queues the lanes and the outcomes whose wait is over.
func (c *core) tick(now time.Time) {
	for len(c.refused) > 0 && !c.refused[0].due.After(now) {
		c.outcomes = append(c.outcomes, heap.Pop(&c.refused).(outcome))
	}
	for len(c.waiting) > 0 && !c.waiting[0].wakeAt.After(now) {
		c.release(heap.Pop(&c.waiting).(*lane))
	}
}

// nextWake returns when tick has something to do; false if nothing waits.
func (c *core) nextWake() (at time.Time, ok bool) {
	if len(c.waiting) > 0 {
		at, ok = c.waiting[0].wakeAt, true
	}
	if len(c.refused) > 0 && (!ok || c.refused[0].due.Before(at)) {
		at, ok = c.refused[0].due, true
	}
	return at, ok
}

// hold stops new runs from being claimed, until it is called with false.
func (c *core) hold(held bool) { c.held = held }

// nextClaims takes runs to claim: a ready lane each, as long as senders are free
// and the statement stays below maxRows. The caller reports each by claimed.
func (c *core) nextClaims(maxRows int) []*run {
	if c.held || c.ended {
		return nil
	}
	var runs []*run
	for n := 0; n < maxRows && c.inUse < c.cfg.MaxConcurrentGroups && c.ready.len() > 0; {
		l := c.ready.pop()
		r := &run{lane: l, rows: c.head(l)}
		l.state, l.inFlight = laneClaiming, len(r.rows)
		c.inUse++
		n += len(r.rows)
		runs = append(runs, r)
	}
	return runs
}

// head returns the rows of a lane's next run.
func (c *core) head(l *lane) []*row {
	limits := c.limits(l.key.Kind)
	n := min(l.limit, c.cfg.APIBatchSize, limits.MaxItems)
	if limits.Mode == sink.PerItem || l.looks > 0 {
		// A receiver that takes what comes after a failure would break the
		// order; behind a row that is not visible nothing can go out anyway.
		n = 1
	}
	return l.head(max(1, n), limits.MaxBytes)
}

// claimed takes the answers for a run, by position, and the time at that the
// claim wrote. The rows up to the first that may not be sent yet go out; settled
// ones are dropped.
func (c *core) claimed(r *run, answers []store.ClaimAnswer, at, now time.Time) {
	l, n := r.lane, len(r.rows)
	var stop *store.ClaimAnswer
	send := r.rows[:0]
	for i, rw := range r.rows {
		switch a := &answers[i]; a.Result {
		case store.Claimed:
			rw.claimed = at
			rw.RetryCount = max(rw.RetryCount, a.RetryCount) // a table may have no column for it
			c.refresh(rw, a.Payload)
			if stop == nil {
				send = append(send, rw)
			}
		case store.AlreadySettled, store.Gone:
			c.drop(rw)
		default:
			if a.Result == store.Held {
				rw.claimed = time.Time{} // it is somebody else's, and not ours to give back
			}
			if stop == nil {
				stop = a
			}
		}
	}
	l.prune(n)
	r.rows = send
	switch {
	case len(send) > 0 && !c.ended:
		l.state, l.inFlight, l.looks = laneSending, len(send), 0
		c.toSend.push(r)
	case stop != nil && !c.ended:
		c.inUse--
		c.wait(l, c.lookAgain(l, stop, now))
	default:
		c.inUse--
		c.release(l)
		c.giveBack(l)
	}
}

// refresh keeps a payload that the claim read again.
func (c *core) refresh(rw *row, payload []byte) {
	if payload == nil {
		return
	}
	c.bytes += int64(len(payload) - rw.PayloadSize)
	rw.Payload, rw.PayloadSize = payload, len(payload)
}

// lookAgain returns when to claim again after an answer that says wait.
func (c *core) lookAgain(l *lane, a *store.ClaimAnswer, now time.Time) time.Time {
	if a.Result == store.Held && a.Until.After(now) {
		return a.Until
	}
	d := min(lookFirst<<min(l.looks, 10), lookMost)
	l.looks++
	return now.Add(d)
}

// nextRequest takes a claimed run to send; nil if there is none. The caller
// reports it by answered.
func (c *core) nextRequest(now time.Time) *run {
	if c.toSend.len() == 0 {
		return nil
	}
	r := c.toSend.pop()
	r.started = now
	for _, rw := range r.rows {
		rw.attempts++
	}
	return r
}

// quiet reports whether nothing is on its way: no claim, no request, no outcome
// but those that the store refuses.
func (c *core) quiet() bool {
	return c.inUse == 0 && len(c.outcomes) == 0 && len(c.writing) == 0
}

// end stops new runs for good and gives back every claimed row that is not in a
// request.
func (c *core) end() {
	c.ended = true
	for c.toSend.len() > 0 {
		l := c.toSend.pop().lane
		c.inUse--
		c.release(l)
	}
	for _, l := range c.lanes {
		if l.state != laneClaiming && l.state != laneSending {
			c.giveBack(l)
		}
	}
}

// giveBack queues PENDING for the claimed rows of a lane, if the core has ended.
// A head that has an outcome on its way keeps that.
func (c *core) giveBack(l *lane) {
	if !c.ended {
		return
	}
	rows := l.rows
	if l.state == laneWriting {
		rows = rows[1:]
	}
	for _, rw := range rows {
		if !rw.claimed.IsZero() {
			rw.claimed = time.Time{}
			c.outcomes = append(c.outcomes, outcome{row: rw, Outcome: store.Outcome{
				Ref: rw.Ref, Status: store.Pending, RetryCount: rw.RetryCount,
			}})
		}
	}
}

// heldIDs returns the ids of an outbox that lanes hold or whose outcome is not
// written.
func (c *core) heldIDs(outbox string) []string {
	var ids []string
	for _, l := range c.lanes {
		if l.key.Outbox != outbox {
			continue
		}
		for _, rw := range l.rows {
			ids = append(ids, rw.ID)
		}
	}
	for _, queue := range [][]outcome{c.outcomes, c.writing, c.refused} {
		for i := range queue {
			if queue[i].Outbox == outbox {
				ids = append(ids, queue[i].ID)
			}
		}
	}
	return ids
}
