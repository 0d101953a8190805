package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/deadletter"
)

// The dead letters of outboxes whose tables cannot store FAILED. The records say which rows
// they are. Where the table keeps the rows, it has the payload, and a requeue or a discard
// changes the table and the record in one transaction. Where only the log has the row, its
// content is in failedQueue.

// maxResolvedRows and maxResolvedBytes limit one requeue or discard.
const (
	maxResolvedRows  = 1000
	maxResolvedBytes = 16 << 20
)

// recorded returns the outbox of a filter if its FAILED rows are in records, nil otherwise.
func (s Store) recorded(f *store.DeadLetterFilter) (*store.Outbox, error) {
	if !s.recordsFailed(f.Outbox) {
		return nil, nil
	}
	return s.outboxes.FindValid(f.Outbox, f)
}

// CountFailed implements store.DeadLetters.
func (s Store) CountFailed(ctx context.Context, f store.DeadLetterFilter) (n int, err error) {
	o, err := s.recorded(&f)
	if o == nil && err == nil {
		return s.Tables.CountFailed(ctx, f)
	}
	if err == nil && len(f.IDs) > 0 {
		var rows []*failedRow
		rows, err = s.readFailed(ctx, &f, math.MaxInt)
		n = len(rows)
	} else if err == nil {
		err = s.records.View(ctx, func(ctx context.Context, r Reader) error {
			n = 0
			return eachFailed(ctx, r, f.Outbox, func(_ string, row *failedRow) {
				if d := row.letter(); f.Matches(&d) {
					n++
				}
			})
		})
	}
	if err != nil {
		return 0, fmt.Errorf("count FAILED rows: %w", err)
	}
	return n, nil
}

// Failed implements store.DeadLetters.
func (s Store) Failed(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) ([]store.DeadLetter, error) {
	o, err := s.recorded(&f)
	switch {
	case o == nil && err == nil:
		return s.Tables.Failed(ctx, f, limit, payload)
	case err == nil && limit <= 0:
		err = fmt.Errorf("outbox %s: limit %d must be positive", f.Outbox, limit)
	}
	var rows []*failedRow
	if err == nil {
		rows, err = s.readFailed(ctx, &f, limit)
	}
	letters := lettersOf(rows)
	if err == nil && payload {
		err = s.addPayloads(ctx, o, rows, letters)
	}
	if err != nil {
		return nil, fmt.Errorf("read FAILED rows: %w", err)
	}
	return letters, nil
}

func lettersOf(rows []*failedRow) []store.DeadLetter {
	letters := make([]store.DeadLetter, len(rows))
	for i, row := range rows {
		letters[i] = row.letter()
	}
	return letters
}

// addPayloads reads the payloads of FAILED rows. A row that its table lost has none.
func (s Store) addPayloads(ctx context.Context, o *store.Outbox, rows []*failedRow, letters []store.DeadLetter) error {
	if o.Layout.LogOnly() {
		return s.records.View(ctx, func(ctx context.Context, r Reader) error {
			items, err := failedContent(ctx, r, rows)
			for i := range items {
				letters[i].Payload = items[i].Payload
			}
			return err
		})
	}

	byID := map[string]*store.DeadLetter{}
	for i := range letters {
		byID[letters[i].ID] = &letters[i]
	}
	for some := range slices.Chunk(letters, maxResolvedRows) {
		found, err := s.Tables.Failed(ctx, named(o, some), len(some), true)
		if err != nil {
			return err
		}
		for i := range found {
			byID[found[i].ID].Payload = found[i].Payload
		}
	}
	return nil
}

// named selects FAILED rows in the table by their ids.
func named(o *store.Outbox, letters []store.DeadLetter) store.DeadLetterFilter {
	f := store.DeadLetterFilter{Outbox: o.Name}
	for i := range letters {
		f.IDs = append(f.IDs, letters[i].ID)
	}
	return f
}

