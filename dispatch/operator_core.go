package dispatch

import (
	"slices"
	"strings"
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// skip passes over the head of a lane: the row becomes FAILED once it is visible and in no
// request. The result is sent to done.
func (c *core) skip(l *lane, reason string, now time.Time) (done <-chan error, err error) {
	switch {
	case l == nil, len(l.Rows) == 0 && !l.HasSpilled:
		return nil, ErrNoLane
	case len(l.Rows) == 0:
		c.spill.RequestHead(l)
		return nil, errSpilled
	case l.State == lanes.Writing || l.Rows[0].Skip != nil:
		return nil, errWriting
	}

	result := make(chan error, 1)
	l.Rows[0].Skip = &lanes.Skip{Reason: reason, At: now, Done: func(skipped bool) {
		if skipped {
			result <- nil
		} else {
			result <- errDelivered
		}
	}}
	c.lanes.Dequeue(l)
	c.Wake(l)
	return result, nil
}

// skipHead settles a head that is to be skipped, or has it claimed first. It reports
// whether it did either.
func (c *core) skipHead(l *lane) bool {
	if len(l.Rows) == 0 || l.Rows[0].Skip == nil || c.ended {
		return false
	}
	rw := l.Rows[0]
	if !rw.Skippable() {
		c.lanes.QueueUrgent(l)
		return true
	}
	rw.Skip.Writing, l.WakeAt = true, time.Time{}
	c.settle(rw, store.Outcome{Status: store.Failed, Error: rw.Skip.Reason}, l, rw.Skip.At)
	return true
}

// pause keeps a lane and its replay lanes from moving. A run in flight ends first.
func (c *core) pause(name LaneName, h store.Hold) {
	for _, l := range append(c.replayLanesOf(name), c.spill.Lane(name)) {
		l.Paused = &h
		c.lanes.Dequeue(l)
		c.Wake(l)
	}
	c.jobs.Notify()
}

// resume ends a pause.
func (c *core) resume(l *lane, now time.Time) {
	for _, l := range append(c.replayLanesOf(l.Name), l) {
		l.Paused = nil
		c.releaseLane(l, now)
	}
	c.jobs.Notify()
}

// releaseLane lets a lane go on if nothing holds it.
func (c *core) releaseLane(l *lane, now time.Time) {
	if l.State != lanes.Held || l.OnHold() {
		return
	}
	l.Unhold()
	if len(l.Rows) > 0 && l.WakeAt.After(now) {
		c.wait(l, l.WakeAt)
		return
	}
	c.Wake(l)
}

// block keeps a lane from moving until its FAILED row is skipped or requeued.
func (c *core) block(l *lane, h *store.Hold) {
	l.Blocked = h
	c.blockedLanes[store.Ref{Outbox: h.Lane.Outbox, ID: h.ID}] = l
}

// releaseFixed releases the lanes blocked by rows that were requeued or discarded. If the
// write of a row's FAILED is in flight, the row stays in its lane, and the next claim finds
// its current status.
func (c *core) releaseFixed(refs []store.Ref, now time.Time) {
	set := make(map[store.Ref]bool, len(refs))
	for _, ref := range refs {
		set[ref] = true
		if l := c.blockedLanes[ref]; l != nil {
			c.unblock(l, now)
		}
	}
	writing := c.outcomes.Writing()
	for i := range writing {
		if o := &writing[i]; o.Of.Lane != nil && o.Status == store.Failed && set[o.Ref] {
			o.Of.Row.RequeuedInFlight = true
		}
	}
}

// unblock releases a blocked lane.
func (c *core) unblock(l *lane, now time.Time) {
	delete(c.blockedLanes, store.Ref{Outbox: l.Name.Outbox, ID: l.Blocked.ID})
	l.Blocked = nil
	c.releaseLane(l, now)
}

// restore restores the holds from the last run. A lane stays blocked only if the
// configuration still says so.
func (c *core) restore(holds []store.Hold) {
	for i := range holds {
		h := &holds[i]
		if h.Kind == store.Blocked && c.cfg.OnFailed != Block {
			continue
		}
		l := c.spill.Lane(LaneName{LaneKey: h.Lane})
		if h.Kind == store.Blocked {
			c.block(l, h)
		} else {
			l.Paused = h
		}
		l.Hold()
	}
}

// requeue puts formerly FAILED rows in front of their lanes, behind rows that were requeued
// before. A row that the log has delivered again already keeps its place.
func (c *core) requeue(items []store.Item) {
	in := map[*lane]map[string]bool{}
	items = slices.DeleteFunc(items, func(it store.Item) bool {
		l := c.lanes.Get(c.lanes.NameOf(&it))
		if l == nil {
			return false
		}
		if in[l] == nil {
			in[l] = c.laneRowIDs(l)
		}
		return in[l][it.ID]
	})
	c.insertFront(items)
}

// laneRowIDs returns the ids of a lane's rows that are in memory or being spilled.
func (c *core) laneRowIDs(l *lane) map[string]bool {
	ids := map[string]bool{}
	for _, rows := range [][]*row{l.Rows, l.UnspillableTail} {
		for _, rw := range rows {
			ids[rw.ID] = true
		}
	}

	for p := range c.spill.All() {
		if p.Lane == l {
			ids[p.Row.ID] = true
		}
	}

	return ids
}

// trackSettled starts or stops recording rows that leave their lanes.
func (c *core) trackSettled(on bool) {
	c.leftSinceWatch = nil
	if on {
		c.leftSinceWatch = map[store.Ref]bool{}
	}
}

// insertFound inserts rows of one outbox like requeue, and returns how many. It leaves out
// rows that are in a lane, or were since trackSettled.
func (c *core) insertFound(items []store.Item, now time.Time) int {
	if len(items) == 0 {
		return 0
	}
	held := map[string]bool{}

	for _, id := range c.heldIDs(items[0].Outbox) {
		held[id] = true
	}
	items = slices.DeleteFunc(items, func(it store.Item) bool { return held[it.ID] || c.leftSinceWatch[it.Ref] })

	refs := make([]store.Ref, len(items))
	for i := range items {
		refs[i] = items[i].Ref
	}
	c.insertFront(items)
	c.releaseFixed(refs, now)
	return len(items)
}

// retryNow retries at once a lane that waits for a time or for a breaker.
func (c *core) retryNow(l *lane) error {
	switch {
	case l == nil:
		return ErrNoLane
	case l.State == lanes.Held:
		return errOnHold
	case len(l.Rows) == 0:
		return errSpilled
	case l.State == lanes.Waiting, l.State == lanes.Ready && l.Receiver.Breaker.Open():
		c.lanes.Dequeue(l)
		c.lanes.QueueUrgent(l)
	}
	return nil
}

// laneInfo describes a lane.
func (c *core) laneInfo(l *lane) LaneInfo {
	in := LaneInfo{
		LaneKey: l.Name.LaneKey, RowID: l.Name.RowID, Job: l.Name.Job, State: l.StateName(),
		Rows: len(l.Rows), Spilled: l.SpilledRows, Error: l.LastError,
	}
	if len(l.Rows) > 0 {
		head := l.Rows[0]
		in.Head, in.Attempts, in.RetryCount = head.ID, head.Attempts, head.RetryCount
	}

	switch {
	case l.State == lanes.Waiting:
		in.NextAttempt = l.WakeAt
	case l.State == lanes.Ready && l.Receiver.Breaker.Open():
		in.NextAttempt = l.Receiver.Breaker.NextProbe()
	}

	if l.Stalled && len(l.Rows) > 0 {
		in.Since = l.Rows[0].FirstFailed
	}
	if l.Refusal != "" {
		in.Error, in.Since = l.Refusal, l.RefusedSince
	}
	if h := l.Blocked; h != nil {
		in.Head, in.RetryCount, in.Error, in.Since = h.ID, h.RetryCount, h.Reason, h.Since
	}
	if l.Locked {
		in.Reason = "table locked by another session"
	}
	if len(l.ReplayHolds) > 0 {
		in.Reason = "held by replay " + strings.Join(l.ReplayHolds, ", ")
	}
	if h := l.Paused; h != nil {
		in.Reason, in.Since = h.Reason, h.Since
	}
	return in
}
