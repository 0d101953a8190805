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

// RequestSavepoint implements store.Requester.
func (s *Store) RequestSavepoint(ctx context.Context, name string, keep bool) error {
	const put = "INSERT INTO " + ownPrefix + `named (name, checkpoint, keep, wish, state, origin, position, seq, why, kept_bytes)
VALUES (?, ?, ?, ?, ?, '', '', 0, '', 0)`
	err := store.ValidateSavepointName(name)
	if err == nil {
		err = s.writeRequest(ctx, store.ErrSavepointExists, func(c *conn, _ int64) (int64, error) {
			n, err := c.exec(ctx, put, s.name, name, keep, replays.RequestMake, string(store.SavepointRequested))
			if code(err) == codeTooLong {
				err = &explained{store.SetupError{
					Problem: "the table " + ownPrefix + "named was made for names of at most 40 characters",
					Remedy:  "take a shorter name, or, with the right to ALTER it:\nALTER TABLE " + ownPrefix + "named MODIFY checkpoint VARBINARY(63) NOT NULL;",
				}, err}
			}
			return n, err
		})
	}
	if err != nil {
		return fmt.Errorf("request checkpoint %s: %w", name, err)
	}
	return nil
}

// RequestSavepointDeletion implements store.Requester.
func (s *Store) RequestSavepointDeletion(ctx context.Context, name string) error {
	const put = "UPDATE " + ownPrefix + "named SET wish = ? WHERE name = ? AND checkpoint = ?"
	err := s.writeRequest(ctx, store.ErrNoSavepoint, func(c *conn, _ int64) (int64, error) {
		return c.exec(ctx, put, replays.RequestDrop, s.name, name)
	})
	if err != nil {
		return fmt.Errorf("request deletion of checkpoint %s: %w", name, err)
	}
	return nil
}

// RequestReplay implements store.Requester.
func (s *Store) RequestReplay(ctx context.Context, id, spec string) error {
	const put = "INSERT INTO " + ownPrefix + `replay (name, job, nth, wish, spec, state, why, source, until_origin, until_position, until_seq,
  cursor_position, cursor_skip, total, sent, skipped, refused, asked_at)
VALUES (?, ?, ?, ?, ?, ?, '', '', '', '', 0, '', 0, 0, 0, 0, 0, UTC_TIMESTAMP(6))`
	err := s.writeRequest(ctx, store.ErrJobExists, func(c *conn, nth int64) (int64, error) {
		return c.exec(ctx, put, s.name, id, nth, string(store.DesiredRun), spec, string(store.JobWaiting))
	})
	if err != nil {
		return fmt.Errorf("request replay %s: %w", id, err)
	}
	return nil
}

// RequestJobState implements store.Requester.
func (s *Store) RequestJobState(ctx context.Context, id string, wish store.DesiredState) error {
	const put = "UPDATE " + ownPrefix + "replay SET wish = CASE WHEN state IN " + endedPlaces + " THEN wish ELSE ? END WHERE name = ? AND job = ?"
	err := wish.Validate()
	if err == nil {
		err = s.writeRequest(ctx, store.ErrNoJob, func(c *conn, _ int64) (int64, error) {
			return c.exec(ctx, put, append(endedStates(), string(wish), s.name, id)...)
		})
	}
	if err != nil {
		return fmt.Errorf("request %[2]s of replay %[1]s: %[3]w", id, wish, err)
	}
	return nil
}

// endedPlaces holds the placeholders for endedStates.
const endedPlaces = "(?, ?, ?, ?)"

// endedStates returns the states in which a replay has ended.
func endedStates() (list []any) {
	for _, state := range replays.EndedStates() {
		list = append(list, state)
	}
	return list
}

// writeRequest increments the request counter and runs put, which must find or insert one
// row. If it does not, writeRequest returns none.
func (s *Store) writeRequest(ctx context.Context, none error, put func(c *conn, nth int64) (int64, error)) error {
	const count = "INSERT INTO " + ownPrefix + "wish (name, n) VALUES (?, 1) ON DUPLICATE KEY UPDATE n = n + 1"
	err := s.operator.do(ctx, func(ctx context.Context, c *conn) error {
		return c.tx(ctx, func() error {
			if _, err := c.exec(ctx, count, s.name); err != nil {
				return err
			}
			var nth, n int64
			err := c.row(ctx, "SELECT n FROM "+ownPrefix+"wish WHERE name = ?", []any{s.name}, &nth)
			if err == nil {
				n, err = put(c, nth)
			}
			if err == nil && n == 0 || code(err) == codeDuplicate {
				return none
			}
			return err
		})
	})

	return Explain(err)
}
