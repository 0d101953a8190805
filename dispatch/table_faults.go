package dispatch

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"time"
	"unicode/utf8"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// A table may refuse an outcome, for example because of a trigger or a constraint. The
// outcome stays in memory and is retried with backoff until the table accepts it.
//
// The row is spilled at once so that it does not hold the log, which costs one insert. Its
// outbox row is still open: after a restart the spilled copy is claimed and sent again. The
// transaction that writes the outcome deletes the copy.
//
//   - A COMPLETED row is in no lane any more, and its group goes on.
//   - For any other outcome the lane waits. The rows behind its head are spilled like those
//     of any lane that does not move.
//   - Once refused outcomes exceed half the buffer, no row is claimed, because it would be
//     sent again after a restart.
//
// A refused outcome takes a few hundred bytes, because its payload is dropped. Memory holds
// half a buffer of them, and at most as many more as the buffer had delivered rows at that
// time.

// maxRefusalBytes limits the stored database error.
const maxRefusalBytes = 300

// recordRefusal records that the store refused an outcome, which is deferred.
func (c *core) recordRefusal(o *outcome, now time.Time) {
	if o.Of.Lane != nil {
		o.Of.Lane.SetRefusal(o.Refusal, now)
	}
	c.spill.Unwritten(o)
}

// requeueOutcome queues a deferred outcome again. Its row may have been spilled since.
func (c *core) requeueOutcome(o outcome) {
	if o.Of.Lane == nil && o.Status == store.Pending {
		c.outcomes.Add(o) // a spilled row stays spilled
		return
	}
	c.Enqueue(o)
}

// Refusal is a row whose claim or outcome its table refuses.
type Refusal struct {
	store.Ref
	Error string
	Since time.Time // when it was first refused
}

// RefusedRows returns at most limit refused rows, the longest refused first, and their total
// number per outbox. stopped reports whether there are so many that no row is sent. The
// time is linear in the lanes.
func (d *Dispatcher) RefusedRows(limit int) (rows []Refusal, byOutbox map[string]int, stopped bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	rows = d.core.refusedRows()
	byOutbox = map[string]int{}
	for i := range rows {
		byOutbox[rows[i].Outbox]++
	}
	return rows[:min(limit, len(rows))], byOutbox, d.core.outcomes.Refused() > 0 && d.core.tooManyUnwritten()
}

func (c *core) refusedRows() (rows []Refusal) {
	for o := range c.eachRefusedOutcome() {
		rows = append(rows, Refusal{o.Ref, o.Refusal, o.Since})
	}
	for _, l := range c.lanes.Live() {
		if l.Refusal != "" && l.State != lanes.Writing && len(l.Rows) > 0 {
			rows = append(rows, Refusal{l.Rows[0].Ref, l.Refusal, l.RefusedSince})
		}
	}
	slices.SortFunc(rows, func(a, b Refusal) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Outbox, b.Outbox), cmp.Compare(a.ID, b.ID))
	})
	return rows
}

// unwrittenLanes describes the lanes of delivered rows whose COMPLETED the table refuses.
// Such a lane may have gone on, or have no rows left.
func (c *core) unwrittenLanes() map[LaneName]*LaneInfo {
	oldest := slices.SortedFunc(c.eachRefusedOutcome(), func(a, b *outcome) int { return a.Since.Compare(b.Since) })
	found := map[LaneName]*LaneInfo{}
	for _, o := range oldest {
		if o.Of.Lane != nil || o.Status != store.Completed {
			continue
		}
		name := c.lanes.NameOf(&o.Of.Row.Item)
		if found[name] == nil {
			found[name] = &LaneInfo{
				LaneKey: name.LaneKey, RowID: name.RowID, State: lanes.Writing.String(),
				Head: o.ID, Attempts: o.Of.Row.Attempts, RetryCount: o.Of.Row.RetryCount, Error: o.Refusal,
			}
		}
		found[name].Unwritten++
	}
	return found
}

// eachRefusedOutcome iterates over the outcomes that the store has refused.
func (c *core) eachRefusedOutcome() iter.Seq[*outcome] {
	return func(yield func(*outcome) bool) {
		if c.outcomes.Refused() == 0 {
			return
		}
		for o := range c.outcomes.All() {
			if o.WasRefused() && !yield(o) {
				return
			}
		}
		for p := range c.spill.All() {
			if o := p.Row.PendingOutcome; o != nil && o.WasRefused() && !yield(o) {
				return
			}
		}
	}
}

// shortenError truncates a database error to maxRefusalBytes.
func shortenError(text string) string {
	if len(text) <= maxRefusalBytes {
		return text
	}
	n := maxRefusalBytes
	for !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + " …"
}

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
