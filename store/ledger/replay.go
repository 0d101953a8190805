package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/replays"
)

// The rows of a replay are in the queue of the key of its record.

// CopyRows implements store.ReplayWriter.
func (l *Ledger) CopyRows(ctx context.Context, epoch store.Epoch, id string, rows []store.ReplayRow, at store.ReplayCursor) error {
	err := replays.CheckRows(l.outboxes, rows)
	if err == nil {
		items := make([]store.Item, len(rows))
		for i := range rows {
			items[i] = rows[i].Item
			items[i].Seq, items[i].RetryCount, items[i].Captured = store.Seq(rows[i].N), 0, time.Time{}
		}
		err = l.updateJob(ctx, epoch, Full, id, func(ctx context.Context, tx Tx, j *job) error {
			added, err := tx.Enqueue(ctx, keyOf(id), items)
			j.Position, j.Skip = text(at.Position), at.Skip
			j.Total += int64(added)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("copy rows for replay %s: %w", id, err)
	}
	return nil
}

// SetRowCounts implements store.ReplayWriter.
func (l *Ledger) SetRowCounts(ctx context.Context, epoch store.Epoch, id string, total, skipped int64) error {
	err := l.updateJob(ctx, epoch, Full, id, func(_ context.Context, _ Tx, j *job) error {
		j.Total, j.Skipped = total, skipped
		return nil
	})
	if err != nil {
		return fmt.Errorf("count rows of replay %s: %w", id, err)
	}
	return nil
}

// ClearRows implements store.ReplayWriter.
func (l *Ledger) ClearRows(ctx context.Context, epoch store.Epoch, id string, limit int) (int, error) {
	err := replays.CheckLimit(limit)
	n := 0
	if err == nil {
		err = l.lockJob(ctx, epoch, Full, id, func(ctx context.Context, tx Tx) (err error) {
			j, err := get[job](ctx, tx.Lock, jobKind, keyOf(id))
			if err != nil {
				return err
			}
			if n, _, err = tx.Clear(ctx, Scan{Queue: keyOf(id), Limit: limit}); err != nil || n == 0 || j == nil {
				return err
			}
			j.Total -= int64(n)
			return put(ctx, tx, jobKind, keyOf(id), j)
		})
	}
	if err != nil {
		return 0, fmt.Errorf("clear rows of replay %s: %w", id, err)
	}
	return n, nil
}

// FinishRows implements store.ReplayFinisher. A power failure may undo it.
func (l *Ledger) FinishRows(ctx context.Context, epoch store.Epoch, id string, done []store.FinishedRow) error {
	if len(done) == 0 {
		return nil
	}
	err := replays.CheckFinished(done)
	if err == nil {
		refs := make([]Ref, len(done))
		for i := range done {
			d := &done[i]
			refs[i] = Ref{Ref: store.Ref{Outbox: d.Lane.Outbox, ID: d.ID}, N: d.N, Lane: d.Lane.Hash()}
		}
		err = l.updateJob(ctx, epoch, Normal, id, func(ctx context.Context, tx Tx, j *job) error {
			return finishRows(ctx, tx, id, done, refs, j)
		})
	}
	if err != nil {
		return fmt.Errorf("record replay %s results: %w", id, err)
	}
	return nil
}

// finishRows removes rows from a job, counts them, and records the errors of the refused
// rows unless the job has too many.
func finishRows(ctx context.Context, tx Tx, id string, done []store.FinishedRow, refs []Ref, j *job) error {
	before, tally := j.Refused, replays.Tally{}
	errs := map[string]*jobError{}
	_, err := tx.Dequeue(ctx, keyOf(id), refs, func(i int, row *store.Item) {
		d := &done[i]
		if tally.Count(d.Result); d.Result == store.ReplayRefused && tally.StoresError(before) {
			errs[errorKey(id, d.N)] = &jobError{
				N: d.N, Outbox: text(row.Outbox), ID: text(row.ID), Kind: text(row.Kind), Group: groupText(row.Group),
				Reason: reasonText(d.Error),
			}
		}
	})
	j.Sent, j.Skipped, j.Refused = j.Sent+tally.Sent, j.Skipped+tally.Skipped, j.Refused+tally.Refused
	if err != nil || len(errs) == 0 {
		return err
	}

	now, err := tx.Now(ctx)
	if err != nil {
		return err
	}
	for _, e := range errs {
		e.At = utc(now)
	}
	return putAll(ctx, tx, jobErrorKind, errs)
}

// jobError is a store.ReplayError in a record.
type jobError struct {
	N      int64     `json:"n"`
	Outbox text      `json:"outbox"`
	ID     text      `json:"id"`
	Kind   text      `json:"kind"`
	Group  *text     `json:"group"`
	Reason text      `json:"reason"`
	At     time.Time `json:"at"`
}

// errorPrefix begins the keys of the errors of a job.
func errorPrefix(id string) string { return keyOf(id) + "/" }

// errorKey orders the errors of a job by N.
func errorKey(id string, n int64) string { return fmt.Sprintf("%s%019d", errorPrefix(id), n) }

// JobErrors implements store.ReplayLister.
func (l *Ledger) JobErrors(ctx context.Context, id string, limit int) ([]store.ReplayError, error) {
	err := replays.CheckLimit(limit)
	var all []store.ReplayError
	if err == nil {
		err = l.records.View(ctx, func(ctx context.Context, r Reader) error {
			all = nil
			return r.List(ctx, jobErrorKind, errorPrefix(id), limit, func(rec Record) error {
				var e jobError
				err := decode(jobErrorKind, rec.Key, rec.Body, &e)
				all = append(all, store.ReplayError{
					N: e.N, Ref: store.Ref{Outbox: string(e.Outbox), ID: string(e.ID)}, Kind: string(e.Kind), Group: groupOf(e.Group),
					Reason: string(e.Reason), At: e.At,
				})
				return err
			})
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read errors of replay %s: %w", id, err)
	}
	return all, nil
}

// ReplayLanes implements store.ReplayReader.
func (l *Ledger) ReplayLanes(ctx context.Context, id string, after int64, limit int) ([]store.ReplayLane, error) {
	err := replays.CheckLimit(limit)
	var lanes []store.ReplayLane
	if err == nil {
		err = l.replay.View(ctx, func(ctx context.Context, r Reader) error {
			heads, err := r.Scan(ctx, Scan{Queue: keyOf(id), After: after, Limit: limit, Heads: true})
			lanes = nil
			for i := range heads {
				key := heads[i].Lane()
				lanes = append(lanes, store.ReplayLane{LaneKey: key, Hash: key.Hash(), First: int64(heads[i].Seq)})
			}
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read lanes of replay %s: %w", id, err)
	}
	return lanes, nil
}

// ReplayRows implements store.ReplayReader.
func (l *Ledger) ReplayRows(ctx context.Context, id string, from []store.ReplayRange, each int) ([][]store.ReplayRow, error) {
	err := replays.CheckLimit(each)
	if len(from) == 0 && err == nil {
		return nil, nil
	}

	lists := make([][]store.ReplayRow, len(from))
	if err == nil {
		ranges := make([]store.SpilledRange, len(from))
		for i, f := range from {
			ranges[i] = store.SpilledRange{Outbox: f.Outbox, Lane: f.Lane, After: store.Seq(f.After)}
		}
		err = l.replay.View(ctx, func(ctx context.Context, r Reader) error {
			lanes, err := r.Range(ctx, keyOf(id), ranges, each)
			for i, items := range lanes {
				lists[i] = replayRows(items)
			}
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read rows of replay %s: %w", id, err)
	}
	return lists, nil
}

func replayRows(items []store.Item) (rows []store.ReplayRow) {
	for i := range items {
		r := store.ReplayRow{N: int64(items[i].Seq), Item: items[i]}
		r.Seq = 0
		rows = append(rows, r)
	}
	return rows
}
