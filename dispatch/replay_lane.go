package dispatch

import (
	"iter"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Replayed rows have replay lanes beside the live lanes, with the same scheduling, failure
// handling and backoff. They are not claimed, have no status, seq or ticket, and are never
// spilled: the store keeps them for the job until they are finished. Meanwhile the live
// lane of the group is held.

// job is the core's state of a replay.
type job struct {
	id     string
	lanes  map[LaneName]*lane
	rows   map[int64]bool // in memory, by N
	byLane map[store.LaneKey]int
	bytes  int64

	// withdrawing: its rows leave memory as soon as they are in no request.
	withdrawing bool
}

// finishedReplayRow is the result of a replayed row on its way to the store.
type finishedReplayRow struct {
	store.FinishedRow
	row  *row
	lane *lane // waits for the write; nil if it went on
}

// replay appends rows to the lanes of their job, except rows already in memory. Each row
// must have its payload.
func (c *core) replay(id string, rows []store.ReplayRow) {
	if c.ended || len(rows) == 0 {
		return
	}
	j := c.jobs[id]
	if j == nil {
		j = &job{id: id, lanes: map[LaneName]*lane{}, rows: map[int64]bool{}, byLane: map[store.LaneKey]int{}}
		c.jobs[id] = j
	}

	j.withdrawing = false
	for i := range rows {
		if j.rows[rows[i].N] {
			continue
		}
		rw := &row{Item: rows[i].Item, job: j, replayN: rows[i].N}
		rw.Txn, rw.Seq, rw.RetryCount = 0, 0, 0 // they belong to the first delivery
		rw.PayloadSize = len(rw.Payload)
		j.rows[rw.replayN] = true
		j.byLane[rw.Lane()]++
		j.bytes += int64(len(rw.Payload))
		l := c.replayLane(j, &rw.Item)
		l.rows = append(l.rows, rw)
		c.wake(l)
	}
}

// replayLane returns the job's lane for an item. It is paused if the live lane is.
func (c *core) replayLane(j *job, it *store.Item) *lane {
	name := c.laneNameOf(it)
	live := c.lanes[name]
	name.Job = j.id
	l := j.lanes[name]
	if l == nil {
		l = c.newLane(name)
		l.job = j
		if live != nil {
			l.paused = live.paused
		}
		l.receiver.replayLanes++
		j.lanes[name] = l
	}

	return l
}

// replayLanesOf returns the replay lanes of a live lane.
func (c *core) replayLanesOf(name LaneName) (lanes []*lane) {
	for _, j := range c.jobs {
		name.Job = j.id
		if l := j.lanes[name]; l != nil {
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
	if j := c.jobs[name.Job]; j != nil {
		return j.lanes[name]
	}
	return nil
}

// allLanes iterates over all lanes, replay lanes included.
func (c *core) allLanes() iter.Seq[*lane] {
	return func(yield func(*lane) bool) {
		for _, l := range c.lanes {
			if !yield(l) {
				return
			}
		}
		for _, j := range c.jobs {
			for _, l := range j.lanes {
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
	j := c.jobs[id]
	if j == nil {
		return
	}

	j.withdrawing = true
	for _, req := range c.requests.toSend.removeAll(func(req *request) bool { return req.job() == j }) {
		req.receiver().breaker.Withdraw(req.probe)
		for _, r := range req.runs {
			c.release(r.lane)
		}
	}

	for _, l := range j.lanes {
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

// removeReplayRow removes a replayed row from the counts. It deletes a job without rows.
func (c *core) removeReplayRow(rw *row) {
	j, key := rw.job, rw.Lane()
	delete(j.rows, rw.replayN)
	j.bytes -= int64(len(rw.Payload))
	if j.byLane[key]--; j.byLane[key] == 0 {
		delete(j.byLane, key)
	}
	if len(j.rows) == 0 {
		delete(c.jobs, j.id)
	}
	c.replayChanged = true
}

// finishReplayRow handles the result of a replayed row. A failure with retries left is not
// recorded. After a final failure the lane waits until it is recorded.
func (c *core) finishReplayRow(rw *row, status store.Status, problem string, l *lane) {
	if status == store.Pending {
		c.wait(l, l.wakeAt)
		return
	}
	d := finishedReplayRow{FinishedRow: store.FinishedRow{N: rw.replayN, Lane: rw.Lane(), ID: rw.ID}, row: rw, lane: l}
	if status == store.Failed {
		d.Result, d.Error = store.ReplayRefused, problem
		l.state, l.inFlight = laneWriting, 1
		if l.withdrawing() {
			c.withdrawLane(l)
		}
	}
	c.replayDone.add(d)
}

// nextReplayDone returns at most limit finished rows of one job. The caller reports them to
// replayDoneWritten. Only one such batch is in flight.
func (c *core) nextReplayDone(limit int) (id string, done []store.FinishedRow) {
	waiting := c.replayDone.waiting
	if len(c.replayDone.writing) > 0 || len(waiting) == 0 {
		return "", nil
	}
	id = waiting[0].row.job.id
	for len(done) < min(limit, len(waiting)) && waiting[len(done)].row.job.id == id {
		done = append(done, waiting[len(done)].FinishedRow)
	}
	c.replayDone.take(len(done))
	return id, done
}

// replayDoneWritten handles a recorded batch of nextReplayDone.
func (c *core) replayDoneWritten(now time.Time) {
	batch := c.replayDone.written()
	for i := range batch {
		rw, l := batch[i].row, batch[i].lane
		c.removeReplayRow(rw)
		if l != nil {
			rw.done = true
			c.advancePastHead(l, now)
		}
	}
	clear(batch) // release the payloads: no further batch may come
}
