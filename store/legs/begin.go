package legs

import (
	"context"
	"errors"

	"github.com/sluicebox/sluicebox/store"
)

// Row is a row of an outbox with routes that enters memory.
type Row struct {
	store.Ref // Outbox is the outbox, not a leg
	// Matched are the legs whose routes match the row.
	Matched store.LegSet
	// Passed are the legs whose saved mark is at or behind the row.
	Passed store.LegSet
	// Settled: the row is COMPLETED or FAILED in its table, or deleted.
	Settled bool
	// Unmarked: the row was found in its table, and no mark will tell which legs are done.
	Unmarked bool
	// Known is the row's record, nil if there is none or it need not be looked up.
	Known *store.LegRow
}

// Begin takes rows that enter memory, and returns for each, by position, the legs to whose lanes
// it is to be appended. Call it before the row is appended to a lane.
//
// It reads the record of a row with a Known one again, because a spilled copy may have ended since,
// and another end would bring the old record back.
//
// A row that is in memory already, because a sweep found it again, gets all of its open legs once
// more. The lanes know which of them hold the row.
//
// What it finds out it writes, where no later end of a leg would: which legs of a row with a record
// the marks show as done. It writes no outcome: a row that its legs have delivered and that is open in its
// table may have been set back, so once a sweep finds it, it is delivered again. An error means that the
// call may be repeated.
func (s *Store) Begin(ctx context.Context, epoch store.Epoch, rows []Row) ([]store.LegSet, error) {
	b := beginning{Store: s, epoch: epoch, rows: rows, begun: make([]bool, len(rows)), to: make([]store.LegSet, len(rows))}
	for {
		done, err := b.round(ctx)
		if err != nil {
			return nil, err
		}
		if done {
			return b.to, nil
		}
	}
}

// beginning is one call of Begin.
type beginning struct {
	*Store
	epoch store.Epoch
	rows  []Row
	begun []bool
	to    []store.LegSet
}

// round begins the rows that no other call writes, and waits if there is none. So a call waits for each
// row alone, and holds none meanwhile. done: every row was begun.
func (b *beginning) round(ctx context.Context) (done bool, err error) {
	known := b.known()
	if err := b.acquire(ctx, known); err != nil {
		return false, err
	}
	uses := make([]use, 0, len(b.rows))
	var some []*found
	busy, unread := false, false
	for i := range b.rows {
		r, p := &b.rows[i], b.plans[b.rows[i].Outbox]
		if b.begun[i] || p == nil {
			continue
		}
		switch e := b.Store.rows[r.Ref]; {
		case e != nil && e.unread():
			unread = true
			continue
		case e != nil && e.busy && (r.Known != nil || e.unsure):
			busy = true
			continue
		}
		r.Unmarked = r.Unmarked || b.polling
		e := b.begin(p, r)
		uses = append(uses, use{legOf: legOf{plan: p}, row: r.Ref, at: e})
		b.begun[i], b.to[i] = true, e.open()
		if !e.busy && (e.behind || e.lacks(p) == store.Failed) {
			e.busy = true
			some = append(some, &found{Ref: r.Ref, plan: p, entry: e, to: &b.to[i]})
		}
	}
	if len(uses) == 0 && busy && !unread {
		return false, b.wait(ctx, known)
	}
	if len(some) > 0 {
		b.mu.Unlock()
		err = b.writeFound(ctx, b.epoch, some)
		b.mu.Lock()
		for _, f := range some {
			f.entry.busy, f.entry.unsure = false, err != nil
		}
	}
	for i := range known {
		b.tidy(&known[i])
	}
	b.release(uses)
	return !busy && !unread, err
}

// known returns the rows left that have a known record, and those of which a write failed.
func (b *beginning) known() (known []use) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.rows {
		p, e := b.plans[b.rows[i].Outbox], b.Store.rows[b.rows[i].Ref]
		if p != nil && !b.begun[i] && (b.rows[i].Known != nil || e != nil && e.unsure) {
			known = append(known, use{legOf: legOf{plan: p}, row: b.rows[i].Ref})
		}
	}
	return known
}

