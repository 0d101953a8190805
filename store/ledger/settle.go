package ledger

import (
	"context"
	"maps"
	"slices"

	"github.com/sluicebox/sluicebox/store"
)

// AfterSettle makes the writes that accompany the outcomes of a call of Settle, in its
// transaction, after the outcomes were written.
//
// If a leg brings an outcome, they are those of the leg; see store.LegEnd.
//
//   - It records FAILED rows whose tables cannot store that.
//   - It records how far the legs of a row are.
//   - It deletes the spilled copies of settled rows.
//   - It records the blocks of FAILED rows. A row that becomes FAILED first loses the block that
//     it caused before. Such a block is left if another program than the relay reset the row.
//
// areFailed reads the tables in the transaction.
func (l *Ledger) AfterSettle(ctx context.Context, tx Tx, outcomes []store.Outcome, results []store.SettleResult, areFailed AreFailed) error {
	var copies []Ref
	var failures []failure
	for i := range outcomes {
		o := ended(&outcomes[i])
		if results[i].NeedsRetry() {
			continue
		}
		if o.DeletesSpilled() {
			copies = append(copies, refOf(store.SpilledRef{Ref: o.Ref, Seq: o.SpilledSeq}))
		}
		written := endResult(&outcomes[i], results[i]) == store.Written
		if o.Status == store.Failed && (o.Block != nil || written) {
			failures = append(failures, failure{row: blockKey(o.Ref), outcome: o, written: written})
		}
	}
	if len(failures) > 0 { // first, because a standalone server undoes nothing
		if err := l.recordFailed(ctx, tx, outcomes, results); err != nil {
			return err
		}
	}
	if err := l.legKeys.record(ctx, tx, outcomes, results); err != nil {
		return err
	}
	if len(copies) > 0 {
		if _, err := tx.Dequeue(ctx, SpilledQueue, copies, nil); err != nil {
			return err
		}
	}
	if len(failures) == 0 {
		return nil
	}
	return afterFailed(ctx, tx, failures, l.orRecorded(tx.Get, areFailed))
}

// AfterResolve makes the writes that accompany the requeue or the deletion of FAILED rows, in
// its transaction: it deletes their records and the blocks that they caused.
func (l *Ledger) AfterResolve(ctx context.Context, tx Tx, rows ...store.Ref) error {
	var keys []string
	for _, row := range rows {
		if l.recordsFailed(row.Outbox) {
			keys = append(keys, failedKey(row))
		}
	}
	if len(keys) > 0 {
		if err := tx.Delete(ctx, failedKind, distinct(keys)...); err != nil {
			return err
		}
	}
	return unblock(ctx, tx, rows...)
}

// failure is an outcome FAILED that may change blocks.
type failure struct {
	row     string // block key
	outcome *store.Outcome
	written bool
}

func afterFailed(ctx context.Context, tx Tx, failures []failure, areFailed AreFailed) error {
	var asked []store.Ref
	var rows, lanes []string
	for _, f := range failures {
		rows = append(rows, f.row)
		if f.outcome.Block != nil {
			asked = append(asked, f.outcome.Ref)
			lanes = append(lanes, holdKey(f.outcome.Block.Lane, store.Blocked))
		}
	}
	var failed []bool
	if len(asked) > 0 {
		var err error
		if failed, err = areFailed(ctx, asked); err != nil {
			return err
		}
	}

	b, err := lockBlocks(ctx, tx, rows, lanes)
	if err != nil {
		return err
	}
	for _, f := range failures {
		if f.written {
			b.unblock(f.row)
		}
		if f.outcome.Block == nil {
			continue
		}
		if failed[0] {
			h := f.outcome.Hold()
			b.block(&h)
		}
		failed = failed[1:]
	}
	return b.write(ctx, tx)
}

// unblock deletes the blocks that rows caused, if any.
func unblock(ctx context.Context, tx Tx, rows ...store.Ref) error {
	keys := make([]string, len(rows))
	for i := range rows {
		keys[i] = blockKey(rows[i])
	}
	b, err := lockBlocks(ctx, tx, keys, nil)
	if err != nil {
		return err
	}
	for _, key := range keys {
		b.unblock(key)
	}
	return b.write(ctx, tx)
}

// blocks changes blocks in a transaction. It locks the records that it may change, and
// writes those that it changed.
type blocks struct {
	holds, oldHolds map[string]*hold
	rows, oldRows   map[string]*block
}

// lockBlocks locks the holds under the keys lanes, the holds that rows caused, and then the
// records of the rows. If another call changed such a record meanwhile, it stays as it is.
func lockBlocks(ctx context.Context, tx Tx, rows, lanes []string) (*blocks, error) {
	found, err := getAll[block](ctx, tx.Get, blockKind, distinct(rows))
	if err != nil {
		return nil, err
	}
	for _, p := range found {
		lanes = append(lanes, p.Hold)
	}
	lanes = distinct(lanes)
	b := &blocks{}
	if b.oldHolds, err = getAll[hold](ctx, tx.Lock, holdKind, lanes); err != nil {
		return nil, err
	}

	rows = slices.Collect(maps.Keys(found))
	for _, h := range b.oldHolds {
		if h.Block != "" {
			rows = append(rows, h.Block)
		}
	}
	if b.oldRows, err = getAll[block](ctx, tx.Lock, blockKind, distinct(rows)); err != nil {
		return nil, err
	}
	maps.DeleteFunc(b.oldRows, func(_ string, p *block) bool {
		_, locked := slices.BinarySearch(lanes, p.Hold)
		return !locked
	})
	b.holds, b.rows = maps.Clone(b.oldHolds), maps.Clone(b.oldRows)
	return b, nil
}

// distinct returns keys in order, which is the order of locks.
func distinct(keys []string) []string { return slices.Compact(slices.Sorted(slices.Values(keys))) }

// block records a block. An earlier block of the lane, or by the row, ends.
func (b *blocks) block(h *store.Hold) {
	key, rec := holdKey(h.Lane, store.Blocked), recordOfHold(h)
	b.unblock(rec.Block)
	b.release(key)
	b.holds[key], b.rows[rec.Block] = rec, &block{Hold: key}
}

// unblock deletes the record of a row, and the hold that it names if the row caused it.
func (b *blocks) unblock(row string) {
	p := b.rows[row]
	if p == nil {
		return
	}
	if h := b.holds[p.Hold]; h != nil && h.Block == row {
		delete(b.holds, p.Hold)
	}
	delete(b.rows, row)
}

// release deletes a hold, and the record of its row.
func (b *blocks) release(key string) {
	h := b.holds[key]
	if h == nil {
		return
	}
	if p := b.rows[h.Block]; p != nil && p.Hold == key {
		delete(b.rows, h.Block)
	}
	delete(b.holds, key)
}

// write writes the changes.
func (b *blocks) write(ctx context.Context, tx Tx) error {
	if err := writeChanges(ctx, tx, holdKind, b.oldHolds, b.holds); err != nil {
		return err
	}
	return writeChanges(ctx, tx, blockKind, b.oldRows, b.rows)
}

// writeChanges writes the records of a kind that were changed from old.
func writeChanges[T any](ctx context.Context, tx Tx, kind string, old, now map[string]*T) error {
	var gone []string
	for key := range old {
		if now[key] == nil {
			gone = append(gone, key)
		}
	}
	if len(gone) > 0 {
		if err := tx.Delete(ctx, kind, gone...); err != nil {
			return err
		}
	}
	changed := maps.Clone(now)
	maps.DeleteFunc(changed, func(key string, v *T) bool { return v == old[key] })
	return putAll(ctx, tx, kind, changed)
}
