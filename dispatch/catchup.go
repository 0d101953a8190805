package dispatch

import (
	"context"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// Bounds of one look-up of what the log brings again.
const (
	statusBatchRows  = 2000
	statusBatchBytes = 8 << 20
	// maxUncheckedRows bounds the rows that are taken without a look.
	maxUncheckedRows = 50_000
)

// BeginCatchUp makes Run leave out rows that the log brings again and that are settled
// already, until CaughtUp is called from Marked. After a start most of what the log
// holds behind the checkpoint may be so. They would be found by their claims as
// well, but behind a lane that stands still no row is claimed. Call it before Run.
func (f *Feed) BeginCatchUp(look store.StatusReader) { f.statuses = look }

// EndCatchUp says that the log has been read up to where it was when the relay
// began. Call it from Marked only.
func (f *Feed) EndCatchUp() { f.statuses = nil }

// catchUp takes batches as Run does, without the rows that are settled.
func (f *Feed) catchUp(ctx context.Context, in <-chan capture.Batch) error {
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

func (f *Feed) appendBatches(batches []capture.Batch) error {
	for i := range batches {
		if err := f.appendBatch(&batches[i]); err != nil {
			return err
		}
	}
	return nil
}

// coalesce puts batches together while nobody takes them, up to the bounds of a
// look-up. It returns what it holds when it is stopped, or when in is closed; then
// it closes out.
func coalesce(in <-chan capture.Batch, out chan<- []capture.Batch, stop <-chan struct{}) []capture.Batch {
	var held []capture.Batch
	rows, bytes := 0, 0
	for {
		from, to := in, out
		if rows >= statusBatchRows || bytes >= statusBatchBytes || len(held) >= statusBatchRows { // some are positions alone
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

// dropSettled takes the rows out of batches that need no delivery any more, unless it may
// spare itself the look: what was settled when the relay ended stands at the
// beginning of what the log brings again, or behind it in the lanes of a receiver
// that took nothing. So the more rows in a row were not, the fewer are looked up.
func (f *Feed) dropSettled(ctx context.Context, batches []capture.Batch) []capture.Batch {
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
	if f.uncheckedRows = 0; f.ClaimsDetectSettled {
		f.uncheckedRows = min(f.unsettledStreak, maxUncheckedRows)
		f.unsettledStreak += f.uncheckedRows
	}
	return kept
}

// filterSettled takes the rows out of batches that need no delivery any more, and
// reports whether there were any. Where the store does not answer, the claims find
// out: also those that write nothing look at a row whose payload they read.
func (f *Feed) filterSettled(ctx context.Context, batches []capture.Batch) (kept []capture.Batch, some bool) {
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