// failedContent returns the rows of failedQueue by position. A row without a copy there has no
// Seq.
func failedContent(ctx context.Context, r QueueReader, rows []*failedRow) ([]store.Item, error) {
	from := make([]store.SpilledRange, len(rows))
	for i, row := range rows {
		from[i] = store.SpilledRange{Outbox: string(row.Outbox), Lane: row.lane().Hash(), After: row.Seq - 1}
	}
	items := make([]store.Item, len(rows))
	found, err := r.Range(ctx, failedQueue, from, 1)
	if err != nil {
		return nil, err
	}
	for i, row := range rows {
		if got := found[i]; len(got) == 1 && got[0].Seq == row.Seq && got[0].Ref == row.ref() {
			items[i] = got[0]
		}
	}
	return items, nil
}

// EachFailed implements store.FailedReader.
func (s Store) EachFailed(ctx context.Context, f store.DeadLetterFilter, take func(*store.DeadLetter)) error {
	o, err := s.recorded(&f)
	if o == nil && err == nil {
		return s.Tables.EachFailed(ctx, f, take)
	}
	var rows []*failedRow
	if err == nil {
		rows, err = s.readFailed(ctx, &f, math.MaxInt)
	}
	if err != nil {
		return fmt.Errorf("read FAILED rows: %w", err)
	}
	for _, row := range rows {
		d := row.letter()
		take(&d)
	}
	return nil
}

