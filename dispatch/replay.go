package dispatch

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Load is how much of a job is in memory.
type Load struct {
	Rows  int
	Bytes int64 // of payload
}

// HoldFor keeps a lane from moving while a job sends its rows again, until LetGo.
// It is not durable, and need not be: the job is. A request under way ends first; the
// lane need not have rows. Where rows without a group have lanes of their own these
// move on.
func (d *Dispatcher) HoldFor(job string, lane store.LaneKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.core.holdFor(job, lane)
}

// Still reports whether nothing of a lane under HoldFor is in a claim or a request,
// or waits for its outcome to be written: only then does the table tell which of its
// rows were delivered. A lane that its table refuses an outcome of may not be still
// for long. Where rows without a group have lanes of their own, the answer is about
// those that were under way at HoldFor. After a no the channel of ReplayLoad is
// signalled when it may have changed. It also reports whether somebody has paused
// the lane: then what is replayed of it waits, too.
func (d *Dispatcher) Still(lane store.LaneKey) (still, paused bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.still(lane)
}

// LetGo ends HoldFor; what others hold stays held. Whoever wants the group in order
// first waits until ReplayLoad has none of its rows.
func (d *Dispatcher) LetGo(job string, lane store.LaneKey) {
	d.mu.Lock()
	d.core.letGoFor(job, lane, time.Now())
	d.mu.Unlock()
	d.announce()
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
func (d *Dispatcher) ReplayLoad(job string) (total Load, byLane map[store.LaneKey]int, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if j := d.core.jobs[job]; j != nil {
		total, byLane = Load{Rows: len(j.rows), Bytes: j.bytes}, maps.Clone(j.byLane)
	}
	return total, byLane, d.replaying
}

// Gone returns how many live rows were done with since New: delivered, FAILED, or found
// settled or deleted.
func (d *Dispatcher) Gone() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.gone
}

// TakeBack takes the rows of a job out of memory, those in a request as soon as that
// has ended. It does not wait. Whoever goes on afterwards waits until ReplayLoad has
// none, and reads the rows that are left from the first.
func (d *Dispatcher) TakeBack(job string) {
	d.mu.Lock()
	d.core.takeJobBack(job)
	d.mu.Unlock()
	d.announce()
}

// noteReplayed writes down what became of replayed rows, one batch at a time.
func (d *Dispatcher) noteReplayed(ctx context.Context) error {
	for {
		d.mu.Lock()
		job, done := d.core.nextDone(maxStatementRows)
		d.mu.Unlock()
		if len(done) == 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-d.toNote:
			}
			continue
		}
		err := d.untilParked(ctx, "note replayed rows", func() error {
			err := d.Replays.DoneRows(ctx, d.epoch, job, done)
			if errors.Is(err, store.ErrNoJob) {
				return nil // nothing is left to note it in, and lanes wait for it
			}
			return err
		})
		if err != nil {
			return err
		}
		d.mu.Lock()
		d.core.noted(time.Now())
		d.mu.Unlock()
		d.tellReplayed(done)
		d.announce()
	}
}

func (d *Dispatcher) tellReplayed(done []store.ReplayDone) {
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
