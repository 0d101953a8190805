package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

// The rows of a replay are in the queue of the key of its record.

// CopyRows implements store.ReplayWriter.
func (l *Ledger) CopyRows(ctx context.Context, epoch store.Epoch, id string, rows []store.ReplayRow, at store.ReplayCursor) error {
	err := checkRows(l.outboxes, rows)
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
	return wrap(err, "copy rows for replay %s", id)
}

// SetRowCounts implements store.ReplayWriter.
func (l *Ledger) SetRowCounts(ctx context.Context, epoch store.Epoch, id string, total, skipped int64) error {
	err := l.updateJob(ctx, epoch, Full, id, func(_ context.Context, _ Tx, j *job) error {
		j.Total, j.Skipped = total, skipped
		return nil
	})
	return wrap(err, "count rows of replay %s", id)
}

// ClearRows implements store.ReplayWriter.
func (l *Ledger) ClearRows(ctx context.Context, epoch store.Epoch, id string, limit int) (int, error) {
	err := checkLimit(limit)
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
	err := checkFinished(done)
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
	return wrap(err, "record replay %s results", id)
}

// finishRows removes rows from a job, counts them, and records the errors of the refused
// rows unless the job has too many.
func finishRows(ctx context.Context, tx Tx, id string, done []store.FinishedRow, refs []Ref, j *job) error {
	before, counts := j.Refused, tally{}
	errs := map[string]*jobError{}
	_, err := tx.Dequeue(ctx, keyOf(id), refs, func(i int, row *store.Item) {
		d := &done[i]
		if counts.count(d.Result); d.Result == store.ReplayRefused && counts.storesError(before) {
			errs[errorKey(id, d.N)] = &jobError{
				N: d.N, Outbox: text(row.Outbox), ID: text(row.ID), Kind: text(row.Kind), Group: groupText(row.Group),
				Reason: reasonText(d.Error),
			}
		}
	})
	j.Sent, j.Skipped, j.Refused = j.Sent+counts.sent, j.Skipped+counts.skipped, j.Refused+counts.refused
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
	err := checkLimit(limit)
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
	err := checkLimit(limit)
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
	err := checkLimit(each)
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

// checkRows reports whether rows can be copied into a job.
func checkRows(set *outboxes.Set, rows []store.ReplayRow) error {
	for i := range rows {
		r := &rows[i]
		if _, err := set.Find(r.Outbox); err != nil {
			return err
		}
		if r.N <= 0 {
			return fmt.Errorf("row %q of outbox %s: number %d must be positive", r.ID, r.Outbox, r.N)
		}
	}
	return nil
}

// checkFinished reports whether the results of rows are valid.
func checkFinished(done []store.FinishedRow) error {
	for i := range done {
		if d := &done[i]; d.Result > store.ReplayRefused {
			return fmt.Errorf("row %q of outbox %s: unknown result %d", d.ID, d.Lane.Outbox, d.Result)
		}
	}
	return nil
}

// checkLimit reports whether a limit is positive.
func checkLimit(limit int) error {
	if limit <= 0 {
		return fmt.Errorf("limit %d must be positive", limit)
	}
	return nil
}

// tally counts the rows of a call by result.
type tally struct{ sent, skipped, refused int64 }

// count counts one row.
func (t *tally) count(result store.ReplayResult) {
	switch result {
	case store.ReplaySent:
		t.sent++
	case store.ReplaySkipped:
		t.skipped++
	case store.ReplayRefused:
		t.refused++
	}
}

// storesError reports whether to store the error of the last counted row, if before rows
// were refused before the call.
func (t *tally) storesError(before int64) bool { return before+t.refused <= store.MaxJobErrors }
