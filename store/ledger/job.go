package ledger

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Kinds of the records of replays. The key of the first two is the id; that of an error adds
// the number of its row.
const (
	jobSpecKind  = "job-spec"
	jobKind      = "job"
	jobErrorKind = "job-error"
)

// jobSpec is the request for a replay. Any process writes it.
type jobSpec struct {
	Desired store.DesiredState `json:"desired"`
	Spec    text               `json:"spec"`
}

// job is how far a replay is. The request creates it; from then on the leader writes it.
type job struct {
	ID          text           `json:"id"`
	Nth         int64          `json:"nth"` // number of the request, and so the order of replays
	State       store.JobState `json:"state"`
	Reason      text           `json:"reason,omitempty"`
	WaitsFor    text           `json:"waitsFor,omitempty"`
	Undated     int            `json:"undated,omitempty"`
	Source      text           `json:"source,omitempty"`
	Until       checkpoint     `json:"until"`
	UntilAt     time.Time      `json:"untilAt,omitzero"`
	Position    text           `json:"position,omitempty"` // of the copy
	Skip        int            `json:"skip,omitempty"`
	Total       int64          `json:"total"`
	Sent        int64          `json:"sent"`
	Skipped     int64          `json:"skipped"`
	Refused     int64          `json:"refused"`
	RequestedAt time.Time      `json:"requestedAt"`
	StartedAt   time.Time      `json:"startedAt,omitzero"`
	FinishedAt  time.Time      `json:"finishedAt,omitzero"`
}

func (j *job) value() store.Job {
	return store.Job{
		ID: string(j.ID), State: j.State, Reason: string(j.Reason), WaitsFor: string(j.WaitsFor), Undated: j.Undated,
		Source: string(j.Source), Until: j.Until.value(), UntilAt: j.UntilAt,
		Cursor: store.ReplayCursor{Position: store.Position(j.Position), Skip: j.Skip},
		Total:  j.Total, Sent: j.Sent, Skipped: j.Skipped, Refused: j.Refused,
		RequestedAt: j.RequestedAt, StartedAt: j.StartedAt, FinishedAt: j.FinishedAt,
	}
}

