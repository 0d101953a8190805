package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// checkEpoch returns store.ErrNotLeader unless the leader row holds the epoch.
func checkEpoch(ctx context.Context, conn *Conn, name string, epoch store.Epoch) error {
	leads := false
	err := conn.Query(ctx, "SELECT epoch = ? FROM sluicebox_leader WHERE name = ?", []any{int64(epoch), name},
		func(row []driver.Value) error { leads = row[0] == int64(1); return nil })
	if err == nil && !leads {
		return store.ErrNotLeader
	}
	return err
}

// Lead implements store.Leadership. It waits for a write that has begun; those
// that begin later find the new epoch. It keeps nobody else from leading: a
// program that must be the only one calls Lock first.
func (s *Store) Lead(ctx context.Context) (store.Epoch, error) {
	const raise = `
INSERT INTO sluicebox_leader AS l (name, epoch, raised_at) VALUES (?, 1, ?)
ON CONFLICT (name) DO UPDATE SET epoch = l.epoch + 1, raised_at = excluded.raised_at
RETURNING epoch`
	var epoch store.Epoch
	err := s.writer.do(ctx, func(ctx context.Context) error {
		return s.writer.conn.Write(ctx, Full, func(ctx context.Context) error {
			return s.writer.conn.Query(ctx, raise, []any{s.name, formatTime(time.Now())}, func(row []driver.Value) error {
				n, ok := row[0].(int64)
				if !ok {
					return fmt.Errorf("the epoch of relay %s in sluicebox_leader is %v, no integer", s.name, row[0])
				}
				epoch = store.Epoch(n)
				return nil
			})
		})
	})
	if err != nil {
		return 0, fmt.Errorf("take the lead: %w", Explain(err))
	}
	return epoch, nil
}

// LoadCheckpoint implements store.Checkpoints.
func (s *Store) LoadCheckpoint(ctx context.Context) (store.Checkpoint, error) {
	const load = "SELECT origin, position, seq FROM sluicebox_checkpoint WHERE name = ?"
	var cp store.Checkpoint
	err := s.writer.do(ctx, func(ctx context.Context) error {
		found := false
		err := retry(ctx, patience, func() error {
			return s.writer.conn.Query(ctx, load, []any{s.name}, func(row []driver.Value) error {
				found = true
				cp.Origin, _ = textOf(row[0])
				position, _ := textOf(row[1])
				seq, ok := row[2].(int64)
				if !ok {
					return fmt.Errorf("the seq of relay %s in sluicebox_checkpoint is %v, no integer", s.name, row[2])
				}
				cp.Position, cp.Seq = store.Position(position), store.Seq(seq)
				return nil
			})
		})
		if err == nil && !found {
			return store.ErrNoCheckpoint
		}
		return err
	})
	if err != nil {
		return store.Checkpoint{}, fmt.Errorf("load the checkpoint: %w", Explain(err))
	}
	return cp, nil
}

// SaveCheckpoint implements store.Checkpoints. Its commit syncs the WAL, and
// with it the claims and outcomes that were committed before.
func (s *Store) SaveCheckpoint(ctx context.Context, epoch store.Epoch, cp store.Checkpoint) error {
	const save = `
INSERT INTO sluicebox_checkpoint (name, origin, position, seq, updated_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET origin = excluded.origin, position = excluded.position,
  seq = excluded.seq, updated_at = excluded.updated_at`
	err := s.writer.do(ctx, func(ctx context.Context) error {
		return s.writer.lead(ctx, s.name, epoch, Full, patience, func(ctx context.Context) error {
			_, err := s.writer.conn.Exec(ctx, save, s.name, cp.Origin, string(cp.Position), int64(cp.Seq), formatTime(time.Now()))
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("save the checkpoint: %w", Explain(err))
	}
	return nil
}