// begin takes a row. The lock is held.
func (s *Store) begin(p *plan, r *Row) *entry {
	e := s.rows[r.Ref]
	switch {
	case e == nil:
		e = &entry{}
		s.rows[r.Ref] = e
	case e.matched == 0 && r.Known != nil:
		// Its record is gone since: the legs that it named have ended, and the row is settled. A leg
		// that it did not name, because its route is new, gets the row.
		e.done, e.settled = p.box.RouteSet(r.Known.Matched), true
	}
	e.enter(p, r)
	if r.Unmarked && e.live == 0 && e.lacks(p) == store.Completed {
		e.redeliver(p) // somebody has set the row back
	}
	return e
}

// found is a row of which Begin found out what its record or its table does not say. It is busy.
type found struct {
	store.Ref
	plan  *plan
	entry *entry
	to    *store.LegSet // the legs that get the row
}

// writeFound writes what Begin found out.
func (s *Store) writeFound(ctx context.Context, epoch store.Epoch, rows []*found) error {
	if err := s.reopenFailed(ctx, epoch, rows); err != nil {
		return err
	}
	var ends []store.LegEnd
	var recorded []*found
	s.mu.Lock()
	for _, f := range rows {
		if f.entry.behind {
			end := store.LegEnd{Outcome: store.Outcome{Ref: f.leg(), Status: store.Pending}, Of: f.Ref, Record: f.entry.record(f.plan, f.Ref)}
			ends, recorded = append(ends, end), append(recorded, f)
		}
	}
	s.mu.Unlock()
	written, err := s.settleEach(ctx, epoch, ends)
	s.mu.Lock()
	for i, f := range recorded {
		if written[i] {
			f.entry.behind, f.entry.recorded = false, ends[i].Record != nil
		}
	}
	s.mu.Unlock()
	return err
}

// settleEach is SettleLegs, and reports which ends were written. One that the database refuses is left
// out: the join in memory knows it until the next end of the row.
func (s *Store) settleEach(ctx context.Context, epoch store.Epoch, ends []store.LegEnd) ([]bool, error) {
	written := make([]bool, len(ends))
	err := s.SettleLegs(ctx, epoch, ends)
	if !errors.As(err, new(*store.RefusedError)) {
		for i := range written {
			written[i] = err == nil
		}
		return written, err
	}
	for i := range ends {
		err := s.SettleLegs(ctx, epoch, ends[i:i+1])
		if written[i] = err == nil; unlessRefused(err) != nil {
			return written, err
		}
	}
	return written, nil
}

// leg names a leg of the row, for a change that concerns none in particular.
func (f *found) leg() store.Ref {
	return store.Ref{Outbox: store.LegName(f.Outbox, f.plan.box.Routes[0].Name), ID: f.ID}
}

// unlessRefused drops an error that says that the database refuses a write: the row stays as it is,
// and a sweep finds it again.
func unlessRefused(err error) error {
	if errors.As(err, new(*store.RefusedError)) {
		return nil
	}
	return err
}

// reopenFailed opens the FAILED legs of rows that are not FAILED in their table although all legs have
// ended: an operator has set the row back, or a requeue was cut short, which concerns the legs that were to
// be requeued alone. The legs get the row in place of their FAILED records.
func (s *Store) reopenFailed(ctx context.Context, epoch store.Epoch, rows []*found) error {
	var failed []*found
	var ask []store.ClaimRow
	s.mu.Lock()
	for _, f := range rows {
		if f.entry.lacks(f.plan) == store.Failed {
			failed, ask = append(failed, f), append(ask, store.ClaimRow{Ref: f.Ref})
		}
	}
	s.mu.Unlock()
	if len(failed) == 0 {
		return nil
	}
	settled, err := s.Store.ReadSettled(ctx, ask)
	if err != nil {
		return err
	}
	var legs []store.Ref
	var of []*found
	s.mu.Lock()
	for i, f := range failed {
		if settled[i] {
			f.entry.settled = true
			continue
		}
		for k := range f.entry.setBack().All() {
			legs, of = append(legs, store.Ref{Outbox: store.LegName(f.Outbox, f.plan.box.Routes[k].Name), ID: f.ID}), append(of, f)
		}
	}
	s.mu.Unlock()
	if err := s.ReopenLegs(ctx, epoch, legs); err != nil {
		return unlessRefused(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, f := range of {
		f.entry.reopen(s.legs[legs[i].Outbox].index)
		*f.to = f.entry.open()
	}
	return nil
}
