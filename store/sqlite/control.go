package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// AcquireLeadership implements store.Leadership. It waits for a running write transaction;
// later ones find the new epoch. It does not prevent another relay from becoming leader, so
// a program that must be the only one calls Lock first.
func (s *Store) AcquireLeadership(ctx context.Context) (store.Epoch, error) {
	const raise = `
INSERT INTO sluicebox_leader (name, epoch, raised_at, holder) VALUES (?, 1, ?, ?)
ON CONFLICT (name) DO UPDATE SET epoch = epoch + 1, raised_at = excluded.raised_at, holder = excluded.holder
RETURNING epoch`
	var epoch store.Epoch
	err := s.writer.do(ctx, func(ctx context.Context) error {
		return s.writer.conn.Write(ctx, Full, func(ctx context.Context) error {
			return s.writer.conn.Query(ctx, raise, []any{s.name, formatTime(time.Now()), s.holder}, func(row []driver.Value) (err error) {
				epoch, err = s.epochOf(row[0])
				return err
			})
		})
	})
	if err != nil {
		return 0, fmt.Errorf("acquire leadership: %w", Explain(err))
	}
	return epoch, nil
}

func (s *Store) epochOf(v driver.Value) (store.Epoch, error) {
	n, ok := v.(int64)
	if !ok {
		return 0, fmt.Errorf("epoch of relay %s in sluicebox_leader is %v, not an integer", s.name, v)
	}
	return store.Epoch(n), nil
}

// Leader implements store.Leadership, on its own connection.
func (s *Store) Leader(ctx context.Context) (store.Leader, error) {
	const read = "SELECT l.epoch, l.holder, l.raised_at FROM sluicebox_leader AS l WHERE l.name = ?"
	var leader store.Leader
	err := s.readTx(ctx, func(ctx context.Context, conn *Conn) error {
		found := false
		err := conn.Query(ctx, read, []any{s.name}, func(row []driver.Value) (err error) {
			found = true
			leader.Holder, _ = textOf(row[1])
			leader.Since, _ = readTime(row[2])
			leader.Epoch, err = s.epochOf(row[0])
			return err
		})
		if err == nil && !found {
			return store.ErrNotLeader
		}
		return err
	})
	if err != nil {
		return store.Leader{}, fmt.Errorf("read leader: %w", Explain(err))
	}
	return leader, nil
}

// LoadCheckpoint implements store.Checkpoints.
func (s *Store) LoadCheckpoint(ctx context.Context) (store.Checkpoint, error) {
	const load = "SELECT origin, position, seq FROM sluicebox_checkpoint WHERE name = ?"
	var cp store.Checkpoint
	err := s.writer.do(ctx, func(ctx context.Context) error {
		found := false
		err := retry(ctx, lockTimeout, func() error {
			return s.writer.conn.Query(ctx, load, []any{s.name}, func(row []driver.Value) error {
				found = true
				cp.Origin, _ = textOf(row[0])
				position, _ := textOf(row[1])
				seq, ok := row[2].(int64)
				if !ok {
					return fmt.Errorf("seq of relay %s in sluicebox_checkpoint is %v, not an integer", s.name, row[2])
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
		return store.Checkpoint{}, fmt.Errorf("load checkpoint: %w", Explain(err))
	}
	return cp, nil
}

// SaveCheckpoint implements store.Checkpoints. Its commit syncs the WAL and so makes all
// earlier claims and outcomes durable.
func (s *Store) SaveCheckpoint(ctx context.Context, epoch store.Epoch, cp store.Checkpoint) error {
	const save = `
INSERT INTO sluicebox_checkpoint (name, origin, position, seq, updated_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET origin = excluded.origin, position = excluded.position,
  seq = excluded.seq, updated_at = excluded.updated_at`
	err := s.writer.do(ctx, func(ctx context.Context) error {
		return s.writer.runAsLeader(ctx, epoch, Full, lockTimeout, func(ctx context.Context) error {
			_, err := s.writer.conn.Exec(ctx, save, s.name, cp.Origin, string(cp.Position), int64(cp.Seq), formatTime(time.Now()))
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("save checkpoint: %w", Explain(err))
	}
	return nil
}
