package dispatch

import (
	"context"
	"time"
)

// minTableLockInterval is the minimum time between two waits for the same table, whatever
// the store answers.
const minTableLockInterval = 200 * time.Millisecond

// lockTable marks a table as locked and sets its lanes and outcomes aside.
func (c *core) lockTable(outbox string, now time.Time) {
	if c.outcomes.LockTable(outbox, now) {
		c.lanes.SetAside(outbox)
	}
}

// unlockTable queues everything that waited for a table.
func (c *core) unlockTable(outbox string, now time.Time) {
	outcomes, locked := c.outcomes.UnlockTable(outbox, now)
	if !locked {
		return
	}
	c.lanes.BringBack(outbox)
	for _, o := range outcomes {
		c.requeueOutcome(o)
	}
}

// awaitTables waits in the store for locked tables, one after the other.
func (d *Dispatcher) awaitTables(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		d.mu.Lock()
		outbox, at, locked := d.core.outcomes.NextTable()
		d.mu.Unlock()
		var due <-chan time.Time
		if locked {
			if time.Until(at) <= 0 {
				if err := d.awaitTable(ctx, outbox); err != nil {
					return err
				}
				continue
			}
			timer.Reset(time.Until(at))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.toAwait:
		case <-due:
		}
	}
}

// awaitTable waits in the store for one table. Its error is the context's.
func (d *Dispatcher) awaitTable(ctx context.Context, outbox string) error {
	began := time.Now()
	err := d.opt.Store.AwaitTable(ctx, outbox)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	now := time.Now()
	d.mu.Lock()
	if err == nil {
		d.core.unlockTable(outbox, now)
	} else {
		d.core.outcomes.DeferTable(outbox, later(now, began.Add(minTableLockInterval)))
	}

	d.mu.Unlock()
	if err != nil {
		d.obs.StoreFailed("wait for locked table of outbox "+outbox, err)
	}
	d.wakeWorkers()
	return nil
}
