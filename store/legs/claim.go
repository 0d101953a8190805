package legs

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Claim implements store.Claimer. Once a leg has claimed a row, the claims of others need no
// statement, unless they want the payload.
func (s *Store) Claim(ctx context.Context, epoch store.Epoch, at time.Time, rows []store.ClaimRow) ([]store.ClaimAnswer, error) {
	if len(s.refs(len(rows), func(i int) store.Ref { return rows[i].Ref })) == 0 {
		return s.Store.Claim(ctx, epoch, at, rows)
	}
	c := claim{Store: s, epoch: epoch, at: at, rows: rows, answers: make([]store.ClaimAnswer, len(rows))}
	for i := range rows {
		c.todo = append(c.todo, i)
	}
	for len(c.todo) > 0 {
		if err := c.round(ctx); err != nil {
			return nil, err
		}
	}
	return c.answers, nil
}

// claim is one call of Claim.
type claim struct {
	*Store
	epoch   store.Epoch
	at      time.Time
	rows    []store.ClaimRow
	answers []store.ClaimAnswer
	todo    []int // indexes of rows without an answer
}

// round answers the rows that no other call is busy with, and waits if there is none.
func (c *claim) round(ctx context.Context) error {
	refs := c.refs(len(c.todo), func(i int) store.Ref { return c.rows[c.todo[i]].Ref })
	if err := c.acquire(ctx, refs); err != nil {
		return err
	}
	answered := 0
	var ask []store.ClaimRow
	var asked, left []int
	for _, i := range c.todo {
		r := &c.rows[i]
		leg, is := c.legs[r.Outbox]
		if !is {
			ask, asked = append(ask, *r), append(asked, i)
			continue
		}
		e := c.Store.rows[leg.row(r.ID)]
		if e.busy {
			left = append(left, i)
			continue
		}
		if a, known := e.answer(leg.plan, leg.index, r, c.at); known {
			c.answers[i] = a
			answered++
			continue
		}
		e.busy = true
		ask, asked = append(ask, e.claim(r, leg.row(r.ID))), append(asked, i)
	}
	c.todo = left
	switch {
	case len(ask) > 0:
		c.mu.Unlock()
		return c.ask(ctx, ask, asked, refs)
	case answered == 0:
		return c.wait(ctx, refs)
	}
	c.release(refs)
	return nil
}

// ask claims rows in their tables. at are their indexes.
func (c *claim) ask(ctx context.Context, ask []store.ClaimRow, at []int, refs []store.Ref) error {
	got, err := c.Store.Store.Claim(ctx, c.epoch, c.at, ask)
	var ends []store.LegEnd
	c.mu.Lock()
	for k, i := range at {
		r := &c.rows[i]
		leg, is := c.legs[r.Outbox]
		if !is {
			if err == nil {
				c.answers[i] = got[k]
			}
			continue
		}
		e := c.Store.rows[ask[k].Ref]
		if e.busy = false; err != nil {
			continue
		}
		spilled := e.spilled.Has(leg.index)
		c.answers[i] = e.claimed(leg.plan, leg.index, r, got[k], c.at)
		if e.recorded && !spilled && c.answers[i].Result != store.Claimed && e.done.Has(leg.index) {
			// Nothing else tells that the leg has ended. A copy is deleted by its dispatcher.
			e.busy = true
			ends = append(ends, store.LegEnd{
				Outcome: store.Outcome{Ref: r.Ref, Status: store.Completed}, Of: ask[k].Ref, Record: e.record(leg.plan, ask[k].Ref),
			})
		}
	}
	c.release(refs)
	if err != nil || len(ends) == 0 {
		return err
	}
	return c.settleLegs(ctx, c.epoch, ends, refs)
}

// settleLegs records ends of busy legs, and frees their rows.
func (s *Store) settleLegs(ctx context.Context, epoch store.Epoch, ends []store.LegEnd, refs []store.Ref) error {
	err := s.SettleLegs(ctx, epoch, ends)
	s.mu.Lock()
	for i := range ends {
		e := s.rows[ends[i].Of]
		if e.busy = false; err == nil {
			e.recorded = ends[i].Record != nil
		}
	}
	s.release(refs)
	return err
}
