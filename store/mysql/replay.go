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

// Jobs implements store.ReplayLister.
func (s *Store) Jobs(ctx context.Context) ([]store.Job, error) {
	const read = `
SELECT job, wish, spec, state, why, source, until_origin, until_position, until_seq, until_at, cursor_position, cursor_skip,
  total, sent, skipped, refused, asked_at, began_at, finished_at
FROM ` + ownPrefix + "replay WHERE name = ? ORDER BY nth DESC"

	var list []store.Job
	err := s.show(ctx, read, []any{s.name}, func() { list = nil }, func(rows *sql.Rows) error {
		var j store.Job
		var until, asked, began, finished sql.NullString
		err := rows.Scan(&j.ID, &j.Desired, &j.Spec, &j.State, &j.Reason, &j.Source, &j.Until.Origin, &j.Until.Position, &j.Until.Seq, &until,
			&j.Cursor.Position, &j.Cursor.Skip, &j.Total, &j.Sent, &j.Skipped, &j.Refused, &asked, &began, &finished)
		j.UntilAt, j.RequestedAt, j.StartedAt, j.FinishedAt = timeOrZero(until), timeOrZero(asked), timeOrZero(began), timeOrZero(finished)
		list = append(list, j)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read replays: %w", err)
	}

	return list, nil
}

// JobErrors implements store.ReplayLister.
func (s *Store) JobErrors(ctx context.Context, id string, limit int) ([]store.ReplayError, error) {
	const read = "SELECT n, outbox, id, kind, message_group, reason, at FROM " + ownPrefix + `replay_error
WHERE name = ? AND job = ? ORDER BY n LIMIT ?`
	err := replays.CheckLimit(limit)
	var list []store.ReplayError
	if err == nil {
		err = s.show(ctx, read, []any{s.name, id, limit}, func() { list = nil }, func(rows *sql.Rows) error {
			var e store.ReplayError
			var group, at sql.NullString
			err := rows.Scan(&e.N, &e.Outbox, &e.ID, &e.Kind, &group, &e.Reason, &at)
			e.Group, e.At = store.Group{Name: group.String, Valid: group.Valid}, timeOrZero(at)
			list = append(list, e)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read errors of replay %s: %w", id, err)
	}

	return list, nil
}

// SaveJob implements store.ReplayWriter. It truncates UntilAt to microseconds.
func (s *Store) SaveJob(ctx context.Context, epoch store.Epoch, j store.Job) error {
	const save = "UPDATE " + ownPrefix + `replay SET state = ?, why = ?, source = ?, until_origin = ?, until_position = ?, until_seq = ?, until_at = ?,
  began_at = COALESCE(began_at, CASE WHEN ? THEN UTC_TIMESTAMP(6) END), finished_at = COALESCE(finished_at, CASE WHEN ? THEN UTC_TIMESTAMP(6) END)
WHERE name = ? AND job = ?`

	var saved int64
	err := s.writeReplay(ctx, epoch, func(c *conn) (err error) {
		saved, err = c.exec(ctx, save, string(j.State), errortext.Sanitize(j.Reason, 0, false), j.Source, j.Until.Origin, string(j.Until.Position),
			int64(j.Until.Seq), timeOrNull(j.UntilAt), j.State.Started(), j.State.Ended(), s.name, j.ID)
		if err == nil && saved > 0 && j.State.Ended() {
			err = s.deleteOldJobs(ctx, c)
		}
		return err
	})
	if err == nil && saved == 0 {
		err = store.ErrNoJob
	}
	if err != nil {
		return fmt.Errorf("save replay %s: %w", j.ID, err)
	}

	return nil
}

// SetRowCounts implements store.ReplayWriter.
func (s *Store) SetRowCounts(ctx context.Context, epoch store.Epoch, id string, total, skipped int64) error {
	const count = "UPDATE " + ownPrefix + "replay SET total = ?, skipped = ? WHERE name = ? AND job = ?"
	var counted int64
	err := s.writeReplay(ctx, epoch, func(c *conn) (err error) {
		counted, err = c.exec(ctx, count, total, skipped, s.name, id)
		return err
	})
	if err == nil && counted == 0 {
		err = store.ErrNoJob
	}
	if err != nil {
		return fmt.Errorf("count rows of replay %s: %w", id, err)
	}

	return nil
}

// deleteOldJobs deletes ended jobs beyond the number or age limit, in the call's
// transaction.
func (s *Store) deleteOldJobs(ctx context.Context, c *conn) error {
	const old = "SELECT r.job FROM " + ownPrefix + "replay AS r WHERE r.name = ? AND r.state IN " + endedPlaces + `
AND (r.finished_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND OR (r.finished_at, r.nth) <= (SELECT k.finished_at, k.nth
  FROM ` + ownPrefix + `replay AS k WHERE k.name = ? AND k.finished_at IS NOT NULL ORDER BY k.finished_at DESC, k.nth DESC LIMIT 1 OFFSET ?))
AND NOT EXISTS (SELECT 1 FROM ` + ownPrefix + "replay_row AS w WHERE w.name = r.name AND w.job = r.job)"

	var expired []string
	args := append([]any{s.name}, endedStates()...)
	err := c.query(ctx, old, append(args, int64(store.EndedJobRetention/time.Second), s.name, store.MaxEndedJobs), func(rows *sql.Rows) error {
		var id string
		err := rows.Scan(&id)
		expired = append(expired, id)
		return err
	})

	for _, id := range expired {
		for _, table := range []string{"replay_error", "replay"} {
			if err == nil {
				_, err = c.exec(ctx, "DELETE FROM "+ownPrefix+table+" WHERE name = ? AND job = ?", s.name, id)
			}
		}
	}

	return err
}
