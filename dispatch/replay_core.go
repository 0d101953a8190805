package dispatch

import (
	"iter"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/replay"
	"github.com/sluicebox/sluicebox/store"
)

// replays are the replay jobs of a sink, with the lanes that they hold.
type replays struct {
	core  *core
	jobs  replay.Jobs[owner] // with rows in memory
	holds replay.Holds[*row] // of ungrouped rows with their own lanes
}

func newReplays(c *core) replays {
	return replays{core: c, jobs: replay.NewJobs[owner](), holds: replay.NewHolds[*row]()}
}

// add appends rows to the lanes of their job, except rows already in memory. Each row must
// have its payload.
func (r *replays) add(id string, rows []store.ReplayRow) {
	if r.core.ended || len(rows) == 0 {
		return
	}
	j := r.jobs.Open(id)
	for i := range rows {
		rw := &row{Item: rows[i].Item, Job: j, ReplayN: rows[i].N}
		if !r.jobs.Enter(j, rw.ReplayN, rw.Lane(), rw.ContentBytes()) {
			continue
		}
		rw.Txn, rw.Seq, rw.RetryCount = 0, 0, 0 // they belong to the first delivery
		rw.PayloadSize = len(rw.Payload)
		l := r.core.lanes.EnsureReplay(j, &rw.Item)
		l.Rows = append(l.Rows, rw)
		r.core.Wake(l)
	}
}

// lanesOf returns the replay lanes of a live lane.
func (r *replays) lanesOf(name LaneName) (lanes []*lane) {
	for name.Job = range r.jobs.All() {
		if l := r.core.lanes.Get(name); l != nil {
			lanes = append(lanes, l)
		}
	}
	return lanes
}

// withdraw evicts the rows of a job: rows in no request at once, the others when their
// request has ended without a result for them.
func (r *replays) withdraw(id string) {
	j := r.jobs.Withdraw(id)
	if j == nil {
		return
	}
	for _, req := range r.core.lanes.Requests.TakeUnsent(func(req *request) bool { return req.Job() == j }) {
		req.Receiver().Breaker.Withdraw(req.Probe)
		for _, run := range req.Runs {
			r.core.release(run.Lane)
		}
	}

	for _, l := range r.core.lanes.Replays() {
		if l.Job != j {
			continue
		}
		r.withdrawLane(l)
		if l.InFlight == 0 {
			r.core.lanes.Dequeue(l)
			r.core.Wake(l)
		}
	}
}

// withdrawLane evicts the rows of a replay lane that are not in flight.
func (r *replays) withdrawLane(l *lane) {
	for _, rw := range l.Rows[l.InFlight:] {
		r.remove(rw)
	}
	l.Rows = slices.Clone(l.Rows[:l.InFlight])
}

// remove removes a replayed row from the counts.
func (r *replays) remove(rw *row) {
	r.jobs.Leave(rw.Job, rw.ReplayN, rw.Lane(), rw.ContentBytes())
}

// finish handles the result of a replayed row. A failure with retries left is not recorded.
// After a final failure the lane waits until it is recorded.
func (r *replays) finish(rw *row, status store.Status, problem string, l *lane) {
	if status == store.Pending {
		r.core.wait(l, l.WakeAt)
		return
	}
	done := store.FinishedRow{N: rw.ReplayN, Lane: rw.Lane(), ID: rw.ID}
	if status == store.Failed {
		done.Result, done.Error = store.ReplayRefused, problem
		l.Write()
		if l.Withdrawing() {
			r.withdrawLane(l)
		}
	}
	r.jobs.Finish(rw.Job, done, owner{Row: rw, Lane: l})
}

// recorded handles a recorded batch.
func (r *replays) recorded(now time.Time) {
	batch := r.jobs.Recorded()
	for i := range batch {
		rw, l := batch[i].Of.Row, batch[i].Of.Lane
		r.remove(rw)
		if l != nil {
			rw.Finish()
			r.core.advancePastHead(l, now)
		}
	}
	clear(batch) // release the payloads: no further batch may come
}

// hold holds a live lane for a job. A run in flight ends first. Rows that have their own
// lanes have no order to keep and move on; the rows in flight among them are recorded.
func (r *replays) hold(id string, key store.LaneKey) {
	if r.core.lanes.HasRowLanes(key) {
		r.holds.Hold(key, r.inFlightRows(key, r.core.lanes.InFlight(key)))
		return
	}
	l := r.core.spill.Lane(LaneName{LaneKey: key})
	if !slices.Contains(l.ReplayHolds, id) {
		l.ReplayHolds = append(l.ReplayHolds, id)
	}
	r.core.lanes.Dequeue(l)
	r.core.Wake(l)
}

// release ends hold.
func (r *replays) release(id string, key store.LaneKey, now time.Time) {
	r.holds.Release(key)
	if l := r.core.lanes.Get(LaneName{LaneKey: key}); l != nil {
		l.ReplayHolds = slices.DeleteFunc(l.ReplayHolds, func(other string) bool { return other == id })
		r.core.operator.releaseLane(l, now)
	}
}

// heldLane returns the state of a held lane. For rows with their own lanes, only rows in flight at the hold
// count. If the lane is not quiescent, the next TakeChanged says to ask again.
func (r *replays) heldLane(key store.LaneKey) (held HeldLane) {
	if rows, there := r.holds.Rows(key); there {
		var lanes []*lane
		for rw := range rows {
			if l := r.core.lanes.Get(r.core.lanes.NameOf(&rw.Item)); l != nil {
				lanes = append(lanes, l)
			}
		}
		held.Quiescent = r.holds.Narrow(key, r.inFlightRows(key, lanes))
	} else if l := r.core.lanes.Get(LaneName{LaneKey: key}); l != nil && len(l.ReplayHolds) > 0 {
		held = HeldLane{
			Quiescent: true,
			Paused:    l.Paused != nil || r.core.lanes.OutboxPause(key.Outbox) != nil,
			Waiting:   l.HasSpilled || len(l.Rows) > l.InFlight,
		}
		for range r.inFlightRows(key, []*lane{l}) {
			held.Quiescent = false
			break
		}
	}

	if !held.Quiescent {
		r.jobs.Notify() // it asks again after the next event
	}
	return held
}

// inFlightRows iterates over the live rows of a key that are in a claim or request of these
// lanes, or have an unwritten outcome.
func (r *replays) inFlightRows(key store.LaneKey, lanes []*lane) iter.Seq[*row] {
	return func(yield func(*row) bool) {
		for _, l := range lanes {
			for _, rw := range l.Rows[:l.InFlight] {
				if !yield(rw) {
					return
				}
			}
		}
		for o := range r.core.outcomes.All() {
			if o.Outbox == key.Outbox && o.Status.Settled() && o.Of.Row.Lane() == key && !yield(o.Of.Row) {
				return
			}
		}
		for rw := range r.core.lanes.Requests.Fresh.All() {
			if rw.PendingOutcome != nil && rw.Lane() == key && !yield(rw) {
				return
			}
		}
		for p := range r.core.spill.All() {
			if rw := p.Row; rw.PendingOutcome != nil && rw.Lane() == key && !yield(rw) {
				return
			}
		}
	}
}
