package dispatch

import (
	"slices"
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// Replayed rows have replay lanes beside the live lanes, with the same scheduling, failure
// handling and backoff. They are not claimed, have no status, seq or ticket, and are never
// spilled: the store keeps them for the job until they are finished. Meanwhile the live
// lane of the group is held.

// replay appends rows to the lanes of their job, except rows already in memory. Each row
// must have its payload.
func (c *core) replay(id string, rows []store.ReplayRow) {
	if c.ended || len(rows) == 0 {
		return
	}
	j := c.jobs.Open(id)
	for i := range rows {
		rw := &row{Item: rows[i].Item, Job: j, ReplayN: rows[i].N}
		if !c.jobs.Enter(j, rw.ReplayN, rw.Lane(), len(rw.Payload)) {
			continue
		}
		rw.Txn, rw.Seq, rw.RetryCount = 0, 0, 0 // they belong to the first delivery
		rw.PayloadSize = len(rw.Payload)
		l := c.lanes.EnsureReplay(j, &rw.Item)
		l.Rows = append(l.Rows, rw)
		c.Wake(l)
	}
}

// replayLanesOf returns the replay lanes of a live lane.
func (c *core) replayLanesOf(name LaneName) (lanes []*lane) {
	for name.Job = range c.jobs.All() {
		if l := c.lanes.Get(name); l != nil {
			lanes = append(lanes, l)
		}
	}
	return lanes
}

// withdrawJob evicts the rows of a job: rows in no request at once, the others when their
// request has ended without a result for them.
func (c *core) withdrawJob(id string) {
	j := c.jobs.Withdraw(id)
	if j == nil {
		return
	}
	for _, req := range c.lanes.Requests.TakeUnsent(func(req *request) bool { return req.Job() == j }) {
		req.Receiver().Breaker.Withdraw(req.Probe)
		for _, r := range req.Runs {
			c.release(r.Lane)
		}
	}

	for _, l := range c.lanes.Replays() {
		if l.Job != j {
			continue
		}
		c.withdrawLane(l)
		if l.InFlight == 0 {
			c.lanes.Dequeue(l)
			c.Wake(l)
		}
	}
}

// withdrawLane evicts the rows of a replay lane that are not in flight.
func (c *core) withdrawLane(l *lane) {
	for _, rw := range l.Rows[l.InFlight:] {
		c.removeReplayRow(rw)
	}
	l.Rows = slices.Clone(l.Rows[:l.InFlight])
}

// removeReplayRow removes a replayed row from the counts.
func (c *core) removeReplayRow(rw *row) {
	c.jobs.Leave(rw.Job, rw.ReplayN, rw.Lane(), len(rw.Payload))
}

// finishReplayRow handles the result of a replayed row. A failure with retries left is not
// recorded. After a final failure the lane waits until it is recorded.
func (c *core) finishReplayRow(rw *row, status store.Status, problem string, l *lane) {
	if status == store.Pending {
		c.wait(l, l.WakeAt)
		return
	}
	done := store.FinishedRow{N: rw.ReplayN, Lane: rw.Lane(), ID: rw.ID}
	if status == store.Failed {
		done.Result, done.Error = store.ReplayRefused, problem
		l.State, l.InFlight = lanes.Writing, 1
		if l.Withdrawing() {
			c.withdrawLane(l)
		}
	}
	c.jobs.Finish(rw.Job, done, owner{Row: rw, Lane: l})
}

// replayDoneWritten handles a recorded batch.
func (c *core) replayDoneWritten(now time.Time) {
	batch := c.jobs.Recorded()
	for i := range batch {
		rw, l := batch[i].Of.Row, batch[i].Of.Lane
		c.removeReplayRow(rw)
		if l != nil {
			rw.Done = true
			c.advancePastHead(l, now)
		}
	}
	clear(batch) // release the payloads: no further batch may come
}
