package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/sluicebox/sluicebox/store"
)

// LoadCheckpoint implements store.Checkpoints.
func (s *Store) LoadCheckpoint(ctx context.Context) (store.Checkpoint, error) {
	const load = "SELECT origin, position, seq FROM " + ownPrefix + "checkpoint WHERE name = ?"
	var cp store.Checkpoint
	err := s.control.do(ctx, func(ctx context.Context, c *conn) error {
		return c.tx(ctx, func() error {
			err := c.row(ctx, load, []any{s.name}, &cp.Origin, &cp.Position, &cp.Seq)
			if errors.Is(err, sql.ErrNoRows) {
				return store.ErrNoCheckpoint
			}
			return err
		})
	})
	if err != nil {
		return store.Checkpoint{}, fmt.Errorf("load checkpoint: %w", Explain(err))
	}

	return cp, nil
}

// SaveCheckpoint implements store.Checkpoints.
//
// If innodb_flush_log_at_trx_commit is 1, and sync_binlog is 1 where there is a binlog,
// every commit survives a crash. Then it is enough that the server is still the same.
//
// With other settings a crash loses the newest commits. The session that acquired
// leadership proves by its existence that the server has not crashed since. A later crash
// loses the checkpoint before it loses any commit that the checkpoint covers.
func (s *Store) SaveCheckpoint(ctx context.Context, epoch store.Epoch, cp store.Checkpoint) error {
	const save = "INSERT INTO " + ownPrefix + `checkpoint (name, origin, position, seq, updated_at) VALUES (?, ?, ?, ?, UTC_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE origin = ?, position = ?, seq = ?, updated_at = UTC_TIMESTAMP(6)`
	err := s.control.do(ctx, func(ctx context.Context, c *conn) error {
		if led := s.leaderConn; led != nil && led != c && (!c.server.durable || led.server.identity != c.server.identity) {
			return store.ErrInterrupted
		}
		return s.runAsLeader(ctx, c, epoch, func() error {
			position := string(cp.Position)
			_, err := c.exec(ctx, save, s.name, cp.Origin, position, int64(cp.Seq), cp.Origin, position, int64(cp.Seq))
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("save checkpoint: %w", Explain(err))
	}

	return nil
}
