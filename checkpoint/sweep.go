package checkpoint

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Marker writes markers into the log; see capture.Source.
type Marker interface {
	Mark(ctx context.Context, token string) error
}

// Lanes is the part of the dispatcher that a sweep needs.
type Lanes interface {
	// Held returns the ids of an outbox that are in a lane or whose outcome is not
	// written yet.
	Held(outbox string) []string

	// TrackSettled(true) starts to record the rows that settle, TrackSettled(false)
	// stops and clears the record.
	TrackSettled(on bool)

	// InsertFound inserts rows from the tables at the front of their lanes, in the
	// given order, and returns how many it inserted. It leaves out rows that a lane
	// holds by now and rows that settled since TrackSettled(true).
	InsertFound(items []store.Item) int
}

// SweepObserver receives the events of a Sweeper. Its methods must return at once.
type SweepObserver interface {
	// Swept reports rows that were reset to PENDING by an update. They are in lanes
	// now.
	Swept(rows int)

	// SweepFailed reports that the tables could not be read or the marker not be
	// written. The Sweeper retries.
	SweepFailed(err error)
}

// Sweeper finds rows that became PENDING without an insert: requeued by an operator,
// or left by a relay or a processor that no longer runs. The log does not bring them
// again.
//
// A sweep reads the tables only after capture has caught up. It then writes a marker
// into the log, and inserts the rows that it found when the marker comes back. By
// then the log has brought every row that the read saw, so a row that is in no lane
// was not inserted just now.
type Sweeper struct {
	// Interval is the time between two sweeps. The first one starts at once.
	Interval time.Duration

	// Outboxes are the tables. One sweep takes at most Bound.Rows of each, and
	// Bound.Bytes of all together.
	Outboxes []store.Outbox
	Bound    store.ReadLimit
	Source   Marker
	Tables   store.Viewer
	Lanes    Lanes
	Observer SweepObserver

	// Epoch distinguishes this leader's markers from those of an earlier leader,
	// which the log may bring again.
	Epoch store.Epoch

	// OnCaughtUp, if set, is called when the first marker comes back, in log order.
	OnCaughtUp func()

	mu      sync.Mutex
	waiting map[string]func() // by token
	tokens  int
}

// OnMarker handles a marker of the log. It is called in log order, among the rows.
func (s *Sweeper) OnMarker(token string) {
	s.mu.Lock()
	then := s.waiting[token]
	delete(s.waiting, token)
	s.mu.Unlock()
	if then != nil {
		then()
	}
}

// Run sweeps until the context ends and returns its error.
func (s *Sweeper) Run(ctx context.Context) error {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-next.C:
		}
		wait := s.Interval
		more, err := s.sweep(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			s.Observer.SweepFailed(err)
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
func (s *Sweeper) sweep(ctx context.Context) (more bool, err error) {
	if err := s.awaitMarker(ctx, s.caughtUp); err != nil {
		return false, err
	}

	s.Lanes.TrackSettled(true)
	defer s.Lanes.TrackSettled(false)
	items, more, err := s.findRequeued(ctx)
	if err != nil || len(items) == 0 {
		return false, err
	}
	return more, s.awaitMarker(ctx, func() {
		if n := s.Lanes.InsertFound(items); n > 0 {
			s.Observer.Swept(n)
		}
	})
}

func (s *Sweeper) caughtUp() {
	if s.OnCaughtUp != nil {
		s.OnCaughtUp()
		s.OnCaughtUp = nil
	}
}

// awaitMarker writes a marker and waits until it comes back. It calls then at that
// point of the log.
func (s *Sweeper) awaitMarker(ctx context.Context, then func()) error {
	arrived := make(chan struct{})
	s.mu.Lock()
	s.tokens++
	token := fmt.Sprintf("sweep-%d-%d", s.Epoch, s.tokens)
	if s.waiting == nil {
		s.waiting = map[string]func(){}
	}

	s.waiting[token] = func() { then(); close(arrived) }
	s.mu.Unlock()
	if err := s.Source.Mark(ctx, token); err != nil {
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
func (s *Sweeper) findRequeued(ctx context.Context) (found []store.Item, more bool, err error) {
	view, err := s.Tables.View(ctx, "")
	if err != nil {
		return nil, false, fmt.Errorf("find requeued rows: %w", err)
	}
	defer view.Close()
	for i := range s.Outboxes {
		name := s.Outboxes[i].Name
		q := store.ReadLimit{Rows: s.Bound.Rows, Bytes: s.Bound.Bytes / int64(len(s.Outboxes))}.Query(name)
		q.ExcludeIDs = s.Lanes.Held(name)
		items, err := view.Unsettled(ctx, q)
		if err != nil {
			return nil, false, fmt.Errorf("find requeued rows: %w", err)
		}
		more = more || q.MayHaveMore(items)
		found = append(found, items...)
	}
	return found, more, nil
}
