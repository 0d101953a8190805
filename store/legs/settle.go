package legs

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Settle implements store.Settler. The end of a leg is written into the row if it decides the row's
// status, into the records if the row has one, and nowhere otherwise.
func (s *Store) Settle(ctx context.Context, epoch store.Epoch, outcomes []store.Outcome) ([]store.SettleResult, error) {
	uses, some := s.uses(len(outcomes), func(i int) *store.Ref { return &outcomes[i].Ref })
	if !some {
		return s.Store.Settle(ctx, epoch, outcomes)
	}
	number, err := s.failedNumbers(ctx, outcomes)
	if err != nil {
		return nil, err
	}
	if err := s.acquire(ctx, uses); err != nil {
		return nil, err
	}
	c := settling{
		Store: s, number: number, epoch: epoch, outcomes: outcomes, uses: uses, results: make([]store.SettleResult, len(outcomes)),
		rows: make([]store.Outcome, 0, len(outcomes)), rowAt: make([]int, 0, len(outcomes)),
	}
	for i := range outcomes {
		c.decide(i)
	}
	s.release(uses)
	err = c.write(ctx)
	c.finish()
	if err != nil {
		return nil, err
	}
	return c.results, nil
}

// failedNumbers returns the first of as many numbers as FAILED rows need at most, 0 if none does.
func (s *Store) failedNumbers(ctx context.Context, outcomes []store.Outcome) (store.Seq, error) {
	n := 0
	for i := range outcomes {
		if unnumbered(&outcomes[i]) {
			n++
		}
	}
	if n == 0 {
		return 0, nil
	}
	return s.FailedNumbers(ctx, n)
}

// settling is one call of Settle.
type settling struct {
	*Store
	number   store.Seq // of the next FAILED row without one
	epoch    store.Epoch
	outcomes []store.Outcome
	results  []store.SettleResult
	uses     []use

	ends []store.LegEnd  // changes of records alone
	rows []store.Outcome // outcomes of rows
	// endAt and rowAt are the indexes of their outcomes.
	endAt, rowAt []int
}

// decide finds out what an outcome requires. The lock is held.
func (c *settling) decide(i int) {
	o, u := &c.outcomes[i], &c.uses[i]
	if u.plan == nil {
		c.rows, c.rowAt = append(c.rows, *o), append(c.rowAt, i)
		return
	}
	e := u.at
	o = c.numbered(u, o) // also if it is too early: the rows of a lane are in order
	if e.busy {
		c.results[i] = store.TooEarly
		return
	}
	switch what, after := e.next(u.plan, u.index, o); what {
	case ended:
		c.results[i] = e.resultOf(u.index, o.Status)
		c.dropCopy(i)
	case keep:
		e.join = after
		c.results[i] = store.Written
	case giveUp:
		u.hold()
		c.rows, c.rowAt = append(c.rows, store.Outcome{Ref: u.row, Txn: o.Txn, Status: store.Pending, At: o.At}), append(c.rowAt, i)
	case record:
		u.hold()
		end := store.LegEnd{Outcome: *o, Of: u.row, Record: after.record(u.plan, u.row)}
		c.ends, c.endAt = append(c.ends, end), append(c.endAt, i)
	case settle:
		u.hold()
		c.rows, c.rowAt = append(c.rows, e.rowOutcome(u.legOf, o, &after)), append(c.rowAt, i)
	}
}

// unnumbered reports whether an outcome is that of a FAILED row without a seq, which a sweep found.
func unnumbered(o *store.Outcome) bool {
	return o.Status == store.Failed && o.Row != nil && o.Row.Seq == 0
}

// numbered returns an outcome of a leg whose FAILED row has a seq; see ledger.FailedNumbers. It is the
// same in a repeated call, which keeps the row once. The lock is held.
func (c *settling) numbered(u *use, o *store.Outcome) *store.Outcome {
	if !unnumbered(o) {
		return o
	}
	seq, has := u.at.numbers[u.index]
	if !has {
		if seq = c.number; u.at.numbers == nil {
			u.at.numbers = map[int]store.Seq{}
		}
		u.at.numbers[u.index] = seq
		c.number++
	}
	out, row := *o, *o.Row
	row.Seq, out.Row = seq, &row
	return &out
}

