package checkpoint

import (
	"context"
	"errors"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// pruneBatchRows is the most rows that are deleted at once.
	pruneBatchRows = 500
	// prunePauseFactor is how many times as long as a batch took the pause after it is,
	// minPrunePause the shortest pause: the deletion has at most an eleventh of one of
	// the database's cores, and no other session waits long for what it holds.
	prunePauseFactor = 10
	minPrunePause    = 10 * time.Millisecond
	// pruneInterval is the time between the end of a table and its next walk,
	// pruneRetryInterval the time until the next try where a batch failed.
	pruneInterval      = time.Hour
	pruneRetryInterval = time.Minute
)

// PruneObserver is told what a retainer does. It must return at once.
type PruneObserver interface {
	// Pruned: so many delivered rows were kept long enough and are deleted.
	Pruned(outbox string, rows int)
	// PruneFailed: rows could not be deleted; it is tried again.
	PruneFailed(outbox string, err error)
}

// Pruner deletes delivered rows that their outbox keeps no longer.
//
// It walks each table from one end to the other, some rows at a time with pauses
// in between, and again an hour after it has come to the end. A row may so stay
// for an hour longer than its retention, and for as long as the walk takes.
type Pruner struct {
	Tables store.Pruner
	Epoch  store.Epoch
	// Outboxes are the tables; those without a Retention are left alone.
	Outboxes []store.Outbox
	Observer PruneObserver
}

// Run deletes until the context ends and returns its error, or store.ErrNotLeader
// when another relay has taken over. With nothing to do it waits for the end.
func (r *Pruner) Run(ctx context.Context) error {
	for {
		failed := false
		for i := range r.Outboxes {
			if r.Outboxes[i].Retention <= 0 {
				continue
			}
			ok, err := r.pruneTable(ctx, &r.Outboxes[i])
			if err != nil {
				return err
			}
			failed = failed || !ok
		}
		wait := pruneInterval
		if failed {
			wait = pruneRetryInterval
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// pruneTable goes through one table. It reports false where something kept it from the
// end. Its error ends Run.
func (r *Pruner) pruneTable(ctx context.Context, o *store.Outbox) (ended bool, err error) {
	now, err := r.earlierClock(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		r.Observer.PruneFailed(o.Name, err)
		return false, nil
	}
	p := store.PruneRequest{Outbox: o.Name, Before: now.Add(-o.Retention), Limit: pruneBatchRows}
	for {
		began := time.Now()
		done, err := r.Tables.Prune(ctx, r.Epoch, p)
		switch {
		case errors.Is(err, store.ErrNotLeader):
			return false, err
		case ctx.Err() != nil:
			return false, ctx.Err()
		case err != nil:
			r.Observer.PruneFailed(o.Name, err)
			if done.Next == "" { // nothing says where to go on
				return false, nil
			}
		case done.Rows > 0:
			r.Observer.Pruned(o.Name, done.Rows)
		}
		if p.From = done.Next; p.From == "" {
			return true, nil
		}
		if err := sleep(ctx, max(minPrunePause, prunePauseFactor*time.Since(began))); err != nil {
			return false, err
		}
	}
}

// earlierClock is the time by this machine's clock or by the database's, whichever is behind: one
// that jumps ahead must not make rows look old.
func (r *Pruner) earlierClock(ctx context.Context) (time.Time, error) {
	server, err := r.Tables.Clock(ctx)
	if now := time.Now(); now.Before(server) {
		return now, err
	}
	return server, err
}

// sleep waits for a time, or for the end of the context, whose error it returns.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
