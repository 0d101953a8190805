package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

// AreFailed reports for each row, by position, whether any row of its id is FAILED, as
// committed or as the transaction sees it. If it cannot tell, for example because a table is
// locked, it returns an error.
type AreFailed func(ctx context.Context, rows []store.Ref) ([]bool, error)

// Config configures a Ledger.
type Config struct {
	Outboxes []store.Outbox
	// Records stores the checkpoint, named checkpoints, holds and requests, Spill the spilled
	// rows, and Replay the replays with their rows. They may be the same. A database uses
	// several so that a slow call delays no other kind.
	Records, Spill, Replay Backend
	// AreFailed finds out which blocking rows are still FAILED. A call has up to 2000 rows
	// of configured outboxes.
	AreFailed AreFailed
	// BatchRows is the maximum number of spilled rows that a transaction writes or deletes.
	// It must be positive.
	BatchRows int
	// BatchBytes limits the texts and payloads of the rows that a transaction spills, unless
	// it spills one row. 0 means no limit.
	BatchBytes int64
}

// Ledger keeps the records of one relay. Its methods implement interfaces of package store
// and are safe for concurrent use.
type Ledger struct {
	actions
	attempts
	handOvers
	shardRecords
	outboxes               *outboxes.Set
	records, spill, replay Backend
	areFailed              AreFailed
	batchRows              int
	batchBytes             int64
	failed                 *failedRows
	legs                   map[string]leg // by name
	legKeys                legKeys

	mu   sync.Mutex
	jobs map[string]chan struct{} // replays that a call changes; closed when it ends
}

var (
	_ store.Checkpoints    = (*Ledger)(nil)
	_ store.SpillStore     = (*Ledger)(nil)
	_ store.Holds          = (*Ledger)(nil)
	_ store.Requester      = (*Ledger)(nil)
	_ store.HandOvers      = (*Ledger)(nil)
	_ store.ActionLog      = (*Ledger)(nil)
	_ store.AttemptLog     = (*Ledger)(nil)
	_ store.ReplayLister   = (*Ledger)(nil)
	_ store.ReplayWriter   = (*Ledger)(nil)
	_ store.ReplayFinisher = (*Ledger)(nil)
	_ store.ReplayReader   = (*Ledger)(nil)
)

// New returns a ledger. It calls none of the backends.
func New(cfg Config) *Ledger {
	boxes := store.WithLegs(cfg.Outboxes)
	l := &Ledger{
		actions: actions{cfg.Records}, attempts: attempts{cfg.Records}, handOvers: handOvers{cfg.Records}, shardRecords: shardRecords{cfg.Records}, outboxes: outboxes.New(boxes), legs: legsOf(cfg.Outboxes), records: cfg.Records, spill: cfg.Spill, replay: cfg.Replay,
		batchRows: cfg.BatchRows, batchBytes: cfg.BatchBytes, failed: newFailedRows(boxes), jobs: map[string]chan struct{}{},
	}
	l.areFailed = l.orRecorded(recordsOf(l.records), cfg.AreFailed)
	return l
}

// recordsOf returns the method Get of a backend, in a view of its own.
func recordsOf(records Backend) reading {
	return func(ctx context.Context, kind string, keys ...string) (bodies [][]byte, err error) {
		err = records.View(ctx, func(ctx context.Context, r Reader) (err error) {
			bodies, err = r.Get(ctx, kind, keys...)
			return err
		})
		return bodies, err
	}
}

// wrap returns an error with the operation before it, nil for nil.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
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
	Legs     []legMark `json:"legs,omitempty"` // ordered by name
}

// legMark is a store.LegMark in a record.
type legMark struct {
	Leg      text      `json:"leg"`
	Position text      `json:"position"`
	Seq      store.Seq `json:"seq"`
}

func recordOf(cp store.Checkpoint) checkpoint {
	c := checkpoint{Origin: text(cp.Origin), Position: text(cp.Position), Seq: cp.Seq}
	for _, name := range slices.Sorted(maps.Keys(cp.Legs)) {
		c.Legs = append(c.Legs, legMark{text(name), text(cp.Legs[name].Position), cp.Legs[name].Seq})
	}
	return c
}

func (c checkpoint) value() store.Checkpoint {
	cp := store.Checkpoint{Origin: string(c.Origin), Position: store.Position(c.Position), Seq: c.Seq}
	for _, m := range c.Legs {
		if cp.Legs == nil {
			cp.Legs = make(map[string]store.LegMark, len(c.Legs))
		}
		cp.Legs[string(m.Leg)] = store.LegMark{Position: store.Position(m.Position), Seq: m.Seq}
	}
	return cp
}

// LoadCheckpoint implements store.Checkpoints.
func (l *Ledger) LoadCheckpoint(ctx context.Context) (store.Checkpoint, error) {
	var cp *checkpoint
	err := l.records.View(ctx, func(ctx context.Context, r Reader) (err error) {
		cp, err = get[checkpoint](ctx, r.Get, RelayKind, checkpointKey)
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
	return wrap(err, "save checkpoint")
}
