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

// Lanes is what a sweep asks of the lanes.
type Lanes interface {
	// Held returns the ids of an outbox that lanes hold or whose outcome is not
	// written yet.
	Held(outbox string) []string
	// TrackSettled(true) begins to remember which rows settle, TrackSettled(false) forgets
	// them.
	TrackSettled(on bool)
	// InsertFound places rows that were found in the tables in front of their lanes,
	// in the given order, but for those that lanes hold by now or that settled
	// since Watch, and returns how many it placed.
	InsertFound(items []store.Item) int
}

// SweepObserver is told what a sweep does. It must return at once.
type SweepObserver interface {
	// Swept: rows came back to PENDING without an insert, and are in lanes now.
	Swept(rows int)
	// SweepFailed: the tables could not be read or the log not be marked; it is
	// tried again.
	SweepFailed(err error)
}

// Sweeper looks for rows that came back to PENDING without an insert: set back by
// an operator, or left over by a relay or a processor that is gone. The log does
// not bring them again.
//
// It reads the tables only when the log has been read up to the present, and
// places what it found when a marker comes back that it wrote after the reading:
// by then the log has brought every row that the reading saw, and what no lane
// knows was not inserted just now.
type Sweeper struct {
	// Interval is the time between two sweeps. The first begins at once.
	Interval time.Duration
	// Outboxes are the tables; of each, at most Most.Rows are taken at a time, and of
	// all together so many bytes.
	Outboxes []store.Outbox
	Bound    store.ReadLimit
	Source   Marker
	Tables   store.Viewer
	Lanes    Lanes
	Observer SweepObserver
	// Epoch tells this leader's markers from those of an earlier one, which the
	// log may bring again.
	Epoch store.Epoch
	// OnCaughtUp, if set, is called when the first marker has come back, at its
	// place in the log.
	OnCaughtUp func()

	mu      sync.Mutex
	waiting map[string]func() // by token
	tokens  int
}

// OnMarker is told of each marker that the log brings, at its place among the
// rows.
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

// The pause before the next sweep where one has found more than it may take, and
// where one has failed.
const sweepMoreInterval, sweepRetryInterval = time.Second, 5 * time.Second

// sweep makes one round over all outboxes, and reports whether there is more.
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

// awaitMarker writes a marker and returns when it has come back and then has run, at its
// place in the log.
func (s *Sweeper) awaitMarker(ctx context.Context, then func()) error {
	came := make(chan struct{})
	s.mu.Lock()
	s.tokens++
	token := fmt.Sprintf("sweep-%d-%d", s.Epoch, s.tokens)
	if s.waiting == nil {
		s.waiting = map[string]func(){}
	}
	s.waiting[token] = func() { then(); close(came) }
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
	case <-came:
		return nil
	}
}

// findRequeued returns the unsettled rows that no lane holds, and whether an outbox has
// more of them.
func (s *Sweeper) findRequeued(ctx context.Context) (found []store.Item, more bool, err error) {
	view, err := s.Tables.View(ctx, "")
	if err != nil {
		return nil, false, fmt.Errorf("look for rows that were set back: %w", err)
	}
	defer view.Close()
	for i := range s.Outboxes {
		name := s.Outboxes[i].Name
		q := store.ReadLimit{Rows: s.Bound.Rows, Bytes: s.Bound.Bytes / int64(len(s.Outboxes))}.Query(name)
		q.ExcludeIDs = s.Lanes.Held(name)
		items, err := view.Unsettled(ctx, q)
		if err != nil {
			return nil, false, fmt.Errorf("look for rows that were set back: %w", err)
		}
		more = more || q.MayHaveMore(items)
		found = append(found, items...)
	}
	return found, more, nil
}
