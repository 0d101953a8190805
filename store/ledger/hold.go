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

// maxStatusRows is the maximum number of rows in one call of ReadStatuses.
const maxStatusRows = 2000

// LoadHolds implements store.Holds.
func (l *Ledger) LoadHolds(ctx context.Context) ([]store.Hold, error) {
	var holds []store.Hold
	err := l.records.View(ctx, func(ctx context.Context, r Reader) error {
		holds = nil
		all, err := list[hold](ctx, r, holdKind)
		if err != nil {
			return err
		}
		for _, rec := range all {
			h, err := rec.value()
			if err != nil {
				return err
			}
			if l.outboxes.Lookup(h.Lane.Outbox) != nil {
				holds = append(holds, h)
			}
		}
		return nil
	})
	if err == nil {
		holds, err = l.activeHolds(ctx, holds)
	}
	if err != nil {
		return nil, fmt.Errorf("load holds: %w", err)
	}
	return holds, nil
}

// activeHolds drops the blocks whose row is no longer FAILED.
func (l *Ledger) activeHolds(ctx context.Context, all []store.Hold) ([]store.Hold, error) {
	var active, blocked []store.Hold
	for _, h := range all {
		if h.Kind == store.Blocked {
			blocked = append(blocked, h)
		} else {
			active = append(active, h)
		}
	}

	for some := range slices.Chunk(blocked, maxStatusRows) {
		rows := make([]store.ClaimRow, len(some))
		for i := range some {
			rows[i].Ref = store.Ref{Outbox: some[i].Lane.Outbox, ID: some[i].ID}
		}
		states, err := l.statuses.ReadStatuses(ctx, rows)
		if err != nil {
			return nil, err
		}
		for i := range some {
			if states[i].State == store.RowFailed {
				active = append(active, some[i])
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
		if h.Kind == store.Blocked {
			return Block(ctx, tx, h)
		}
		return putHold(ctx, tx, h, "")
	})
	if err != nil {
		return fmt.Errorf("hold lane %s: %w", h.Lane, err)
	}
	return nil
}

func putHold(ctx context.Context, tx Tx, h store.Hold, block string) error {
	return put(ctx, tx, holdKind, holdKey(h.Lane, h.Kind), hold{
		Outbox: text(h.Lane.Outbox), Kind: text(h.Lane.Kind), Group: groupText(h.Lane.Group), Hold: h.Kind.String(),
		ID: text(h.ID), RetryCount: h.RetryCount, Reason: reasonText(h.Reason), Since: utc(h.Since), Block: block,
	})
}

// Block records in a transaction of the leader that a FAILED row blocks its lane. An earlier
// block of the lane, or by the row, ends.
func Block(ctx context.Context, tx Tx, h store.Hold) error {
	row := store.Ref{Outbox: h.Lane.Outbox, ID: h.ID}
	if err := Unblock(ctx, tx, row); err != nil {
		return err
	}
	if err := deleteHold(ctx, tx, holdKey(h.Lane, store.Blocked)); err != nil {
		return err
	}
	if err := put(ctx, tx, blockKind, blockKey(row), block{Hold: holdKey(h.Lane, store.Blocked)}); err != nil {
		return err
	}
	return putHold(ctx, tx, h, blockKey(row))
}

// Unblock deletes, in a transaction of the leader, the block that a row caused, if any.
func Unblock(ctx context.Context, tx Tx, row store.Ref) error {
	b, err := get[block](ctx, tx, blockKind, blockKey(row))
	if err != nil || b == nil {
		return err
	}
	return deleteHold(ctx, tx, b.Hold)
}

// deleteHold deletes a hold and the record of its blocking row.
func deleteHold(ctx context.Context, tx Tx, key string) error {
	h, err := get[hold](ctx, tx, holdKind, key)
	if err != nil || h == nil {
		return err
	}
	if h.Block != "" {
		if err := tx.Delete(ctx, blockKind, h.Block); err != nil {
			return err
		}
	}
	return tx.Delete(ctx, holdKind, key)
}

// Release implements store.Holds.
func (l *Ledger) Release(ctx context.Context, epoch store.Epoch, lane store.LaneKey, kind store.HoldKind) error {
	_, err := l.outboxes.Find(lane.Outbox)
	if err == nil {
		err = l.records.Update(ctx, epoch, Full, func(ctx context.Context, tx Tx) error {
			return deleteHold(ctx, tx, holdKey(lane, kind))
		})
	}
	if err != nil {
		return fmt.Errorf("release lane %s: %w", lane, err)
	}
	return nil
}
