package dispatch

import (
	"cmp"
	"container/heap"
	"context"
	"iter"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// The wait before a locked table is asked for. The first time that is at once; each
// time that the table is locked again within lockMemory of being free, it doubles.
const (
	lockFirst  = 50 * time.Millisecond
	lockMost   = 2 * time.Second
	lockMemory = 10 * time.Second
	// lockTurn is the least time between two questions for one table, whatever the
	// store answers.
	lockTurn = 200 * time.Millisecond
)

// rowLockFirst and rowLockMost bound the wait before the outcome of a locked row is
// written again.
const (
	rowLockFirst = 100 * time.Millisecond
	rowLockMost  = time.Second
)

// lockedTable is the table of an outbox that another session keeps locked, or kept a
// moment ago. Meanwhile its lanes and outcomes wait here, so that claims and outcomes
// of other outboxes, which share statements with them, go on.
type lockedTable struct {
	outbox   string
	locked   bool
	ready    fifo[*lane] // lanes that are to be claimed
	urgent   fifo[*lane] // those to be claimed at once
	outcomes []outcome   // in their order
	pauses   int         // how often it was locked again, soon after it was free
	freed    time.Time
	due      time.Time // when the store is to be asked whether it is free
}

// lockOf returns the lock on an outbox's table, nil if there is none.
func (c *core) lockOf(outbox string) *lockedTable {
	if t := c.tables[outbox]; t != nil && t.locked {
		return t
	}
	return nil
}

// lockTable notes that a table is locked and puts aside what waits for it.
func (c *core) lockTable(outbox string, now time.Time) {
	t := c.tables[outbox]
	if t == nil {
		t = &lockedTable{outbox: outbox}
		c.tables[outbox] = t
	}
	if t.locked {
		return
	}
	t.due = now
	if t.pauses++; now.Sub(t.freed) > lockMemory {
		t.pauses = 1
	}
	if t.pauses > 1 {
		t.due = now.Add(min(lockFirst<<min(t.pauses-2, 10), lockMost))
	}
	t.locked = true
	for _, recv := range c.receivers {
		t.ready.items = append(t.ready.items, recv.ready.takeAll(t.has)...)
		t.ready.items = append(t.ready.items, recv.tried.takeAll(t.has)...)
	}
	t.ready.items = append(t.ready.items, c.large.takeAll(t.has)...)
	slices.SortFunc(t.ready.items, func(a, b *lane) int { return cmp.Compare(a.queued, b.queued) })
	t.urgent.items = c.urgent.takeAll(t.has)
	for _, l := range slices.Concat(t.ready.items, t.urgent.items) {
		l.locked = true
	}
	waiting := c.outcomes
	c.outcomes = nil
	for _, o := range waiting {
		c.post(o)
	}
}

// has reports whether the lane's rows have to be claimed in the table.
func (t *lockedTable) has(l *lane) bool { return l.name.Outbox == t.outbox && l.job == nil }

// post queues an outcome to be written.
func (c *core) post(o outcome) {
	if t := c.lockOf(o.Outbox); t != nil {
		t.outcomes = append(t.outcomes, o)
		return
	}
	c.outcomes = append(c.outcomes, o)
}

// rush queues a lane to be claimed at once.
func (c *core) rush(l *lane) {
	l.state = laneReady
	if t := c.lockOf(l.name.Outbox); t != nil && t.has(l) {
		l.locked = true
		t.urgent.push(l)
		return
	}
	c.urgent.push(l)
}

// nextLocked returns the locked table that has waited longest for its turn to be asked
// for, and when that is; false if none is locked.
func (c *core) nextLocked() (outbox string, due time.Time, ok bool) {
	for _, t := range c.tables {
		if t.locked && (!ok || t.due.Before(due) || t.due.Equal(due) && t.outbox < outbox) {
			outbox, due, ok = t.outbox, t.due, true
		}
	}
	return outbox, due, ok
}

// stillLocked puts the next question for a table off.
func (c *core) stillLocked(outbox string, due time.Time) {
	if t := c.lockOf(outbox); t != nil {
		t.due = due
	}
}

// unlockTable lets go on what waited for a table.
func (c *core) unlockTable(outbox string, now time.Time) {
	t := c.lockOf(outbox)
	if t == nil {
		return
	}
	t.locked, t.freed = false, now
	ready, urgent, outcomes := t.ready.items, t.urgent.items, t.outcomes
	t.ready, t.urgent, t.outcomes = fifo[*lane]{}, fifo[*lane]{}, nil
	for _, l := range urgent {
		l.locked = false
		c.rush(l)
	}
	for _, l := range ready {
		l.locked = false
		c.queue(l)
	}
	for _, o := range outcomes {
		c.retry(o)
	}
}

// putOff puts aside an outcome whose row is locked, or whose table is, and reports
// whether it did.
func (c *core) putOff(o *outcome, result store.SettleResult, now time.Time) bool {
	switch result {
	case store.TableWasLocked:
		c.lockTable(o.Outbox, now)
		c.post(*o)
	case store.WasLocked:
		wait := min(rowLockFirst<<min(o.locks, 10), rowLockMost)
		o.due = now.Truncate(wait).Add(wait) // with all others that wait so long
		o.locks++
		heap.Push(&c.refused, *o)
	default:
		return false
	}
	return true
}

// unwritten goes through all outcomes that are not in the store yet.
func (c *core) unwritten() iter.Seq[*outcome] {
	return func(yield func(*outcome) bool) {
		queues := [][]outcome{c.outcomes, c.writing, c.refused}
		for _, t := range c.tables {
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

// awaitTables asks the store for locked tables, one after the other, until they are
// free.
func (d *Dispatcher) awaitTables(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		d.mu.Lock()
		outbox, at, locked := d.core.nextLocked()
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

// awaitTable asks the store for one table. Its error is the context's.
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
		d.core.stillLocked(outbox, later(now, began.Add(lockTurn)))
	}
	d.mu.Unlock()
	if err != nil {
		d.obs.StoreFailed("write to outbox "+outbox, err)
	}
	d.announce()
	return nil
}
