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

// Reasons that a checkpoint has.
const (
	whyNoLog    = "no log is kept where the tables are polled: make the checkpoint without keeping its log, and replay from the table"
	whyNoRows   = "this database's log holds no rows, so it is not kept: make the checkpoint without keeping its log, and replay from the table"
	whyAsServer = "the server keeps its log for as long as it is set up to; nothing keeps it for this checkpoint"
)

// whyLate is why a checkpoint is not made yet.
const whyLate = "waits for the log to be read up to where it is now"

// names makes the checkpoints that are wanted and ends those that are not any more. What
// fails with one checkpoint keeps nothing from another.
func (d *Desk) names(ctx context.Context) (next time.Duration, err error) {
	list, err := d.Store.Named(ctx)
	if err != nil {
		return 0, err
	}
	var errs []error
	var wanted, kept []store.Named
	for _, n := range list {
		switch {
		case n.Drop:
			err := d.forget(ctx, &n)
			if errors.Is(err, store.ErrNotLeader) {
				return 0, err
			}
			errs = append(errs, err)
		case n.State == store.NamedWanted:
			wanted = append(wanted, n)
		case n.State == store.NamedKept, n.State == store.NamedMade && n.Keep:
			kept = append(kept, n)
		}
	}
	logs, err := d.watchKept(ctx, kept)
	if errors.Is(err, store.ErrNotLeader) {
		return 0, err
	}
	errs = append(errs, err)
	made, late, err := d.makeNamed(ctx, wanted)
	if errors.Is(err, store.ErrNotLeader) {
		return 0, err
	}
	next, strays := d.sweep(ctx, append(kept, made...), logs)
	if late {
		next = again
	}
	return next, errors.Join(append(errs, err, strays)...)
}

// forget ends a checkpoint. Who reads its log does not find it any more.
func (d *Desk) forget(ctx context.Context, n *store.Named) error {
	if n.Keep && d.Keeper != nil {
		d.reader.end(n.Name, fmt.Errorf("checkpoint %s was deleted, and its log with it", n.Name))
		if err := d.dropLog(ctx, n.Name); err != nil {
			return err
		}
	}
	return d.Store.ForgetNamed(ctx, d.Epoch, n.Name)
}

// makeNamed makes checkpoints, all at one place, and returns those whose log is to be
// kept, which it is from before the place on. late says that the place is not known yet:
// then none is made.
func (d *Desk) makeNamed(ctx context.Context, wanted []store.Named) (kept []store.Named, late bool, err error) {
	if len(wanted) == 0 {
		return nil, false, nil
	}
	defer notify(d.toRun) // a job may wait for one
	began := time.Now()
	made, err := d.begun(ctx, wanted)
	if len(made) == 0 || errors.Is(err, store.ErrNotLeader) {
		return nil, false, err
	}
	errs := []error{err}
	var at store.Checkpoint
	if d.Log != nil {
		at, late, err = d.markSoon(ctx, func() { d.sayLate(ctx, wanted, made) })
		if late || err != nil {
			return nil, late, errors.Join(append(errs, err)...)
		}
	}
	for _, n := range made {
		n.Checkpoint, n.At = at, began
		switch err := d.saveNamed(ctx, &n); {
		case errors.Is(err, store.ErrNotLeader):
			return kept, false, err
		case err != nil:
			errs = append(errs, err)
		case n.Keep:
			kept = append(kept, n)
		}
	}
	return kept, false, errors.Join(errs...)
}

// begun has the log kept for checkpoints that want it, and returns those that only lack
// their place. Others are refused, or left for another round.
func (d *Desk) begun(ctx context.Context, wanted []store.Named) (made []store.Named, err error) {
	var errs []error
	for _, n := range wanted {
		n.State, n.Why = store.NamedMade, ""
		err := d.keep(ctx, &n)
		switch {
		case err != nil:
		case n.State == store.NamedRefused:
			err = d.saveNamed(ctx, &n)
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

// sayLate says what those of the wanted checkpoints wait for that only lack their place.
func (d *Desk) sayLate(ctx context.Context, wanted, made []store.Named) {
	for _, n := range wanted {
		if n.Why == whyLate || !hasNamed(made, n.Name) {
			continue
		}
		n.Why = whyLate
		if err := d.saveNamed(ctx, &n); err != nil {
			d.Observer.DeskFailed(err)
			return
		}
	}
}

func hasNamed(list []store.Named, name string) bool {
	return slices.ContainsFunc(list, func(n store.Named) bool { return n.Name == name })
}

// keep has the log kept for a checkpoint that wants it, or refuses the checkpoint.
func (d *Desk) keep(ctx context.Context, n *store.Named) error {
	switch {
	case !n.Keep:
		return nil
	case d.Log == nil:
		n.State, n.Why = store.NamedRefused, whyNoLog
		return nil
	case d.Log.Past == nil:
		n.State, n.Why = store.NamedRefused, whyNoRows
		return nil
	case d.Keeper == nil:
		n.Why = whyAsServer
		return nil
	}
	keeper, err := d.keeper.open(d.Keeper)
	if err == nil {
		_, err = keeper.KeepLog(ctx, n.Name)
	}
	switch {
	case err == nil:
		n.State = store.NamedKept
	case isFinal(err):
		n.State, n.Why = store.NamedRefused, err.Error()
	default:
		return fmt.Errorf("keep the log for checkpoint %s: %w", n.Name, err)
	}
	return nil
}

// isFinal reports whether trying again does not help.
func isFinal(err error) bool {
	return capture.Final(err) && !errors.Is(err, store.ErrInterrupted)
}

// saveNamed writes what became of a checkpoint. One that is forgotten meanwhile is no
// error.
func (d *Desk) saveNamed(ctx context.Context, n *store.Named) error {
	err := d.Store.SaveNamed(ctx, d.Epoch, *n)
	if err == nil {
		d.Observer.Named(n)
	}
	if errors.Is(err, store.ErrNoNamed) {
		return nil
	}
	return err
}
