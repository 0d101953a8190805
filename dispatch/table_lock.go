package dispatch

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Wait before the store is asked about a locked table. The first wait is zero. It doubles
// each time the table is locked again within tableLockMemory of being free.
const (
	minTableLockWait = 50 * time.Millisecond
	maxTableLockWait = 2 * time.Second
	tableLockMemory  = 10 * time.Second

	// minTableLockInterval is the minimum time between two waits for the same table,
	// whatever the store answers.
	minTableLockInterval = 200 * time.Millisecond
)

// minRowLockWait and maxRowLockWait bound the wait before the outcome of a locked row is
// retried.
const (
	minRowLockWait = 100 * time.Millisecond
	maxRowLockWait = time.Second
)

// lockedTable is the table of an outbox that another session locks, or locked recently. Its
// lanes and outcomes wait here, so that claims and outcomes of other outboxes in the same
// statements go on.
type lockedTable struct {
	outbox   string
	locked   bool
	ready    fifo[*lane] // to be claimed
	urgent   fifo[*lane] // to be claimed first
	outcomes []outcome   // in order
	relocks  int         // locks soon after it was free
	freed    time.Time
	due      time.Time // next wait for the table
}

// tableLock returns the lock on an outbox's table; nil if it is not locked.
func (c *core) tableLock(outbox string) *lockedTable {
	if t := c.tableLocks[outbox]; t != nil && t.locked {
		return t
	}
	return nil
}

// lockTable marks a table as locked and sets its lanes and outcomes aside.
func (c *core) lockTable(outbox string, now time.Time) {
	t := c.tableLocks[outbox]
	if t == nil {
		t = &lockedTable{outbox: outbox}
		c.tableLocks[outbox] = t
	}
	if t.locked {
		return
	}
	t.due = now
	if t.relocks++; now.Sub(t.freed) > tableLockMemory {
		t.relocks = 1
	}
	if t.relocks > 1 {
		t.due = now.Add(min(minTableLockWait<<min(t.relocks-2, 10), maxTableLockWait))
	}

	t.locked = true
	for _, recv := range c.receivers {
		t.ready.items = append(t.ready.items, recv.ready.removeAll(t.covers)...)
		t.ready.items = append(t.ready.items, recv.tried.removeAll(t.covers)...)
	}
	t.ready.items = append(t.ready.items, c.large.removeAll(t.covers)...)
	slices.SortFunc(t.ready.items, func(a, b *lane) int { return cmp.Compare(a.readyOrder, b.readyOrder) })

	t.urgent.items = c.urgent.removeAll(t.covers)
	for _, l := range slices.Concat(t.ready.items, t.urgent.items) {
		l.locked = true
	}

	waiting := c.outcomes.waiting
	c.outcomes.waiting = nil
	for _, o := range waiting {
		c.queueOutcome(o)
	}
}

// covers reports whether the lane claims its rows in the table.
func (t *lockedTable) covers(l *lane) bool { return l.name.Outbox == t.outbox && l.job == nil }

// queueOutcome queues an outcome.
func (c *core) queueOutcome(o outcome) {
	if t := c.tableLock(o.Outbox); t != nil {
		t.outcomes = append(t.outcomes, o)
		return
	}
	c.outcomes.add(o)
}

// queueUrgent queues a lane to be claimed first.
func (c *core) queueUrgent(l *lane) {
	l.state = laneReady
	if t := c.tableLock(l.name.Outbox); t != nil && t.covers(l) {
		l.locked = true
		t.urgent.push(l)
		return
	}
	c.urgent.push(l)
}

// nextLockedTable returns the locked table that is due first; false if none is locked.
func (c *core) nextLockedTable() (outbox string, due time.Time, ok bool) {
	for _, t := range c.tableLocks {
		if t.locked && (!ok || t.due.Before(due) || t.due.Equal(due) && t.outbox < outbox) {
			outbox, due, ok = t.outbox, t.due, true
		}
	}
	return outbox, due, ok
}

// deferTable postpones the next wait for a table.
func (c *core) deferTable(outbox string, due time.Time) {
	if t := c.tableLock(outbox); t != nil {
		t.due = due
	}
}

// unlockTable queues everything that waited for a table.
func (c *core) unlockTable(outbox string, now time.Time) {
	t := c.tableLock(outbox)
	if t == nil {
		return
	}
	t.locked, t.freed = false, now
	ready, urgent, outcomes := t.ready.items, t.urgent.items, t.outcomes
	t.ready, t.urgent, t.outcomes = fifo[*lane]{}, fifo[*lane]{}, nil

	for _, l := range urgent {
		l.locked = false
		c.queueUrgent(l)
	}

	for _, l := range ready {
		l.locked = false
		c.queue(l)
	}

	for _, o := range outcomes {
		c.requeueOutcome(o)
	}
}

// deferLocked sets aside an outcome whose row or table is locked, and reports whether it
// did.
func (c *core) deferLocked(o *outcome, result store.SettleResult, now time.Time) bool {
	switch result {
	case store.TableWasLocked:
		c.lockTable(o.Outbox, now)
		c.queueOutcome(*o)
	case store.WasLocked:
		c.outcomes.deferRowLocked(o, now)
	default:
		return false
	}
	return true
}

// unwrittenOutcomes iterates over all outcomes that are not yet in the store.
func (c *core) unwrittenOutcomes() iter.Seq[*outcome] {
	return func(yield func(*outcome) bool) {
		queues := [][]outcome{c.outcomes.waiting, c.outcomes.writing, c.outcomes.retry}
		for _, t := range c.tableLocks {
			queues = append(queues, t.outcomes)
		}
		for _, queue := range queues {
			for i := range queue {
				if !yield(&queue[i]) {
					return
				}
			}
		}
	}
}

// awaitTables waits in the store for locked tables, one after the other.
func (d *Dispatcher) awaitTables(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		d.mu.Lock()
		outbox, at, locked := d.core.nextLockedTable()
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
	err := d.store.AwaitTable(ctx, outbox)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	now := time.Now()
	d.mu.Lock()
	if err == nil {
		d.core.unlockTable(outbox, now)
	} else {
		d.core.deferTable(outbox, later(now, began.Add(minTableLockInterval)))
	}

	d.mu.Unlock()
	if err != nil {
		d.obs.StoreFailed("wait for locked table of outbox "+outbox, err)
	}
	d.wakeWorkers()
	return nil
}
