package dispatch

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// maxSpillRows limits one statement that spills rows or deletes spilled ones.
const maxSpillRows = 5000

// excessScanInterval is the minimum time between two searches for rows to spill. Each
// search visits all lanes.
const excessScanInterval = 50 * time.Millisecond

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
	if now := time.Now(); now.Sub(d.lastExcessScan) >= excessScanInterval {
		d.lastExcessScan = now
		d.retryUnspillable(now)
		d.core.spill.Excess(others)
	}
	d.mu.Unlock()
	notify(d.toSpill)
}

// BufferLevel is the fill level of a dispatcher's buffer.
type BufferLevel struct {
	Size int   // in rows
	Room int   // rows that fit in; negative above the size
	Done int64 // rows finished since New

	// BreakersOpen: every endpoint of the sink has an open circuit breaker.
	BreakersOpen bool
}

// BufferLevel returns the fill level of the buffer.
func (d *Dispatcher) BufferLevel() BufferLevel {
	d.mu.Lock()
	defer d.mu.Unlock()
	breakersOpen := !slices.ContainsFunc(d.core.lanes.Endpoints.All(), func(r *receiver) bool { return !r.Breaker.Open() })
	return BufferLevel{
		Size: d.cfg.BufferRows, Room: d.cfg.BufferRows - d.core.bufferedRows(), Done: d.core.doneRows, BreakersOpen: breakersOpen,
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
	d.retryUnspillable(time.Now())
	d.core.spillForLog(all)
	d.mu.Unlock()
	notify(d.toSpill)
}

// retryUnspillable retries unspillable rows once per spillRetryInterval. The caller holds
// the lock.
func (d *Dispatcher) retryUnspillable(now time.Time) {
	if now.Sub(d.lastSpillRetry) >= spillRetryInterval {
		d.lastSpillRetry = now
		d.core.spill.RetryUnspillable()
	}
}

// notifySpill wakes runSpill if it has work, which is rare. The caller holds the lock.
func (d *Dispatcher) notifySpill() {
	if d.core.spill.HasWork() {
		notify(d.toSpill)
	}
}

// runSpill spills rows, deletes spilled rows and reloads rows, one statement of each in
// turn, so that none starves.
func (d *Dispatcher) runSpill(ctx context.Context) error {
	for {
		worked := false
		for _, step := range []func(context.Context) (bool, error){d.spillBatch, d.deleteBatch, d.reloadBatch} {
			some, err := step(ctx)
			if err != nil {
				return err
			}
			worked = worked || some
		}
		if worked {
			continue
		}
		if err := await(ctx, d.toSpill, time.Time{}); err != nil {
			return err
		}
	}
}

func (d *Dispatcher) spillBatch(ctx context.Context) (bool, error) {
	d.mu.Lock()
	items := d.core.spill.Next(maxSpillRows)
	d.mu.Unlock()
	if len(items) == 0 {
		return false, nil
	}
	n := len(items)
	refused, err := bisectRefused(items, func(items []store.Item) ([]bool, error) {
		_, err := d.retryStore(ctx, "spill", func() error { return d.opt.Store.Spill(ctx, d.opt.Epoch, items) })
		return make([]bool, len(items)), err
	}, func(it *store.Item, err error) bool {
		n--
		d.obs.RowUnspillable(it, err)
		return true
	})
	if err != nil {
		return true, err
	}
	d.mu.Lock()
	d.core.spill.Written(refused)
	d.unspillableReported = d.unspillableReported || n < len(items)
	d.mu.Unlock()
	d.obs.RowsSpilled(n)
	d.wakeWorkers()
	return true, nil
}

func (d *Dispatcher) deleteBatch(ctx context.Context) (bool, error) {
	d.mu.Lock()
	refs := d.core.spill.NextDeletes(maxSpillRows)
	d.mu.Unlock()
	if len(refs) == 0 {
		return false, nil
	}
	_, err := bisectRefused(refs, func(refs []store.SpilledRef) ([]bool, error) {
		_, err := d.retryStore(ctx, "delete spilled rows", func() error { return d.opt.Store.DeleteSpilled(ctx, d.opt.Epoch, refs) })
		return make([]bool, len(refs)), err
	}, func(ref *store.SpilledRef, err error) bool {
		// The row stays in the store and is settled; the next leader detects that.
		d.obs.StoreFailed("delete spilled row "+ref.ID+" of "+ref.Outbox, err)
		return true
	})
	if err != nil {
		return true, err
	}
	d.mu.Lock()
	d.core.spill.Deleted(refs...)
	d.mu.Unlock()
	return true, nil
}

func (d *Dispatcher) reloadBatch(ctx context.Context) (bool, error) {
	d.mu.Lock()
	from, each := d.core.spill.NextReloads(time.Now())
	d.mu.Unlock()
	if len(from) == 0 {
		return false, nil
	}
	var answers [][]store.Item
	err := d.retryOwnTables(ctx, "read spilled rows", func() (err error) {
		answers, err = d.opt.Store.ReadSpilled(ctx, from, each)
		return err
	})
	if err != nil {
		return true, err
	}
	d.change(func(c *core) { c.addReloaded(answers, each) })
	return true, nil
}

// retryOwnTables is retryStore for statements on the relay's tables. It also retries a
// refusal, because there is no single row to set aside.
func (d *Dispatcher) retryOwnTables(ctx context.Context, op string, do func() error) error {
	_, err := d.retryStore(ctx, op, func() error {
		err := do()
		var refused *store.RefusedError
		if errors.As(err, &refused) {
			err = refused.Err
		}
		return err
	})
	return err
}
