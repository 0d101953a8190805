package checkpoint

import (
	"context"
	"errors"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// pruneBatchRows is the maximum number of rows in one deletion.
	pruneBatchRows = 500

	// prunePauseFactor is the length of the pause after a batch as a multiple of the
	// batch's duration, and minPrunePause is the minimum pause. Pruning therefore
	// takes at most an eleventh of one core of the database, and no other session
	// waits long for its locks.
	prunePauseFactor = 10
	minPrunePause    = 10 * time.Millisecond

	// pruneInterval is the time from the end of a table to its next pass.
	// pruneRetryInterval is the time to the next pass after a failed batch.
	pruneInterval      = time.Hour
	pruneRetryInterval = time.Minute
)

// PruneObserver receives the events of a Pruner. Its methods must return at once.
type PruneObserver interface {
	// Pruned reports that rows passed their retention and are deleted.
	Pruned(outbox string, rows int)

	// PruneFailed reports that rows could not be deleted. The Pruner retries.
	PruneFailed(outbox string, err error)
}

// Pruner deletes delivered rows after the retention of their outbox.
//
// It walks each table from one end to the other, one batch at a time with pauses in
// between, and again an hour after the end. A row may therefore stay for an hour
// longer than its retention, plus the duration of a pass.
type Pruner struct {
	Tables store.Pruner
	Epoch  store.Epoch

	// Outboxes are the tables. A table without a Retention is not pruned.
	Outboxes []store.Outbox
	Observer PruneObserver
}

// Run prunes until the context ends and returns its error. It returns
// store.ErrNotLeader when another relay has become leader. With nothing to prune it
// waits for the end of the context.
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

// pruneTable makes one pass over a table. It returns false if it did not reach the
// end. An error ends Run.
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
			if done.Next == "" { // no cursor to continue from
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

// earlierClock returns the time of this machine or of the database, whichever is
// earlier, because a clock that jumps ahead must not make rows look old.
func (r *Pruner) earlierClock(ctx context.Context) (time.Time, error) {
	server, err := r.Tables.Clock(ctx)
	if now := time.Now(); now.Before(server) {
		return now, err
	}
	return server, err
}

// sleep waits for d. If the context ends first it returns the context's error.
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
