package sluicebox

import (
	"context"
	"errors"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

const (
	// minPruneRows and maxPruneRows bound the rows of one deletion, and pruneBatch is how
	// long it should take. Large batches are cheaper per row, but other sessions may wait
	// for their locks: all writers do on SQLite.
	minPruneRows = 500
	maxPruneRows = 10_000
	pruneBatch   = 10 * time.Millisecond

	// maxPruneIdle is the length of the pause after a batch as a multiple of the batch's
	// duration: pruning takes an eleventh of one core of the database. A pass that takes
	// longer than pruneInterval cannot keep up, so each such time halves the pauses, down
	// to minPruneIdle. minPrunePause is the minimum pause.
	maxPruneIdle, minPruneIdle = 10, 1
	minPrunePause              = 10 * time.Millisecond

	// pruneInterval is the time from the end of a table to its next pass.
	// pruneRetryInterval is the time to the next pass after a failed batch.
	pruneInterval      = time.Hour
	pruneRetryInterval = time.Minute
)

// pruner deletes delivered rows after the retention of their outbox.
//
// It walks each table from one end to the other, one batch at a time with pauses in
// between, and again an hour after the end. A row may therefore stay for an hour
// longer than its retention, plus the duration of a pass. Batches and pauses follow what a
// deletion takes, so that pruning keeps up with the deliveries at the least load.
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
		tables: r.db.store, epoch: epoch, outboxes: r.opt().tables(),
		pruned: func(outbox string, rows int) { r.log.Debug("delivered rows pruned", "outbox", outbox, "rows", rows) },
		failed: func(outbox string, err error) { r.log.Warn("pruning failed; retrying", "outbox", outbox, "error", err) },
	}
}

// run prunes until the context ends and returns its error. It returns
// store.ErrNotLeader when another relay has become leader. With nothing to prune it
// waits for the end of the context.
func (r *pruner) run(ctx context.Context) error {
	paces := make([]prunePace, len(r.outboxes))
	for i := range paces {
		paces[i] = prunePace{rows: minPruneRows, idle: maxPruneIdle}
	}
	for {
		failed := false
		for i := range r.outboxes {
			if r.outboxes[i].Retention <= 0 {
				continue
			}
			ok, err := r.pruneTable(ctx, &r.outboxes[i], &paces[i])
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

// prunePace is how fast a table is pruned.
type prunePace struct {
	rows  int           // of the next batch
	idle  time.Duration // the next pause, as a multiple of the batch's duration
	start time.Time     // of the pass
	since time.Time     // start of the pass's current hour
}

// began records the start of a pass.
func (p *prunePace) began(now time.Time) { p.start, p.since = now, now }

// ended records the end of a pass. A short one may be slower the next time.
func (p *prunePace) ended(now time.Time) {
	if now.Sub(p.start) < pruneInterval/4 {
		p.idle = min(2*p.idle, maxPruneIdle)
	}
}

// pause takes the duration of a batch that ends now. It adapts the next batch and returns
// the pause before it.
func (p *prunePace) pause(took time.Duration, now time.Time) time.Duration {
	switch {
	case took < pruneBatch/2:
		p.rows = min(2*p.rows, maxPruneRows)
	case took > 2*pruneBatch:
		p.rows = max(p.rows/2, minPruneRows)
	}
	if now.Sub(p.since) > pruneInterval {
		p.idle, p.since = max(p.idle/2, minPruneIdle), now
	}
	return max(minPrunePause, p.idle*took)
}

// narrow returns whether a refused batch may be smaller, and makes it the smallest, because
// one row that cannot be deleted should keep few others.
func (p *prunePace) narrow() bool {
	smaller := p.rows > minPruneRows
	p.rows = minPruneRows
	return smaller
}

// pruneTable makes one pass over a table. It returns false if it did not reach the
// end. An error ends Run.
func (r *pruner) pruneTable(ctx context.Context, o *store.Outbox, pace *prunePace) (ended bool, err error) {
	now, err := r.earlierClock(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		r.failed(o.Name, err)
		return false, nil
	}

	p := store.PruneRequest{Outbox: o.Name, Before: now.Add(-o.Retention)}
	pace.began(time.Now())
	for {
		began := time.Now()
		p.Limit = pace.rows
		done, err := r.tables.Prune(ctx, r.epoch, p)
		switch {
		case errors.Is(err, store.ErrNotLeader):
			return false, err
		case ctx.Err() != nil:
			return false, ctx.Err()
		case errors.As(err, new(*store.RefusedError)) && pace.narrow():
			if err := backoff.Sleep(ctx, minPrunePause); err != nil {
				return false, err
			}
			continue
		case err != nil:
			r.failed(o.Name, err)
			if done.Next == "" { // no cursor to continue from
				return false, nil
			}
		case done.Rows > 0:
			r.pruned(o.Name, done.Rows)
		}
		if p.From = done.Next; p.From == "" {
			pace.ended(time.Now())
			return true, nil
		}
		if err := backoff.Sleep(ctx, pace.pause(time.Since(began), time.Now())); err != nil {
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
