package store

import "context"

// Rows of lanes that do not move, or that are too many, are parked: they leave
// the relay's memory for a table of its own, in the order of their seq, and the
// checkpoint may pass them. The outbox row stays as it is.

// SpilledRef names a parked row.
type SpilledRef struct {
	Ref
	Seq Seq
}

// SpilledLane is a lane with parked rows. The own tables know it by its hash.
type SpilledLane struct {
	Outbox string
	Kind   string
	Hash   LaneHash
	Rows   int
}

// SpilledRange asks for the rows of a lane that are parked behind a seq.
type SpilledRange struct {
	Outbox string
	Lane   LaneHash
	After  Seq
}

// Spiller moves rows to the parked table and back.
type Spiller interface {
	// Spill parks rows, each under its own Seq, which must not be 0. The layout of
	// the outbox decides whether the payload is kept: only where the table keeps
	// no state, and with it perhaps no row. A transaction that is visible by then
	// is not kept, so that a Txn never grows too old to be told. It is durable
	// when Spill returns; a row that is parked under its Seq already is left as it
	// is, so that a lost answer may be asked for again. Ids, kinds and groups of any
	// length and with any bytes are taken. A *RefusedError says that some row is to
	// blame; others may have been parked. ErrNotLeader means that nothing was written.
	Spill(ctx context.Context, epoch Epoch, items []Item) error
	// DeleteSpilled forgets rows that were found settled or gone; those that are not
	// parked are no error. A *RefusedError says that some row is to blame.
	// ErrNotLeader means that nothing was written.
	DeleteSpilled(ctx context.Context, epoch Epoch, rows []SpilledRef) error
	// ReadSpilled returns, for each lane by position, at most each of its rows behind
	// the given seq, in the order of their seq: as they were parked, without
	// Captured, and without a payload unless it was kept.
	ReadSpilled(ctx context.Context, from []SpilledRange, each int) ([][]Item, error)
}

// SpillStore keeps the parked rows. Those of outboxes that are no longer configured
// are left alone.
type SpillStore interface {
	Spiller
	// SpilledLanes hands over the lanes of the relay's outboxes that have parked
	// rows, in no order, while it reads them: there may be millions. A lane may come
	// twice, and all come again when it is called after an error. Of a Kind whose
	// KindHash another one has too, either may be told.
	SpilledLanes(ctx context.Context, take func(SpilledLane)) error
	// DeleteSpilledAfter deletes the rows that are parked under a larger seq than
	// after, durably, and returns how many: the log brings them again.
	// ErrNotLeader means that nothing was written.
	DeleteSpilledAfter(ctx context.Context, epoch Epoch, after Seq) (int, error)
}
