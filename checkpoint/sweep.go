package checkpoint

import (
	"context"
	"fmt"
	"strconv"
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
	// Found places rows that were found in the tables in front of their lanes,
	// in the given order, but for those that lanes hold by now, and returns how
	// many it placed.
	Found(items []store.Item) int
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
	// Outboxes are the tables; of each, at most Most rows are taken at a time.
	Outboxes []store.Outbox
	Most     int
	Source   Marker
	Tables   store.Viewer
	Lanes    Lanes
	Observer SweepObserver

	mu      sync.Mutex
	waiting map[string]func() // by token
	tokens  int
}

// Marked is told of each marker that the log brings, at its place among the
// rows.
func (s *Sweeper) Marked(token string) {
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
		if err := s.sweep(ctx); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			s.Observer.SweepFailed(err)
		}
		next.Reset(s.Interval)
	}
}

// sweep makes one round over all outboxes.
func (s *Sweeper) sweep(ctx context.Context) error {
	if err := s.mark(ctx, func() {}); err != nil {
		return err
	}
	items, err := s.read(ctx)
	if err != nil || len(items) == 0 {
		return err
	}
	return s.mark(ctx, func() {
		if n := s.Lanes.Found(items); n > 0 {
			s.Observer.Swept(n)
		}
	})
}

// mark writes a marker and returns when it has come back and then has run, at its
// place in the log.
func (s *Sweeper) mark(ctx context.Context, then func()) error {
	came := make(chan struct{})
	s.mu.Lock()
	s.tokens++
	token := "sweep-" + strconv.Itoa(s.tokens)
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

// read returns the unsettled rows that no lane holds.
func (s *Sweeper) read(ctx context.Context) ([]store.Item, error) {
	view, err := s.Tables.View(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("look for rows that were set back: %w", err)
	}
	defer view.Close()
	var found []store.Item
	for i := range s.Outboxes {
		name := s.Outboxes[i].Name
		items, err := view.Unsettled(ctx, store.Unsettled{Outbox: name, Limit: s.Most, Held: s.Lanes.Held(name)})
		if err != nil {
			return nil, fmt.Errorf("look for rows that were set back: %w", err)
		}
		found = append(found, items...)
	}
	return found, nil
}
