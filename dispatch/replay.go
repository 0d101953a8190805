package dispatch

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// JobLoad is how much of a job is in memory.
type JobLoad struct {
	Rows  int
	Bytes int64 // of payload
}

// HoldForReplay keeps a lane from moving while a job sends its rows again, until ReleaseReplayHold.
// It is not durable, and need not be: the job is. A request under way ends first; the
// lane need not have rows. Where rows without a group have lanes of their own these
// move on.
func (d *Dispatcher) HoldForReplay(job string, lane store.LaneKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.core.holdForReplay(job, lane)
}

// Quiescent reports whether nothing of a lane under HoldForReplay is in a claim or a request,
// or waits for its outcome to be written: only then does the table tell which of its
// rows were delivered. A lane that its table refuses an outcome of may not be still
// for long. Where rows without a group have lanes of their own, the answer is about
// those that were under way at HoldForReplay. After a no the channel of ReplayLoad is
// signalled when it may have changed. It also reports whether somebody has paused
// the lane: then what is replayed of it waits, too.
func (d *Dispatcher) Quiescent(lane store.LaneKey) (still, paused bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.quiescent(lane)
}

// ReleaseReplayHold ends HoldForReplay; what others hold stays held. Whoever wants the group in order
// first waits until ReplayLoad has none of its rows.
func (d *Dispatcher) ReleaseReplayHold(job string, lane store.LaneKey) {
	d.mu.Lock()
	d.core.releaseReplayHold(job, lane, time.Now())
	d.mu.Unlock()
	d.wakeWorkers()
}

// Replay sends rows again. They go to the end of the job's own lane of their group,
// so a lane's rows are to come in the order of N, each with its payload. They are sent
// without a claim beside what is live, and Replays is told of each that its receiver
// took or refused for good; until then the store keeps the row. Rows that are in
// memory already are left alone. They have no share of the buffer: the caller bounds
// them by ReplayLoad.
func (d *Dispatcher) Replay(job string, rows []store.ReplayRow) {
	d.mu.Lock()
	d.core.replay(job, rows)
	d.mu.Unlock()
	notify(d.toClaim)
}

// ReplayLoad returns how much of a job is in memory and how many rows of each lane,
// those included that are done with and not yet written down. The channel is
// signalled when it falls, and when a lane was paused or resumed; it is one for all
// jobs and has room for one.
func (d *Dispatcher) ReplayLoad(job string) (total JobLoad, byLane map[store.LaneKey]int, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if j := d.core.jobs[job]; j != nil {
		total, byLane = JobLoad{Rows: len(j.rows), Bytes: j.bytes}, maps.Clone(j.byLane)
	}
	return total, byLane, d.replayChanged
}

// DoneCount returns how many live rows were done with since New: delivered, FAILED, or found
// settled or deleted.
func (d *Dispatcher) DoneCount() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.doneRows
}

// WithdrawReplay takes the rows of a job out of memory, those in a request as soon as that
// has ended. It does not wait. Whoever goes on afterwards waits until ReplayLoad has
// none, and reads the rows that are left from the first.
func (d *Dispatcher) WithdrawReplay(job string) {
	d.mu.Lock()
	d.core.withdrawJob(job)
	d.mu.Unlock()
	d.wakeWorkers()
}

// recordReplayed writes down what became of replayed rows, one batch at a time.
func (d *Dispatcher) recordReplayed(ctx context.Context) error {
	for {
		d.mu.Lock()
		job, done := d.core.nextReplayDone(maxStatementRows)
		d.mu.Unlock()
		if len(done) == 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-d.toRecord:
			}
			continue
		}
		err := d.retryOwnTables(ctx, "note replayed rows", func() error {
			err := d.Replays.FinishRows(ctx, d.epoch, job, done)
			if errors.Is(err, store.ErrNoJob) {
				return nil // nothing is left to note it in, and lanes wait for it
			}
			return err
		})
		if err != nil {
			return err
		}
		d.mu.Lock()
		d.core.replayDoneWritten(time.Now())
		d.mu.Unlock()
		d.notifyReplayed(done)
		d.wakeWorkers()
	}
}

func (d *Dispatcher) notifyReplayed(done []store.FinishedRow) {
	if d.Replayed == nil {
		return
	}
	refused := 0
	for i := range done {
		if done[i].Result == store.ReplayRefused {
			refused++
		}
	}
	d.Replayed(len(done)-refused, refused)
}
