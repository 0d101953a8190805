package dispatch

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// minTableLockInterval is the minimum time between two waits for the same table, whatever
// the store answers.
const minTableLockInterval = 200 * time.Millisecond

// lockedLanes are the lanes of an outbox whose table another session locks. They wait here,
// so that claims of other outboxes in the same statement go on.
type lockedLanes struct {
	outbox string
	ready  fifo[*lane] // to be claimed
	urgent fifo[*lane] // to be claimed first
}

// lockTable marks a table as locked and sets its lanes and outcomes aside.
func (c *core) lockTable(outbox string, now time.Time) {
	if c.outcomes.LockTable(outbox, now) {
		c.setAside(outbox)
	}
}

// setAside sets the lanes of a locked table aside.
func (c *core) setAside(outbox string) {
	t := &lockedLanes{outbox: outbox}
	c.lockedLanes[outbox] = t
	for _, recv := range c.receivers {
		t.ready.items = append(t.ready.items, recv.ready.removeAll(t.covers)...)
		t.ready.items = append(t.ready.items, recv.tried.removeAll(t.covers)...)
	}
	t.ready.items = append(t.ready.items, c.large.removeAll(t.covers)...)
	slices.SortFunc(t.ready.items, func(a, b *lane) int { return cmp.Compare(a.ReadyOrder, b.ReadyOrder) })

	t.urgent.items = c.urgent.removeAll(t.covers)
	for _, l := range slices.Concat(t.ready.items, t.urgent.items) {
		l.Locked = true
	}
}

// covers reports whether the lane claims its rows in the table.
func (t *lockedLanes) covers(l *lane) bool { return l.Name.Outbox == t.outbox && l.Job == nil }

// queueUrgent queues a lane to be claimed first.
func (c *core) queueUrgent(l *lane) {
	l.State = laneReady
	if t := c.lockedLanes[l.Name.Outbox]; t != nil && t.covers(l) {
		l.Locked = true
		t.urgent.push(l)
		return
	}
	c.urgent.push(l)
}

// unlockTable queues everything that waited for a table.
func (c *core) unlockTable(outbox string, now time.Time) {
	outcomes, locked := c.outcomes.UnlockTable(outbox, now)
	if !locked {
		return
	}
	t := c.lockedLanes[outbox]
	delete(c.lockedLanes, outbox)
	for _, l := range t.urgent.items {
		l.Locked = false
		c.queueUrgent(l)
	}

	for _, l := range t.ready.items {
		l.Locked = false
		c.queue(l)
	}

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
