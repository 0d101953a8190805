package dispatch

import (
	"context"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// maxSpillRows limits one statement that spills rows or deletes spilled ones.
const maxSpillRows = 5000

// excessScanInterval is the minimum time between two searches for rows to spill. Each
// search visits all lanes.
const excessScanInterval = 50 * time.Millisecond

// While the buffer has room, no row is spilled in a hurry: it would take the processors from rows that are
// delivered, for example by other routes of the outbox. So a statement spills few rows, and the next one
// begins after a rest of restFactor times its duration, within bounds. In a rest other legs of the rows
// end, so that one record tells it.
const (
	gentleRows   = 50
	restFactor   = 4
	minSpillRest = 20 * time.Millisecond
	maxSpillRest = 100 * time.Millisecond
)

// spillRetryInterval is the minimum time between two tries to spill unspillable rows.
const spillRetryInterval = time.Minute

// RestoreSpilled registers the lanes with spilled rows from earlier runs. Call it before
// Restore and before the first row. A lane may be given more than once.
func (d *Dispatcher) RestoreSpilled(lanes ...store.SpilledLane) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.core.spill.AddLanes(lanes)
}

// SpillExcess starts to spill lanes until half the buffer is free. It takes lanes that do
// not move although the sink works, and with others any lane. It does not block.
func (d *Dispatcher) SpillExcess(others bool) {
	d.mu.Lock()
	d.spill.excess(others, time.Now())
	d.mu.Unlock()
	notify(d.toSpill)
}

// BufferLevel is the fill level of a dispatcher's buffer.
type BufferLevel struct {
	Size int   // in rows
	Room int   // rows that fit in; negative above the size
	Done int64 // rows finished since New
	Came int64 // rows that came from the source since New

	// BreakersOpen: every endpoint of the sink has an open circuit breaker.
	BreakersOpen bool
}

// BufferLevel returns the fill level of the buffer.
func (d *Dispatcher) BufferLevel() BufferLevel {
	d.mu.Lock()
	defer d.mu.Unlock()
	breakersOpen := !slices.ContainsFunc(d.core.lanes.Endpoints.All(), func(r *receiver) bool { return !r.Breaker.Open() })
	return BufferLevel{
		Size: d.cfg.BufferRows, Room: d.cfg.BufferRows - d.core.bufferedRows(), Done: d.core.doneRows, Came: d.core.cameRows, BreakersOpen: breakersOpen,
	}
}

// InFlightRows is the number of rows in claims and requests. They cannot be spilled and
// have their own limit. The time is linear in the lanes.
func (d *Dispatcher) InFlightRows() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.core.lanes.Live() {
		n += l.InFlight
	}
	return n
}

// Spill starts to spill the rows that keep the database from discarding its log: rows of
// lanes that do not move, or of all lanes. It does not block.
func (d *Dispatcher) Spill(all bool) {
	d.mu.Lock()
	d.spill.retryUnspillable(time.Now())
	d.core.spillForLog(all)
	d.spill.hurries = true
	d.mu.Unlock()
	notify(d.toSpill)
}

// notifySpill wakes the spill worker if it has work, which is rare. The caller holds the lock.
func (d *Dispatcher) notifySpill() {
	if d.core.spill.HasWork() {
		notify(d.toSpill)
	}
}

// spillWorker spills rows, deletes spilled rows and reloads rows. The lock of the dispatcher
// guards its fields.
type spillWorker struct {
	d                   *Dispatcher
	lastScan, lastRetry time.Time // of rows to spill, and of unspillable rows
	rest                time.Time // until when rows are not spilled unless they are urgent
	resting             bool      // rows wait for the end of the rest
	reported            bool      // the observer knows of unspillable rows
	hurries             bool      // the rows to spill hold the database's log
}

// excess spills lanes until half the buffer is free, once per excessScanInterval; see SpillExcess.
// The caller holds the lock.
func (w *spillWorker) excess(others bool, now time.Time) {
	if now.Sub(w.lastScan) >= excessScanInterval {
		w.lastScan = now
		w.retryUnspillable(now)
		w.d.core.spill.Excess(others, now)
	}
}

// cleared reports once that no unspillable row is left, if the observer knows of one. The caller
// holds the lock.
func (w *spillWorker) cleared() bool {
	cleared := w.reported && w.d.core.spill.Counts().Unspillable == 0
	w.reported = w.reported && !cleared
	return cleared
}