// Requeue implements store.DeadLetters. A row that only the log has becomes a spilled row again
// under its old Seq, with its content: the first of its lane, because the rows before it are
// settled. It is returned with its Seq and its content.
func (s Store) Requeue(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) (items []store.Item, err error) {
	o, err := s.recorded(&f)
	switch {
	case o == nil && err == nil:
		return s.Tables.Requeue(ctx, epoch, f, limit)
	case err == nil:
		err = s.resolve(ctx, o, &f, limit, func(rows []*failedRow) (refs []store.Ref, err error) {
			switch {
			case o.Layout.LogOnly():
				items, err = s.spillFailed(ctx, epoch, rows)
			case o.Layout.State == store.StateNone: // its table has nothing to reset
				if items, err = s.existing(ctx, rows); err == nil {
					err = s.forgetFailed(ctx, epoch, rows)
				}
			default:
				letters := lettersOf(rows)
				if items, err = s.Tables.Requeue(ctx, epoch, named(o, letters), len(letters)); err == nil {
					err = s.dropSettled(ctx, epoch, rows, refsOf(items))
				}
			}
			return refsOf(items), err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("requeue: %w", err)
	}
	return items, nil
}

// existing returns the rows that their table still has, as they are after a requeue.
func (s Store) existing(ctx context.Context, rows []*failedRow) (items []store.Item, err error) {
	gone, err := s.Tables.ReadSettled(ctx, claimsOf(rows))
	now := time.Now()
	for i, row := range rows {
		if err == nil && !gone[i] {
			lane := row.lane()
			items = append(items, store.Item{Ref: row.ref(), Kind: lane.Kind, Group: lane.Group, PayloadSize: row.Size, Captured: now})
		}
	}
	return items, err
}

func claimsOf(rows []*failedRow) []store.ClaimRow {
	ask := make([]store.ClaimRow, len(rows))
	for i, row := range rows {
		ask[i].Ref = row.ref()
	}
	return ask
}

func refsOf(items []store.Item) []store.Ref {
	refs := make([]store.Ref, len(items))
	for i := range items {
		refs[i] = items[i].Ref
	}
	return refs
}

// Discard implements store.DeadLetters. Of a row that only the log has it deletes the record.
func (s Store) Discard(ctx context.Context, epoch store.Epoch, f store.DeadLetterFilter, limit int) (refs []store.Ref, err error) {
	o, err := s.recorded(&f)
	switch {
	case o == nil && err == nil:
		return s.Tables.Discard(ctx, epoch, f, limit)
	case err == nil:
		err = s.resolve(ctx, o, &f, limit, func(rows []*failedRow) ([]store.Ref, error) {
			letters := lettersOf(rows)
			if o.Layout.LogOnly() {
				refs = store.Refs(letters)
				return refs, s.dropFailed(ctx, epoch, rows)
			}
			if refs, err = s.Tables.Discard(ctx, epoch, named(o, letters), len(letters)); err != nil {
				return nil, err
			}
			return refs, s.dropSettled(ctx, epoch, rows, refs)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("discard: %w", err)
	}
	return refs, nil
}

// resolve selects FAILED rows in records and passes them to write, which returns those that it
// requeued or deleted.
func (s Store) resolve(ctx context.Context, o *store.Outbox, f *store.DeadLetterFilter, limit int, write func([]*failedRow) ([]store.Ref, error)) error {
	if limit <= 0 {
		return fmt.Errorf("outbox %s: limit %d must be positive", o.Name, limit)
	}
	if err := s.loadFailed(ctx); err != nil {
		return err
	}
	s.failed.change.RLock()
	defer s.failed.change.RUnlock()
	var rows []*failedRow
	_, err := deadletter.Resolve(o.Name, func() (letters []store.DeadLetter, err error) {
		rows, err = s.readFailed(ctx, f, min(limit, maxResolvedRows))
		if bytes := 0; o.Layout.LogOnly() {
			for n, row := range rows {
				if bytes += row.Size; n > 0 && bytes > maxResolvedBytes {
					rows = rows[:n]
					break
				}
			}
		}
		return lettersOf(rows), err
	}, func(letters []store.DeadLetter) ([]store.DeadLetter, error) {
		if len(rows) == 0 {
			return nil, nil
		}
		done, err := write(rows)
		if err != nil {
			s.failed.forget(lateCommit) // it may have been written
			return nil, err
		}
		s.failed.set(false, done...)
		return letters[:len(done)], nil
	})
	return err
}

// dropFailed deletes the records of FAILED rows, their content and the blocks that they caused.
func (s Store) dropFailed(ctx context.Context, epoch store.Epoch, rows []*failedRow) error {
	return s.records.Update(ctx, epoch, Full, func(ctx context.Context, tx Tx) error {
		if err := s.changeLegs(ctx, tx, failedRefs(rows), (*legRow).discarded); err != nil {
			return err
		}
		return s.deleteFailed(ctx, tx, rows)
	})
}

// ReopenLegs opens FAILED rows of legs, whose outboxes have them. Their FAILED records, with the content
// and the blocks, are gone, and the records of the rows say that the legs are to deliver them, in one
// transaction. To repeat the call is safe.
func (s Store) ReopenLegs(ctx context.Context, epoch store.Epoch, rows []store.Ref) error {
	if err := s.loadFailed(ctx); err != nil {
		return fmt.Errorf("reopen legs: %w", err)
	}
	s.failed.change.RLock()
	defer s.failed.change.RUnlock()
	for some := range slices.Chunk(rows, maxFailedRows) {
		keys := make([]string, len(some))
		for i, row := range some {
			keys[i] = failedKey(row)
		}
		err := s.records.Update(ctx, epoch, Full, func(ctx context.Context, tx Tx) error {
			found, err := getAll[failedRow](ctx, tx.Lock, failedKind, distinct(keys))
			if err != nil {
				return err
			}
			if err := s.changeLegs(ctx, tx, some, (*legRow).reopened); err != nil {
				return err
			}
			return s.deleteFailed(ctx, tx, slices.SortedFunc(maps.Values(found), compareFailed))
		})
		if err != nil {
			s.failed.forget(lateCommit) // it may have been written
			return fmt.Errorf("reopen legs: %w", err)
		}
		s.failed.set(false, some...)
	}
	return nil
}

func failedRefs(rows []*failedRow) []store.Ref {
	refs := make([]store.Ref, len(rows))
	for i, row := range rows {
		refs[i] = row.ref()
	}
	return refs
}

func (s Store) deleteFailed(ctx context.Context, tx Tx, rows []*failedRow) error {
	queued := make([]Ref, len(rows))
	for i, row := range rows {
		queued[i] = row.queued()
	}
	if _, err := tx.Dequeue(ctx, failedQueue, queued, nil); err != nil {
		return err
	}
	return s.AfterResolve(ctx, tx, failedRefs(rows)...)
}

// dropSettled deletes the records of rows that were not done because another program settled
// or deleted them.
func (s Store) dropSettled(ctx context.Context, epoch store.Epoch, rows []*failedRow, done []store.Ref) error {
	left := slices.DeleteFunc(slices.Clone(rows), func(row *failedRow) bool { return slices.Contains(done, row.ref()) })
	if len(left) == 0 {
		return nil
	}
	settled, err := s.Tables.ReadSettled(ctx, claimsOf(left))
	if err != nil {
		return err
	}
	var over []*failedRow
	for i, row := range left {
		if settled[i] {
			over = append(over, row)
		}
	}
	if len(over) == 0 {
		return nil
	}
	return s.forgetFailed(ctx, epoch, over)
}

// forgetFailed deletes the records of rows.
func (s Store) forgetFailed(ctx context.Context, epoch store.Epoch, rows []*failedRow) error {
	err := s.dropFailed(ctx, epoch, rows)
	if err == nil {
		for _, row := range rows {
			s.failed.set(false, row.ref())
		}
	}
	return err
}

// spillFailed moves FAILED rows from failedQueue to the spilled rows, and returns them. It
// leaves out rows that another call has moved or deleted meanwhile.
func (s Store) spillFailed(ctx context.Context, epoch store.Epoch, rows []*failedRow) (items []store.Item, err error) {
	err = s.spill.Update(ctx, epoch, Full, func(ctx context.Context, tx Tx) (err error) {
		items = nil
		rows, err := stillFailed(ctx, tx, rows)
		if err != nil || len(rows) == 0 {
			return err
		}
		if items, err = failedContent(ctx, tx, rows); err != nil {
			return err
		}
		for i := range items {
			it := &items[i]
			it.RetryCount = 0
			if it.Seq == 0 || it.Payload == nil && it.PayloadSize > 0 {
				return &store.RefusedError{Err: fmt.Errorf("row %q of outbox %s: its payload of %d bytes was too large to keep, or another call moves the row; list the FAILED rows again, and discard it if it is still there", rows[i].ID, rows[i].Outbox, rows[i].Size)}
			}
		}
		inOrder := slices.SortedFunc(slices.Values(items), func(a, b store.Item) int { return cmp.Compare(a.Seq, b.Seq) })
		if _, err := tx.Enqueue(ctx, SpilledQueue, inOrder); err != nil {
			return err
		}
		items = inOrder
		if err := s.changeLegs(ctx, tx, failedRefs(rows), (*legRow).requeued); err != nil {
			return err
		}
		return s.deleteFailed(ctx, tx, rows)
	})
	now := time.Now()
	for i := range items {
		items[i].Captured = now
	}
	if err != nil && !errors.Is(err, store.ErrNotLeader) && !errors.As(err, new(*store.RefusedError)) {
		err = fmt.Errorf("%w: %w", store.ErrUnsure, err)
	}
	return items, err
}

// stillFailed returns the rows whose records exist.
func stillFailed(ctx context.Context, r RecordReader, rows []*failedRow) ([]*failedRow, error) {
	keys := make([]string, len(rows))
	for i, row := range rows {
		keys[i] = failedKey(row.ref())
	}
	found, err := getAll[failedRow](ctx, r.Get, failedKind, distinct(keys))
	return slices.DeleteFunc(slices.Clone(rows), func(row *failedRow) bool { return found[failedKey(row.ref())] == nil }), err
}
