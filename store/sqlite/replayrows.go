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

// CopyRows implements store.ReplayWriter.
func (s *Store) CopyRows(ctx context.Context, epoch store.Epoch, id string, rows []store.ReplayRow, at store.ReplayCursor) error {
	const move = `
UPDATE sluicebox_replay SET cursor_position = ?, cursor_skip = ?, total = total + ? WHERE name = ? AND job = ?`
	err := replays.CheckRows(s.outboxes, rows)
	if err == nil {
		err = s.writeReplay(ctx, epoch, Full, func(ctx context.Context) error {
			var copied int64
			for i := range rows {
				n, err := s.copyRow(ctx, id, &rows[i])
				if err != nil {
					return err
				}
				copied += n
			}
			moved, err := s.writer.conn.Exec(ctx, move, string(at.Position), at.Skip, copied, s.name, id)
			if err == nil && moved == 0 {
				return store.ErrNoJob
			}
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("copy rows for replay %s: %w", id, err)
	}
	return nil
}

// copyRow adds a row to a job, in the call's transaction. It returns 0 if the row exists.
func (s *Store) copyRow(ctx context.Context, id string, r *store.ReplayRow) (int64, error) {
	const put = `
INSERT INTO sluicebox_replay_row (name, job, outbox, lane, n, id, kind, message_group, payload_size, committed_at, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING`
	lane := r.Lane().Hash()
	return s.writer.conn.Exec(ctx, put, s.name, id, r.Outbox, lane[:], r.N, r.ID, r.Kind, groupValue(r.Group),
		r.PayloadSize, commitValue(r.Committed), spilledPayload(r.Payload))
}

// SetRowCounts implements store.ReplayWriter.
func (s *Store) SetRowCounts(ctx context.Context, epoch store.Epoch, id string, total, skipped int64) error {
	const count = "UPDATE sluicebox_replay SET total = ?, skipped = ? WHERE name = ? AND job = ?"
	err := s.writeReplay(ctx, epoch, Full, func(ctx context.Context) error {
		counted, err := s.writer.conn.Exec(ctx, count, total, skipped, s.name, id)
		if err == nil && counted == 0 {
			return store.ErrNoJob
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("count rows of replay %s: %w", id, err)
	}
	return nil
}

// ClearRows implements store.ReplayWriter.
func (s *Store) ClearRows(ctx context.Context, epoch store.Epoch, id string, limit int) (int, error) {
	const forget = `
DELETE FROM sluicebox_replay_row WHERE rowid IN
  (SELECT rowid FROM sluicebox_replay_row INDEXED BY sluicebox_replay_row_n WHERE name = ? AND job = ? ORDER BY n LIMIT ?)`
	const count = "UPDATE sluicebox_replay SET total = total - ? WHERE name = ? AND job = ?"
	err := replays.CheckLimit(limit)
	var cleared int64
	if err == nil {
		err = s.writeReplay(ctx, epoch, Full, func(ctx context.Context) (err error) {
			if cleared, err = s.writer.conn.Exec(ctx, forget, s.name, id, limit); err == nil && cleared > 0 {
				_, err = s.writer.conn.Exec(ctx, count, cleared, s.name, id)
			}
			return err
		})
	}
	if err != nil {
		return 0, fmt.Errorf("clear rows of replay %s: %w", id, err)
	}
	return int(cleared), nil
}

// FinishRows implements store.ReplayFinisher. A power failure may undo it.
func (s *Store) FinishRows(ctx context.Context, epoch store.Epoch, id string, done []store.FinishedRow) error {
	if len(done) == 0 {
		return nil
	}
	err := replays.CheckFinished(done)
	if err == nil {
		err = s.writeReplay(ctx, epoch, Normal, func(ctx context.Context) error { return s.finishRows(ctx, id, done) })
	}
	if err != nil {
		return fmt.Errorf("record replay %s results: %w", id, err)
	}
	return nil
}

// finishRows removes rows from a job, in the call's transaction.
func (s *Store) finishRows(ctx context.Context, id string, done []store.FinishedRow) error {
	const count = `
UPDATE sluicebox_replay SET sent = sent + ?, skipped = skipped + ?, refused = refused + ? WHERE name = ? AND job = ?`
	before, found := int64(0), false
	err := s.writer.conn.Query(ctx, "SELECT refused FROM sluicebox_replay WHERE name = ? AND job = ?", []any{s.name, id}, func(row []driver.Value) error {
		before, found = numberAt(row, 0), true
		return nil
	})
	if err == nil && !found {
		err = store.ErrNoJob
	}
	var tally replays.Tally
	for i := 0; i < len(done) && err == nil; i++ {
		err = s.finishRow(ctx, id, &done[i], &tally, before)
	}
	if err == nil && tally != (replays.Tally{}) {
		_, err = s.writer.conn.Exec(ctx, count, tally.Sent, tally.Skipped, tally.Refused, s.name, id)
	}
	return err
}

// finishRow removes a row from a job, if it exists. It records the row's error unless the
// job has too many; before is the number of errors before the call.
func (s *Store) finishRow(ctx context.Context, id string, d *store.FinishedRow, tally *replays.Tally, before int64) error {
	const forget = `
DELETE FROM sluicebox_replay_row WHERE name = ? AND job = ? AND outbox = ? AND lane = ? AND n = ? RETURNING id, kind, message_group`
	const note = `
INSERT INTO sluicebox_replay_error (name, job, n, outbox, id, kind, message_group, reason, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name, job, n) DO NOTHING`
	lane := d.Lane.Hash()
	var deleted []any
	err := s.writer.conn.Query(ctx, forget, []any{s.name, id, d.Lane.Outbox, lane[:], d.N}, func(row []driver.Value) error {
		deleted = []any{textAt(row, 0), textAt(row, 1), row[2]}
		return nil
	})
	if err != nil || deleted == nil {
		return err
	}
	if tally.Count(d.Result); d.Result == store.ReplayRefused && tally.StoresError(before) {
		args := append([]any{s.name, id, d.N, d.Lane.Outbox}, deleted...)
		_, err = s.writer.conn.Exec(ctx, note, append(args, errortext.Sanitize(d.Error, 0, false), formatTime(time.Now()))...)
	}
	return err
}

// ReplayLanes implements store.ReplayReader, on its own connection. It scans the rows by n
// and returns those without an earlier row of their lane.
func (s *Store) ReplayLanes(ctx context.Context, id string, after int64, limit int) ([]store.ReplayLane, error) {
	const read = `
SELECT outbox, kind, message_group, lane, n FROM sluicebox_replay_row AS r INDEXED BY sluicebox_replay_row_n
WHERE name = ?1 AND job = ?2 AND n > ?3 AND NOT EXISTS (
  SELECT 1 FROM sluicebox_replay_row AS e WHERE e.name = ?1 AND e.job = ?2 AND e.outbox = r.outbox AND e.lane = r.lane AND e.n < r.n)
ORDER BY n LIMIT ?4`
	err := replays.CheckLimit(limit)
	var lanes []store.ReplayLane
	if err == nil {
		err = s.readTx(ctx, func(ctx context.Context, conn *Conn) error {
			lanes = nil // the transaction was retried
			return conn.Query(ctx, read, []any{s.name, id, after, limit}, func(row []driver.Value) error {
				l := store.ReplayLane{LaneKey: store.LaneKey{Outbox: textAt(row, 0), Kind: textAt(row, 1)}, First: numberAt(row, 4)}
				l.Group.Name, l.Group.Valid = textOf(row[2])
				hash, _ := row[3].([]byte)
				copy(l.Hash[:], hash)
				lanes = append(lanes, l)
				return nil
			})
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read lanes of replay %s: %w", id, Explain(err))
	}
	return lanes, nil
}

// ReplayRows implements store.ReplayReader, on its own connection.
func (s *Store) ReplayRows(ctx context.Context, id string, from []store.ReplayRange, each int) ([][]store.ReplayRow, error) {
	err := replays.CheckLimit(each)
	if len(from) == 0 && err == nil {
		return nil, nil
	}

	lists := make([][]store.ReplayRow, len(from))
	if err == nil {
		err = s.readTx(ctx, func(ctx context.Context, conn *Conn) (err error) {
			uncancelled := context.WithoutCancel(ctx) // each statement is short
			for i := 0; i < len(from) && err == nil; i++ {
				if err = ctx.Err(); err == nil {
					lists[i], err = s.readReplayRows(uncancelled, conn, id, &from[i], each)
				}
			}
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read rows of replay %s: %w", id, Explain(err))
	}
	return lists, nil
}

func (s *Store) readReplayRows(ctx context.Context, conn *Conn, id string, from *store.ReplayRange, each int) (rows []store.ReplayRow, err error) {
	const read = `
SELECT n, id, kind, message_group, payload_size, committed_at, payload FROM sluicebox_replay_row
WHERE name = ? AND job = ? AND outbox = ? AND lane = ? AND n > ? ORDER BY n LIMIT ?`
	err = conn.Query(ctx, read, []any{s.name, id, from.Outbox, from.Lane[:], from.After, each}, func(row []driver.Value) error {
		r := store.ReplayRow{N: numberAt(row, 0), Item: store.Item{Ref: store.Ref{Outbox: from.Outbox, ID: textAt(row, 1)}, Kind: textAt(row, 2)}}
		r.Group.Name, r.Group.Valid = textOf(row[3])
		r.PayloadSize, r.Committed, r.Payload = int(numberAt(row, 4)), timeAt(row, 5), BytesOf(row[6])
		rows = append(rows, r)
		return nil
	})
	return rows, err
}
