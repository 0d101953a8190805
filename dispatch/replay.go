package dispatch

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// JobLoad is the memory use of a job.
type JobLoad struct {
	Rows  int
	Bytes int64 // of payload
}

// HoldForReplay holds a lane until ReleaseReplayHold, while a job sends its rows again. The
// hold is not durable, because the job is. A request in flight ends first. The lane need
// not have rows. If ungrouped rows have their own lanes, these lanes keep moving.
func (d *Dispatcher) HoldForReplay(job string, lane store.LaneKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.core.replays.hold(job, lane)
}

// HeldLane is the state of a lane under HoldForReplay.
type HeldLane struct {
	// Quiescent: no claim, request or unwritten outcome of the lane is in flight. Only then does the table show
	// which of its rows were delivered.
	//
	//   - While the table refuses an outcome of the lane, the lane is not quiescent.
	//   - If ungrouped rows have their own lanes, only rows in flight at HoldForReplay count.
	//   - If the lane is not quiescent, wait for the channel of ReplayLoad and ask again.
	Quiescent bool

	Paused  bool // an operator has paused the lane, which pauses its replay lanes too
	Waiting bool // live rows of the lane wait for the end of the hold
}

// HeldLane returns the state of a lane under HoldForReplay.
func (d *Dispatcher) HeldLane(lane store.LaneKey) HeldLane {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.replays.heldLane(lane)
}

// ReleaseReplayHold ends HoldForReplay; other holds remain. To keep the group in order,
// first wait until ReplayLoad has none of its rows.
func (d *Dispatcher) ReleaseReplayHold(job string, lane store.LaneKey) {
	d.change(func(c *core) { c.replays.release(job, lane, time.Now()) })
}

// Replay sends rows again, through the job's own lane of each group. The rows of a lane
// must come in the order of N, each with its payload.
//
//   - The rows are sent without a claim, beside the live rows.
//   - Replays records each row that the receiver accepted or refused for good. The store
//     keeps the row until then.
//   - Rows that are already in memory are ignored.
//   - The rows do not count against the buffer; the caller limits them by ReplayLoad.
func (d *Dispatcher) Replay(job string, rows []store.ReplayRow) {
	d.mu.Lock()
	d.core.replays.add(job, rows)
	d.mu.Unlock()
	notify(d.toClaim)
}

// ReplayLoad returns the rows of a job in memory, in total and per lane. It includes
// finished rows that are not yet recorded. The channel is signaled when the load falls and
// when a lane was paused or resumed. It is shared by all jobs and has a buffer of one.
func (d *Dispatcher) ReplayLoad(job string) (total JobLoad, byLane map[store.LaneKey]int, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	total.Rows, total.Bytes, byLane = d.core.replays.jobs.Load(job)
	return total, maps.Clone(byLane), d.replayChanged
}

// DoneCount returns how many live rows are done since New: delivered, FAILED, or found
// settled or deleted.
func (d *Dispatcher) DoneCount() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.doneRows
}

// WithdrawReplay evicts the rows of a job, rows in flight once their request has ended. It
// does not block. To continue the job, wait until ReplayLoad is empty and read the
// remaining rows from the first.
func (d *Dispatcher) WithdrawReplay(job string) {
	d.change(func(c *core) { c.replays.withdraw(job) })
}

// recordReplayed records the results of replayed rows, one batch at a time.
func (d *Dispatcher) recordReplayed(ctx context.Context) error {
	for {
		d.mu.Lock()
		job, done := d.core.replays.jobs.Next(maxStatementRows)
		d.mu.Unlock()
		if len(done) == 0 {
			if err := await(ctx, d.toRecord, time.Time{}); err != nil {
				return err
			}
			continue
		}
		err := d.retryOwnTables(ctx, "record replayed rows", func() error {
			err := d.opt.Replays.FinishRows(ctx, d.opt.Epoch, job, done)
			if errors.Is(err, store.ErrNoJob) {
				return nil // no job to record it in, and lanes wait for it
			}
			return err
		})
		if err != nil {
			return err
		}
		d.mu.Lock()
		d.core.replays.recorded(time.Now())
		d.mu.Unlock()
		d.notifyReplayed(done)
		d.wakeWorkers()
	}
}

func (d *Dispatcher) notifyReplayed(done []store.FinishedRow) {
	if d.opt.Replayed == nil {
		return
	}
	refused := 0
	for i := range done {
		if done[i].Result == store.ReplayRefused {
			refused++
		}
	}
	d.opt.Replayed(len(done)-refused, refused)
}
