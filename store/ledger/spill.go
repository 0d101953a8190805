package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Spill implements store.Spiller. It spills rows in the given order, in transactions of a
// bounded size, each of them durable. It may return an error after some were committed, also
// ErrNotLeader. The next leader finds those rows, because nothing is written after the
// change of leader.
func (l *Ledger) Spill(ctx context.Context, epoch store.Epoch, items []store.Item) error {
	return l.spillRows(ctx, epoch, items, func(context.Context, Tx, int, int) error { return nil })
}

// spillRows spills rows. Each transaction also runs with, for the n items from an index on.
func (l *Ledger) spillRows(ctx context.Context, epoch store.Epoch, items []store.Item, with func(ctx context.Context, tx Tx, from, n int) error) error {
	for i := range items {
		it := &items[i]
		_, err := l.outboxes.Find(it.Outbox)
		if err == nil && it.Seq == 0 {
			err = fmt.Errorf("row %q of outbox %s has no seq; assign one before spilling", it.ID, it.Outbox)
		}
		if err != nil {
			return fmt.Errorf("spill rows: %w", err)
		}
	}

	rows := l.rowsToSpill(items)
	for from := 0; from < len(rows); {
		n := l.batchLen(rows[from:])
		err := l.spill.Update(ctx, epoch, Full, func(ctx context.Context, tx Tx) error {
			if _, err := tx.Enqueue(ctx, SpilledQueue, rows[from:from+n]); err != nil {
				return err
			}
			return with(ctx, tx, from, n)
		})
		if err != nil {
			return fmt.Errorf("spill rows: %w", err)
		}
		from += n
	}
	return nil
}

// rowsToSpill returns the rows without the content that their tables keep.
func (l *Ledger) rowsToSpill(items []store.Item) []store.Item {
	rows := slices.Clone(items)
	for i := range rows {
		rows[i].Captured = time.Time{}
		if !l.outboxes.Lookup(rows[i].Outbox).Layout.LogOnly() {
			rows[i].DropContent()
		}
	}
	return rows
}

// batchLen returns how many of the first rows one transaction writes, at least one.
func (l *Ledger) batchLen(rows []store.Item) int {
	n, bytes := 0, int64(0)
	for ; n < min(len(rows), l.batchRows); n++ {
		if bytes += int64(rows[n].Bytes()); n > 0 && l.batchBytes > 0 && bytes > l.batchBytes {
			break
		}
	}
	return n
}

// DeleteSpilled implements store.Spiller, in transactions of a bounded size. A power failure
// may undo it; the rows are then found settled or deleted again.
func (l *Ledger) DeleteSpilled(ctx context.Context, epoch store.Epoch, rows []store.SpilledRef) error {
	refs := make([]Ref, len(rows))
	for i, row := range rows {
		if _, err := l.outboxes.Find(row.Outbox); err != nil {
			return fmt.Errorf("delete spilled rows: %w", err)
		}
		refs[i] = refOf(row)
	}

	for batch := range slices.Chunk(refs, l.batchRows) {
		err := l.spill.Update(ctx, epoch, Normal, func(ctx context.Context, tx Tx) error {
			_, err := tx.Dequeue(ctx, SpilledQueue, batch, nil)
			return err
		})
		if err != nil {
			return fmt.Errorf("delete spilled rows: %w", err)
		}
	}
	return nil
}

func refOf(row store.SpilledRef) Ref { return Ref{Ref: row.Ref, N: int64(row.Seq)} }

// DeleteSpilledAfter implements store.SpillStore, in transactions of a bounded size, each of
// them durable. It may return an error after some were committed.
func (l *Ledger) DeleteSpilledAfter(ctx context.Context, epoch store.Epoch, after store.Checkpoint) (int, error) {
	total, q := 0, Scan{Queue: SpilledQueue, After: int64(after.Seq), Limit: l.batchRows}
	for _, name := range l.outboxes.Names() {
		if _, is := l.legs[name]; !is {
			q.Outboxes = append(q.Outboxes, name)
			continue
		}
		seq := after.Seq
		if mark, has := after.Legs[name]; has {
			seq = mark.Seq
		}
		n, err := l.deleteLegAfter(ctx, epoch, name, seq)
		if total += n; err != nil {
			return total, fmt.Errorf("delete spilled rows of %s after seq %d: %w", name, seq, err)
		}
	}
	for {
		n, last := 0, int64(0)
		err := l.spill.Update(ctx, epoch, Full, func(ctx context.Context, tx Tx) (err error) {
			n, last, err = tx.Clear(ctx, q)
			return err
		})
		if err != nil {
			return total, fmt.Errorf("delete spilled rows after seq %d: %w", after.Seq, err)
		}
		if n == 0 {
			return total, nil
		}
		total += n
		q.After = last - 1 // another outbox may have a row of the same number
	}
}

// ReadSpilled implements store.Spiller, from one snapshot.
func (l *Ledger) ReadSpilled(ctx context.Context, from []store.SpilledRange, each int) (lanes [][]store.Item, err error) {
	if each <= 0 {
		return nil, fmt.Errorf("read spilled rows: limit of each lane is %d, must be positive", each)
	}
	for i := range from {
		if _, err := l.outboxes.Find(from[i].Outbox); err != nil {
			return nil, fmt.Errorf("read spilled rows: %w", err)
		}
	}
	if len(from) == 0 {
		return nil, nil
	}

	err = l.spill.View(ctx, func(ctx context.Context, r Reader) (err error) {
		lanes, err = r.Range(ctx, SpilledQueue, from, each)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read spilled rows: %w", err)
	}
	return lanes, nil
}

// SpilledLanes implements store.SpillStore.
func (l *Ledger) SpilledLanes(ctx context.Context, take func(store.SpilledLane)) error {
	err := l.spill.View(ctx, func(ctx context.Context, r Reader) error {
		for _, name := range l.outboxes.Names() {
			if err := r.Lanes(ctx, SpilledQueue, name, take); err != nil {
				return err
			}
		}
		return nil
	})
	return wrap(err, "read spilled lanes")
}

// spilledPage and maxSpilledSearched bound FindSpilled.
const (
	spilledPage        = 5000
	maxSpilledSearched = 100_000
)

// FindSpilled returns the spilled copy of a row of an outbox or a leg, without payload; nil if there
// is none. It reads the copies of the outbox, at most 100 000 of them; searched is false if there
// are more and none of those is the row's.
func (s Store) FindSpilled(ctx context.Context, row store.Ref) (it *store.Item, searched bool, err error) {
	q := Scan{Queue: SpilledQueue, Outboxes: []string{row.Outbox}, Limit: spilledPage}
	err = s.spill.View(ctx, func(ctx context.Context, r Reader) error {
		it, searched, q.After = nil, false, 0
		for n := 0; n < maxSpilledSearched; n += spilledPage {
			page, err := r.Scan(ctx, q)
			if err != nil {
				return err
			}
			if i := slices.IndexFunc(page, func(it store.Item) bool { return it.Ref == row }); i >= 0 {
				it, searched = &page[i], true
				return nil
			}
			if searched = len(page) < spilledPage; searched {
				return nil
			}
			q.After = int64(page[len(page)-1].Seq)
		}
		return nil
	})
	return it, searched, wrap(err, "find spilled row")
}
