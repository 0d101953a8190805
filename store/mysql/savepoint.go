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

// Savepoints implements store.ReplayLister.
func (s *Store) Savepoints(ctx context.Context) ([]store.Savepoint, error) {
	const read = "SELECT checkpoint, keep, wish, state, origin, position, seq, made_at, why, kept_bytes FROM " + ownPrefix + `named
WHERE name = ? ORDER BY checkpoint`
	var list []store.Savepoint
	err := s.show(ctx, read, []any{s.name}, func() { list = nil }, func(rows *sql.Rows) error {
		var n store.Savepoint
		var wish string
		var at sql.NullString
		err := rows.Scan(&n.Name, &n.RetainLog, &wish, &n.State, &n.Origin, &n.Position, &n.Seq, &at, &n.Reason, &n.RetainedBytes)
		n.DeleteRequested, n.At = wish == replays.RequestDrop, timeOrZero(at)
		list = append(list, n)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read named checkpoints: %w", err)
	}

	return list, nil
}

// show reads rows of one of the relay's tables. It may run twice, and calls begin first
// each time.
func (s *Store) show(ctx context.Context, text string, args []any, begin func(), read func(*sql.Rows) error) error {
	return Explain(s.operator.do(ctx, func(ctx context.Context, c *conn) error {
		return c.tx(ctx, func() error {
			begin()
			return c.query(ctx, text, args, read)
		})
	}))
}

// timeOrZero reads a time that the relay wrote; zero for NULL.
func timeOrZero(text sql.NullString) time.Time {
	at, _ := readTime(text.String)
	return at
}

// timeOrNull returns a time as the relay's tables store it; NULL for zero.
func timeOrNull(at time.Time) sql.NullString {
	return sql.NullString{Valid: !at.IsZero(), String: at.UTC().Truncate(time.Microsecond).Format(ownTime)}
}

// SaveSavepoint implements store.SavepointWriter. It truncates the time to microseconds.
func (s *Store) SaveSavepoint(ctx context.Context, epoch store.Epoch, n store.Savepoint) error {
	const save = "UPDATE " + ownPrefix + `named SET state = ?, origin = ?, position = ?, seq = ?, made_at = ?, why = ?, kept_bytes = ?
WHERE name = ? AND checkpoint = ?`
	var saved int64
	err := s.writeReplay(ctx, epoch, func(c *conn) (err error) {
		saved, err = c.exec(ctx, save, string(n.State), n.Origin, string(n.Position), int64(n.Seq), timeOrNull(n.At),
			errortext.Sanitize(n.Reason, 0, false), n.RetainedBytes, s.name, n.Name)
		return err
	})
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
	const deleteSQL = "DELETE FROM " + ownPrefix + "named WHERE name = ? AND checkpoint = ?"
	err := s.writeReplay(ctx, epoch, func(c *conn) error {
		_, err := c.exec(ctx, deleteSQL, s.name, name)
		return err
	})
	if err != nil {
		return fmt.Errorf("delete checkpoint %s: %w", name, err)
	}
	return nil
}

// writeReplay runs write in a transaction of the epoch's leader, on the session for
// replays.
func (s *Store) writeReplay(ctx context.Context, epoch store.Epoch, write func(*conn) error) error {
	return Explain(s.replay.do(ctx, func(ctx context.Context, c *conn) error {
		return s.runAsLeader(ctx, c, epoch, func() error { return write(c) })
	}))
}
