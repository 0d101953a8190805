package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/errortext"
	"github.com/sluicebox/sluicebox/store/internal/replays"
)

// Named implements store.Replays.
func (s *Store) Named(ctx context.Context) ([]store.Named, error) {
	const read = "SELECT checkpoint, keep, wish, state, origin, position, seq, made_at, why, kept_bytes FROM " + ownPrefix + `named
WHERE name = ? ORDER BY checkpoint`
	var list []store.Named
	err := s.show(ctx, read, []any{s.name}, func() { list = nil }, func(rows *sql.Rows) error {
		var n store.Named
		var wish string
		var at sql.NullString
		err := rows.Scan(&n.Name, &n.Keep, &wish, &n.State, &n.Origin, &n.Position, &n.Seq, &at, &n.Why, &n.Bytes)
		n.Drop, n.At = wish == replays.Drop, instant(at)
		list = append(list, n)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the named checkpoints: %w", err)
	}
	return list, nil
}

// show reads rows of an own table. It may do so twice, and calls begin first each time.
func (s *Store) show(ctx context.Context, text string, args []any, begin func(), read func(*sql.Rows) error) error {
	return Explain(s.operator.do(ctx, func(ctx context.Context, c *conn) error {
		return c.tx(ctx, func() error {
			begin()
			return c.query(ctx, text, args, read)
		})
	}))
}

// instant is a time that the relay wrote, zero for NULL.
func instant(text sql.NullString) time.Time {
	at, _ := readTime(text.String)
	return at
}

// orNull is a time as the own tables keep it, NULL for zero.
func orNull(at time.Time) sql.NullString {
	return sql.NullString{Valid: !at.IsZero(), String: at.UTC().Truncate(time.Microsecond).Format(ownTime)}
}

// SaveNamed implements store.ReplayKeeper. The time is cut to microseconds.
func (s *Store) SaveNamed(ctx context.Context, epoch store.Epoch, n store.Named) error {
	const save = "UPDATE " + ownPrefix + `named SET state = ?, origin = ?, position = ?, seq = ?, made_at = ?, why = ?, kept_bytes = ?
WHERE name = ? AND checkpoint = ?`
	var saved int64
	err := s.keep(ctx, epoch, func(c *conn) (err error) {
		saved, err = c.exec(ctx, save, string(n.State), n.Origin, string(n.Position), int64(n.Seq), orNull(n.At),
			errortext.Fit(n.Why, 0, false), n.Bytes, s.name, n.Name)
		return err
	})
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
	const forget = "DELETE FROM " + ownPrefix + "named WHERE name = ? AND checkpoint = ?"
	err := s.keep(ctx, epoch, func(c *conn) error {
		_, err := c.exec(ctx, forget, s.name, name)
		return err
	})
	if err != nil {
		return fmt.Errorf("forget checkpoint %s: %w", name, err)
	}
	return nil
}

// keep runs write in a transaction of the leader of an epoch, on the session for
// replays.
func (s *Store) keep(ctx context.Context, epoch store.Epoch, write func(*conn) error) error {
	return Explain(s.replay.do(ctx, func(ctx context.Context, c *conn) error {
		return s.lead(ctx, c, epoch, func() error { return write(c) })
	}))
}
