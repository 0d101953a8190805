package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// writeReplayRows locks a job's row and runs write in a transaction of the epoch's
// leader. write receives the job's count of refused rows. If the job does not exist,
// writeReplayRows returns store.ErrNoJob.
func (s *Store) writeReplayRows(ctx context.Context, epoch store.Epoch, id string, write func(c *conn, refused int64) error) error {
	const lock = "SELECT refused FROM " + ownPrefix + "replay WHERE name = ? AND job = ? FOR UPDATE"
	exists := false
	err := s.writeReplay(ctx, epoch, func(c *conn) error {
		var refused int64
		err := c.row(ctx, lock, []any{s.name, id}, &refused)
		if exists = !errors.Is(err, sql.ErrNoRows); !exists {
			return nil // ErrNotLeader takes precedence
		}
		if err != nil {
			return err
		}
		return write(c, refused)
	})
	if err == nil && !exists {
		err = store.ErrNoJob
	}

	return err
}

// CopyRows implements store.ReplayWriter. It truncates commit times to microseconds.
func (s *Store) CopyRows(ctx context.Context, epoch store.Epoch, id string, rows []store.ReplayRow, at store.ReplayCursor) error {
	const move = "UPDATE " + ownPrefix + "replay SET cursor_position = ?, cursor_skip = ?, total = total + ? WHERE name = ? AND job = ?"
	err := replays.CheckRows(s.outboxes, rows)
	if err == nil {
		err = s.writeReplayRows(ctx, epoch, id, func(c *conn, _ int64) error {
			fresh, err := s.dropCopied(ctx, c, id, rows)
			if err != nil {
				return err
			}
			size := func(i int) int { return itemSize(&fresh[i].Item, fresh[i].Payload) }
			err = c.batches(len(fresh), size, func(from, to int) error {
				st := &statement{}
				_, err := c.exec(ctx, s.copyText(st, id, fresh[from:to]), st.args...)
				return err
			})
			if err == nil {
				_, err = c.exec(ctx, move, string(at.Position), at.Skip, len(fresh), s.name, id)
			}
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("copy rows for replay %s: %w", id, err)
	}

	return nil
}

// dropCopied excludes the rows that a job already has, in the call's transaction.
func (s *Store) dropCopied(ctx context.Context, c *conn, id string, rows []store.ReplayRow) ([]store.ReplayRow, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	const read = "SELECT n FROM " + ownPrefix + "replay_row FORCE INDEX (" + ownPrefix + "replay_row_n) WHERE name = ? AND job = ? AND n BETWEEN ? AND ?"
	minN, maxN := rows[0].N, rows[0].N
	for i := range rows {
		minN, maxN = min(minN, rows[i].N), max(maxN, rows[i].N)
	}

	existing := map[int64]bool{}
	err := c.query(ctx, read, []any{s.name, id, minN, maxN}, func(rows *sql.Rows) error {
		var n int64
		err := rows.Scan(&n)
		existing[n] = true
		return err
	})

	return slices.DeleteFunc(slices.Clone(rows), func(r store.ReplayRow) bool {
		known := existing[r.N]
		existing[r.N] = true // the call may contain it twice
		return known
	}), err
}

// copyText returns the statement that adds rows to a job.
func (s *Store) copyText(st *statement, id string, rows []store.ReplayRow) string {
	var text strings.Builder
	text.WriteString("INSERT INTO " + ownPrefix + "replay_row (name, job, outbox, lane, n, id, kind, message_group, payload_size, committed_at, payload) VALUES\n")
	for i := range rows {
		r := &rows[i]
		lane := r.Lane().Hash()
		if i > 0 {
			text.WriteString(", ")
		}
		text.WriteString("(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
		st.args = append(st.args, s.name, id, r.Outbox, lane[:], r.N, []byte(r.ID), []byte(r.Kind), groupBytes(r.Group), r.PayloadSize, timeOrNull(r.Committed), r.Payload)
	}
	return text.String()
}

// ClearRows implements store.ReplayWriter.
func (s *Store) ClearRows(ctx context.Context, epoch store.Epoch, id string, limit int) (int, error) {
	const find = "SELECT COALESCE(MAX(f.n), 0) FROM (SELECT r.n FROM " + ownPrefix + "replay_row AS r FORCE INDEX (" + ownPrefix + `replay_row_n)
WHERE r.name = ? AND r.job = ? ORDER BY r.n LIMIT ?) AS f`
	const deleteSQL = "DELETE r FROM " + ownPrefix + "replay_row AS r FORCE INDEX (" + ownPrefix + "replay_row_n) WHERE r.name = ? AND r.job = ? AND r.n <= ?"
	const count = "UPDATE " + ownPrefix + "replay SET total = total - ? WHERE name = ? AND job = ?"
	err := replays.CheckLimit(limit)
	var cleared int64
	if err == nil {
		err = s.writeReplayRows(ctx, epoch, id, func(c *conn, _ int64) error {
			var last int64
			err := c.row(ctx, find, []any{s.name, id, limit}, &last)
			if err == nil {
				cleared, err = c.exec(ctx, deleteSQL, s.name, id, last)
			}
			if err == nil {
				_, err = c.exec(ctx, count, cleared, s.name, id)
			}
			return err
		})
	}
	if err != nil && !errors.Is(err, store.ErrNoJob) {
		return 0, fmt.Errorf("clear rows of replay %s: %w", id, err)
	}

	return int(cleared), nil
}

// FinishRows implements store.ReplayFinisher.
func (s *Store) FinishRows(ctx context.Context, epoch store.Epoch, id string, done []store.FinishedRow) error {
	if len(done) == 0 {
		return nil
	}
	err := replays.CheckFinished(done)
	if err == nil {
		err = s.writeReplayRows(ctx, epoch, id, func(c *conn, refused int64) error { return s.finishRows(ctx, c, id, done, refused) })
	}
	if err != nil {
		return fmt.Errorf("record replay %s results: %w", id, err)
	}
	return nil
}

// finishRows deletes rows from a job and adds them to its counts, in the call's
// transaction. before is the count of refused rows before the call.
func (s *Store) finishRows(ctx context.Context, c *conn, id string, done []store.FinishedRow, before int64) error {
	const count = "UPDATE " + ownPrefix + "replay SET sent = sent + ?, skipped = skipped + ?, refused = refused + ? WHERE name = ? AND job = ?"
	var tally replays.Tally
	for chunk := range slices.Chunk(done, maxKeys) {
		existing, err := s.rowsOf(ctx, c, id, chunk)
		if err != nil {
			return err
		}

		var finished []any
		for i := range chunk {
			d := &chunk[i]
			row, ok := existing[d.N]
			if !ok || row.outbox != d.Lane.Outbox || row.lane != d.Lane.Hash() {
				continue
			}
			delete(existing, d.N)
			finished = append(finished, d.N)
			if tally.Count(d.Result); d.Result == store.ReplayRefused && tally.StoresError(before) {
				if err := s.saveError(ctx, c, id, d, &row); err != nil {
					return err
				}
			}
		}

		if len(finished) == 0 {
			continue
		}
		st := &statement{}
		deleteText := "DELETE r FROM " + ownPrefix + "replay_row AS r FORCE INDEX (" + ownPrefix + "replay_row_n)\nWHERE r.name = " + st.arg(s.name) +
			" AND r.job = " + st.arg(id) + " AND r.n IN " + st.list("?", finished)

		if _, err := c.exec(ctx, deleteText, st.args...); err != nil {
			return err
		}
	}

	_, err := c.exec(ctx, count, tally.Sent, tally.Skipped, tally.Refused, s.name, id)
	return err
}

// replayRow is a row of a job as stored.
type replayRow struct {
	outbox, id, kind string
	lane             store.LaneHash
	group            sql.NullString
}

// rowsOf reads the rows of a job that are to be finished, by n.
func (s *Store) rowsOf(ctx context.Context, c *conn, id string, done []store.FinishedRow) (map[int64]replayRow, error) {
	keys := make([]any, len(done))
	for i := range done {
		keys[i] = done[i].N
	}

	st := &statement{}
	read := "SELECT r.n, r.outbox, r.lane, r.id, r.kind, r.message_group FROM " + ownPrefix + "replay_row AS r FORCE INDEX (" + ownPrefix + "replay_row_n)\nWHERE r.name = " +
		st.arg(s.name) + " AND r.job = " + st.arg(id) + " AND r.n IN " + st.list("?", keys)

	existing := map[int64]replayRow{}
	err := c.query(ctx, read, st.args, func(rows *sql.Rows) error {
		var n int64
		var r replayRow
		var lane []byte
		err := rows.Scan(&n, &r.outbox, &lane, &r.id, &r.kind, &r.group)
		copy(r.lane[:], lane)
		existing[n] = r
		return err
	})

	return existing, err
}

// saveError stores the error of a refused row in the call's transaction. An earlier row
// with the same n that was cleared may have left an error; that one stays.
func (s *Store) saveError(ctx context.Context, c *conn, id string, d *store.FinishedRow, r *replayRow) error {
	const insert = "INSERT IGNORE INTO " + ownPrefix + `replay_error (name, job, n, outbox, id, kind, message_group, reason, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6))`
	_, err := c.exec(ctx, insert, s.name, id, d.N, r.outbox, []byte(r.id), []byte(r.kind), groupBytes(groupOf(r.group)), errortext.Sanitize(d.Error, 0, false))
	return err
}

// ReplayLanes implements store.ReplayReader. It scans the rows by n and returns those
// that are the first of their lane.
func (s *Store) ReplayLanes(ctx context.Context, id string, after int64, limit int) ([]store.ReplayLane, error) {
	const read = "SELECT r.outbox, r.kind, r.message_group, r.lane, r.n FROM " + ownPrefix + "replay_row AS r FORCE INDEX (" + ownPrefix + `replay_row_n)
WHERE r.name = ? AND r.job = ? AND r.n > ? AND r.n = (
  SELECT e.n FROM ` + ownPrefix + `replay_row AS e FORCE INDEX (PRIMARY) WHERE e.name = ? AND e.job = ? AND e.outbox = r.outbox AND e.lane = r.lane
  ORDER BY e.n LIMIT 1)
ORDER BY r.n LIMIT ?`

	err := replays.CheckLimit(limit)
	var lanes []store.ReplayLane
	if err == nil {
		err = s.readReplayRows(ctx, func(ctx context.Context, c *conn) error {
			lanes = nil // the transaction may start over
			return c.query(ctx, read, []any{s.name, id, after, s.name, id, limit}, func(rows *sql.Rows) error {
				var l store.ReplayLane
				var group sql.NullString
				var hash []byte
				err := rows.Scan(&l.Outbox, &l.Kind, &group, &hash, &l.First)
				l.Group = groupOf(group)
				copy(l.Hash[:], hash)
				lanes = append(lanes, l)
				return err
			})
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read lanes of replay %s: %w", id, err)
	}

	return lanes, nil
}

// readReplayRows runs read in a transaction, on the session for replays.
func (s *Store) readReplayRows(ctx context.Context, read func(context.Context, *conn) error) error {
	return Explain(s.replay.do(ctx, func(ctx context.Context, c *conn) error {
		return c.tx(ctx, func() error { return read(ctx, c) })
	}))
}

// ReplayRows implements store.ReplayReader.
func (s *Store) ReplayRows(ctx context.Context, id string, from []store.ReplayRange, each int) ([][]store.ReplayRow, error) {
	const read = "SELECT n, id, kind, message_group, payload_size, committed_at, payload FROM " + ownPrefix + `replay_row FORCE INDEX (PRIMARY)
WHERE name = ? AND job = ? AND outbox = ? AND lane = ? AND n > ? ORDER BY n LIMIT ?`
	err := replays.CheckLimit(each)
	if len(from) == 0 && err == nil {
		return nil, nil
	}

	lists := make([][]store.ReplayRow, len(from))
	if err == nil {
		err = s.readReplayRows(ctx, func(ctx context.Context, c *conn) error {
			clear(lists)
			for i := range from {
				f := &from[i]
				err := c.query(ctx, read, []any{s.name, id, f.Outbox, f.Lane[:], f.After, each}, func(rows *sql.Rows) error {
					r, err := scanReplay(rows, f.Outbox)
					lists[i] = append(lists[i], r)
					return err
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read rows of replay %s: %w", id, err)
	}

	return lists, nil
}

func scanReplay(rows *sql.Rows, outbox string) (store.ReplayRow, error) {
	r := store.ReplayRow{Item: store.Item{Ref: store.Ref{Outbox: outbox}}}
	var group, committed sql.NullString
	err := rows.Scan(&r.N, &r.ID, &r.Kind, &group, &r.PayloadSize, &committed, &r.Payload)
	r.Group, r.Committed = store.Group{Name: group.String, Valid: group.Valid}, timeOrZero(committed)
	return r, err
}
