package sluicebox

import (
	"context"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// Limits of one status read.
const (
	statusBatchRows  = 2000
	statusBatchBytes = 8 << 20

	// maxUncheckedRows limits the rows that skip the status read.
	maxUncheckedRows = 50_000
)

// beginCatchUp makes run drop rows from the log that are already settled, until endCatchUp.
// Call it before run.
//
// After a start, most rows behind the checkpoint may be settled. Claims would detect them
// too, but rows behind a lane that does not move are not claimed.
func (f *intake) beginCatchUp(statuses store.StatusReader) { f.statuses = statuses }

// endCatchUp ends the catch-up: the log has been read up to its end at the start of the
// relay. Call it only from onMarker.
func (f *intake) endCatchUp() { f.statuses = nil }

// catchUp takes batches like run, without settled rows.
func (f *intake) catchUp(ctx context.Context, in <-chan capture.Batch) error {
	bundles, stop, left := make(chan []capture.Batch), make(chan struct{}), make(chan []capture.Batch, 1)
	go func() { left <- coalesce(in, bundles, stop) }()
	var err error
	for err == nil && f.statuses != nil {
		if err = f.waitForRoom(ctx); err != nil {
			break
		}
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case b, open := <-bundles:
			if !open { // the source has ended
				return f.appendBatches(<-left)
			}
			err = f.appendBatches(f.dropSettled(ctx, b))
		}
	}

	close(stop)
	if rest := <-left; err == nil {
		err = f.appendBatches(rest)
	}
	return err
}

func (f *intake) appendBatches(batches []capture.Batch) error {
	for i := range batches {
		if err := f.appendBatch(&batches[i]); err != nil {
			return err
		}
	}
	return nil
}

// coalesce merges batches while the receiver of out is busy, up to the limits of a status
// read. It returns the batches it holds when stop or in is closed. If in is closed, it
// closes out.
func coalesce(in <-chan capture.Batch, out chan<- []capture.Batch, stop <-chan struct{}) []capture.Batch {
	var held []capture.Batch
	rows, bytes := 0, 0
	for {
		from, to := in, out
		if rows >= statusBatchRows || bytes >= statusBatchBytes || len(held) >= statusBatchRows { // some batches have no rows
			from = nil
		}
		if len(held) == 0 {
			to = nil
		}
		select {
		case b, open := <-from:
			if !open {
				close(out)
				return held
			}
			held = append(held, b)
			rows += len(b.Items)
			for i := range b.Items {
				bytes += b.Items[i].Bytes()
			}
		case to <- held:
			held, rows, bytes = nil, 0, 0
		case <-stop:
			return held
		}
	}
}

// dropSettled removes settled rows from batches. It skips some status reads, because
// settled rows stand mostly at the start of the repeated log. The rest lie further back in
// the lanes of a receiver that accepted nothing. So the longer the streak of unsettled
// rows, the more rows skip the status read.
func (f *intake) dropSettled(ctx context.Context, batches []capture.Batch) []capture.Batch {
	n := 0
	for i := range batches {
		n += len(batches[i].Items)
	}
	if n <= f.uncheckedRows {
		f.uncheckedRows -= n
		return batches
	}
	kept, settled := f.filterSettled(ctx, batches)
	f.unsettledStreak += n
	if settled {
		f.unsettledStreak = 0
	}
	if f.uncheckedRows = 0; f.claimsDetectSettled {
		f.uncheckedRows = min(f.unsettledStreak, maxUncheckedRows)
		f.unsettledStreak += f.uncheckedRows
	}
	return kept
}

// filterSettled removes settled rows from batches and reports whether there were any. If
// the store does not answer, the claims must detect them. It drops the payloads then,
// because even a claim that writes nothing checks a row whose payload it reads.
func (f *intake) filterSettled(ctx context.Context, batches []capture.Batch) (kept []capture.Batch, some bool) {
	var rows []store.ClaimRow
	for i := range batches {
		for k := range batches[i].Items {
			it := &batches[i].Items[k]
			rows = append(rows, store.ClaimRow{Ref: it.Ref, Txn: it.Txn})
		}
	}

	if len(rows) == 0 {
		return batches, false
	}
	settled, err := f.statuses.ReadSettled(ctx, rows)
	if err != nil {
		for i := range batches {
			for k := range batches[i].Items {
				batches[i].Items[k].Payload = nil
			}
		}
		return batches, true
	}

	at := 0
	for i := range batches {
		kept := batches[i].Items[:0]
		for k := range batches[i].Items {
			if !settled[at] {
				kept = append(kept, batches[i].Items[k])
			}
			at++
		}
		some = some || len(kept) < len(batches[i].Items)
		clear(batches[i].Items[len(kept):])
		batches[i].Items = kept
	}

	return batches, some
}
