package replay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// requestPollInterval is how often the Controller reads the desired state of a
	// running job.
	requestPollInterval = time.Second

	// clearBatchRows is the maximum number of rows of an ended job in one deletion.
	clearBatchRows = 5000

	// maxTries is the maximum number of tries without progress before a job FAILS.
	// maxRetryWait is the maximum pause between two tries. Together they take some
	// minutes.
	maxTries, maxRetryWait = 12, 30 * time.Second
)

// endError ends a job in a state.
type endError struct {
	state  store.JobState
	reason string
}

func (e *endError) Error() string { return e.reason }

func refusef(format string, args ...any) error {
	return &endError{store.JobRefused, fmt.Sprintf(format, args...)}
}

func failf(format string, args ...any) error {
	return &endError{store.JobFailed, fmt.Sprintf(format, args...)}
}

// waitError is the reason why a job cannot start yet. jobsChanged receives a signal
// when it may be able to.
type waitError struct{ reason string }

func (e *waitError) Error() string { return e.reason }

// errDesiredState stops the work on a job because its desired state changed.
var errDesiredState = errors.New("desired state changed")

// retryState counts the tries of a job without progress.
type retryState struct {
	progress string
	tries    int
}

// runJobs runs all jobs to their desired states, one after the other, the oldest
// first.
func (d *Controller) runJobs(ctx context.Context) (next time.Duration, err error) {
	waits := map[string]bool{}
	for {
		list, err := d.listJobs(ctx)
		if err != nil {
			return 0, err
		}
		slices.Reverse(list)
		job, err := d.nextJob(ctx, list, waits)
		if err != nil || job == nil {
			return 0, err
		}
		if next, err := d.runUntilBlocked(ctx, job, waits); next > 0 || err != nil {
			return next, err
		}
	}
}

// nextJob returns the next job to run, nil if there is none. It brings the other jobs
// into their desired states.
func (d *Controller) nextJob(ctx context.Context, list []store.Job, waits map[string]bool) (*store.Job, error) {
	for i := range list {
		j := &list[i]
		switch {
		case j.State.Ended():
			if err := d.deleteLeftRows(ctx, j); err != nil {
				return nil, err
			}
		case j.Desired == store.DesiredCancel:
			if err := d.endJob(ctx, j, store.JobCancelled, ""); err != nil {
				return nil, err
			}
		case j.Desired == store.DesiredPause:
			if err := d.saveJob(ctx, j, store.JobPaused, ""); err != nil {
				return nil, err
			}
		case !waits[j.ID]:
			return j, nil
		}
	}
	return nil, nil
}

// runUntilBlocked runs a job until it ends, its desired state changes, or it cannot
// continue for now. In the last case next is the time until the next try.
func (d *Controller) runUntilBlocked(ctx context.Context, j *store.Job, waits map[string]bool) (next time.Duration, err error) {
	err = d.runJob(ctx, j)
	var end *endError
	var wait *waitError
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case err == nil:
		return 0, d.endJob(ctx, j, store.JobDone, "")
	case errors.As(err, &end):
		return 0, d.endJob(ctx, j, end.state, end.reason)
	case errors.Is(err, errDesiredState), errors.Is(err, store.ErrNoJob):
		return 0, nil // the list has its desired state, or the job is deleted
	case errors.As(err, &wait):
		waits[j.ID] = true
		return 0, d.saveJob(ctx, j, j.State, wait.reason)
	case errors.Is(err, store.ErrNotLeader):
		return 0, err
	}

	d.Observer.ControllerFailed(fmt.Errorf("replay %s: %w", j.ID, err))
	s := d.retries[j.ID]
	if at := fmt.Sprint(j.State, j.Cursor, j.Total, j.Sent+j.Skipped+j.Refused); s.progress != at {
		s = retryState{progress: at}
	}
	s.tries++
	if d.retries[j.ID] = s; s.tries >= maxTries {
		return 0, d.endJob(ctx, j, store.JobFailed, fmt.Sprintf("gave up after %d tries: %v", s.tries, err))
	}
	return min(time.Second<<min(s.tries-1, 10), maxRetryWait), nil
}

// saveJob writes the state of a job and the condition that it waits for, if they changed.
func (d *Controller) saveJob(ctx context.Context, j *store.Job, state store.JobState, waitsFor string) error {
	if j.State == state && j.WaitsFor == waitsFor {
		return nil
	}
	j.State, j.WaitsFor = state, waitsFor
	return d.writeJob(ctx, j)
}

func (d *Controller) writeJob(ctx context.Context, j *store.Job) error {
	err := d.Store.SaveJob(ctx, d.Epoch, *j)
	if err == nil {
		d.Observer.Job(j)
	}
	return err
}

// endJob writes the end of a job and deletes its remaining rows. Without a reason it
// keeps the job's earlier one, the source of its rows.
func (d *Controller) endJob(ctx context.Context, j *store.Job, state store.JobState, reason string) error {
	delete(d.retries, j.ID)
	if j.State, j.WaitsFor = state, ""; reason != "" {
		j.Reason, j.Undated = reason, 0
	}
	if err := d.writeJob(ctx, j); err != nil {
		return err
	}
	switch err := d.refreshJob(ctx, j); { // read its counts
	case errors.Is(err, store.ErrNoJob):
		return nil
	case err != nil:
		return err
	}
	return d.deleteLeftRows(ctx, j)
}

// deleteLeftRows deletes the remaining rows of an ended job.
func (d *Controller) deleteLeftRows(ctx context.Context, j *store.Job) error {
	if spec, err := ParseSpec(j.Spec); err == nil && spec.DryRun {
		return nil // a dry run has counts and no rows
	}

	for left := j.Total - j.Sent - j.Skipped - j.Refused; left > 0; {
		n, err := d.Store.ClearRows(ctx, d.Epoch, j.ID, clearBatchRows)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		left -= int64(n)
	}
	return nil
}

// listJobs reads all jobs.
func (d *Controller) listJobs(ctx context.Context) ([]store.Job, error) {
	list, err := d.Store.Jobs(ctx)
	if err == nil {
		d.Observer.Jobs(list)
	}
	return list, err
}

// refreshJob reads the current state of a job.
func (d *Controller) refreshJob(ctx context.Context, j *store.Job) error {
	list, err := d.listJobs(ctx)
	if err != nil {
		return err
	}

	i := slices.IndexFunc(list, func(other store.Job) bool { return other.ID == j.ID })
	if i < 0 {
		return store.ErrNoJob
	}

	*j = list[i]
	d.Observer.Job(j)
	return nil
}
