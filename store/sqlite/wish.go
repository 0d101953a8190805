package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/replays"
)

// WishNamed implements store.Wishes.
func (s *Store) WishNamed(ctx context.Context, name string, keep bool) error {
	const put = `
INSERT INTO sluicebox_named (name, checkpoint, keep, wish, state) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name, checkpoint) DO NOTHING`
	err := store.CheckNamed(name)
	if err == nil {
		err = s.wish(ctx, store.ErrNamedExists, func(ctx context.Context, _ int64) (int64, error) {
			return s.writer.conn.Exec(ctx, put, s.name, name, keep, replays.Make, string(store.NamedWanted))
		})
	}
	if err != nil {
		return fmt.Errorf("ask for checkpoint %s: %w", name, err)
	}
	return nil
}

// WishDrop implements store.Wishes.
func (s *Store) WishDrop(ctx context.Context, name string) error {
	const put = "UPDATE sluicebox_named SET wish = ? WHERE name = ? AND checkpoint = ?"
	err := s.wish(ctx, store.ErrNoNamed, func(ctx context.Context, _ int64) (int64, error) {
		return s.writer.conn.Exec(ctx, put, replays.Drop, s.name, name)
	})
	if err != nil {
		return fmt.Errorf("ask for the end of checkpoint %s: %w", name, err)
	}
	return nil
}

// WishReplay implements store.Wishes.
func (s *Store) WishReplay(ctx context.Context, id, spec string) error {
	const put = `
INSERT INTO sluicebox_replay (name, job, nth, wish, spec, state, asked_at) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name, job) DO NOTHING`
	err := s.wish(ctx, store.ErrJobExists, func(ctx context.Context, nth int64) (int64, error) {
		return s.writer.conn.Exec(ctx, put, s.name, id, nth, string(store.WishRun), spec, string(store.JobWaiting), formatTime(time.Now()))
	})
	if err != nil {
		return fmt.Errorf("ask for replay %s: %w", id, err)
	}
	return nil
}

// WishJob implements store.Wishes.
func (s *Store) WishJob(ctx context.Context, id string, wish store.JobWish) error {
	const put = `
UPDATE sluicebox_replay SET wish = CASE WHEN state IN (` + ends + `) THEN wish ELSE ? END WHERE name = ? AND job = ?`
	err := wish.Validate()
	if err == nil {
		err = s.wish(ctx, store.ErrNoJob, func(ctx context.Context, _ int64) (int64, error) {
			return s.writer.conn.Exec(ctx, put, append(endValues(), string(wish), s.name, id)...)
		})
	}
	if err != nil {
		return fmt.Errorf("ask replay %s to %s: %w", id, wish, err)
	}
	return nil
}

// ends are the places of endValues in a statement.
const ends = "?, ?, ?, ?"

// endValues are the states in which a replay has ended.
func endValues() (list []any) {
	for _, state := range replays.Ends() {
		list = append(list, state)
	}
	return list
}

// wish counts a wish and runs a write that is to change one row. none is the error of
// one that changed nothing.
func (s *Store) wish(ctx context.Context, none error, put func(ctx context.Context, nth int64) (int64, error)) error {
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
