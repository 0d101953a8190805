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

// Jobs implements store.ReplayLister, on its own connection.
func (s *Store) Jobs(ctx context.Context) ([]store.Job, error) {
	const read = `
SELECT job, wish, spec, state, why, source, until_origin, until_position, until_seq, until_at, cursor_position, cursor_skip,
  total, sent, skipped, refused, asked_at, began_at, finished_at
FROM sluicebox_replay WHERE name = ? ORDER BY nth DESC`
	var list []store.Job
	err := s.readTx(ctx, func(ctx context.Context, conn *Conn) error {
		list = nil // the transaction was retried
		return conn.Query(ctx, read, []any{s.name}, func(row []driver.Value) error {
			list = append(list, jobOf(row))
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read replays: %w", Explain(err))
	}
	return list, nil
}

func jobOf(row []driver.Value) store.Job {
	return store.Job{
		ID: textAt(row, 0), Desired: store.DesiredState(textAt(row, 1)), Spec: textAt(row, 2), State: store.JobState(textAt(row, 3)),
		Reason: textAt(row, 4), Source: textAt(row, 5),
		Until:   store.Checkpoint{Origin: textAt(row, 6), Position: store.Position(textAt(row, 7)), Seq: store.Seq(numberAt(row, 8))},
		UntilAt: timeAt(row, 9),
		Cursor:  store.ReplayCursor{Position: store.Position(textAt(row, 10)), Skip: int(numberAt(row, 11))},
		Total:   numberAt(row, 12), Sent: numberAt(row, 13), Skipped: numberAt(row, 14), Refused: numberAt(row, 15),
		RequestedAt: timeAt(row, 16), StartedAt: timeAt(row, 17), FinishedAt: timeAt(row, 18),
	}
}

// JobErrors implements store.ReplayLister, on its own connection.
func (s *Store) JobErrors(ctx context.Context, id string, limit int) ([]store.ReplayError, error) {
	const read = `
SELECT n, outbox, id, kind, message_group, reason, at FROM sluicebox_replay_error
WHERE name = ? AND job = ? ORDER BY n LIMIT ?`
	err := replays.CheckLimit(limit)
	var list []store.ReplayError
	if err == nil {
		err = s.readTx(ctx, func(ctx context.Context, conn *Conn) error {
			list = nil // the transaction was retried
			return conn.Query(ctx, read, []any{s.name, id, limit}, func(row []driver.Value) error {
				e := store.ReplayError{N: numberAt(row, 0), Ref: store.Ref{Outbox: textAt(row, 1), ID: textAt(row, 2)}, Kind: textAt(row, 3)}
				e.Group.Name, e.Group.Valid = textOf(row[4])
				e.Reason, e.At = textAt(row, 5), timeAt(row, 6)
				list = append(list, e)
				return nil
			})
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read errors of replay %s: %w", id, Explain(err))
	}
	return list, nil
}

// SaveJob implements store.ReplayWriter. It truncates UntilAt to milliseconds.
func (s *Store) SaveJob(ctx context.Context, epoch store.Epoch, j store.Job) error {
	const save = `
UPDATE sluicebox_replay SET state = ?, why = ?, source = ?, until_origin = ?, until_position = ?, until_seq = ?, until_at = ?,
  began_at = coalesce(began_at, ?), finished_at = coalesce(finished_at, ?)
WHERE name = ? AND job = ?`
	err := s.writeReplay(ctx, epoch, Full, func(ctx context.Context) error {
		var began, finished any
		if j.State.Started() {
			began = formatTime(time.Now())
		}
		if j.State.Ended() {
			finished = formatTime(time.Now())
		}
		saved, err := s.writer.conn.Exec(ctx, save, string(j.State), errortext.Sanitize(j.Reason, 0, false), j.Source, j.Until.Origin,
			string(j.Until.Position), int64(j.Until.Seq), timeOrNull(j.UntilAt), began, finished, s.name, j.ID)
		switch {
		case err == nil && saved == 0:
			return store.ErrNoJob
		case err == nil && j.State.Ended():
			return s.deleteOldJobs(ctx)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("save replay %s: %w", j.ID, err)
	}
	return nil
}

// deleteOldJobs deletes ended jobs beyond the limits of number and age, in the call's
// transaction.
func (s *Store) deleteOldJobs(ctx context.Context) error {
	const old = `
SELECT job FROM sluicebox_replay AS r WHERE name = ? AND state IN (` + endedPlaces + `)
  AND (finished_at < ? OR (finished_at, nth) <= (SELECT k.finished_at, k.nth FROM sluicebox_replay AS k
    WHERE k.name = r.name AND k.finished_at IS NOT NULL ORDER BY k.finished_at DESC, k.nth DESC LIMIT 1 OFFSET ?))
  AND NOT EXISTS (SELECT 1 FROM sluicebox_replay_row AS w WHERE w.name = r.name AND w.job = r.job)`
	args := append([]any{s.name}, endedStates()...)
	var ids []string
	err := s.writer.conn.Query(ctx, old, append(args, formatTime(time.Now().Add(-store.EndedJobRetention)), store.MaxEndedJobs), func(row []driver.Value) error {
		ids = append(ids, textAt(row, 0))
		return nil
	})

	for _, id := range ids {
		for _, table := range []string{"sluicebox_replay_error", "sluicebox_replay"} {
			if err == nil {
				_, err = s.writer.conn.Exec(ctx, "DELETE FROM "+table+" WHERE name = ? AND job = ?", s.name, id)
			}
		}
	}
	return err
}
