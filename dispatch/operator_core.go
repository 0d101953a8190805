package dispatch

import (
	"slices"
	"strings"
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// operator carries out the requests of operators and of the sweep, which put lanes on hold,
// release them, and bring rows back.
type operator struct {
	core    *core
	blocked map[store.Ref]*lane // by FAILED row
	skips   map[string]skipped  // by outbox

	// left holds rows that left their lanes since trackSettled; nil if off.
	left map[store.Ref]bool
}

// skipped says which rows of an outbox an operator skipped: those up to a seq, or without one
// those captured before.
type skipped struct {
	upTo   store.Seq
	at     time.Time
	reason string
}

func (s *skipped) covers(rw *row) bool {
	return rw.Seq != 0 && rw.Seq <= s.upTo || rw.Seq == 0 && !rw.Captured.After(s.at)
}

// skipOutbox passes over all rows of an outbox that wait, at least up to a seq.
func (p *operator) skipOutbox(outbox, reason string, upTo store.Seq, now time.Time) {
	p.skips[outbox] = skipped{max(upTo, p.core.lastSeq), now, reason}
	for _, l := range p.core.lanes.Live() {
		if l.Name.Outbox == outbox && p.skipsHead(l) {
			p.core.lanes.Dequeue(l)
			p.core.Wake(l)
		}
	}
}

// skipsHead reports whether the head of a lane is to be skipped. It marks the head if all waiting
// rows of its outbox are.
func (p *operator) skipsHead(l *lane) bool {
	if len(l.Rows) == 0 || p.core.ended {
		return false
	}
	rw := l.Rows[0]
	if s, all := p.skips[l.Name.Outbox]; all && rw.Skip == nil && l.Job == nil && s.covers(rw) {
		rw.Skip = &lanes.Skip{Reason: s.reason, At: s.at, Done: func(bool) {}}
	}
	return rw.Skip != nil
}

// skip passes over the head of a lane: the row becomes FAILED once it is visible and in no
// request. The result is sent to done.
func (p *operator) skip(l *lane, reason string, now time.Time) (done <-chan error, err error) {
	switch {
	case l == nil, len(l.Rows) == 0 && !l.HasSpilled:
		return nil, ErrNoLane
	case len(l.Rows) == 0:
		p.core.spill.Reloads.RequestHead(l)
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
	p.core.lanes.Dequeue(l)
	p.core.Wake(l)
	return result, nil
}

// skipHead settles a head that is to be skipped, or has it claimed first. It reports
// whether it did either.
func (p *operator) skipHead(l *lane) bool {
	if !p.skipsHead(l) {
		return false
	}
	rw := l.Rows[0]
	if !rw.Skippable() {
		p.core.lanes.QueueUrgent(l)
		return true
	}
	rw.Skip.Writing, l.WakeAt = true, time.Time{}
	p.core.settle(rw, store.Outcome{Status: store.Failed, Error: rw.Skip.Reason}, l, rw.Skip.At)
	return true
}

// pause keeps a lane and its replay lanes from moving. A run in flight ends first.
func (p *operator) pause(name LaneName, h store.Hold) {
	for _, l := range append(p.core.replays.lanesOf(name), p.core.spill.Lane(name)) {
		l.Paused = &h
		p.core.lanes.Dequeue(l)
		p.core.Wake(l)
	}
	p.core.replays.jobs.Notify()
}

// resume ends a pause.
func (p *operator) resume(l *lane, now time.Time) {
	for _, l := range append(p.core.replays.lanesOf(l.Name), l) {
		l.Paused = nil
		p.releaseLane(l, now)
	}
	p.core.replays.jobs.Notify()
}

// pauseOutbox keeps all lanes of an outbox from moving, replay lanes included. Requests in
// flight end first, and lanes that wait for a time follow when it has come.
func (p *operator) pauseOutbox(h *store.Hold) {
	c := p.core
	c.lanes.PauseOutbox(h)
	for _, req := range c.lanes.Requests.TakeUnsent(c.pausedIn) {
		req.Receiver().Breaker.Withdraw(req.Probe)
		c.takeBack(req)
	}
	c.replays.jobs.Notify()
}

// resumeOutbox ends a pause of an outbox.
func (p *operator) resumeOutbox(outbox string) {
	c := p.core
	for l := range c.lanes.All() {
		if l.Name.Outbox == outbox {
			l.MarkStale()
		}
	}
	c.lanes.ResumeOutbox(outbox)
	c.replays.jobs.Notify()
}

// pausedIn reports whether a request has rows of a paused outbox.
func (c *core) pausedIn(req *request) bool {
	return slices.ContainsFunc(req.Runs, func(r *run) bool { return c.lanes.OutboxPause(r.Lane.Name.Outbox) != nil })
}

// releaseLane lets a lane go on if nothing holds it.
func (p *operator) releaseLane(l *lane, now time.Time) {
	l.MarkStale()
	if l.State != lanes.Held || l.OnHold() {
		return
	}
	l.Unhold()
	if len(l.Rows) > 0 && l.WakeAt.After(now) {
		p.core.wait(l, l.WakeAt)
		return
	}
	p.core.Wake(l)
}

// block keeps a lane from moving until its FAILED row is skipped or requeued.
func (p *operator) block(l *lane, h *store.Hold) {
	l.Blocked = h
	p.blocked[store.Ref{Outbox: h.Lane.Outbox, ID: h.ID}] = l
}

// releaseFixed releases the lanes blocked by rows that were requeued or discarded. If the
// write of a row's FAILED is in flight, the row stays in its lane, and the next claim finds
// its current status.
func (p *operator) releaseFixed(refs []store.Ref, now time.Time) {
	set := make(map[store.Ref]bool, len(refs))
	for _, ref := range refs {
		set[ref] = true
		if l := p.blocked[ref]; l != nil {
			p.unblock(l, now)
		}
	}
	for o := range p.core.outcomes.InFlight() {
		if o.Of.Lane != nil && o.Status == store.Failed && set[o.Ref] {
			o.Of.Row.ResetInFlight()
		}
	}
}

// unblock releases a blocked lane.
func (p *operator) unblock(l *lane, now time.Time) {
	delete(p.blocked, store.Ref{Outbox: l.Name.Outbox, ID: l.Blocked.ID})
	l.Blocked = nil
	p.releaseLane(l, now)
}

// restore restores the holds from the last run. A lane stays blocked only if the
// configuration still says so.
func (p *operator) restore(holds []store.Hold) {
	for i := range holds {
		h := &holds[i]
		switch {
		case h.Kind == store.OutboxPaused:
			p.pauseOutbox(h)
			continue
		case h.Kind == store.Blocked && p.core.cfg.OnFailed != Block:
			continue
		}
		l := p.core.spill.Lane(LaneName{LaneKey: h.Lane})
		if h.Kind == store.Blocked {
			p.block(l, h)
		} else {
			l.Paused = h
		}
		l.Hold()
	}
}

// requeue puts formerly FAILED rows in front of their lanes, behind rows that were requeued
// before. A row that the log has delivered again already keeps its place, unless only the log
// has it: then its claim may have found it FAILED, and no sweep would find it again. Of such a
// row only a spilled row keeps its place that neither fails nor is being claimed: a reload
// brought it since the store requeued it.
func (p *operator) requeue(items []store.Item) {
	in := map[*lane]map[store.SpilledRef]bool{}
	items = slices.DeleteFunc(items, func(it store.Item) bool {
		l := p.core.lanes.Get(p.core.lanes.NameOf(&it))
		if l == nil {
			return false
		}
		if in[l] == nil {
			in[l] = p.laneRows(l)
		}
		return in[l][store.SpilledRef{Ref: it.Ref, Seq: it.Seq}]
	})
	p.core.insertFront(items)
}

// laneRows returns a lane's rows that are in memory or being spilled, without Seq, and those
// that a reload brought, with it.
func (p *operator) laneRows(l *lane) map[store.SpilledRef]bool {
	rows := map[store.SpilledRef]bool{}
	failing := map[*row]bool{}
	for o := range p.core.outcomes.All() {
		failing[o.Of.Row] = true
	}
	add := func(rw *row) {
		rows[store.SpilledRef{Ref: rw.Ref}] = true
		if rw.Copy == lanes.CopyStored && l.State != lanes.Claiming && !failing[rw] {
			rows[rw.SpilledRef()] = true
		}
	}
	for _, in := range [][]*row{l.Rows, l.UnspillableTail} {
		for _, rw := range in {
			add(rw)
		}
	}

	for p := range p.core.spill.All() {
		if p.Lane == l {
			add(p.Row)
		}
	}

	return rows
}

// trackSettled starts or stops recording rows that leave their lanes.
func (p *operator) trackSettled(on bool) {
	p.left = nil
	if on {
		p.left = map[store.Ref]bool{}
	}
}

// insertFound inserts rows of one outbox like requeue, and returns how many. It leaves out
// rows that are in a lane, or were since trackSettled.
func (p *operator) insertFound(items []store.Item, now time.Time) int {
	if len(items) == 0 {
		return 0
	}
	items = p.unknown(items[0].Outbox, items)
	refs := make([]store.Ref, len(items))
	for i := range items {
		refs[i] = items[i].Ref
	}
	p.core.insertFront(items)
	p.releaseFixed(refs, now)
	return len(items)
}

// unknown returns the rows that are in no lane of an outbox, and were in none since trackSettled.
func (p *operator) unknown(outbox string, items []store.Item) []store.Item {
	held := map[string]bool{}
	for _, id := range p.core.heldIDs(outbox) {
		held[id] = true
	}
	return slices.DeleteFunc(items, func(it store.Item) bool {
		return held[it.ID] || p.left[store.Ref{Outbox: outbox, ID: it.ID}]
	})
}

// retryNow retries at once a lane that waits for a time or for a breaker.
func (p *operator) retryNow(l *lane) error {
	switch {
	case l == nil:
		return ErrNoLane
	case l.State == lanes.Held, p.core.lanes.OutboxPause(l.Name.Outbox) != nil:
		return errOnHold
	case len(l.Rows) == 0:
		return errSpilled
	case l.State == lanes.Waiting, l.State == lanes.Ready && l.Receiver.Breaker.Open():
		p.core.lanes.Dequeue(l)
		p.core.lanes.QueueUrgent(l)
	}
	return nil
}

// laneInfo describes a lane.
func laneInfo(l *lane) LaneInfo {
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
	case l.State == lanes.Ready && l.Receiver.Breaker.Open() && !l.IsAside():
		in.NextAttempt = l.Receiver.Breaker.NextProbe()
	}

	if l.Stalled && len(l.Rows) > 0 {
		in.Since = l.Rows[0].FailureTimes().First
	}
	if l.Refusal != "" {
		in.Error, in.Since = l.Refusal, l.RefusedSince
	}
	if h := l.Blocked; h != nil {
		in.Head, in.RetryCount, in.Error, in.Since = h.ID, h.RetryCount, h.Reason, h.Since
	}
	if l.IsAside() {
		in.Reason = "table locked by another session"
	}
	if h := l.OutboxPause(); h != nil {
		in.Reason, in.Since = h.Reason, h.Since
	}
	if len(l.ReplayHolds) > 0 {
		in.Reason = "held by replay " + strings.Join(l.ReplayHolds, ", ")
	}
	if h := l.Paused; h != nil {
		in.Reason, in.Since = h.Reason, h.Since
	}
	return in
}
