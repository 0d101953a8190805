package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/replays"
)

// Jobs implements store.ReplayLister.
func (s *Store) Jobs(ctx context.Context) ([]store.Job, error) {
	const read = `
SELECT job, wish, spec, state, why, source, until_origin, until_position, until_seq, until_at, cursor_position, cursor_skip,
  total, sent, skipped, refused, asked_at, began_at, finished_at
FROM sluicebox.replay WHERE name = $1 ORDER BY nth DESC`

	var list []store.Job
	err := s.operator.do(ctx, func(ctx context.Context, sess *session) error {
		rows, err := sess.conn.Query(ctx, read, s.name)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, scanJob)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read replays: %w", explainOwn(err))
	}
	return list, nil
}

func scanJob(row pgx.CollectableRow) (j store.Job, err error) {
	var until, asked, began, finished pgtype.Timestamptz
	err = row.Scan(&j.ID, &j.Desired, &j.Spec, &j.State, &j.Reason, &j.Source, &j.Until.Origin, &j.Until.Position, &j.Until.Seq, &until,
		&j.Cursor.Position, &j.Cursor.Skip, &j.Total, &j.Sent, &j.Skipped, &j.Refused, &asked, &began, &finished)
	j.UntilAt, j.RequestedAt, j.StartedAt, j.FinishedAt = timeOrZero(until), timeOrZero(asked), timeOrZero(began), timeOrZero(finished)
	return j, err
}

// JobErrors implements store.ReplayLister.
func (s *Store) JobErrors(ctx context.Context, id string, limit int) ([]store.ReplayError, error) {
	const read = `
SELECT n, outbox, id, kind, message_group, reason, at FROM sluicebox.replay_error
WHERE name = $1 AND job = $2 ORDER BY n LIMIT $3`

	err := replays.CheckLimit(limit)
	var list []store.ReplayError
	if err == nil {
		err = s.operator.do(ctx, func(ctx context.Context, sess *session) error {
			rows, err := sess.conn.Query(ctx, read, s.name, id, limit)
			if err != nil {
				return err
			}
			list, err = pgx.CollectRows(rows, scanReplayError)
			return err
		})
	}

	if err != nil {
		return nil, fmt.Errorf("read errors of replay %s: %w", id, explainOwn(err))
	}
	return list, nil
}

func scanReplayError(row pgx.CollectableRow) (e store.ReplayError, err error) {
	var id, kind, group []byte
	err = row.Scan(&e.N, &e.Outbox, &id, &kind, &group, &e.Reason, &e.At)
	e.ID, e.Kind, e.Group, e.At = string(id), string(kind), groupOf(group), e.At.UTC()
	return e, err
}

// SaveJob implements store.ReplayWriter. The end time is truncated to microseconds.
func (s *Store) SaveJob(ctx context.Context, epoch store.Epoch, j store.Job) error {
	save := saveJobQuery()
	saved, err := s.replayWrite(ctx, save, s.fenced(epoch, map[string]any{
		"job": j.ID, "state": string(j.State), "why": j.Reason, "source": j.Source, "origin": j.Until.Origin,
		"position": string(j.Until.Position), "seq": int64(j.Until.Seq), "until": timeOrNull(j.UntilAt),
		"begun": j.State.Started(), "ended": j.State.Ended(),
	}), "why")
	if err == nil && saved == 0 {
		err = store.ErrNoJob
	}
	if err == nil && j.State.Ended() {
		err = s.deleteOldJobs(ctx, epoch)
		if errors.Is(err, store.ErrNotLeader) {
			err = nil // the job is saved, and the next leader deletes the old ones
		}
	}
	if err != nil {
		return fmt.Errorf("save replay %s: %w", j.ID, err)
	}
	return nil
}

func saveJobQuery() *query {
	b := &builder{}
	return b.query(
		"WITH "+b.leader()+", saved AS (",
		"  UPDATE sluicebox.replay AS r SET state = "+b.arg("state", "text")+", why = "+b.arg("why", "text")+", source = "+b.arg("source", "text")+",",
		"    until_origin = "+b.arg("origin", "text")+", until_position = "+b.arg("position", "text")+", until_seq = "+b.arg("seq", "bigint")+
			", until_at = "+b.arg("until", "timestamptz")+",",
		"    began_at = coalesce(r.began_at, CASE WHEN "+b.arg("begun", "boolean")+" THEN now() END),",
		"    finished_at = coalesce(r.finished_at, CASE WHEN "+b.arg("ended", "boolean")+" THEN now() END)",
		"  WHERE r.name = "+b.arg("name", "text")+" AND r.job = "+b.arg("job", "text")+" AND EXISTS (SELECT FROM leader) RETURNING 1",
		")",
		countWritten("saved"),
	)
}

// deleteOldJobs deletes ended jobs beyond the maximum number or age.
func (s *Store) deleteOldJobs(ctx context.Context, epoch store.Epoch) error {
	b := &builder{}
	name := b.arg("name", "text")
	del := b.query(
		"WITH "+b.leader()+", gone AS (",
		"  DELETE FROM sluicebox.replay AS r WHERE r.name = "+name+" AND r.state = ANY ("+b.arg("ends", "text[]")+")",
		"    AND (r.finished_at < now() - "+b.arg("age", "interval")+" OR (r.finished_at, r.nth) <= (",
		"      SELECT k.finished_at, k.nth FROM sluicebox.replay AS k WHERE k.name = "+name+" AND k.finished_at IS NOT NULL",
		"      ORDER BY k.finished_at DESC, k.nth DESC OFFSET "+b.arg("most", "bigint")+" LIMIT 1))",
		"    AND NOT EXISTS (SELECT FROM sluicebox.replay_row AS w WHERE w.name = r.name AND w.job = r.job OFFSET 0)",
		"    AND EXISTS (SELECT FROM leader) RETURNING r.job",
		"), errors AS (",
		"  DELETE FROM sluicebox.replay_error AS e USING gone WHERE e.name = "+name+" AND e.job = gone.job",
		")",
		countWritten("gone"),
	)

	_, err := s.replayWrite(ctx, del, s.fenced(epoch, map[string]any{
		"ends": replays.EndedStates(), "age": store.EndedJobRetention, "most": store.MaxEndedJobs,
	}))

	return err
}
