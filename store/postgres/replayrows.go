package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/errortext"
	"github.com/sluicebox/sluicebox/store/internal/replays"
)

// CopyRows implements store.ReplayWriter with one statement. Commit times are truncated
// to microseconds.
func (s *Store) CopyRows(ctx context.Context, epoch store.Epoch, id string, rows []store.ReplayRow, at store.ReplayCursor) error {
	err := replays.CheckRows(s.outboxes, rows)
	if err == nil {
		values := s.fenced(epoch, copyValues(rows))
		values["job"], values["position"], values["skip"] = id, string(at.Position), int64(at.Skip)
		var moved int
		if moved, err = s.replayWrite(ctx, copyQuery(), values); err == nil && moved == 0 {
			err = store.ErrNoJob
		}
	}
	if err != nil {
		return fmt.Errorf("copy rows for replay %s: %w", id, err)
	}
	return nil
}

// copyValues returns the parameters that differ from row to row.
func copyValues(rows []store.ReplayRow) map[string]any {
	n := len(rows)
	outboxes, lanes, ids, kinds, groups := make([]string, n), make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n)
	ns, txns, sizes := make([]int64, n), make([]int64, n), make([]int64, n)
	times, payloads := make([]pgtype.Timestamptz, n), make([][]byte, n)
	for i := range rows {
		r := &rows[i]
		lane := r.Lane().Hash()
		outboxes[i], lanes[i], ids[i], kinds[i], groups[i] = r.Outbox, lane[:], []byte(r.ID), []byte(r.Kind), groupBytes(r.Group)
		ns[i], txns[i], sizes[i] = r.N, int64(uint32(r.Txn)), int64(r.PayloadSize)
		times[i], payloads[i] = timeOrNull(r.Committed), r.Payload
	}

	return map[string]any{
		"outboxes": outboxes, "lanes": lanes, "ids": ids, "kinds": kinds, "groups": groups,
		"ns": ns, "txns": txns, "sizes": sizes, "times": times, "payloads": payloads,
	}
}

// SetRowCounts implements store.ReplayWriter.
func (s *Store) SetRowCounts(ctx context.Context, epoch store.Epoch, id string, total, skipped int64) error {
	b := &builder{}
	count := b.query(
		"WITH "+b.leader()+", counted AS (",
		"  UPDATE sluicebox.replay SET total = "+b.arg("total", "bigint")+", skipped = "+b.arg("skipped", "bigint"),
		"  WHERE name = "+b.arg("name", "text")+" AND job = "+b.arg("job", "text")+" AND EXISTS (SELECT FROM leader) RETURNING 1",
		")",
		countWritten("counted"),
	)

	counted, err := s.replayWrite(ctx, count, s.fenced(epoch, map[string]any{"job": id, "total": total, "skipped": skipped}))
	if err == nil && counted == 0 {
		err = store.ErrNoJob
	}
	if err != nil {
		return fmt.Errorf("set row counts of replay %s: %w", id, err)
	}
	return nil
}

// ClearRows implements store.ReplayWriter.
func (s *Store) ClearRows(ctx context.Context, epoch store.Epoch, id string, limit int) (int, error) {
	err := replays.CheckLimit(limit)
	cleared := 0
	if err == nil {
		cleared, err = s.replayWrite(ctx, clearQuery(), s.fenced(epoch, map[string]any{"job": id, "limit": int64(limit)}))
	}
	if err != nil {
		return 0, fmt.Errorf("clear rows of replay %s: %w", id, err)
	}
	return cleared, nil
}

// FinishRows implements store.ReplayFinisher with one statement that commits
// asynchronously.
func (s *Store) FinishRows(ctx context.Context, epoch store.Epoch, id string, done []store.FinishedRow) error {
	if len(done) == 0 {
		return nil
	}

	err := replays.CheckFinished(done)
	if err == nil {
		write := finishRowsQuery()
		err = s.replay.do(ctx, func(ctx context.Context, sess *session) error {
			values := s.fenced(epoch, finishedValues(done, ascii(sess.conn)))
			values["job"], values["most"] = id, int64(store.MaxJobErrors)
			batch := &pgx.Batch{}
			begin(batch, "SET LOCAL synchronous_commit = off")
			batch.Queue(write.sql, write.args(values)...)
			commit(batch)
			jobs, err := readFinished(sess.conn.SendBatch(ctx, batch))
			if err == nil && jobs == 0 {
				err = store.ErrNoJob
			}
			return err
		})
	}

	if err != nil {
		return fmt.Errorf("record replay %s results: %w", id, explainOwn(err))
	}
	return nil
}