// retryUnspillable retries unspillable rows once per spillRetryInterval. The caller holds
// the lock.
func (w *spillWorker) retryUnspillable(now time.Time) {
	if now.Sub(w.lastRetry) >= spillRetryInterval {
		w.lastRetry = now
		w.d.core.spill.RetryUnspillable()
	}
}

// run spills rows, deletes spilled rows and reloads rows, one statement of each in
// turn, so that none starves.
func (w *spillWorker) run(ctx context.Context) error {
	for {
		worked := false
		for _, step := range []func(context.Context) (bool, error){w.spillBatch, w.deleteBatch, w.reloadBatch} {
			some, err := step(ctx)
			if err != nil {
				return err
			}
			worked = worked || some
		}
		if worked {
			continue
		}
		wake := time.Time{}
		if w.resting {
			wake = w.rest
		}
		if err := await(ctx, w.d.toSpill, wake); err != nil {
			return err
		}
	}
}

// next returns the rows to spill now. It sets resting if rows wait for the end of the rest.
func (w *spillWorker) next(now time.Time) []store.Item {
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	c := w.d.core
	waiting := c.spill.Counts().Waiting > 0
	w.hurries = w.hurries && waiting
	urgent := w.hurries || c.ended || c.bufferedRows() >= c.cfg.BufferRows
	w.resting = waiting && !urgent && now.Before(w.rest)
	switch {
	case w.resting:
		return nil
	case urgent:
		return c.spill.Next(maxSpillRows)
	}
	return c.spill.Next(gentleRows)
}

func (w *spillWorker) spillBatch(ctx context.Context) (bool, error) {
	began := time.Now()
	items := w.next(began)
	if len(items) == 0 {
		return false, nil
	}
	defer func() {
		ended := time.Now()
		w.rest = ended.Add(min(maxSpillRest, max(minSpillRest, restFactor*ended.Sub(began))))
	}()
	n := len(items)
	refused, err := bisectRefused(items, func(items []store.Item) ([]bool, error) {
		_, err := w.d.retry(ctx, "spill", func() error { return w.d.opt.Store.Spill(ctx, w.d.opt.Epoch, items) })
		return make([]bool, len(items)), err
	}, func(it *store.Item, err error) bool {
		n--
		w.d.obs.RowUnspillable(it, err)
		return true
	})
	if err != nil {
		return true, err
	}
	w.d.mu.Lock()
	w.d.core.spill.Written(refused)
	w.reported = w.reported || n < len(items)
	w.d.mu.Unlock()
	w.d.obs.RowsSpilled(n)
	w.d.wakeWorkers()
	return true, nil
}

func (w *spillWorker) deleteBatch(ctx context.Context) (bool, error) {
	w.d.mu.Lock()
	refs := w.d.core.spill.NextDeletes(maxSpillRows)
	w.d.mu.Unlock()
	if len(refs) == 0 {
		return false, nil
	}
	_, err := bisectRefused(refs, func(refs []store.SpilledRef) ([]bool, error) {
		_, err := w.d.retry(ctx, "delete spilled rows", func() error { return w.d.opt.Store.DeleteSpilled(ctx, w.d.opt.Epoch, refs) })
		return make([]bool, len(refs)), err
	}, func(ref *store.SpilledRef, err error) bool {
		// The row stays in the store and is settled; the next leader detects that.
		w.d.obs.StoreFailed("delete spilled row "+ref.ID+" of "+ref.Outbox, err)
		return true
	})
	if err != nil {
		return true, err
	}
	w.d.mu.Lock()
	w.d.core.spill.Deleted(refs...)
	w.d.mu.Unlock()
	return true, nil
}

func (w *spillWorker) reloadBatch(ctx context.Context) (bool, error) {
	w.d.mu.Lock()
	from, each := w.d.core.spill.Reloads.Next(time.Now())
	w.d.mu.Unlock()
	if len(from) == 0 {
		return false, nil
	}
	var answers [][]store.Item
	err := w.d.retryOwnTables(ctx, "read spilled rows", func() (err error) {
		answers, err = w.d.opt.Store.ReadSpilled(ctx, from, each)
		return err
	})
	if err != nil {
		return true, err
	}
	w.d.change(func(c *core) { c.addReloaded(answers, each) })
	return true, nil
}