// dropCopy deletes the copy of a row whose leg had ended before.
func (c *settling) dropCopy(i int) {
	if o, u := &c.outcomes[i], &c.uses[i]; o.DeletesSpilled() {
		u.hold()
		end := store.LegEnd{Outcome: store.Outcome{Ref: o.Ref, Status: store.Completed, SpilledSeq: o.SpilledSeq}, Of: u.row, Record: u.at.record(u.plan, u.row)}
		c.ends, c.endAt = append(c.ends, end), append(c.endAt, i)
	}
}

// resultOf returns the result of an outcome of a leg that had ended.
func (j *join) resultOf(leg int, s store.Status) store.SettleResult {
	if s == store.Completed && j.done.Has(leg) || s == store.Failed && j.failed.Has(leg) {
		return store.Written // the answer to an earlier call was lost
	}
	return store.WasSettled
}

// rowOutcome returns the outcome of the row that the end of a leg decides.
func (j *join) rowOutcome(leg legOf, o *store.Outcome, after *join) store.Outcome {
	row := leg.row(o.ID)
	out := store.Outcome{Ref: row, Txn: o.Txn, Status: after.verdict(leg.plan), At: o.At, Leg: j.legEnd(leg.plan, leg.index, o, row, after)}
	if !j.claimedAt.IsZero() {
		out.Txn = 0 // the claim of a leg found the row
	}
	switch {
	case out.Status == store.Failed:
		out.Error, out.RetryCount = after.reason(leg.plan)
		out.Reason = o.Reason
	case o.Status == store.Completed:
		out.Receipt = o.Receipt
	}
	return out
}

// write writes what decide has collected, and takes over the results.
func (c *settling) write(ctx context.Context) error {
	if len(c.ends) > 0 {
		if err := c.SettleLegs(ctx, c.epoch, c.ends); err != nil {
			return err
		}
		c.mu.Lock()
		for k, i := range c.endAt {
			c.recorded(i, &c.ends[k])
		}
		c.release(c.uses)
	}
	if len(c.rows) == 0 {
		return nil
	}
	results, err := c.Store.Store.Settle(ctx, c.epoch, c.rows)
	if err != nil {
		return err
	}
	c.mu.Lock()
	for k, i := range c.rowAt {
		c.results[i] = results[k]
		if c.uses[i].plan != nil {
			c.results[i] = c.written(i, &c.rows[k], results[k])
		}
	}
	c.release(c.uses)
	return nil
}

// recorded takes over the end of a leg that changed records alone. The lock is held.
func (c *settling) recorded(i int, end *store.LegEnd) {
	o, u := &c.outcomes[i], &c.uses[i]
	e := u.free()
	e.recorded = end.Record != nil
	if c.results[i] == 0 { // otherwise the leg had ended before
		e.settleLeg(u.index, o)
		c.results[i] = store.Written
	}
}

// written takes over the result of an outcome that changed the row, and returns that of the leg.
// The lock is held.
func (c *settling) written(i int, row *store.Outcome, result store.SettleResult) store.SettleResult {
	o, u := &c.outcomes[i], &c.uses[i]
	leg, e := u.legOf, u.free()
	switch {
	case result.NeedsRetry():
		return result
	case row.Status == store.Pending:
		e.settleLeg(leg.index, o)
		if result == store.Written {
			e.claimedAt = time.Time{}
			return result
		}
		return e.foundSettled(leg, result)
	}
	e.settleLeg(leg.index, o)
	e.settled = true
	if row.Leg != nil {
		if e.recorded = row.Leg.Record != nil; row.Leg.Own {
			return store.Written
		}
	}
	return result
}

// foundSettled records that a claim could not be given back, because the row is settled or gone.
func (j *join) foundSettled(leg legOf, result store.SettleResult) store.SettleResult {
	j.settled = true
	if !j.drops(leg.plan, leg.index) {
		return store.Written
	}
	j.drop(leg.index)
	return result
}

// hold makes a row busy for this call. The lock is held.
func (u *use) hold() { u.at.busy, u.held = true, true }

// free ends hold. The lock is held.
func (u *use) free() *entry {
	u.at.busy, u.held = false, false
	return u.at
}

// finish frees the rows that a call which failed has left busy. Their ends may have been written.
func (c *settling) finish() {
	some := false
	for i := range c.uses {
		some = some || c.uses[i].held
	}
	if !some {
		return
	}
	c.mu.Lock()
	for i := range c.uses {
		if c.uses[i].held {
			c.uses[i].free().unsure = true
		}
	}
	c.release(c.uses)
}
