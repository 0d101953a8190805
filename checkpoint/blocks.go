package checkpoint

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// BlockStore is what Blocks asks of a store.
type BlockStore interface {
	store.FailedReader
	SpilledLanes(ctx context.Context, take func(store.SpilledLane)) error
}

// FindBlocks returns the holds that a first start adds where a FAILED row blocks its lane:
// one for each lane of some outboxes in which rows wait and a row FAILED before the relay
// came. Without them the relay would deliver past the rows that an earlier processor
// had stopped at. Later starts find the holds that were recorded.
//
// The row of a hold is the last of its lane that FAILED, by the layout's order-by, so
// nothing waits in front of another FAILED row once it is requeued or skipped. Lanes
// without rows that wait are left alone, because a table may keep FAILED rows for years.
// The memory that FindBlocks takes is linear in the lanes with rows that wait, some 50 bytes
// for each.
func FindBlocks(ctx context.Context, tables BlockStore, outboxes []string, backlog []store.Item) ([]store.Hold, error) {
	type lane struct {
		outbox string
		hash   uint64 // a part of the lane's: one in 10^10 lanes is taken for another
	}
	laneOf := func(outbox string, hash store.LaneHash) lane { return lane{outbox, binary.BigEndian.Uint64(hash[:])} }
	waiting := map[lane]bool{}
	for i := range backlog {
		key := backlog[i].Lane()
		waiting[laneOf(key.Outbox, key.Hash())] = true
	}
	err := tables.SpilledLanes(ctx, func(l store.SpilledLane) { waiting[laneOf(l.Outbox, l.Hash)] = true })
	if err != nil {
		return nil, fmt.Errorf("read which groups are parked: %w", err)
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
			h.Reason = cmp.Or(d.Error, "it FAILED before the relay's first start")
			if h.Since.IsZero() {
				h.Since = now
			}
			last[l] = h
		})
		if err != nil {
			return nil, fmt.Errorf("find the FAILED rows that block groups of %s: %w", outbox, err)
		}
	}
	holds := make([]store.Hold, len(order))
	for i, l := range order {
		holds[i] = last[l]
	}
	return holds, nil
}

// IsFirst reports whether the start is the first that reads the log under this name: no
// row was captured before, and no earlier start has taken over what blocks groups.
func (b *StartPoint) IsFirst() bool { return b.SnapshotReason != "" && b.Watermark.Seq == 0 }