// RequestReplay implements store.Requester.
func (l *Ledger) RequestReplay(ctx context.Context, id, spec string) error {
	key := keyOf(id)
	err := l.records.Request(ctx, func(ctx context.Context, tx Tx, nth int64) error {
		found, err := get[job](ctx, tx.Lock, jobKind, key)
		if err == nil && found != nil {
			err = store.ErrJobExists
		}
		if err != nil {
			return err
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		if err := put(ctx, tx, jobKind, key, job{ID: text(id), Nth: nth, State: store.JobWaiting, RequestedAt: utc(now)}); err != nil {
			return err
		}
		return put(ctx, tx, jobSpecKind, key, jobSpec{Desired: store.DesiredRun, Spec: text(spec)})
	})
	return wrap(err, "request replay %s", id)
}

// RequestJobState implements store.Requester.
func (l *Ledger) RequestJobState(ctx context.Context, id string, state store.DesiredState) error {
	err := state.Validate()
	if err == nil {
		err = l.records.Request(ctx, func(ctx context.Context, tx Tx, _ int64) error {
			j, err := getJob(ctx, tx, id)
			if err != nil || j.State.Ended() {
				return err
			}
			spec, err := get[jobSpec](ctx, tx.Lock, jobSpecKind, keyOf(id))
			if err != nil || spec == nil {
				return err
			}
			spec.Desired = state
			return put(ctx, tx, jobSpecKind, keyOf(id), spec)
		})
	}
	if err != nil {
		return fmt.Errorf("request %[2]s of replay %[1]s: %[3]w", id, state, err)
	}
	return nil
}

// getJob returns a replay and locks its record.
func getJob(ctx context.Context, tx Tx, id string) (*job, error) {
	j, err := get[job](ctx, tx.Lock, jobKind, keyOf(id))
	if err == nil && j == nil {
		err = store.ErrNoJob
	}
	return j, err
}

// Jobs implements store.ReplayLister.
func (l *Ledger) Jobs(ctx context.Context) ([]store.Job, error) {
	var jobs map[string]*job
	var specs map[string]*jobSpec
	err := l.records.View(ctx, func(ctx context.Context, r Reader) (err error) {
		if jobs, err = list[job](ctx, r, jobKind); err == nil {
			specs, err = list[jobSpec](ctx, r, jobSpecKind)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read replays: %w", err)
	}

	var all []store.Job
	nth := make(map[string]int64, len(jobs))
	for key, rec := range jobs {
		j := rec.value()
		nth[j.ID] = rec.Nth
		if spec := specs[key]; spec != nil {
			j.Desired, j.Spec = spec.Desired, string(spec.Spec)
		}
		all = append(all, j)
	}
	slices.SortFunc(all, func(a, b store.Job) int { return cmp.Compare(nth[b.ID], nth[a.ID]) })
	return all, nil
}

// updateJob runs change in a transaction of the leader and writes the replay as changed. Two
// calls never run at the same time.
func (l *Ledger) updateJob(ctx context.Context, epoch store.Epoch, d Durability, id string, change func(context.Context, Tx, *job) error) error {
	return l.lockJob(ctx, epoch, d, id, func(ctx context.Context, tx Tx) error {
		j, err := getJob(ctx, tx, id)
		if err != nil {
			return err
		}
		if err := change(ctx, tx, j); err != nil {
			return err
		}
		return put(ctx, tx, jobKind, keyOf(id), j)
	})
}

// lockJob runs do in a transaction of the leader, after other calls that change the replay.
func (l *Ledger) lockJob(ctx context.Context, epoch store.Epoch, d Durability, id string, do func(context.Context, Tx) error) error {
	done := make(chan struct{})
	for {
		l.mu.Lock()
		running := l.jobs[id]
		if running == nil {
			l.jobs[id] = done
		}
		l.mu.Unlock()
		if running == nil {
			break
		}
		select {
		case <-running:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	defer func() {
		l.mu.Lock()
		delete(l.jobs, id)
		l.mu.Unlock()
		close(done)
	}()
	return l.replay.Update(ctx, epoch, d, do)
}

// SaveJob implements store.ReplayWriter. It deletes old jobs in transactions of their own. If
// that fails, the next call does it, because the job is saved.
func (l *Ledger) SaveJob(ctx context.Context, epoch store.Epoch, j store.Job) error {
	var old []string
	err := l.updateJob(ctx, epoch, Full, j.ID, func(ctx context.Context, tx Tx, rec *job) (err error) {
		rec.State, rec.Reason, rec.Source = j.State, reasonText(j.Reason), text(j.Source)
		rec.WaitsFor, rec.Undated = reasonText(j.WaitsFor), j.Undated
		rec.Until, rec.UntilAt = recordOf(j.Until), utc(j.UntilAt)
		started, ended := j.State.Started() && rec.StartedAt.IsZero(), j.State.Ended()
		if old = nil; !started && !ended {
			return nil
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		if started {
			rec.StartedAt = utc(now)
		}
		if ended && rec.FinishedAt.IsZero() {
			rec.FinishedAt = utc(now)
		}
		if ended {
			old, err = oldJobs(ctx, tx, rec, now.Add(-store.EndedJobRetention))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("save replay %s: %w", j.ID, err)
	}
	for _, id := range old {
		if err := l.deleteJob(ctx, epoch, id); err != nil {
			break
		}
	}
	return nil
}

// oldJobs returns the ids of the jobs that ended before a time, or that are too many, besides
// one that ends now.
func oldJobs(ctx context.Context, tx Tx, saved *job, expired time.Time) ([]string, error) {
	jobs, err := list[job](ctx, tx, jobKind)
	if err != nil {
		return nil, err
	}
	jobs[keyOf(string(saved.ID))] = saved
	var ended []*job
	for _, j := range jobs {
		if !j.FinishedAt.IsZero() {
			ended = append(ended, j)
		}
	}
	slices.SortFunc(ended, func(a, b *job) int {
		return cmp.Or(b.FinishedAt.Compare(a.FinishedAt), cmp.Compare(b.Nth, a.Nth))
	})

	var old []string
	for i, j := range ended {
		if i >= store.MaxEndedJobs || j.FinishedAt.Before(expired) {
			old = append(old, string(j.ID))
		}
	}
	return old, nil
}

// maxDeletedErrors is the maximum number of errors that one transaction deletes.
const maxDeletedErrors = 1000

// deleteJob deletes an ended job and its errors in transactions of a bounded size. It keeps a
// job that has rows.
func (l *Ledger) deleteJob(ctx context.Context, epoch store.Epoch, id string) error {
	for more := true; more; {
		err := l.lockJob(ctx, epoch, Full, id, func(ctx context.Context, tx Tx) (err error) {
			more, err = deleteJob(ctx, tx, id)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// deleteJob reports whether it must be called again.
func deleteJob(ctx context.Context, tx Tx, id string) (more bool, err error) {
	j, err := get[job](ctx, tx.Lock, jobKind, keyOf(id))
	if err != nil || j == nil || j.FinishedAt.IsZero() {
		return false, err
	}
	rows, err := tx.Scan(ctx, Scan{Queue: keyOf(id), Limit: 1})
	if err != nil || len(rows) > 0 {
		return false, err
	}
	var keys []string
	err = tx.List(ctx, jobErrorKind, errorPrefix(id), maxDeletedErrors, func(rec Record) error {
		keys = append(keys, rec.Key)
		return nil
	})
	if err == nil {
		err = tx.Delete(ctx, jobErrorKind, keys...)
	}
	if err != nil || len(keys) == maxDeletedErrors {
		return true, err
	}
	if err := tx.Delete(ctx, jobKind, keyOf(id)); err != nil {
		return false, err
	}
	return false, tx.Delete(ctx, jobSpecKind, keyOf(id))
}