func readFinished(results pgx.BatchResults) (jobs int, err error) {
	defer readRest(results, &err)
	if err := readBegin(results); err != nil {
		return 0, err
	}
	return readWritten(results.QueryRow())
}

func finishedValues(done []store.FinishedRow, ascii bool) map[string]any {
	n := len(done)
	outboxes, lanes, ns, results, reasons := make([]string, n), make([][]byte, n), make([]int64, n), make([]int16, n), make([]string, n)
	for i := range done {
		d := &done[i]
		lane := d.Lane.Hash()
		outboxes[i], lanes[i], ns[i], results[i] = d.Lane.Outbox, lane[:], d.N, int16(d.Result)
		reasons[i] = errortext.Sanitize(d.Error, 0, ascii)
	}
	return map[string]any{
		"outboxes": outboxes, "lanes": lanes, "ns": ns, "results": results, "reasons": reasons,
		"skipped": int16(store.ReplaySkipped), "refused": int16(store.ReplayRefused), "sent": int16(store.ReplaySent),
	}
}

// ReplayLanes implements store.ReplayReader.
func (s *Store) ReplayLanes(ctx context.Context, id string, after int64, limit int) ([]store.ReplayLane, error) {
	err := replays.CheckLimit(limit)
	var lanes []store.ReplayLane
	if err == nil {
		read := replayLanesQuery()
		err = s.replay.do(ctx, func(ctx context.Context, sess *session) error {
			rows, err := sess.conn.Query(ctx, read.sql, read.args(map[string]any{
				"name": s.name, "job": id, "after": after, "limit": int64(limit),
			})...)
			if err != nil {
				return err
			}
			lanes, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (l store.ReplayLane, err error) {
				var kind, group, hash []byte
				err = row.Scan(&l.Outbox, &kind, &group, &hash, &l.First)
				l.Kind, l.Group = string(kind), groupOf(group)
				copy(l.Hash[:], hash)
				return l, err
			})
			return err
		})
	}

	if err != nil {
		return nil, fmt.Errorf("read lanes of replay %s: %w", id, explainOwn(err))
	}
	return lanes, nil
}

// ReplayRows implements store.ReplayReader. The visibility of a row's transaction is
// decided at each read, as for a spilled row.
func (s *Store) ReplayRows(ctx context.Context, id string, from []store.ReplayRange, each int) ([][]store.ReplayRow, error) {
	err := replays.CheckLimit(each)
	if len(from) == 0 && err == nil {
		return nil, nil
	}

	n := len(from)
	lists := make([][]store.ReplayRow, n)
	if err == nil {
		outboxes, lanes, afters := make([]string, n), make([][]byte, n), make([]int64, n)
		for i := range from {
			outboxes[i], lanes[i], afters[i] = from[i].Outbox, from[i].Lane[:], from[i].After
		}
		read := replayRowsQuery()
		err = s.replay.do(ctx, func(ctx context.Context, sess *session) error {
			clear(lists)
			rows, err := sess.conn.Query(ctx, read.sql, read.args(map[string]any{
				"name": s.name, "job": id, "outboxes": outboxes, "lanes": lanes, "afters": afters, "each": int64(each),
			})...)
			if err != nil {
				return err
			}
			return scanReplayRows(rows, from, lists)
		})
	}

	if err != nil {
		return nil, fmt.Errorf("read rows of replay %s: %w", id, explainOwn(err))
	}

	for _, list := range lists { // the join returns them in any order
		slices.SortFunc(list, func(a, b store.ReplayRow) int { return cmp.Compare(a.N, b.N) })
	}

	return lists, nil
}

// scanReplayRows groups the rows of replayRowsQuery by lane.
func scanReplayRows(rows pgx.Rows, from []store.ReplayRange, lists [][]store.ReplayRow) error {
	defer rows.Close()
	for rows.Next() {
		var ord, txn int64
		var r store.ReplayRow
		var id, kind, group []byte
		var at pgtype.Timestamptz
		if err := rows.Scan(&ord, &r.N, &id, &kind, &group, &txn, &r.PayloadSize, &at, &r.Payload); err != nil {
			return err
		}
		r.ID, r.Kind = string(id), string(kind)
		releaseMessage(rows)
		r.Outbox, r.Txn, r.Group, r.Committed = from[ord-1].Outbox, store.Txn(txn), groupOf(group), timeOrZero(at)
		lists[ord-1] = append(lists[ord-1], r)
	}

	return rows.Err()
}
