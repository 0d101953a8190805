package dispatch

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// maxParkRows bounds one statement that parks rows or forgets parked ones.
const maxParkRows = 5000

// relieveEvery is the least time between two searches for rows to park: each goes
// through all lanes.
const relieveEvery = 50 * time.Millisecond

// retryParks is the least time between two tries to park rows that the store did not
// take.
const retryParks = time.Minute

// RestoreParked says which lanes have parked rows from before. Call it before
// Restore, and before any row comes; a lane may be named again.
func (d *Dispatcher) RestoreParked(lanes ...store.ParkedLane) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.core.shelve(lanes)
}

// Relieve begins to park lanes until half the buffer is free: those that stand
// still although the sink lives; with others, whatever is in the buffer. It does
// not wait.
func (d *Dispatcher) Relieve(others bool) {
	d.mu.Lock()
	if now := time.Now(); now.Sub(d.relieved) >= relieveEvery {
		d.relieved = now
		d.tryParked(now)
		d.core.relieve(others)
	}
	d.mu.Unlock()
	notify(d.toPark)
}

// level returns how many rows fit into the buffer, how many were delivered or are
// done with otherwise, and whether all of the sink is suspect.
func (d *Dispatcher) level() (room int, gone int64, suspect bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	suspect = !slices.ContainsFunc(d.core.receivers, func(r *receiver) bool { return !r.suspect })
	return d.cfg.BufferRows - d.core.live(), d.core.gone, suspect
}

// flying is how many rows are in claims and requests: those cannot be parked, and
// their number has a bound of its own. The time is linear in the lanes.
func (d *Dispatcher) flying() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.core.lanes {
		n += l.inFlight
	}
	return n
}

// Press begins to park what keeps the log from being given away: the rows of lanes
// that do not move, or of all lanes. It does not wait.
func (d *Dispatcher) Press(all bool) {
	d.mu.Lock()
	d.tryParked(time.Now())
	d.core.press(all)
	d.mu.Unlock()
	notify(d.toPark)
}

// tryParked lets rows be parked once more that the store did not take, now and then.
// The caller holds the lock.
func (d *Dispatcher) tryParked(now time.Time) {
	if now.Sub(d.retried) >= retryParks {
		d.retried = now
		d.core.tryParked()
	}
}

// tellParking wakes keepParked if there is something for it: most of the time there
// is not. The caller holds the lock.
func (d *Dispatcher) tellParking() {
	if c := d.core; len(c.toPark)+len(c.toUnpark)+c.hungry.len() > 0 || c.someAway() {
		notify(d.toPark)
	}
}

// keepParked parks rows, forgets parked ones and reads them back, one statement
// at a time and in turn: neither may starve the other.
func (d *Dispatcher) keepParked(ctx context.Context) error {
	for {
		worked := false
		for _, step := range []func(context.Context) (bool, error){d.parkSome, d.unparkSome, d.readSome} {
			some, err := step(ctx)
			if err != nil {
				return err
			}
			worked = worked || some
		}
		if worked {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.toPark:
		}
	}
}

func (d *Dispatcher) parkSome(ctx context.Context) (bool, error) {
	d.mu.Lock()
	items := d.core.nextParks(maxParkRows)
	d.mu.Unlock()
	if len(items) == 0 {
		return false, nil
	}
	n := len(items)
	refused, err := split(items, func(items []store.Item) ([]bool, error) {
		_, err := d.untilStored(ctx, "park", func() error { return d.store.Park(ctx, d.epoch, items) })
		return make([]bool, len(items)), err
	}, func(it *store.Item, err error) bool {
		n--
		d.obs.Unparkable(it, err)
		return true
	})
	if err != nil {
		return true, err
	}
	d.mu.Lock()
	d.core.parked(refused)
	d.unparkable = d.unparkable || n < len(items)
	d.mu.Unlock()
	d.obs.RowsParked(n)
	d.announce()
	return true, nil
}

func (d *Dispatcher) unparkSome(ctx context.Context) (bool, error) {
	d.mu.Lock()
	refs := d.core.nextUnparks(maxParkRows)
	d.mu.Unlock()
	if len(refs) == 0 {
		return false, nil
	}
	_, err := split(refs, func(refs []store.ParkedRef) ([]bool, error) {
		_, err := d.untilStored(ctx, "unpark", func() error { return d.store.Unpark(ctx, d.epoch, refs) })
		return make([]bool, len(refs)), err
	}, func(ref *store.ParkedRef, err error) bool {
		// It stays in the store and is settled: the next leader finds that out.
		d.obs.StoreFailed("the end of parked row "+ref.ID+" of "+ref.Outbox, err)
		return true
	})
	if err != nil {
		return true, err
	}
	d.mu.Lock()
	d.core.unparked(refs...)
	d.mu.Unlock()
	return true, nil
}

func (d *Dispatcher) readSome(ctx context.Context) (bool, error) {
	d.mu.Lock()
	from, each := d.core.nextReads(time.Now())
	d.mu.Unlock()
	if len(from) == 0 {
		return false, nil
	}
	var answers [][]store.Item
	err := d.untilParked(ctx, "read parked rows", func() (err error) {
		answers, err = d.store.Parked(ctx, from, each)
		return err
	})
	if err != nil {
		return true, err
	}
	d.mu.Lock()
	d.core.readBack(answers, each)
	d.mu.Unlock()
	d.announce()
	return true, nil
}

// untilParked is untilStored for statements on the relay's own tables that name no
// rows to refuse.
func (d *Dispatcher) untilParked(ctx context.Context, op string, do func() error) error {
	_, err := d.untilStored(ctx, op, func() error {
		err := do()
		var refused *store.RefusedError
		if errors.As(err, &refused) {
			err = refused.Err
		}
		return err
	})
	return err
}
