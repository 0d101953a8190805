package legs

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Claim implements store.Claimer. Once a leg has claimed a row, the claims of others need no
// statement, unless they want the payload.
func (s *Store) Claim(ctx context.Context, epoch store.Epoch, at time.Time, rows []store.ClaimRow) ([]store.ClaimAnswer, error) {
	uses, some := s.uses(len(rows), func(i int) *store.Ref { return &rows[i].Ref })
	if !some {
		return s.Store.Claim(ctx, epoch, at, rows)
	}
	c := claim{Store: s, epoch: epoch, at: at, rows: rows, uses: uses, answers: make([]store.ClaimAnswer, len(rows)), answered: make([]bool, len(rows))}
	for {
		done, err := c.round(ctx)
		if err != nil {
			return nil, err
		}
		if done {
			return c.answers, nil
		}
	}
}

// claim is one call of Claim.
type claim struct {
	*Store
	epoch    store.Epoch
	at       time.Time
	rows     []store.ClaimRow
	uses     []use
	answers  []store.ClaimAnswer
	answered []bool
}

// round answers the rows that no other call is busy with, and waits if there is none. done: every row
// has an answer.
func (c *claim) round(ctx context.Context) (done bool, err error) {
	for i, answered := range c.answered {
		if answered {
			c.uses[i] = use{}
		}
	}
	if err := c.acquire(ctx, c.uses); err != nil {
		return false, err
	}
	ask, asked := make([]store.ClaimRow, 0, len(c.rows)), make([]int, 0, len(c.rows))
	left, moved := false, false
	for i := range c.rows {
		if c.answered[i] {
			continue
		}
		r, u := &c.rows[i], &c.uses[i]
		if u.plan == nil {
			ask, asked = append(ask, *r), append(asked, i)
			continue
		}
		if u.at.busy {
			left = true
			continue
		}
		moved = true
		if a, known := u.at.answer(u.plan, u.index, r, c.at); known {
			c.answers[i], c.answered[i] = a, true
			continue
		}
		u.at.busy = true
		ask, asked = append(ask, u.at.claim(r, u.row)), append(asked, i)
	}
	switch {
	case len(ask) > 0:
		c.mu.Unlock()
		return !left, c.ask(ctx, ask, asked)
	case !moved && left:
		return false, c.wait(ctx, c.uses)
	}
	c.release(c.uses)
	return !left, nil
}

// ask claims rows in their tables. at are their indexes.
func (c *claim) ask(ctx context.Context, ask []store.ClaimRow, at []int) error {
	got, err := c.Store.Store.Claim(ctx, c.epoch, c.at, ask)
	var ends []store.LegEnd
	c.mu.Lock()
	for k, i := range at {
		r, u := &c.rows[i], &c.uses[i]
		if c.answered[i] = true; u.plan == nil {
			if err == nil {
				c.answers[i] = got[k]
			}
			continue
		}
		e := u.at
		if e.busy = false; err != nil {
			continue
		}
		spilled := e.spilled.Has(u.index)
		c.answers[i] = e.claimed(u.plan, u.index, r, got[k], c.at)
		if e.recorded && !spilled && c.answers[i].Result != store.Claimed && e.done.Has(u.index) {
			// Nothing else tells that the leg has ended. A copy is deleted by its dispatcher.
			e.busy = true
			ends = append(ends, store.LegEnd{
				Outcome: store.Outcome{Ref: r.Ref, Status: store.Completed}, Of: u.row, Record: e.record(u.plan, u.row),
			})
		}
	}
	c.release(c.uses)
	if err != nil || len(ends) == 0 {
		return err
	}
	return c.settleLegs(ctx, c.epoch, ends)
}

// settleLegs records ends of busy legs, and frees their rows.
func (s *Store) settleLegs(ctx context.Context, epoch store.Epoch, ends []store.LegEnd) error {
	err := s.SettleLegs(ctx, epoch, ends)
	s.mu.Lock()
	rows := make([]use, len(ends))
	for i := range ends {
		rows[i] = use{row: ends[i].Of, at: s.rows[ends[i].Of]}
		if rows[i].at.busy, rows[i].at.unsure = false, err != nil; err == nil {
			rows[i].at.recorded = ends[i].Record != nil
		}
	}
	s.release(rows)
	return err
}
