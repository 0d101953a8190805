package ledger

import (
	"context"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Store is a database for a relay: the outbox tables, and the relay's own records.
//
// It adds to the tables that a layout may not store FAILED. The records then name the FAILED
// rows, and to every reader of the tables such a row is FAILED, although its table says
// PENDING, or does not have it any more. Outboxes whose tables store FAILED pay nothing.
type Store struct {
	store.Tables
	*Ledger
}

// AcquireLeadership implements store.Leadership. It reads the FAILED rows of the records, and which
// rows have records of legs. Only this relay changes them from then on.
func (s Store) AcquireLeadership(ctx context.Context) (store.Epoch, error) {
	s.legKeys.forget()
	epoch, err := s.Tables.AcquireLeadership(ctx)
	if err != nil {
		return 0, err
	}
	s.failed.forget(0)
	if len(s.legs) > 0 {
		if err := s.legKeys.load(ctx, s.records); err != nil {
			return epoch, err
		}
	}
	return epoch, s.loadFailed(ctx)
}

// Claim implements store.Claimer.
func (s Store) Claim(ctx context.Context, epoch store.Epoch, at time.Time, rows []store.ClaimRow) ([]store.ClaimAnswer, error) {
	failed, err := s.failedAmong(ctx, len(rows), func(i int) *store.Ref { return &rows[i].Ref })
	if err != nil {
		return nil, err
	}
	return around(rows, failed, store.ClaimAnswer{Result: store.AlreadySettled}, func(rows []store.ClaimRow) ([]store.ClaimAnswer, error) {
		return s.Tables.Claim(ctx, epoch, at, rows)
	})
}

// ReadUntried implements store.UntriedReader.
func (s Store) ReadUntried(ctx context.Context, rows []store.ClaimRow) ([]bool, error) {
	failed, err := s.failedAmong(ctx, len(rows), func(i int) *store.Ref { return &rows[i].Ref })
	if err != nil {
		return nil, err
	}
	return around(rows, failed, false, func(rows []store.ClaimRow) ([]bool, error) { return s.Tables.ReadUntried(ctx, rows) })
}

// around calls do for the rows that are not FAILED, and answers the others.
func around[In, Out any](rows []In, failed []bool, answer Out, do func([]In) ([]Out, error)) ([]Out, error) {
	if failed == nil {
		return do(rows)
	}
	rest := make([]In, 0, len(rows))
	for i := range rows {
		if !failed[i] {
			rest = append(rest, rows[i])
		}
	}
	var got []Out
	if len(rest) > 0 {
		var err error
		if got, err = do(rest); err != nil {
			return nil, err
		}
	}
	answers := make([]Out, len(rows))
	for i := range answers {
		if answers[i] = answer; !failed[i] {
			answers[i], got = got[0], got[1:]
		}
	}
	return answers, nil
}

// Settle implements store.Settler.
func (s Store) Settle(ctx context.Context, epoch store.Epoch, outcomes []store.Outcome) ([]store.SettleResult, error) {
	failed, err := s.failedAmong(ctx, len(outcomes), func(i int) *store.Ref { return &outcomes[i].Ref })
	if err != nil {
		return nil, err
	}
	records := func(o store.Outcome) bool {
		e := ended(&o)
		return e.Status == store.Failed && s.recordsFailed(e.Outbox)
	}
	if failed == nil && !slices.ContainsFunc(outcomes, records) {
		return s.Tables.Settle(ctx, epoch, outcomes)
	}

	s.failed.change.RLock()
	defer s.failed.change.RUnlock()
	results, err := around(outcomes, failed, store.WasSettled, func(rest []store.Outcome) ([]store.SettleResult, error) {
		return s.Tables.Settle(ctx, epoch, rest)
	})
	if err == nil && failed != nil {
		err = s.afterFailedBefore(ctx, epoch, outcomes, failed)
	}
	if err != nil {
		s.failed.forget(lateCommit) // it may have been written
		return nil, err
	}
	for ref := range s.newlyFailed(outcomes, results) {
		s.failed.set(true, ref)
	}
	return results, nil
}

// afterFailedBefore makes the writes that accompany outcomes of rows that were FAILED before.
func (s Store) afterFailedBefore(ctx context.Context, epoch store.Epoch, outcomes []store.Outcome, failed []bool) error {
	var before []store.Outcome
	for i := range outcomes {
		if o := &outcomes[i]; failed[i] && (o.DeletesSpilled() || o.Block != nil) {
			before = append(before, *o)
		}
	}
	if len(before) == 0 {
		return nil
	}
	results := slices.Repeat([]store.SettleResult{store.WasSettled}, len(before))
	return s.records.Update(ctx, epoch, Full, func(ctx context.Context, tx Tx) error {
		return s.AfterSettle(ctx, tx, before, results, s.areFailed)
	})
}

// ReadSettled implements store.StatusReader.
func (s Store) ReadSettled(ctx context.Context, rows []store.ClaimRow) ([]bool, error) {
	failed, err := s.failedAmong(ctx, len(rows), func(i int) *store.Ref { return &rows[i].Ref })
	if err != nil {
		return nil, err
	}
	return around(rows, failed, true, func(rows []store.ClaimRow) ([]bool, error) { return s.Tables.ReadSettled(ctx, rows) })
}

// ReadStatuses implements store.RowStatusReader.
func (s Store) ReadStatuses(ctx context.Context, rows []store.ClaimRow) ([]store.RowStatus, error) {
	failed, err := s.failedAmong(ctx, len(rows), func(i int) *store.Ref { return &rows[i].Ref })
	if err != nil {
		return nil, err
	}
	return around(rows, failed, store.RowStatus{State: store.RowFailed}, func(rows []store.ClaimRow) ([]store.RowStatus, error) {
		return s.Tables.ReadStatuses(ctx, rows)
	})
}

// View implements store.Viewer.
func (s Store) View(ctx context.Context, snapshot string) (store.View, error) {
	v, err := s.Tables.View(ctx, snapshot)
	if err != nil || len(s.failed.outboxes) == 0 {
		return v, err
	}
	return view{v, s.Ledger}, nil
}

// view is a view of the tables without the rows that are FAILED by a record. The records are
// read later than the tables: a row that became FAILED meanwhile is not unsettled either.
type view struct {
	store.View
	ledger *Ledger
}

// Unsettled implements store.View.
func (v view) Unsettled(ctx context.Context, q store.UnsettledQuery) ([]store.Item, error) {
	if err := v.exclude(ctx, &q); err != nil {
		return nil, err
	}
	return v.View.Unsettled(ctx, q)
}

// Pages implements store.View.
func (v view) Pages(ctx context.Context, q store.UnsettledQuery, page int, take func([]store.Item) error) error {
	if err := v.exclude(ctx, &q); err != nil {
		return err
	}
	return v.View.Pages(ctx, q, page, take)
}

func (v view) exclude(ctx context.Context, q *store.UnsettledQuery) error {
	ids, err := v.ledger.failedIDs(ctx, q.Outbox)
	if len(ids) > 0 {
		q.ExcludeIDs = append(ids, q.ExcludeIDs...)
	}
	return err
}
