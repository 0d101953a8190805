package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/replays"
)

// Savepoints implements store.ReplayLister.
func (s *Store) Savepoints(ctx context.Context) ([]store.Savepoint, error) {
	const read = `
SELECT checkpoint, keep, wish, state, origin, position, seq, made_at, why, kept_bytes
FROM sluicebox.named WHERE name = $1 ORDER BY checkpoint`

	var list []store.Savepoint
	err := s.operator.do(ctx, func(ctx context.Context, sess *session) error {
		rows, err := sess.conn.Query(ctx, read, s.name)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, scanSavepoint)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read named checkpoints: %w", explainOwn(err))
	}
	return list, nil
}

func scanSavepoint(row pgx.CollectableRow) (n store.Savepoint, err error) {
	var wish string
	var at pgtype.Timestamptz
	err = row.Scan(&n.Name, &n.RetainLog, &wish, &n.State, &n.Origin, &n.Position, &n.Seq, &at, &n.Reason, &n.RetainedBytes)
	n.DeleteRequested, n.At = wish == replays.RequestDrop, timeOrZero(at)
	return n, err
}

// timeOrZero returns a time, zero for NULL.
func timeOrZero(at pgtype.Timestamptz) time.Time {
	if !at.Valid {
		return time.Time{}
	}
	return at.Time.UTC()
}

// timeOrNull returns a time as a column stores it, NULL for zero.
func timeOrNull(at time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: at.Truncate(time.Microsecond), Valid: !at.IsZero()}
}

// SaveSavepoint implements store.SavepointWriter. The time is truncated to microseconds.
func (s *Store) SaveSavepoint(ctx context.Context, epoch store.Epoch, n store.Savepoint) error {
	b := &builder{}
	save := b.query(
		"WITH "+b.leader()+", saved AS (",
		"  UPDATE sluicebox.named SET state = "+b.arg("state", "text")+", origin = "+b.arg("origin", "text")+", position = "+b.arg("position", "text")+",",
		"    seq = "+b.arg("seq", "bigint")+", made_at = "+b.arg("at", "timestamptz")+", why = "+b.arg("why", "text")+", kept_bytes = "+b.arg("bytes", "bigint"),
		"  WHERE name = "+b.arg("name", "text")+" AND checkpoint = "+b.arg("checkpoint", "text")+" AND EXISTS (SELECT FROM leader) RETURNING 1",
		")",
		countWritten("saved"),
	)

	saved, err := s.replayWrite(ctx, save, s.fenced(epoch, map[string]any{
		"checkpoint": n.Name, "state": string(n.State), "origin": n.Origin, "position": string(n.Position), "seq": int64(n.Seq),
		"at": timeOrNull(n.At), "why": n.Reason, "bytes": n.RetainedBytes,
	}), "why")
	if err == nil && saved == 0 {
		err = store.ErrNoSavepoint
	}
	if err != nil {
		return fmt.Errorf("save checkpoint %s: %w", n.Name, err)
	}
	return nil
}

// DeleteSavepoint implements store.SavepointWriter.
func (s *Store) DeleteSavepoint(ctx context.Context, epoch store.Epoch, name string) error {
	b := &builder{}
	del := b.query(
		"WITH "+b.leader()+", gone AS (",
		"  DELETE FROM sluicebox.named WHERE name = "+b.arg("name", "text")+" AND checkpoint = "+b.arg("checkpoint", "text"),
		"  AND EXISTS (SELECT FROM leader) RETURNING 1",
		")",
		countWritten("gone"),
	)
	if _, err := s.replayWrite(ctx, del, s.fenced(epoch, map[string]any{"checkpoint": name})); err != nil {
		return fmt.Errorf("delete checkpoint %s: %w", name, err)
	}
	return nil
}
