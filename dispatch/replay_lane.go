package dispatch

import (
	"iter"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/replay"
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
		rw := &row{Item: rows[i].Item, job: j, replayN: rows[i].N}
		if !c.jobs.Enter(j, rw.replayN, rw.Lane(), len(rw.Payload)) {
			continue
		}
		rw.Txn, rw.Seq, rw.RetryCount = 0, 0, 0 // they belong to the first delivery
		rw.PayloadSize = len(rw.Payload)
		l := c.replayLane(j, &rw.Item)
		l.rows = append(l.rows, rw)
		c.wake(l)
	}
}

// replayLane returns the job's lane for an item. It is paused if the live lane is.
func (c *core) replayLane(j *replay.Job, it *store.Item) *lane {
	name := c.laneNameOf(it)
	live := c.lanes[name]
	name.Job = j.ID()
	l := c.replayLanes[name]
	if l == nil {
		l = c.newLane(name)
		l.job = j
		if live != nil {
			l.paused = live.paused
		}
		l.receiver.replayLanes++
		c.replayLanes[name] = l
	}

	return l
}

// replayLanesOf returns the replay lanes of a live lane.
func (c *core) replayLanesOf(name LaneName) (lanes []*lane) {
	for name.Job = range c.jobs.All() {
		if l := c.replayLanes[name]; l != nil {
			lanes = append(lanes, l)
		}
	}
	return lanes
}

// laneOf returns a live lane or replay lane by name; nil if there is none.
func (c *core) laneOf(name LaneName) *lane {
	if name.Job == "" {
		return c.lanes[name]
	}
	return c.replayLanes[name]
}

// allLanes iterates over all lanes, replay lanes included.
func (c *core) allLanes() iter.Seq[*lane] {
	return func(yield func(*lane) bool) {
		for _, lanes := range []map[LaneName]*lane{c.lanes, c.replayLanes} {
			for _, l := range lanes {
				if !yield(l) {
					return
				}
			}
		}
	}
}

// withdrawJob evicts the rows of a job: rows in no request at once, the others when their
// request has ended without a result for them.
func (c *core) withdrawJob(id string) {
	j := c.jobs.Withdraw(id)
	if j == nil {
		return
	}
	for _, req := range c.requests.toSend.removeAll(func(req *request) bool { return req.job() == j }) {
		req.receiver().breaker.Withdraw(req.probe)
		for _, r := range req.runs {
			c.release(r.lane)
		}
	}

	for _, l := range c.replayLanes {
		if l.job != j {
			continue
		}
		c.withdrawLane(l)
		if l.inFlight == 0 {
			c.dequeue(l)
			c.wake(l)
		}
	}
}

// withdrawLane evicts the rows of a replay lane that are not in flight.
func (c *core) withdrawLane(l *lane) {
	for _, rw := range l.rows[l.inFlight:] {
		c.removeReplayRow(rw)
	}
	l.rows = slices.Clone(l.rows[:l.inFlight])
}

// removeReplayRow removes a replayed row from the counts.
func (c *core) removeReplayRow(rw *row) {
	c.jobs.Leave(rw.job, rw.replayN, rw.Lane(), len(rw.Payload))
}

// finishReplayRow handles the result of a replayed row. A failure with retries left is not
// recorded. After a final failure the lane waits until it is recorded.
func (c *core) finishReplayRow(rw *row, status store.Status, problem string, l *lane) {
	if status == store.Pending {
		c.wait(l, l.wakeAt)
		return
	}
	done := store.FinishedRow{N: rw.replayN, Lane: rw.Lane(), ID: rw.ID}
	if status == store.Failed {
		done.Result, done.Error = store.ReplayRefused, problem
		l.state, l.inFlight = laneWriting, 1
		if l.withdrawing() {
			c.withdrawLane(l)
		}
	}
	c.jobs.Finish(rw.job, done, owner{rw, l})
}

// replayDoneWritten handles a recorded batch.
func (c *core) replayDoneWritten(now time.Time) {
	batch := c.jobs.Recorded()
	for i := range batch {
		rw, l := batch[i].Of.row, batch[i].Of.lane
		c.removeReplayRow(rw)
		if l != nil {
			rw.done = true
			c.advancePastHead(l, now)
		}
	}
	clear(batch) // release the payloads: no further batch may come
}
