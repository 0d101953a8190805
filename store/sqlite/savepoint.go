package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/errortext"
	"github.com/sluicebox/sluicebox/store/internal/replays"
)

// Savepoints implements store.ReplayLister, on its own connection.
func (s *Store) Savepoints(ctx context.Context) ([]store.Savepoint, error) {
	const read = `
SELECT checkpoint, keep, wish, state, origin, position, seq, made_at, why, kept_bytes
FROM sluicebox_named WHERE name = ? ORDER BY checkpoint`
	var list []store.Savepoint
	err := s.readTx(ctx, func(ctx context.Context, conn *Conn) error {
		list = nil // the transaction was retried
		return conn.Query(ctx, read, []any{s.name}, func(row []driver.Value) error {
			list = append(list, store.Savepoint{
				Name: textAt(row, 0), RetainLog: numberAt(row, 1) != 0, DeleteRequested: textAt(row, 2) == replays.RequestDrop, State: store.SavepointState(textAt(row, 3)),
				Checkpoint: store.Checkpoint{Origin: textAt(row, 4), Position: store.Position(textAt(row, 5)), Seq: store.Seq(numberAt(row, 6))},
				At:         timeAt(row, 7), Reason: textAt(row, 8), RetainedBytes: numberAt(row, 9),
			})
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read named checkpoints: %w", Explain(err))
	}
	return list, nil
}

// textAt, numberAt and timeAt return a value of a row that the relay wrote, zero for NULL.
func textAt(row []driver.Value, i int) string {
	text, _ := textOf(row[i])
	return text
}

func numberAt(row []driver.Value, i int) int64 {
	n, _ := row[i].(int64)
	return n
}

func timeAt(row []driver.Value, i int) time.Time {
	at, _ := readTime(row[i])
	return at
}

// timeOrNull returns a time as the relay's tables store it, NULL for zero.
func timeOrNull(at time.Time) any {
	if at.IsZero() {
		return nil
	}
	return formatTime(at)
}

// SaveSavepoint implements store.SavepointWriter. It truncates the time to milliseconds.
func (s *Store) SaveSavepoint(ctx context.Context, epoch store.Epoch, n store.Savepoint) error {
	const save = `
UPDATE sluicebox_named SET state = ?, origin = ?, position = ?, seq = ?, made_at = ?, why = ?, kept_bytes = ?
WHERE name = ? AND checkpoint = ?`
	err := s.writeReplay(ctx, epoch, Full, func(ctx context.Context) error {
		saved, err := s.writer.conn.Exec(ctx, save, string(n.State), n.Origin, string(n.Position), int64(n.Seq), timeOrNull(n.At),
			errortext.Sanitize(n.Reason, 0, false), n.RetainedBytes, s.name, n.Name)
		if err == nil && saved == 0 {
			return store.ErrNoSavepoint
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("save checkpoint %s: %w", n.Name, err)
	}
	return nil
}

// DeleteSavepoint implements store.SavepointWriter.
func (s *Store) DeleteSavepoint(ctx context.Context, epoch store.Epoch, name string) error {
	const forget = "DELETE FROM sluicebox_named WHERE name = ? AND checkpoint = ?"
	err := s.writeReplay(ctx, epoch, Full, func(ctx context.Context) error {
		_, err := s.writer.conn.Exec(ctx, forget, s.name, name)
		return err
	})
	if err != nil {
		return fmt.Errorf("delete checkpoint %s: %w", name, err)
	}
	return nil
}

// writeReplay runs fn in a transaction of the leader of an epoch.
func (s *Store) writeReplay(ctx context.Context, epoch store.Epoch, d Durability, fn func(context.Context) error) error {
	return Explain(s.writer.do(ctx, func(ctx context.Context) error {
		return s.writer.runAsLeader(ctx, epoch, d, lockTimeout, fn)
	}))
}
