package ledger

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Kinds of the records of holds.
const (
	holdKind  = "hold"  // by lane and kind of hold
	blockKind = "block" // by blocking row: the key of its hold
)

// hold is a store.Hold in a record.
type hold struct {
	Outbox     text      `json:"outbox"`
	Kind       text      `json:"kind"`
	Group      *text     `json:"group"`
	Hold       string    `json:"hold"`
	ID         text      `json:"id,omitempty"`
	RetryCount int       `json:"retryCount,omitempty"`
	Reason     text      `json:"reason,omitempty"`
	Since      time.Time `json:"since,omitzero"`
	// Block is the key of the record of the blocking row, "" for a paused lane.
	Block string `json:"block,omitempty"`
}

// block points from a row to the hold of the lane that it blocks.
type block struct {
	Hold string `json:"hold"`
}

func holdKey(lane store.LaneKey, kind store.HoldKind) string {
	hash := lane.Hash()
	return hashKey(lane.Outbox)[:17] + "." + hex.EncodeToString(hash[:]) + "." + kind.String()
}

func blockKey(row store.Ref) string { return hashKey(row.Outbox, row.ID) }

func (h *hold) value() (store.Hold, error) {
	kind, err := store.ParseHoldKind(h.Hold)
	return store.Hold{
		Lane: store.LaneKey{Outbox: string(h.Outbox), Kind: string(h.Kind), Group: groupOf(h.Group)},
		Kind: kind, ID: string(h.ID), RetryCount: h.RetryCount, Reason: string(h.Reason), Since: h.Since,
	}, err
}

// LoadHolds implements store.Holds.
func (l *Ledger) LoadHolds(ctx context.Context) ([]store.Hold, error) {
	var holds []store.Hold
	err := l.records.View(ctx, func(ctx context.Context, r Reader) error {
		holds = nil
		kinds := map[string]string{}
		return r.List(ctx, holdKind, "", 0, func(rec Record) error {
			var v hold
			if err := decode(holdKind, rec.Key, rec.Body, &v); err != nil {
				return err
			}
			h, err := v.value()
			if o := l.outboxes.Lookup(h.Lane.Outbox); err == nil && o != nil {
				// There may be a million blocks, which share these texts.
				if kinds[h.Lane.Kind] == "" {
					kinds[h.Lane.Kind] = h.Lane.Kind
				}
				h.Lane.Outbox, h.Lane.Kind = o.Name, kinds[h.Lane.Kind]
				holds = append(holds, h)
			}
			return err
		})
	})
	if err == nil {
		holds, err = l.activeHolds(ctx, holds)
	}
	if err != nil {
		return nil, fmt.Errorf("load holds: %w", err)
	}
	return holds, nil
}

// maxFailedRows is the maximum number of rows in one call of AreFailed.
const maxFailedRows = 2000

// activeHolds removes the blocks whose row is no longer FAILED from all.
func (l *Ledger) activeHolds(ctx context.Context, all []store.Hold) ([]store.Hold, error) {
	active := all[:0]
	for some := range slices.Chunk(all, maxFailedRows) {
		var rows []store.Ref
		for i := range some {
			if some[i].Kind == store.Blocked {
				rows = append(rows, store.Ref{Outbox: some[i].Lane.Outbox, ID: some[i].ID})
			}
		}
		var failed []bool
		if len(rows) > 0 {
			var err error
			if failed, err = l.areFailed(ctx, rows); err != nil {
				return nil, err
			}
		}
		for _, h := range some {
			keep := true
			if h.Kind == store.Blocked {
				keep, failed = failed[0], failed[1:]
			}
			if keep {
				active = append(active, h)
			}
		}
	}
	return active, nil
}

// Hold implements store.Holds. It sanitizes the reason like an error text of Settle.
func (l *Ledger) Hold(ctx context.Context, epoch store.Epoch, h store.Hold) error {
	if _, err := l.outboxes.FindValid(h.Lane.Outbox, &h); err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	err := l.records.Update(ctx, epoch, Full, func(ctx context.Context, tx Tx) error {
		if h.Kind != store.Blocked {
			return put(ctx, tx, holdKind, holdKey(h.Lane, h.Kind), recordOfHold(&h))
		}
		b, err := lockBlocks(ctx, tx, []string{blockKey(rowOf(&h))}, []string{holdKey(h.Lane, h.Kind)})
		if err != nil {
			return err
		}
		b.block(&h)
		return b.write(ctx, tx)
	})
	return wrap(err, "hold lane %s", h.Lane)
}

// rowOf returns the row that a block names.
func rowOf(h *store.Hold) store.Ref { return store.Ref{Outbox: h.Lane.Outbox, ID: h.ID} }

func recordOfHold(h *store.Hold) *hold {
	rec := &hold{
		Outbox: text(h.Lane.Outbox), Kind: text(h.Lane.Kind), Group: groupText(h.Lane.Group), Hold: h.Kind.String(),
		ID: text(h.ID), RetryCount: h.RetryCount, Reason: reasonText(h.Reason), Since: utc(h.Since),
	}
	if h.Kind == store.Blocked {
		rec.Block = blockKey(rowOf(h))
	}
	return rec
}

// Release implements store.Holds.
func (l *Ledger) Release(ctx context.Context, epoch store.Epoch, lane store.LaneKey, kind store.HoldKind) error {
	_, err := l.outboxes.Find(lane.Outbox)
	if err == nil {
		err = l.records.Update(ctx, epoch, Full, func(ctx context.Context, tx Tx) error {
			key := holdKey(lane, kind)
			b, err := lockBlocks(ctx, tx, nil, []string{key})
			if err != nil {
				return err
			}
			b.release(key)
			return b.write(ctx, tx)
		})
	}
	return wrap(err, "release lane %s", lane)
}
