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
		c.lanes.LockTable(outbox)
	}
}

// unlockTable queues everything that waited for a table.
func (c *core) unlockTable(outbox string, now time.Time) {
	outcomes, locked := c.outcomes.UnlockTable(outbox, now)
	if !locked {
		return
	}
	c.lanes.UnlockTable(outbox)
	for _, o := range outcomes {
		c.requeueOutcome(o)
	}
}

// awaitTables waits in the store for locked tables, one after the other.
func (d *Dispatcher) awaitTables(ctx context.Context) error {
	for {
		d.mu.Lock()
		outbox, at, locked := d.core.outcomes.NextTable()
		d.mu.Unlock()
		var err error
		if locked && time.Until(at) <= 0 {
			err = d.awaitTable(ctx, outbox)
		} else {
			err = await(ctx, d.toAwait, at)
		}
		if err != nil {
			return err
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
	if err != nil {
		d.obs.StoreFailed("wait for locked table of outbox "+outbox, err)
	}
	d.change(func(c *core) {
		now := time.Now()
		if err == nil {
			c.unlockTable(outbox, now)
		} else {
			c.outcomes.DeferTable(outbox, later(now, began.Add(minTableLockInterval)))
		}
	})
	return nil
}
