package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

// StatusReader reports the states of outbox rows.
type StatusReader interface {
	// ReadStatuses is the method of store.ReplayReader.
	ReadStatuses(ctx context.Context, rows []store.ClaimRow) ([]store.RowStatus, error)
}

// Config configures a Ledger.
type Config struct {
	Outboxes []store.Outbox
	// Records stores the checkpoint, named checkpoints, holds and requests, Spill the spilled
	// rows, and Replay the replays with their rows. They may be the same. A database uses
	// several so that a slow call delays no other kind.
	Records, Spill, Replay Backend
	// Statuses finds out which blocking rows are still FAILED.
	Statuses StatusReader
	// BatchRows is the maximum number of spilled rows that a transaction writes or deletes.
	// It must be positive.
	BatchRows int
}

// Ledger keeps the records of one relay. Its methods implement interfaces of package store
// and are safe for concurrent use.
type Ledger struct {
	outboxes               *outboxes.Set
	records, spill, replay Backend
	statuses               StatusReader
	batchRows              int
	jobs                   chan struct{} // holds a token while a call changes a replay
}

var (
	_ store.Checkpoints    = (*Ledger)(nil)
	_ store.SpillStore     = (*Ledger)(nil)
	_ store.Holds          = (*Ledger)(nil)
	_ store.Requester      = (*Ledger)(nil)
	_ store.ReplayLister   = (*Ledger)(nil)
	_ store.ReplayWriter   = (*Ledger)(nil)
	_ store.ReplayFinisher = (*Ledger)(nil)
)

// New returns a ledger. It calls none of the backends.
func New(cfg Config) *Ledger {
	return &Ledger{
		outboxes: outboxes.New(cfg.Outboxes), records: cfg.Records, spill: cfg.Spill, replay: cfg.Replay,
		statuses: cfg.Statuses, batchRows: cfg.BatchRows, jobs: make(chan struct{}, 1),
	}
}

// IsAnswer reports whether err tells the caller what the records contain. A database session
// on which it occurred is usable.
func IsAnswer(err error) bool {
	for _, answer := range []error{store.ErrNoCheckpoint, store.ErrNoSavepoint, store.ErrSavepointExists, store.ErrNoJob, store.ErrJobExists} {
		if errors.Is(err, answer) {
			return true
		}
	}
	return false
}

// checkpointKey is the key of the checkpoint.
const checkpointKey = "checkpoint"

// checkpoint is a store.Checkpoint in a record.
type checkpoint struct {
	Origin   text      `json:"origin"`
	Position text      `json:"position"`
	Seq      store.Seq `json:"seq"`
}

func recordOf(cp store.Checkpoint) checkpoint {
	return checkpoint{text(cp.Origin), text(cp.Position), cp.Seq}
}

func (c checkpoint) value() store.Checkpoint {
	return store.Checkpoint{Origin: string(c.Origin), Position: store.Position(c.Position), Seq: c.Seq}
}

// LoadCheckpoint implements store.Checkpoints.
func (l *Ledger) LoadCheckpoint(ctx context.Context) (store.Checkpoint, error) {
	var cp *checkpoint
	err := l.records.View(ctx, func(ctx context.Context, r Reader) (err error) {
		cp, err = get[checkpoint](ctx, r, RelayKind, checkpointKey)
		return err
	})
	if err == nil && cp == nil {
		err = store.ErrNoCheckpoint
	}
	if err != nil {
		return store.Checkpoint{}, fmt.Errorf("load checkpoint: %w", err)
	}
	return cp.value(), nil
}

// SaveCheckpoint implements store.Checkpoints.
func (l *Ledger) SaveCheckpoint(ctx context.Context, epoch store.Epoch, cp store.Checkpoint) error {
	err := l.records.Update(ctx, epoch, Barrier, func(ctx context.Context, tx Tx) error {
		return put(ctx, tx, RelayKind, checkpointKey, recordOf(cp))
	})
	if err != nil {
		return fmt.Errorf("save checkpoint: %w", err)
	}
	return nil
}
