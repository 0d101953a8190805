package legs

import (
	"context"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Spill implements store.Spiller. The row's record is written in the transaction of the copy.
func (s *Store) Spill(ctx context.Context, epoch store.Epoch, items []store.Item) error {
	var plain []store.Item
	var todo []int
	for i := range items {
		if _, is := s.legs[items[i].Outbox]; is {
			todo = append(todo, i)
		} else {
			plain = append(plain, items[i])
		}
	}
	if len(plain) > 0 {
		if err := s.Store.Spill(ctx, epoch, plain); err != nil {
			return err
		}
	}
	lane := func(k int) store.LaneKey { return items[todo[k]].Lane() }
	return s.inTurns(ctx, len(todo), func(k int) *store.Ref { return &items[todo[k]].Ref }, lane, func(ctx context.Context, at []int) error {
		some, records := make([]store.Item, len(at)), make([]store.LegRow, len(at))
		s.mu.Lock()
		for n, k := range at {
			it := &items[todo[k]]
			leg := s.legs[it.Outbox]
			after := s.rows[leg.row(it.ID)].join
			if !after.takes(leg.index) {
				s.mu.Unlock()
				return &store.RefusedError{Err: fmt.Errorf("spill row %q of outbox %s: it has ended, or was not begun", it.ID, it.Outbox)}
			}
			after.spill(leg.index)
			some[n], records[n] = *it, *after.record(leg.plan, leg.row(it.ID)) // the leg has not ended
		}
		s.mu.Unlock()
		if err := s.SpillLegs(ctx, epoch, some, records); err != nil {
			return err
		}
		s.mu.Lock()
		var decided []store.Outcome
		for n := range at {
			leg := s.legs[some[n].Outbox]
			row := leg.row(some[n].ID)
			e := s.rows[row]
			if e.spill(leg.index); !e.settled && e.verdict(leg.plan) != 0 {
				decided = append(decided, e.decided(leg.plan, row, some[n].Txn))
			}
		}
		s.mu.Unlock()
		return s.settleDecided(ctx, epoch, decided)
	})
}

// decided returns the outcome of an unmarked row that its ended legs have decided.
func (j *join) decided(p *plan, row store.Ref, txn store.Txn) store.Outcome {
	o := store.Outcome{Ref: row, Txn: txn, Status: j.verdict(p), At: time.Now()}
	if !j.claimedAt.IsZero() {
		o.Txn = 0 // the claim of a leg found the row
	}
	if o.Status == store.Failed {
		o.Error, o.RetryCount = j.reason(p)
	}
	return o
}

// settleDecided writes the outcomes of unmarked rows that waited for the copies of further legs. If
// a row is locked, the end of its copy writes its outcome.
func (s *Store) settleDecided(ctx context.Context, epoch store.Epoch, outcomes []store.Outcome) error {
	if len(outcomes) == 0 {
		return nil
	}
	results, err := s.Store.Settle(ctx, epoch, outcomes)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range outcomes {
		if !results[i].NeedsRetry() {
			s.rows[outcomes[i].Ref].settled = true
		}
	}
	return nil
}

// DeleteSpilled implements store.Spiller. It ends the leg of a row that was found settled or gone.
func (s *Store) DeleteSpilled(ctx context.Context, epoch store.Epoch, rows []store.SpilledRef) error {
	var plain []store.SpilledRef
	var todo []int
	for i := range rows {
		if _, is := s.legs[rows[i].Outbox]; is {
			todo = append(todo, i)
		} else {
			plain = append(plain, rows[i])
		}
	}
	if len(plain) > 0 {
		if err := s.Store.DeleteSpilled(ctx, epoch, plain); err != nil {
			return err
		}
	}
	return s.inTurns(ctx, len(todo), func(k int) *store.Ref { return &rows[todo[k]].Ref }, nil, func(ctx context.Context, at []int) error {
		ends := make([]store.LegEnd, len(at))
		s.mu.Lock()
		for n, k := range at {
			r := &rows[todo[k]]
			leg := s.legs[r.Outbox]
			row := leg.row(r.ID)
			after := s.rows[row].join
			after.dropOpen(leg.index)
			ends[n] = store.LegEnd{
				Outcome: store.Outcome{Ref: r.Ref, Status: store.Completed, SpilledSeq: r.Seq}, Of: row, Record: after.record(leg.plan, row),
			}
		}
		s.mu.Unlock()
		if err := s.SettleLegs(ctx, epoch, ends); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for n := range at {
			e, leg := s.rows[ends[n].Of], s.legs[ends[n].Outcome.Outbox]
			e.dropOpen(leg.index)
			e.recorded = ends[n].Record != nil
		}
		return nil
	})
}

// inTurns calls do for the rows of legs, by index, each once. The rows are busy meanwhile. No two
// rows of a call of do are one row of an outbox. Their entries exist. A row that another call writes has
// its turn later. If lane is not nil, those behind it in its lane wait too: after a crash between two
// turns, rows that nobody has spilled come behind the spilled ones, unless the log brings them.
func (s *Store) inTurns(ctx context.Context, n int, name func(i int) *store.Ref, lane func(i int) store.LaneKey, do func(ctx context.Context, at []int) error) error {
	todo := make([]int, n)
	for i := range todo {
		todo[i] = i
	}
	for len(todo) > 0 {
		rows, _ := s.uses(len(todo), func(k int) *store.Ref { return name(todo[k]) })
		if err := s.acquire(ctx, rows); err != nil {
			return err
		}
		var at, left []int
		waits := map[store.LaneKey]bool{}
		for k, i := range todo {
			u := &rows[k]
			switch {
			case !u.at.busy && (lane == nil || !waits[lane(i)]):
				u.at.busy, u.held = true, true
				at = append(at, i)
				continue
			case lane != nil:
				waits[lane(i)] = true
			}
			left = append(left, i)
		}
		todo = left
		if len(at) == 0 {
			if err := s.wait(ctx, rows); err != nil {
				return err
			}
			continue
		}
		s.mu.Unlock()
		err := do(ctx, at)
		s.mu.Lock()
		for k := range rows {
			if rows[k].held {
				rows[k].at.busy, rows[k].at.unsure = false, err != nil
			}
		}
		s.release(rows)
		if err != nil {
			return err
		}
	}
	return nil
}
