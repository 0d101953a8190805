package legs

import (
	"context"
	"errors"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// maxLetters is the maximum number of FAILED rows of one requeue or discard.
const maxLetters = 1000

// Requeue implements store.DeadLetters. A leg's row becomes a spilled row of that leg again, and
// the row is PENDING again if its table says FAILED. The other legs do not get it.
func (s *Store) Requeue(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) (items []store.Item, err error) {
	leg, is := s.legs[f.Outbox]
	if !is {
		return s.Store.Requeue(ctx, epoch, f, limit)
	}
	err = s.withLetters(ctx, f, limit, func(ctx context.Context, some store.DeadLetterFilter) error {
		got, err := s.Store.Requeue(ctx, epoch, some, len(some.IDs))
		if err != nil {
			return err
		}
		var ids []string
		s.mu.Lock()
		for i := range got {
			if s.rows[leg.row(got[i].ID)].requeue(leg.plan, leg.index) {
				ids = append(ids, got[i].ID)
			}
		}
		s.mu.Unlock()
		items = append(items, got...)
		if len(ids) == 0 {
			return nil
		}
		open, err := s.reopenFailed(ctx, epoch, leg.plan.box.Name, ids)
		s.mu.Lock()
		for _, row := range open {
			s.rows[row].claimedAt = time.Time{} // the next claim makes it PROCESSING
		}
		s.mu.Unlock()
		if errors.Is(err, store.ErrNotLeader) {
			return err
		}
		return nil // a claim finds a row that is FAILED still
	})
	return items, err
}

// Discard implements store.DeadLetters. A row of which no leg is left is deleted from its table.
func (s *Store) Discard(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) (refs []store.Ref, err error) {
	leg, is := s.legs[f.Outbox]
	if !is {
		return s.Store.Discard(ctx, epoch, f, limit)
	}
	err = s.withLetters(ctx, f, limit, func(ctx context.Context, some store.DeadLetterFilter) error {
		got, err := s.Store.Discard(ctx, epoch, some, len(some.IDs))
		if err != nil {
			return err
		}
		refs = append(refs, got...)
		var ids []string
		var ends []store.LegEnd
		s.mu.Lock()
		for _, ref := range got {
			row := leg.row(ref.ID)
			e := s.rows[row]
			if e.discard(leg.index); e.over() && e.failed == 0 {
				ids = append(ids, ref.ID)
				ends = append(ends, store.LegEnd{Outcome: store.Outcome{Ref: ref, Status: store.Pending}, Of: row})
			}
		}
		s.mu.Unlock()
		if len(ids) == 0 {
			return nil
		}
		if box := leg.plan.box; !box.Layout.LogOnly() {
			if _, err := s.Store.Discard(ctx, epoch, store.DeadLetterFilter{Outbox: box.Name, IDs: ids}, len(ids)); err != nil {
				return err
			}
		}
		return s.SettleLegs(ctx, epoch, ends)
	})
	return refs, err
}

// withLetters calls do with filters that name the selected rows of a leg. The rows are busy
// meanwhile, and their entries exist.
func (s *Store) withLetters(ctx context.Context, f store.DeadLetterFilter, limit int, do func(context.Context, store.DeadLetterFilter) error) error {
	letters, err := s.Failed(ctx, f, min(limit, maxLetters), false)
	if err != nil {
		return err
	}
	return s.inTurns(ctx, len(letters), func(i int) store.Ref { return letters[i].Ref }, func(ctx context.Context, at []int) error {
		some := f
		some.IDs = nil
		for _, i := range at {
			some.IDs = append(some.IDs, letters[i].ID)
		}
		return do(ctx, some)
	})
}
