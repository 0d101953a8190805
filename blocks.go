package sluicebox

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// blockStore is the part of a store that findBlocks needs.
type blockStore interface {
	store.FailedReader
	SpilledLanes(ctx context.Context, take func(store.SpilledLane)) error
}

// findBlocks returns the holds that a first start adds for FAILED rows that block
// their lane: one for each lane of the outboxes that has waiting rows and a row that
// FAILED before the relay was installed. Without them the relay would deliver past
// the rows at which an earlier processor stopped. Later starts load the recorded
// holds.
//
// The row of a hold is the last FAILED row of its lane, by the layout's order-by. After
// an operator requeues or skips it, no later FAILED row of the lane has to block. Lanes
// without waiting rows get no hold, because a table may keep FAILED rows for years.
//
// findBlocks takes about 50 bytes of memory for each lane with waiting rows.
func findBlocks(ctx context.Context, tables blockStore, outboxes []string, backlog []store.Item) ([]store.Hold, error) {
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

// adoptBlocks records a hold for each message group that has rows behind a row that
// FAILED before the relay's first start. It does so only with on-failed: block.
//
// No row is sent before, so an interrupted start is followed by another first start.
// Afterwards a checkpoint with a seq marks the holds as recorded. Otherwise a group that an
// operator has resumed would be blocked again if the relay ended before its backlog was
// saved.
func (r *Relay) adoptBlocks(ctx context.Context, begin *checkpoint.StartPoint, byOutbox map[string]*dispatch.Dispatcher) error {
	if !begin.IsFirst() {
		return nil
	}
	routes := r.opt().routes()
	var outboxes []string
	for _, o := range r.opt().tables() {
		if len(o.Routes) > 0 {
			continue // its FAILED rows say nothing about a leg
		}
		if o.Layout.Stores(store.Failed) && r.opt().Sinks[routes[o.Name]].Dispatch.OnFailed == dispatch.Block {
			outboxes = append(outboxes, o.Name)
		}
	}

	if len(outboxes) == 0 {
		return nil
	}
	var holds []store.Hold
	err := r.retryUnreachable(ctx, time.Time{}, func(ctx context.Context) (err error) {
		holds, err = findBlocks(ctx, r.db.store, outboxes, begin.Backlog)
		return err
	})
	if err != nil {
		return err
	}

	holds = slices.DeleteFunc(holds, func(h store.Hold) bool { // ungrouped rows with their own lanes block no group
		return !h.Lane.Group.Valid && r.opt().Sinks[routes[h.Lane.Outbox]].Dispatch.Ungrouped == dispatch.Parallel
	})
	for i := range holds {
		err := r.retryUnreachable(ctx, time.Time{}, func(ctx context.Context) error { return r.db.store.Hold(ctx, begin.Epoch, holds[i]) })
		if err != nil {
			return fmt.Errorf("record blocked message groups: %w", err)
		}
		byOutbox[holds[i].Lane.Outbox].Restore(holds[i : i+1])
	}

	recorded := begin.Saved
	recorded.Seq = max(recorded.Seq, store.NewSeq(begin.Epoch, 0))
	err = r.retryUnreachable(ctx, time.Time{}, func(ctx context.Context) error {
		return r.db.store.SaveCheckpoint(ctx, begin.Epoch, recorded)
	})
	if err != nil {
		return fmt.Errorf("record adoption of blocked message groups: %w", err)
	}

	if len(holds) > 0 {
		r.log.Warn("message groups blocked by earlier FAILED rows", "groups", len(holds), "example", holds[0].Lane.String(), "row", holds[0].ID,
			"remedy", "requeue the rows (deadletters requeue) or skip them (lanes skip)")
	}
	return nil
}
