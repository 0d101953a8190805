package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/replays"
)

// RequestSavepoint implements store.Requester.
func (s *Store) RequestSavepoint(ctx context.Context, name string, keep bool) error {
	const put = `
INSERT INTO sluicebox_named (name, checkpoint, keep, wish, state) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name, checkpoint) DO NOTHING`
	err := store.ValidateSavepointName(name)
	if err == nil {
		err = s.writeRequest(ctx, store.ErrSavepointExists, func(ctx context.Context, _ int64) (int64, error) {
			return s.writer.conn.Exec(ctx, put, s.name, name, keep, replays.RequestMake, string(store.SavepointRequested))
		})
	}
	if err != nil {
		return fmt.Errorf("request checkpoint %s: %w", name, err)
	}
	return nil
}

// RequestSavepointDeletion implements store.Requester.
func (s *Store) RequestSavepointDeletion(ctx context.Context, name string) error {
	const put = "UPDATE sluicebox_named SET wish = ? WHERE name = ? AND checkpoint = ?"
	err := s.writeRequest(ctx, store.ErrNoSavepoint, func(ctx context.Context, _ int64) (int64, error) {
		return s.writer.conn.Exec(ctx, put, replays.RequestDrop, s.name, name)
	})
	if err != nil {
		return fmt.Errorf("request deletion of checkpoint %s: %w", name, err)
	}
	return nil
}

// RequestReplay implements store.Requester.
func (s *Store) RequestReplay(ctx context.Context, id, spec string) error {
	const put = `
INSERT INTO sluicebox_replay (name, job, nth, wish, spec, state, asked_at) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name, job) DO NOTHING`
	err := s.writeRequest(ctx, store.ErrJobExists, func(ctx context.Context, nth int64) (int64, error) {
		return s.writer.conn.Exec(ctx, put, s.name, id, nth, string(store.DesiredRun), spec, string(store.JobWaiting), formatTime(time.Now()))
	})
	if err != nil {
		return fmt.Errorf("request replay %s: %w", id, err)
	}
	return nil
}

// RequestJobState implements store.Requester.
func (s *Store) RequestJobState(ctx context.Context, id string, wish store.DesiredState) error {
	const put = `
UPDATE sluicebox_replay SET wish = CASE WHEN state IN (` + endedPlaces + `) THEN wish ELSE ? END WHERE name = ? AND job = ?`
	err := wish.Validate()
	if err == nil {
		err = s.writeRequest(ctx, store.ErrNoJob, func(ctx context.Context, _ int64) (int64, error) {
			return s.writer.conn.Exec(ctx, put, append(endedStates(), string(wish), s.name, id)...)
		})
	}
	if err != nil {
		return fmt.Errorf("request %[2]s of replay %[1]s: %[3]w", id, wish, err)
	}
	return nil
}

// endedPlaces are the placeholders of endedStates in a statement.
const endedPlaces = "?, ?, ?, ?"

// endedStates are the states in which a replay has ended.
func endedStates() (list []any) {
	for _, state := range replays.EndedStates() {
		list = append(list, state)
	}
	return list
}

// writeRequest counts a request and runs a write that changes one row. It returns none if
// the write changed no row.
func (s *Store) writeRequest(ctx context.Context, none error, put func(ctx context.Context, nth int64) (int64, error)) error {
	const count = `
INSERT INTO sluicebox_wish (name, n) VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET n = n + 1 RETURNING n`
	var n int64
	err := s.writer.do(ctx, func(ctx context.Context) error {
		return s.writer.conn.Write(ctx, Full, func(ctx context.Context) error {
			var nth int64
			err := s.writer.conn.Query(ctx, count, []any{s.name}, func(row []driver.Value) error {
				nth, _ = row[0].(int64)
				return nil
			})
			if err == nil {
				n, err = put(ctx, nth)
			}
			return err
		})
	})
	if err == nil && n == 0 {
		return none
	}
	return Explain(err)
}
