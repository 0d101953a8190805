package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Saver writes the checkpoint row; see store.Checkpoints.
type Saver interface {
	SaveCheckpoint(ctx context.Context, epoch store.Epoch, cp store.Checkpoint) error
}

// Acknowledger gives the log up to a position away; see capture.Source.
type Acknowledger interface {
	Acknowledge(p store.Position)
}

// Observer is told what the keeper does. It must return at once.
type Observer interface {
	// Saved: the checkpoint row was written.
	Saved(cp store.Checkpoint)
	// SaveFailed: it was not; the keeper tries again.
	SaveFailed(err error)
}

// KeeperConfig bounds how often the keeper writes.
type KeeperConfig struct {
	// Interval is the least time between two rounds.
	Interval time.Duration
	// IdleSave is how often the row is written while positions move but no row
	// settles.
	IdleSave time.Duration
}

// DefaultKeeperConfig returns rounds of 100 ms, and one each 10 s while only
// other tables are written.
func DefaultKeeperConfig() KeeperConfig {
	return KeeperConfig{Interval: 100 * time.Millisecond, IdleSave: 10 * time.Second}
}

// Keeper makes the watermark durable and acknowledges it.
type Keeper struct {
	Config   KeeperConfig
	Tracker  *Tracker
	Store    Saver
	Source   Acknowledger
	Epoch    store.Epoch
	Observer Observer
	// Urged, if set, has the watermark saved at once, also while no row settles:
	// the log grows faster than IdleSave allows for.
	Urged <-chan struct{}

	savedAt      time.Time
	savedSettled int64
	saved        store.Position // and acknowledged
	behind       bool           // positions have moved since, and no row
}

// lastRound bounds a round that the end of Run does not break off.
const lastRound = 5 * time.Second

// Run keeps the checkpoint until the context ends, makes one last round for what
// settled by then, unless store.ErrNotLeader is why the context ended, and returns
// the context's error. It returns store.ErrNotLeader when another relay has taken over, and
// store.ErrInterrupted when it cannot be known what survived. A database that
// cannot be reached is tried again.
func (k *Keeper) Run(ctx context.Context) error {
	err := k.rounds(ctx)
	if ctx.Err() == nil || errors.Is(context.Cause(ctx), store.ErrNotLeader) {
		return err
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastRound)
	defer cancel()
	k.savedAt = time.Time{} // positions that moved alone are saved too
	if err := k.Advance(last, time.Now()); err != nil {
		k.Observer.SaveFailed(err)
	}
	return ctx.Err()
}

func (k *Keeper) rounds(ctx context.Context) error {
	pause, idle := time.NewTimer(0), time.NewTimer(k.Config.IdleSave)
	defer pause.Stop()
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-k.Tracker.Changed():
		case <-idle.C:
		case <-k.Urged:
			k.savedAt = time.Time{}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause.C:
		case <-k.Urged:
			k.savedAt = time.Time{}
		}
		if err := k.saveUntilDone(ctx); err != nil {
			return err
		}
		pause.Reset(k.Config.Interval)
		if k.behind {
			idle.Reset(time.Until(k.savedAt.Add(k.Config.IdleSave)))
		}
	}
}

func (k *Keeper) saveUntilDone(ctx context.Context) error {
	const first, most = 100 * time.Millisecond, 5 * time.Second
	for wait := first; ; wait = min(2*wait, most) {
		err := k.round(ctx)
		if err == nil || errors.Is(err, store.ErrNotLeader) || errors.Is(err, store.ErrInterrupted) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		k.Observer.SaveFailed(err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// round makes one round that does not break off when the context ends: a save cut
// short would cost the session that took leadership, and with it the last round.
func (k *Keeper) round(ctx context.Context) error {
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastRound)
	defer cancel()
	return k.Advance(whole, time.Now())
}

// Advance makes one round: it writes the watermark and acknowledges it. While no
// row settles it does so only once in IdleSave, so that an idle outbox costs the
// database next to nothing. Nothing is acknowledged that was not saved: a slot
// that stands ahead of the checkpoint was moved by somebody else. Run and
// Advance must not overlap.
func (k *Keeper) Advance(ctx context.Context, now time.Time) error {
	cp, settled := k.Tracker.Frontier() // before the write, never after
	if cp.Position == k.saved || cp.Position == "" {
		return nil
	}
	if settled == k.savedSettled && now.Sub(k.savedAt) < k.Config.IdleSave {
		k.behind = true
		return nil
	}
	if err := k.Store.SaveCheckpoint(ctx, k.Epoch, cp); err != nil {
		return fmt.Errorf("save checkpoint %s: %w", cp.Position, err)
	}
	k.saved, k.savedAt, k.savedSettled, k.behind = cp.Position, now, settled, false
	k.Observer.Saved(cp)
	k.Source.Acknowledge(cp.Position)
	return nil
}
