package floor

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// maxStatementRows is the maximum number of rows in a statement.
	maxStatementRows = 2000
	// maxChunkRows is the maximum number of rows of a transaction in a chunk.
	maxChunkRows = 100
	// doneQueueSize is the number of posted chunks that may wait for completion.
	doneQueueSize = 1000
	// spinTimeout is how long an unclaimed row is retried without a pause, and claimInterval
	// the pause after that.
	spinTimeout   = 500 * time.Microsecond
	claimInterval = 100 * time.Microsecond
	// claimTimeout is how long a row may stay unclaimed. A row in the log becomes visible
	// within milliseconds, unless it was settled before.
	claimTimeout = 10 * time.Second
)

// pipeline holds the stages that a row passes through.
type pipeline struct {
	claims      claimer // nil without claims
	completions session
	table       string
	post        sender
	rows        *ledger
	done        chan []row // posted, to be completed
}

func openPipeline(ctx context.Context, cfg *Config, db database) (*pipeline, error) {
	limit := maxRowsInFlight
	if cfg.NoClaims {
		limit = maxUncompleted
	}
	post, err := newSender(cfg)
	if err != nil {
		return nil, err
	}
	l := &pipeline{table: cfg.Table, post: post, rows: newLedger(limit), done: make(chan []row, doneQueueSize)}
	if !cfg.NoClaims {
		if l.claims, err = db.openClaims(ctx); err != nil {
			post.close()
			return nil, err
		}
	}
	if l.completions, err = db.openCompletions(ctx, cfg.NoClaims); err != nil {
		if l.claims != nil {
			l.claims.close()
		}
		post.close()
		return nil, err
	}
	return l, nil
}

func (l *pipeline) close() {
	if l.claims != nil {
		l.claims.close()
	}
	l.completions.close()
	l.post.close()
}

