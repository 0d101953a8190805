package sluicebox

import (
	"context"
	"errors"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
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

// pruner deletes delivered rows after the retention of their outbox.
//
// It walks each table from one end to the other, one batch at a time with pauses in
// between, and again an hour after the end. A row may therefore stay for an hour
// longer than its retention, plus the duration of a pass.
type pruner struct {
	tables store.Pruner
	epoch  store.Epoch

	// outboxes are the tables. A table without a Retention is not pruned.
	outboxes []store.Outbox

	// pruned is called when rows have passed their retention and are deleted, failed if rows
	// could not be deleted. The pruner retries.
	pruned func(outbox string, rows int)
	failed func(outbox string, err error)
}

// newPruner returns the pruner of a session.
func (r *Relay) newPruner(epoch store.Epoch) *pruner {
	return &pruner{
		tables: r.db.store, epoch: epoch, outboxes: r.opt.tables(),
		pruned: func(outbox string, rows int) { r.log.Debug("delivered rows pruned", "outbox", outbox, "rows", rows) },
		failed: func(outbox string, err error) { r.log.Warn("pruning failed; retrying", "outbox", outbox, "error", err) },
	}
}

// run prunes until the context ends and returns its error. It returns
// store.ErrNotLeader when another relay has become leader. With nothing to prune it
// waits for the end of the context.
func (r *pruner) run(ctx context.Context) error {
	for {
		failed := false
		for i := range r.outboxes {
			if r.outboxes[i].Retention <= 0 {
				continue
			}
			ok, err := r.pruneTable(ctx, &r.outboxes[i])
			if err != nil {
				return err
			}
			failed = failed || !ok
		}
		wait := pruneInterval
		if failed {
			wait = pruneRetryInterval
		}
		if err := backoff.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// pruneTable makes one pass over a table. It returns false if it did not reach the
// end. An error ends Run.
func (r *pruner) pruneTable(ctx context.Context, o *store.Outbox) (ended bool, err error) {
	now, err := r.earlierClock(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		r.failed(o.Name, err)
		return false, nil
	}

	p := store.PruneRequest{Outbox: o.Name, Before: now.Add(-o.Retention), Limit: pruneBatchRows}
	for {
		began := time.Now()
		done, err := r.tables.Prune(ctx, r.epoch, p)
		switch {
		case errors.Is(err, store.ErrNotLeader):
			return false, err
		case ctx.Err() != nil:
			return false, ctx.Err()
		case err != nil:
			r.failed(o.Name, err)
			if done.Next == "" { // no cursor to continue from
				return false, nil
			}
		case done.Rows > 0:
			r.pruned(o.Name, done.Rows)
		}
		if p.From = done.Next; p.From == "" {
			return true, nil
		}
		if err := backoff.Sleep(ctx, max(minPrunePause, prunePauseFactor*time.Since(began))); err != nil {
			return false, err
		}
	}
}

// earlierClock returns the time of this machine or of the database, whichever is
// earlier, because a clock that jumps ahead must not make rows look old.
func (r *pruner) earlierClock(ctx context.Context) (time.Time, error) {
	server, err := r.tables.Clock(ctx)
	if now := time.Now(); now.Before(server) {
		return now, err
	}
	return server, err
}
