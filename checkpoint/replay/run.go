package replay

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// jobRun is a running job.
type jobRun struct {
	*Controller
	*store.Job
	spec    *Spec
	player  *player
	traffic traffic
}

// runJob runs a job until it is done, and returns nil, or until it stops, and returns
// the reason. On return the live lanes that it held are released, and none of its
// rows is in memory.
func (d *Controller) runJob(ctx context.Context, j *store.Job) error {
	spec, err := ParseSpec(j.Spec)
	if err != nil {
		return refusef("%v", err)
	}

	r := &jobRun{Controller: d, Job: j, spec: spec, traffic: newTraffic(d.Sinks)}
	work, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	watchDone, id := make(chan struct{}), j.ID // the job itself is overwritten meanwhile
	go func() { defer close(watchDone); stop(d.watchJob(work, id)) }()
	r.player = newPlayer(r)
	stopForwarding := r.player.forwardChanges(ctx)
	defer stopForwarding()
	err = r.steps(work)
	if withdrawErr := r.player.withdrawAll(ctx); err == nil {
		err = withdrawErr
	}

	stop(nil)
	<-watchDone
	if cause := context.Cause(work); err != nil && ctx.Err() == nil && errors.Is(err, context.Canceled) {
		return cause
	}
	return err
}

// watchJob polls the desired state of a job. It returns when the job should no longer
// run.
func (d *Controller) watchJob(ctx context.Context, id string) error {
	for {
		if err := backoff.Sleep(ctx, requestPollInterval); err != nil {
			return err
		}
		now := store.Job{ID: id}
		err := d.refreshJob(ctx, &now)
		switch {
		case errors.Is(err, store.ErrNoJob):
			return err
		case err == nil && now.Desired != store.DesiredRun:
			return errDesiredState
		}
	}
}

// steps runs the job from its current state to its end.
func (r *jobRun) steps(ctx context.Context) error {
	if err := r.checkSpec(); err != nil {
		return err
	}
	if r.Source == "" {
		if err := r.begin(ctx); err != nil {
			return err
		}
	}

	if r.spec.DryRun {
		return r.countRows(ctx)
	}

	for {
		if err := r.playCopied(ctx); err != nil {
			return err
		}
		if r.allCopied() {
			return nil
		}
		if err := r.saveJob(ctx, r.Job, store.JobCopying, ""); err != nil {
			return err
		}
		if err := r.copy(ctx); err != nil {
			return err
		}
		if err := r.refreshJob(ctx, r.Job); err != nil {
			return err
		}
	}
}

// playCopied sends the copied rows, if there are any.
func (r *jobRun) playCopied(ctx context.Context) error {
	if r.mustRecopy() {
		return nil
	}

	lanes, err := r.Store.ReplayLanes(ctx, r.ID, 0, 1)
	if err != nil || len(lanes) == 0 {
		return err
	}
	if err := r.saveJob(ctx, r.Job, store.JobPlaying, ""); err != nil {
		return err
	}

	err = r.player.play(ctx)
	if err == nil {
		err = r.refreshJob(ctx, r.Job)
	}
	return err
}

// begin chooses the source of the job's rows and the end of the job.
func (r *jobRun) begin(ctx context.Context) error {
	from, reason, err := r.chooseSource(ctx)
	if err != nil {
		return err
	}

	until, now := store.Checkpoint{}, time.Now()
	if from == SourceLog {
		late := func() {
			if err := r.saveJob(ctx, r.Job, r.State, "capture to reach the current log position"); err != nil {
				r.Observer.ControllerFailed(err)
			}
		}
		if until, err = r.writeMarker(ctx, late); err != nil {
			return err
		}
	}

	r.Until, r.UntilAt, r.Source, r.State = until, now, string(from), store.JobCopying
	r.Reason, r.WaitsFor = reason, ""
	return r.writeJob(ctx, r.Job)
}

// checkSpec checks the spec against the configuration, which may have changed since
// the job started.
func (r *jobRun) checkSpec() error {
	end := refusef
	if r.Source != "" {
		end = failf
	}

	for _, name := range r.spec.Outboxes {
		if _, isLeg := r.legs.outbox[name]; !isLeg && !slices.ContainsFunc(r.Outboxes, func(o store.Outbox) bool { return o.Name == name }) {
			return end("outbox %q not found", name)
		}
	}
	if err := r.spec.NeedsRoute(r.Outboxes); err != nil {
		return end("%v", err)
	}

	if _, there := r.Sinks[r.spec.Sink]; r.spec.Sink != "" && !there {
		return end("sink %q not found", r.spec.Sink)
	}
	return nil
}

// selectedOutboxes returns the outboxes that the job's spec selects, or of which it selects a leg.
func (r *jobRun) selectedOutboxes() (list []store.Outbox) {
	for i := range r.Outboxes {
		o := &r.Outboxes[i]
		selected := func(name string) bool { return len(r.spec.Outboxes) == 0 || slices.Contains(r.spec.Outboxes, name) }
		if selected(o.Name) || slices.ContainsFunc(r.legs.of[o.Name], selected) {
			list = append(list, *o)
		}
	}
	return list
}

// tableCopied is the cursor of a job that has copied all rows from the table. A
// partial copy is made again, because a table is not read in commit order.
const tableCopied = store.Position("whole")

// allCopied reports whether all rows of the job were copied.
func (r *jobRun) allCopied() bool {
	at := r.Cursor.Position
	switch {
	case r.Source == string(SourceTable):
		return at == tableCopied
	case r.Log == nil || at == r.Until.Position:
		return at == r.Until.Position
	}
	return r.Log.Compare(at, r.Until.Position) >= 0
}

// mustRecopy reports whether the copied rows have no cursor to continue from. They
// are then copied again; none of them was sent.
func (r *jobRun) mustRecopy() bool {
	return r.Source == string(SourceTable) && !r.allCopied() || r.Cursor.Position == ""
}

// copy copies the next rows of the job, up to the limit of a segment.
func (r *jobRun) copy(ctx context.Context) error {
	if r.mustRecopy() {
		if err := r.clearCopied(ctx); err != nil {
			return err
		}
	}
	if r.Source == string(SourceTable) {
		return r.copyTable(ctx)
	}
	return r.copyLog(ctx)
}

// clearCopied deletes the copied rows and the cursor.
func (r *jobRun) clearCopied(ctx context.Context) error {
	for r.Total > 0 {
		n, err := r.Store.ClearRows(ctx, r.Epoch, r.ID, clearBatchRows)
		if err != nil {
			return err
		}
		if r.Total -= int64(n); n == 0 {
			break
		}
	}

	if r.Cursor == (store.ReplayCursor{}) {
		return nil
	}

	r.Cursor = store.ReplayCursor{}
	return r.Store.CopyRows(ctx, r.Epoch, r.ID, nil, r.Cursor)
}
