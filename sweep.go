package sluicebox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// markWriter writes markers into the log; see capture.Source.
type markWriter interface {
	Mark(ctx context.Context, token string) error
}

// sweptLanes are the lanes of a sweep; see intake.
type sweptLanes interface {
	// Held returns the ids of an outbox that are in a lane or whose outcome is not
	// written yet.
	Held(outbox string) []string

	// TrackSettled(true) starts to record the rows that settle, TrackSettled(false)
	// stops and clears the record.
	TrackSettled(on bool)

	// LegRows reads the records of rows whose legs differ.
	LegRows(ctx context.Context, items []store.Item) (map[store.Ref]*store.LegRow, error)

	// InsertFound inserts rows from the tables at the front of their lanes, in the
	// given order, and returns how many it inserted. It leaves out rows that a lane
	// holds by now and rows that settled since TrackSettled(true). A row with a record goes
	// only to the legs that miss it.
	InsertFound(ctx context.Context, items []store.Item, records map[store.Ref]*store.LegRow) int
}

// sweeper finds rows that became PENDING without an insert: requeued by an operator,
// or left by a relay or a processor that no longer runs. The log does not bring them
// again.
//
// A sweep reads the tables only after capture has caught up. It then writes a marker
// into the log, and inserts the rows that it found when the marker comes back. By
// then the log has brought every row that the read saw, so a row that is in no lane
// was not inserted just now.
type sweeper struct {
	// interval is the time between two sweeps. The first one starts at once.
	interval time.Duration

	// outboxes are the tables. One sweep takes at most bound.Rows of each, and
	// bound.Bytes of all together.
	outboxes []store.Outbox
	bound    store.ReadLimit
	source   markWriter
	tables   store.Viewer
	lanes    sweptLanes

	// swept is called with the number of rows that were reset to PENDING by an update, once
	// they are in lanes. failed is called if the tables could not be read or the marker not
	// be written; the sweeper retries.
	swept  func(rows int)
	failed func(err error)

	// epoch distinguishes this leader's markers from those of an earlier leader,
	// which the log may bring again.
	epoch store.Epoch

	// onCaughtUp, if set, is called when the first marker comes back, in log order.
	onCaughtUp func()

	mu      sync.Mutex
	waiting map[string]func() // by token
	tokens  int
}

// newSweeper returns the sweeper of a session.
func (r *Relay) newSweeper(epoch store.Epoch, src source, in *intake) *sweeper {
	return &sweeper{
		interval: r.opt().SweepInterval, outboxes: r.opt().tables(), bound: r.opt().smallestBuffer(),
		source: src, tables: r.db.store, lanes: in, epoch: epoch, onCaughtUp: in.endCatchUp,
		swept: func(rows int) {
			r.observer.Swept(rows)
			r.log.Info("sweep found PENDING rows", "rows", rows)
		},
		failed: func(err error) { r.log.Warn("sweep failed; retrying", "error", err) },
	}
}

// onMarker handles a marker of the log. It is called in log order, among the rows.
func (s *sweeper) onMarker(token string) {
	s.mu.Lock()
	then := s.waiting[token]
	delete(s.waiting, token)
	s.mu.Unlock()
	if then != nil {
		then()
	}
}

// run sweeps until the context ends and returns its error.
func (s *sweeper) run(ctx context.Context) error {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-next.C:
		}
		wait := s.interval
		more, err := s.sweep(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			s.failed(err)
			wait = min(wait, sweepRetryInterval)
		case more:
			wait = min(wait, sweepMoreInterval)
		}
		next.Reset(wait)
	}
}

// Pauses after a sweep that found more rows than it may take, and after a failed
// sweep.
const sweepMoreInterval, sweepRetryInterval = time.Second, 5 * time.Second

// sweep makes one round over all outboxes. It returns whether there are more rows.
func (s *sweeper) sweep(ctx context.Context) (more bool, err error) {
	if err := s.awaitMarker(ctx, s.caughtUp); err != nil {
		return false, err
	}

	s.lanes.TrackSettled(true)
	defer s.lanes.TrackSettled(false)
	items, more, err := s.findRequeued(ctx)
	if err != nil || len(items) == 0 {
		return false, err
	}
	records, err := s.lanes.LegRows(ctx, items)
	if err != nil {
		return false, err
	}
	return more, s.awaitMarker(ctx, func() {
		if n := s.lanes.InsertFound(ctx, items, records); n > 0 {
			s.swept(n)
		}
	})
}

func (s *sweeper) caughtUp() {
	if s.onCaughtUp != nil {
		s.onCaughtUp()
		s.onCaughtUp = nil
	}
}

// awaitMarker writes a marker and waits until it comes back. It calls then at that
// point of the log.
func (s *sweeper) awaitMarker(ctx context.Context, then func()) error {
	arrived := make(chan struct{})
	s.mu.Lock()
	s.tokens++
	token := fmt.Sprintf("sweep-%d-%d", s.epoch, s.tokens)
	if s.waiting == nil {
		s.waiting = map[string]func(){}
	}

	s.waiting[token] = func() { then(); close(arrived) }
	s.mu.Unlock()
	if err := s.source.Mark(ctx, token); err != nil {
		s.mu.Lock()
		delete(s.waiting, token)
		s.mu.Unlock()
		return err
	}

	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-arrived:
		return nil
	}
}

// findRequeued returns the unsettled rows that are in no lane, and whether an outbox
// has more of them.
func (s *sweeper) findRequeued(ctx context.Context) (found []store.Item, more bool, err error) {
	view, err := s.tables.View(ctx, "")
	if err != nil {
		return nil, false, fmt.Errorf("find requeued rows: %w", err)
	}
	defer view.Close()
	for i := range s.outboxes {
		if !s.outboxes[i].Layout.ShowsUnsettled() {
			continue // every row would be sent again
		}
		q := store.ReadLimit{Rows: s.bound.Rows, Bytes: s.bound.Bytes / int64(len(s.outboxes))}.Query(&s.outboxes[i])
		q.ExcludeIDs = s.lanes.Held(q.Outbox)
		items, err := view.Unsettled(ctx, q)
		if err != nil {
			return nil, false, fmt.Errorf("find requeued rows: %w", err)
		}
		more = more || q.MayHaveMore(items)
		found = append(found, items...)
	}
	return found, more, nil
}
