package checkpoint

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// BlockStore is the part of a store that FindBlocks needs.
type BlockStore interface {
	store.FailedReader
	SpilledLanes(ctx context.Context, take func(store.SpilledLane)) error
}

// FindBlocks returns the holds that a first start adds for FAILED rows that block
// their lane: one for each lane of the outboxes that has waiting rows and a row that
// FAILED before the relay was installed. Without them the relay would deliver past
// the rows at which an earlier processor stopped. Later starts load the recorded
// holds.
//
// The row of a hold is the last FAILED row of its lane, by the layout's order-by. After
// an operator requeues or skips it, no later FAILED row of the lane has to block. Lanes
// without waiting rows get no hold, because a table may keep FAILED rows for years.
//
// FindBlocks takes about 50 bytes of memory for each lane with waiting rows.
func FindBlocks(ctx context.Context, tables BlockStore, outboxes []string, backlog []store.Item) ([]store.Hold, error) {
	type lane struct {
		outbox string
		hash   uint64 // the first 64 bits of the hash: one lane in 10^10 is mistaken for another
	}

	laneOf := func(outbox string, hash store.LaneHash) lane { return lane{outbox, binary.BigEndian.Uint64(hash[:])} }
	waiting := map[lane]bool{}
	for i := range backlog {
		key := backlog[i].Lane()
		waiting[laneOf(key.Outbox, key.Hash())] = true
	}

	err := tables.SpilledLanes(ctx, func(l store.SpilledLane) { waiting[laneOf(l.Outbox, l.Hash)] = true })
	if err != nil {
		return nil, fmt.Errorf("read spilled lanes: %w", err)
	}
	if len(waiting) == 0 {
		return nil, nil
	}

	last, order := map[lane]store.Hold{}, []lane(nil)
	now := time.Now()
	for _, outbox := range outboxes {
		err := tables.EachFailed(ctx, store.DeadLetterFilter{Outbox: outbox}, func(d *store.DeadLetter) {
			key := store.LaneKey{Outbox: outbox, Kind: d.Kind, Group: d.Group}
			l := laneOf(outbox, key.Hash())
			if !waiting[l] {
				return
			}
			if _, known := last[l]; !known {
				order = append(order, l)
			}
			h := store.Hold{Lane: key, Kind: store.Blocked, ID: d.ID, RetryCount: d.RetryCount, Since: d.FailedAt}
			h.Reason = cmp.Or(d.Error, "FAILED before the relay's first start")
			if h.Since.IsZero() {
				h.Since = now
			}
			last[l] = h
		})
		if err != nil {
			return nil, fmt.Errorf("find blocking FAILED rows of %s: %w", outbox, err)
		}
	}

	holds := make([]store.Hold, len(order))
	for i, l := range order {
		holds[i] = last[l]
	}

	return holds, nil
}

// IsFirst reports whether this is the first start that reads the log under this name:
// no row was captured before, and no earlier start has added the holds of blocked
// groups.
func (b *StartPoint) IsFirst() bool { return b.SnapshotReason != "" && b.Watermark.Seq == 0 }
