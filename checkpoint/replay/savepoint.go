package replay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// Reasons of a checkpoint.
const (
	reasonNoLog           = "no log is retained while the relay polls; create the checkpoint without retaining its log, and replay from the table"
	reasonUnreadable      = "this relay's log cannot be read again, so it is not retained; create the checkpoint without retaining its log, and replay from the table"
	reasonServerRetention = "the server retains its log by its own settings; nothing is retained for this checkpoint"
)

// reasonLate is the reason of a checkpoint whose marker has not come back yet.
const reasonLate = "waiting for capture to reach the current log position"

// reconcileSavepoints creates the requested checkpoints and deletes those with a
// delete request. A failure of one checkpoint does not affect the others.
func (d *Controller) reconcileSavepoints(ctx context.Context) (next time.Duration, err error) {
	list, err := d.Store.Savepoints(ctx)
	if err != nil {
		return 0, err
	}

	var errs []error
	var wanted, kept []store.Savepoint
	for _, n := range list {
		switch {
		case n.DeleteRequested:
			err := d.deleteSavepoint(ctx, &n)
			if errors.Is(err, store.ErrNotLeader) {
				return 0, err
			}
			errs = append(errs, err)
		case n.State == store.SavepointRequested:
			wanted = append(wanted, n)
		case n.State == store.SavepointRetained, n.State == store.SavepointMade && n.RetainLog:
			kept = append(kept, n)
		}
	}

	logs, err := d.checkRetainedLogs(ctx, kept)
	if errors.Is(err, store.ErrNotLeader) {
		return 0, err
	}

	errs = append(errs, err)
	made, late, err := d.makeSavepoints(ctx, wanted)
	if errors.Is(err, store.ErrNotLeader) {
		return 0, err
	}

	next, sweepErr := d.sweepOrphans(ctx, append(kept, made...), logs)
	if late {
		next = retryInterval
	}
	return next, errors.Join(append(errs, err, sweepErr)...)
}

// deleteSavepoint deletes a checkpoint and releases its log. It interrupts a job that
// reads the log.
func (d *Controller) deleteSavepoint(ctx context.Context, n *store.Savepoint) error {
	if n.RetainLog && d.OpenRetainer != nil {
		d.activeReader.interrupt(n.Name, fmt.Errorf("checkpoint %s and its log were deleted", n.Name))
		if err := d.dropLog(ctx, n.Name); err != nil {
			return err
		}
	}
	return d.Store.DeleteSavepoint(ctx, d.Epoch, n.Name)
}

// makeSavepoints creates checkpoints, all at one position. It returns the ones with a
// retained log, which starts before that position. If late is true the position is
// not known yet, and none was created.
func (d *Controller) makeSavepoints(ctx context.Context, wanted []store.Savepoint) (kept []store.Savepoint, late bool, err error) {
	if len(wanted) == 0 {
		return nil, false, nil
	}
	defer notify(d.jobsChanged) // a job may wait for one
	began := time.Now()
	made, err := d.retainLogs(ctx, wanted)
	if len(made) == 0 || errors.Is(err, store.ErrNotLeader) {
		return nil, false, err
	}

	errs := []error{err}
	var at store.Checkpoint
	if d.Log != nil {
		at, late, err = d.markWithTimeout(ctx, func() { d.saveLate(ctx, wanted, made) })
		if late || err != nil {
			return nil, late, errors.Join(append(errs, err)...)
		}
	}

	for _, n := range made {
		n.Checkpoint, n.At = at, began
		switch err := d.saveSavepoint(ctx, &n); {
		case errors.Is(err, store.ErrNotLeader):
			return kept, false, err
		case err != nil:
			errs = append(errs, err)
		case n.RetainLog:
			kept = append(kept, n)
		}
	}

	return kept, false, errors.Join(errs...)
}

// retainLogs retains the log of checkpoints that request it. It returns the
// checkpoints that only lack their position. The others are refused, or left for
// another round.
func (d *Controller) retainLogs(ctx context.Context, wanted []store.Savepoint) (made []store.Savepoint, err error) {
	var errs []error
	for _, n := range wanted {
		n.State, n.Reason = store.SavepointMade, ""
		err := d.retainLog(ctx, &n)
		switch {
		case err != nil:
		case n.State == store.SavepointRefused:
			err = d.saveSavepoint(ctx, &n)
		default:
			made = append(made, n)
		}
		if errors.Is(err, store.ErrNotLeader) {
			return nil, err
		}
		errs = append(errs, err)
	}
	return made, errors.Join(errs...)
}

// saveLate saves reasonLate for the checkpoints that only lack their position.
func (d *Controller) saveLate(ctx context.Context, wanted, made []store.Savepoint) {
	for _, n := range wanted {
		if n.Reason == reasonLate || !hasSavepoint(made, n.Name) {
			continue
		}
		n.Reason = reasonLate
		if err := d.saveSavepoint(ctx, &n); err != nil {
			d.Observer.ControllerFailed(err)
			return
		}
	}
}

func hasSavepoint(list []store.Savepoint, name string) bool {
	return slices.ContainsFunc(list, func(n store.Savepoint) bool { return n.Name == name })
}

// retainLog retains the log of a checkpoint that requests it, or refuses the
// checkpoint.
func (d *Controller) retainLog(ctx context.Context, n *store.Savepoint) error {
	switch {
	case !n.RetainLog:
		return nil
	case d.Log == nil:
		n.State, n.Reason = store.SavepointRefused, reasonNoLog
		return nil
	case d.Log.OpenHistory == nil:
		n.State, n.Reason = store.SavepointRefused, reasonUnreadable
		return nil
	case d.OpenRetainer == nil:
		n.Reason = reasonServerRetention
		return nil
	}

	retainer, err := d.retainer.open(d.OpenRetainer)
	if err == nil {
		_, err = retainer.RetainLog(ctx, n.Name)
	}
	switch {
	case err == nil:
		n.State = store.SavepointRetained
	case isFinal(err):
		n.State, n.Reason = store.SavepointRefused, err.Error()
	default:
		return fmt.Errorf("retain log of checkpoint %s: %w", n.Name, err)
	}

	return nil
}

// isFinal reports whether a retry does not help.
func isFinal(err error) bool {
	return capture.IsFinal(err) && !errors.Is(err, store.ErrInterrupted)
}

// saveSavepoint saves the state of a checkpoint. A checkpoint that was deleted
// meanwhile is no error.
func (d *Controller) saveSavepoint(ctx context.Context, n *store.Savepoint) error {
	err := d.Store.SaveSavepoint(ctx, d.Epoch, *n)
	if err == nil {
		d.Observer.SavepointChanged(n)
	}
	if errors.Is(err, store.ErrNoSavepoint) {
		return nil
	}
	return err
}