// startOneByOne claims and posts each row before the next. The completion runs concurrently
// with the next row.
func (l *pipeline) startOneByOne(ctx context.Context, g *errgroup.Group, in stream) {
	g.Go(func() error {
		return in.run(ctx, 1, func(rows []row) error {
			for i := range rows {
				this := rows[i : i+1]
				if l.claims != nil {
					if err := l.claimOne(this); err != nil {
						return err
					}
				}
				if err := l.post.send(ctx, this); err != nil {
					return err
				}
				if err := sendRows(ctx, l.done, this); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// claimOne claims a row, and retries while it is not yet visible.
func (l *pipeline) claimOne(this []row) error {
	var since time.Time
	for {
		wrote, err := l.claims.write(this)
		if err != nil {
			return l.rowsError("claim", this, err)
		}
		if wrote == 1 {
			return nil
		}
		if err := l.awaitVisible(&since, this); err != nil {
			return err
		}
	}
}

// startBulk runs all stages concurrently. chunk is the maximum number of rows that the
// reader emits together, batch the maximum number posted together.
func (l *pipeline) startBulk(ctx context.Context, g *errgroup.Group, in stream, chunk, batch, senders int) {
	read, claimed := make(chan []row, maxRowsInFlight/chunk), make(chan []row, maxStatementRows/batch+1)
	g.Go(func() error {
		return in.run(ctx, chunk, func(rows []row) error { return sendRows(ctx, read, rows) })
	})

	g.Go(func() error { return l.claim(ctx, read, claimed, batch) })
	for range senders {
		g.Go(func() error {
			for {
				select {
				case rows := <-claimed:
					if err := l.post.send(ctx, rows); err != nil {
						return err
					}
					if err := sendRows(ctx, l.done, rows); err != nil {
						return err
					}
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
	}
}

// claim claims all rows that are ready, and splits them into batches. Rows that are not yet
// visible go into the next statement.
func (l *pipeline) claim(ctx context.Context, read <-chan []row, claimed chan<- []row, batch int) error {
	var refused []row
	var since time.Time
	for {
		rows, err := gather(ctx, refused, read)
		if err != nil {
			return err
		}
		refused = nil
		if l.claims != nil {
			if rows, refused, err = l.claimMany(rows); err != nil {
				return err
			}
		}
		if len(rows) > 0 {
			since = time.Time{}
		} else if err := l.awaitVisible(&since, refused); err != nil {
			return err
		}
		for len(rows) > 0 {
			n := min(batch, len(rows))
			if err := sendRows(ctx, claimed, rows[:n:n]); err != nil {
				return err
			}
			rows = rows[n:]
		}
	}
}

// claimMany claims rows and separates those that it could not claim.
func (l *pipeline) claimMany(rows []row) (ours, others []row, err error) {
	wrote, err := l.claims.write(rows)
	if err != nil {
		return nil, nil, l.rowsError("claim", rows, err)
	}
	if wrote == len(rows) {
		return rows, nil, nil
	}
	return l.partitionClaimed(rows)
}

// partitionClaimed separates the claimed rows from the others.
func (l *pipeline) partitionClaimed(rows []row) (ours, others []row, err error) {
	ids, err := l.claims.claimedOf(rows)
	if err != nil {
		return nil, nil, l.rowsError("read claimed", rows, err)
	}
	for _, r := range rows {
		if ids[string(r.id)] {
			ours = append(ours, r)
		} else {
			others = append(others, r)
		}
	}
	return ours, others, nil
}

// awaitVisible is called when none of the rows was claimed, or not all were completed. since is the time when that
// first happened. It pauses if the rows do not become visible soon, because their
// transaction may need the processor time that polling takes. After claimTimeout it returns
// an error.
func (l *pipeline) awaitVisible(since *time.Time, rows []row) error {
	now := time.Now()
	if since.IsZero() {
		*since = now
	}
	switch waited := now.Sub(*since); {
	case waited < spinTimeout:
		return nil
	case waited < claimTimeout:
		time.Sleep(claimInterval)
		return nil
	}
	return l.rowsError("write", rows, fmt.Errorf("no row is pending after %s: another program settled or deleted them; start with a new table", claimTimeout))
}

// complete completes all posted rows that are ready.
func (l *pipeline) complete(ctx context.Context) error {
	for {
		rows, err := gather(ctx, nil, l.done)
		if err != nil {
			return err
		}
		if err := l.completeMany(rows); err != nil {
			return err
		}
		l.rows.complete(rows)
	}
}

// completeMany completes rows. Without claims it repeats the statement until it has found each
// of them.
func (l *pipeline) completeMany(rows []row) error {
	var since time.Time
	for left := len(rows); ; {
		wrote, err := l.completions.write(rows)
		left -= wrote
		switch {
		case err != nil:
			return l.rowsError("complete", rows, err)
		case left <= 0:
			return nil
		case l.claims != nil:
			return l.rowsError("complete", rows, fmt.Errorf("found only %d", wrote))
		}
		if err := l.awaitVisible(&since, rows); err != nil {
			return err
		}
	}
}

func (l *pipeline) rowsError(what string, rows []row, err error) error {
	return fmt.Errorf("%s %d rows of %s, the first %s: %w", what, len(rows), l.table, rows[0].id, err)
}

// gather appends the rows in a channel to rows, up to about maxStatementRows. It waits if
// there are none. It does not copy a single chunk.
func gather(ctx context.Context, rows []row, from <-chan []row) ([]row, error) {
	if len(rows) == 0 {
		select {
		case rows = <-from:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}

	for len(rows) < maxStatementRows {
		select {
		case more := <-from:
			if cap(rows) < maxStatementRows {
				rows = append(make([]row, 0, maxStatementRows+maxChunkRows), rows...)
			}
			rows = append(rows, more...)
		case <-ctx.Done():
			return nil, ctx.Err()
		default:
			return rows, nil
		}
	}
	return rows, nil
}

func sendRows(ctx context.Context, to chan<- []row, rows []row) error {
	select {
	case to <- rows:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
