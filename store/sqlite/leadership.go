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
	const read = "SELECT epoch, holder, raised_at FROM sluicebox_leader WHERE name = ?"
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

// CommitsWait implements store.CommitWaiter. SQLite has no standby.
func (s *Store) CommitsWait(context.Context) (setting string, err error) { return "", nil }
