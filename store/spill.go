package store

import "context"

// The relay spills the rows of lanes that do not progress, or that hold too many rows: the
// rows leave memory for a table of the relay, in the order of their Seq, and the checkpoint
// may pass them. The outbox row is unchanged.

// SpilledRef identifies a spilled row.
type SpilledRef struct {
	Ref
	Seq Seq
}

// SpilledLane is a lane with spilled rows. The relay's tables identify it by its hash.
type SpilledLane struct {
	Outbox string
	Kind   string
	Hash   LaneHash
	Rows   int
}

// SpilledRange selects the spilled rows of a lane whose Seq is greater than After.
type SpilledRange struct {
	Outbox string
	Lane   LaneHash
	After  Seq
}

// Spiller moves rows to the spill table and back.
type Spiller interface {
	// Spill stores rows, each under its own Seq, which must not be 0. It is durable when it
	// returns.
	//
	//   - A row already stored under its Seq is left unchanged, so that a call can be
	//     repeated after a lost answer.
	//   - The payload is stored only if the outbox's table keeps no state, because only
	//     then may the table lose the row.
	//   - The Txn is dropped if its transaction is visible by then, because an old xid
	//     becomes ambiguous.
	//   - Ids, kinds and groups may have any length and any bytes.
	//   - After a *RefusedError at least one row is to blame, and others may have been
	//     stored.
	//   - After ErrNotLeader nothing was written.
	Spill(ctx context.Context, epoch Epoch, items []Item) error
	// DeleteSpilled deletes the spilled copies of settled or deleted rows. A missing copy
	// is not an error. After a *RefusedError at least one row is to blame. After
	// ErrNotLeader nothing was written.
	DeleteSpilled(ctx context.Context, epoch Epoch, rows []SpilledRef) error
	// ReadSpilled returns, for each range by position, up to each rows of the lane behind
	// After, ordered by Seq. The rows are as spilled, without Captured, and without payload
	// unless it was stored.
	ReadSpilled(ctx context.Context, from []SpilledRange, each int) ([][]Item, error)
}

// SpillStore manages the spilled rows. It ignores the rows of outboxes that are no longer
// configured.
type SpillStore interface {
	Spiller
	// SpilledLanes calls take for each lane with spilled rows in the relay's outboxes, in
	// no order, while it reads them: there may be millions. A lane may come twice, and a
	// call after an error starts over. If two kinds share a KindHash, SpilledLane.Kind may
	// be either.
	SpilledLanes(ctx context.Context, take func(SpilledLane)) error
	// DeleteSpilledAfter deletes, durably, the rows spilled under a Seq greater than that of the
	// checkpoint, and returns their number: the log delivers them again. A leg with a mark in
	// the checkpoint loses the rows above its own mark, and the records of the rows say so.
	// After ErrNotLeader nothing was written.
	DeleteSpilledAfter(ctx context.Context, epoch Epoch, after Checkpoint) (int, error)
}
