package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
)

// LoadCheckpoint implements store.Checkpoints.
func (s *Store) LoadCheckpoint(ctx context.Context) (store.Checkpoint, error) {
	const load = `SELECT origin, position, seq FROM sluicebox.checkpoint WHERE name = $1`
	var cp store.Checkpoint
	err := s.control.do(ctx, func(ctx context.Context, sess *session) error {
		err := sess.conn.QueryRow(ctx, load, s.name).Scan(&cp.Origin, &cp.Position, &cp.Seq)
		if errors.Is(err, pgx.ErrNoRows) {
			return store.ErrNoCheckpoint
		}
		return err
	})
	if err != nil {
		return store.Checkpoint{}, fmt.Errorf("load checkpoint: %w", explainOwn(err))
	}
	return cp, nil
}

// SaveCheckpoint implements store.Checkpoints. The control session commits synchronously,
// which flushes the server's WAL up to this commit, and with it the claims and outcomes
// committed asynchronously before. Only the session that raised the epoch may save: if it
// is still alive, the server has not crashed since and lost none of them.
func (s *Store) SaveCheckpoint(ctx context.Context, epoch store.Epoch, cp store.Checkpoint) error {
	err := s.control.do(ctx, func(ctx context.Context, sess *session) error {
		if s.leaderConn != nil && s.leaderConn != sess.conn {
			return store.ErrInterrupted
		}
		save := saveQuery()
		tag, err := sess.conn.Exec(ctx, save.sql, save.args(s.fenced(epoch, map[string]any{
			"origin": cp.Origin, "position": string(cp.Position), "seq": int64(cp.Seq),
		}))...)
		if err == nil && tag.RowsAffected() == 0 {
			return store.ErrNotLeader
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("save checkpoint: %w", explainOwn(err))
	}
	return nil
}

func saveQuery() *query {
	b := &builder{}
	return b.query(
		"WITH "+b.leader(),
		"INSERT INTO sluicebox.checkpoint AS c (name, origin, position, seq, updated_at)",
		"SELECT "+b.arg("name", "text")+", "+b.arg("origin", "text")+", "+b.arg("position", "text")+", "+b.arg("seq", "bigint")+", now() FROM leader",
		"ON CONFLICT (name) DO UPDATE SET origin = excluded.origin, position = excluded.position,",
		"  seq = excluded.seq, updated_at = excluded.updated_at",
	)
}
