package legs

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// maxLetters is the maximum number of FAILED rows of one requeue or discard.
const maxLetters = 1000

// Requeue implements store.DeadLetters. A leg's row becomes a spilled row of that leg again, and
// the row is PENDING again if its table says FAILED. The other legs do not get it. The row changes
// first: if the call is cut short, the leg's row is FAILED still, and may be requeued again.
func (s *Store) Requeue(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) (items []store.Item, err error) {
	leg, is := s.legs[f.Outbox]
	if !is {
		return s.Store.Requeue(ctx, epoch, f, limit)
	}
	err = s.withLetters(ctx, f, limit, func(ctx context.Context, some store.DeadLetterFilter) error {
		if err := s.reopen(ctx, epoch, leg, some.IDs); err != nil {
			return err
		}
		got, err := s.Store.Requeue(ctx, epoch, some, len(some.IDs))
		if err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range got {
			s.rows[leg.row(got[i].ID)].requeue(leg.plan, leg.index)
		}
		items = append(items, got...)
		return nil
	})
	return items, err
}

// reopen sets the rows back to PENDING that the requeue of a leg opens again. What other FAILED legs
// they have is not requeued, also if the call is cut short behind the row; so their records say for
// which leg a row is set back, before it is.
func (s *Store) reopen(ctx context.Context, epoch store.Epoch, leg legOf, ids []string) error {
	box := leg.plan.box
	if !box.Layout.Stores(store.Failed) {
		return nil
	}
	open := store.DeadLetterFilter{Outbox: box.Name}
	var marked []store.LegEnd
	s.mu.Lock()
	for _, id := range ids {
		row := leg.row(id)
		before, after := s.rows[row].join, s.rows[row].join
		if !after.requeue(leg.plan, leg.index) {
			continue
		}
		open.IDs = append(open.IDs, id)
		if before.failed.Without(leg.index) != 0 {
			before.again = before.again.With(leg.index)
			o := store.Outcome{Ref: store.Ref{Outbox: leg.name(), ID: id}, Status: store.Pending}
			marked = append(marked, store.LegEnd{Outcome: o, Of: row, Record: before.record(leg.plan, row)})
		}
	}
	s.mu.Unlock()
	if len(open.IDs) == 0 {
		return nil
	}
	if err := s.SettleLegs(ctx, epoch, marked); err != nil {
		return err
	}
	items, err := s.Store.Requeue(ctx, epoch, open, len(open.IDs))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range items {
		s.rows[items[i].Ref].claimedAt = time.Time{} // the next claim makes it PROCESSING
	}
	return err
}

// Discard implements store.DeadLetters. A row of which no leg is left is deleted from its table. That
// comes first: if the call is cut short, the leg's row is FAILED still, and may be discarded again.
func (s *Store) Discard(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) (refs []store.Ref, err error) {
	leg, is := s.legs[f.Outbox]
	if !is {
		return s.Store.Discard(ctx, epoch, f, limit)
	}
	err = s.withLetters(ctx, f, limit, func(ctx context.Context, some store.DeadLetterFilter) error {
		if err := s.discardRows(ctx, epoch, leg, some.IDs); err != nil {
			return err
		}
		got, err := s.Store.Discard(ctx, epoch, some, len(some.IDs))
		if err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, ref := range got {
			s.rows[leg.row(ref.ID)].discard(leg.index)
		}
		refs = append(refs, got...)
		return nil
	})
	return refs, err
}

// discardRows deletes the rows of which the discard of a leg leaves no leg.
func (s *Store) discardRows(ctx context.Context, epoch store.Epoch, leg legOf, ids []string) error {
	over := store.DeadLetterFilter{Outbox: leg.plan.box.Name}
	s.mu.Lock()
	for _, id := range ids {
		after := s.rows[leg.row(id)].join
		if !after.failed.Has(leg.index) {
			continue // it is no letter any more
		}
		if after.discard(leg.index); after.over() && after.failed == 0 {
			over.IDs = append(over.IDs, id)
		}
	}
	s.mu.Unlock()
	if len(over.IDs) == 0 || leg.plan.box.Layout.LogOnly() {
		return nil
	}
	_, err := s.Store.Discard(ctx, epoch, over, len(over.IDs))
	return err
}

// withLetters calls do with filters that name the selected rows of a leg. The rows are busy
// meanwhile, and their entries exist.
func (s *Store) withLetters(ctx context.Context, f store.DeadLetterFilter, limit int, do func(context.Context, store.DeadLetterFilter) error) error {
	letters, err := s.Failed(ctx, f, min(limit, maxLetters), false)
	if err != nil {
		return err
	}
	return s.inTurns(ctx, len(letters), func(i int) *store.Ref { return &letters[i].Ref }, nil, func(ctx context.Context, at []int) error {
		some := f
		some.IDs = nil
		for _, i := range at {
			some.IDs = append(some.IDs, letters[i].ID)
		}
		return do(ctx, some)
	})
}
