package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// Store writes the checkpoint row; see store.Checkpoints.
type Store interface {
	SaveCheckpoint(ctx context.Context, epoch store.Epoch, cp store.Checkpoint) error
}

// Acknowledger lets the database discard the log up to a position; see
// capture.Source.
type Acknowledger interface {
	Acknowledge(p store.Position)
}

// Observer receives the events of a Saver. Its methods must return at once.
type Observer interface {
	// Saved reports that the checkpoint row was written.
	Saved(cp store.Checkpoint)

	// SaveFailed reports that a save failed. The saver retries.
	SaveFailed(err error)
}

// SaverConfig bounds how often the saver writes.
type SaverConfig struct {
	// Interval is the minimum time between two rounds.
	Interval time.Duration

	// IdleSave is the time between two saves while positions move but no row settles.
	IdleSave time.Duration
}

// DefaultSaverConfig returns rounds of 100 ms, and one save every 10 s while the
// database writes to other tables only.
func DefaultSaverConfig() SaverConfig {
	return SaverConfig{Interval: 100 * time.Millisecond, IdleSave: 10 * time.Second}
}

// Saver saves the watermark and acknowledges it.
type Saver struct {
	Config   SaverConfig
	Tracker  Watermarks
	Store    Store
	Source   Acknowledger
	Epoch    store.Epoch
	Observer Observer

	// SaveNow, if set, makes the saver save the watermark at once, even if no row has
	// settled. It is needed when the log grows faster than IdleSave allows for.
	SaveNow <-chan struct{}

	savedAt          time.Time
	savedSettled     int64
	saved            store.Checkpoint // its position is acknowledged
	positionsUnsaved bool             // positions have moved since then, but no row settled
}

// roundTimeout bounds a round, because the end of Run does not cancel it.
const roundTimeout = 5 * time.Second

// Run saves checkpoints until the context ends and returns its error. It makes one
// last round for the rows that settled by then, unless store.ErrNotLeader is the
// cause of the end. A database that cannot be reached is retried.
//
// Run also returns
//
//   - store.ErrNotLeader when another relay has become leader, and
//   - store.ErrInterrupted when it is unknown which commits survived.
func (k *Saver) Run(ctx context.Context) error {
	err := k.saveLoop(ctx)
	if ctx.Err() == nil || errors.Is(context.Cause(ctx), store.ErrNotLeader) {
		return err
	}

	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), roundTimeout)
	defer cancel()
	k.savedAt = time.Time{} // also save positions that moved without a settled row
	if err := k.Advance(last, time.Now()); err != nil {
		k.Observer.SaveFailed(err)
	}
	return ctx.Err()
}

func (k *Saver) saveLoop(ctx context.Context) error {
	pause, idle := time.NewTimer(0), time.NewTimer(k.Config.IdleSave)
	defer pause.Stop()
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-k.Tracker.Changed():
		case <-idle.C:
		case <-k.SaveNow:
			k.savedAt = time.Time{}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause.C:
		case <-k.SaveNow:
			k.savedAt = time.Time{}
		}
		if err := k.saveWithRetry(ctx); err != nil {
			return err
		}
		pause.Reset(k.Config.Interval)
		if k.positionsUnsaved {
			idle.Reset(time.Until(k.savedAt.Add(k.Config.IdleSave)))
		}
	}
}

func (k *Saver) saveWithRetry(ctx context.Context) error {
	retry := backoff.Doubling{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for {
		err := k.saveOnce(ctx)
		if err == nil || errors.Is(err, store.ErrNotLeader) || errors.Is(err, store.ErrInterrupted) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		k.Observer.SaveFailed(err)
		if err := retry.Wait(ctx); err != nil {
			return err
		}
	}
}

// saveOnce makes one round that the end of the context does not cancel. A cancelled
// save would cost the session that holds the leadership, and with it the last round.
func (k *Saver) saveOnce(ctx context.Context) error {
	roundCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), roundTimeout)
	defer cancel()
	return k.Advance(roundCtx, time.Now())
}

// Advance makes one round: it saves the watermark and acknowledges it. While no row
// settles it does so only once per IdleSave, so that an idle outbox costs the
// database next to nothing.
//
// Advance never acknowledges a position that was not saved. A slot that is ahead of
// the checkpoint was therefore moved by another program. Run and Advance must not
// overlap.
func (k *Saver) Advance(ctx context.Context, now time.Time) error {
	cp, settled := k.Tracker.Watermark() // before the write, never after
	if cp.Position == "" || cp.Position == k.saved.Position && maps.Equal(cp.Legs, k.saved.Legs) {
		return nil
	}
	if settled == k.savedSettled && now.Sub(k.savedAt) < k.Config.IdleSave {
		k.positionsUnsaved = true
		return nil
	}
	if err := k.Store.SaveCheckpoint(ctx, k.Epoch, cp); err != nil {
		return fmt.Errorf("save checkpoint %s: %w", cp.Position, err)
	}

	k.saved, k.savedAt, k.savedSettled, k.positionsUnsaved = cp, now, settled, false
	k.Observer.Saved(cp)
	k.Source.Acknowledge(cp.Position)
	return nil
}
