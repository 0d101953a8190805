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

// Named implements store.Replays.
func (s *Store) Named(ctx context.Context) ([]store.Named, error) {
	const read = `
SELECT checkpoint, keep, wish, state, origin, position, seq, made_at, why, kept_bytes
FROM sluicebox.named WHERE name = $1 ORDER BY checkpoint`
	var list []store.Named
	err := s.operator.do(ctx, func(ctx context.Context, sess *session) error {
		rows, err := sess.conn.Query(ctx, read, s.name)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, scanNamed)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the named checkpoints: %w", explainOwn(err))
	}
	return list, nil
}

func scanNamed(row pgx.CollectableRow) (n store.Named, err error) {
	var wish string
	var at pgtype.Timestamptz
	err = row.Scan(&n.Name, &n.Keep, &wish, &n.State, &n.Origin, &n.Position, &n.Seq, &at, &n.Why, &n.Bytes)
	n.Drop, n.At = wish == replays.Drop, instant(at)
	return n, err
}

// instant is a time, zero for NULL.
func instant(at pgtype.Timestamptz) time.Time {
	if !at.Valid {
		return time.Time{}
	}
	return at.Time.UTC()
}

// orNull is a time as a column keeps it, NULL for zero.
func orNull(at time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: at.Truncate(time.Microsecond), Valid: !at.IsZero()}
}

// SaveNamed implements store.ReplayKeeper. The time is cut to microseconds.
func (s *Store) SaveNamed(ctx context.Context, epoch store.Epoch, n store.Named) error {
	b := &builder{}
	save := b.query(
		"WITH "+b.leader()+", saved AS (",
		"  UPDATE sluicebox.named SET state = "+b.arg("state", "text")+", origin = "+b.arg("origin", "text")+", position = "+b.arg("position", "text")+",",
		"    seq = "+b.arg("seq", "bigint")+", made_at = "+b.arg("at", "timestamptz")+", why = "+b.arg("why", "text")+", kept_bytes = "+b.arg("bytes", "bigint"),
		"  WHERE name = "+b.arg("name", "text")+" AND checkpoint = "+b.arg("checkpoint", "text")+" AND EXISTS (SELECT FROM leader) RETURNING 1",
		")",
		countKept("saved"),
	)
	saved, err := s.replayWrite(ctx, save, s.fenced(epoch, map[string]any{
		"checkpoint": n.Name, "state": string(n.State), "origin": n.Origin, "position": string(n.Position), "seq": int64(n.Seq),
		"at": orNull(n.At), "why": n.Why, "bytes": n.Bytes,
	}), "why")
	if err == nil && saved == 0 {
		err = store.ErrNoNamed
	}
	if err != nil {
		return fmt.Errorf("save checkpoint %s: %w", n.Name, err)
	}
	return nil
}

// ForgetNamed implements store.ReplayKeeper.
func (s *Store) ForgetNamed(ctx context.Context, epoch store.Epoch, name string) error {
	b := &builder{}
	forget := b.query(
		"WITH "+b.leader()+", gone AS (",
		"  DELETE FROM sluicebox.named WHERE name = "+b.arg("name", "text")+" AND checkpoint = "+b.arg("checkpoint", "text"),
		"  AND EXISTS (SELECT FROM leader) RETURNING 1",
		")",
		countKept("gone"),
	)
	if _, err := s.replayWrite(ctx, forget, s.fenced(epoch, map[string]any{"checkpoint": name})); err != nil {
		return fmt.Errorf("forget checkpoint %s: %w", name, err)
	}
	return nil
}
