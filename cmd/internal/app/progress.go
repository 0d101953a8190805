package app

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/store"
)

const (
	// maxMissedIntervals is how many times in a row what must come from a source may stay
	// away before it counts as silent, and minSilence the least time for that.
	maxMissedIntervals = 3
	minSilence         = 10 * time.Second
	// maxUnsaved is how long saves of the checkpoint may fail. Nothing is lost
	// meanwhile; but the log grows, and a restart sends more again.
	maxUnsaved = time.Minute
)

// progress is how far the life that runs has come. What it is told of the stream
// are facts: rows, positions, answers; that a goroutine is alive is none.
type progress struct {
	mu sync.Mutex
	sessionStats
}

// sessionStats are what progress forgets at the end of a life.
type sessionStats struct {
	mode          string // stream or poll; "" while no life runs
	sourceDetail  string // what is read, and why
	startPosition store.Position
	tracker       *checkpoint.Tracker
	paused        func() bool
	// expectedInterval is how often something must come from the source: a heartbeat, or the
	// answer to a read. 0: nothing need.
	expectedInterval time.Duration

	connected        bool
	lastReceived     time.Time     // when something last came that the tracker does not see
	readDuration     time.Duration // the latest read of a table
	retained         capture.RetainedLog
	retainedLimit    int64 // 0 before the log was first looked at
	saved            store.Checkpoint
	savedAt          time.Time
	saveFailingSince time.Time // since when saves fail; zero if the latest did not
	saveError        string    // they do
}

// startSession is told of a new life. end ends it.
func (p *progress) startSession(s sessionStats) (end func()) {
	p.update(func() { p.sessionStats = s })
	return func() { p.update(func() { p.sessionStats = sessionStats{} }) }
}

// update changes what is known.
func (p *progress) update(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// current returns what is known now.
func (p *progress) current(now time.Time) sessionStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isPaused() {
		p.lastReceived = now // silence counts from the end of the pause
	}
	return p.sessionStats
}

// isPaused reports whether nothing is read for want of room.
func (s *sessionStats) isPaused() bool { return s.paused != nil && s.paused() }

// lastRead returns the latest position that was read, and when anything was heard of
// the source.
func (s *sessionStats) lastRead() (at store.Position, heard time.Time) {
	at, heard = s.startPosition, s.lastReceived
	if s.tracker != nil {
		position, when := s.tracker.LastRead()
		if position != "" {
			at = position
		}
		if when.After(heard) {
			heard = when
		}
	}
	return at, heard
}

// silence reports how long nothing has come from the source, if that is too long.
func (s *sessionStats) silence(now time.Time) (quiet time.Duration, tooLong bool) {
	_, heard := s.lastRead()
	if s.expectedInterval == 0 || heard.IsZero() {
		return 0, false
	}
	quiet = now.Sub(heard)
	// A read of a table is followed by a pause that is no shorter.
	return quiet, quiet > max(minSilence, maxMissedIntervals*s.expectedInterval)+maxMissedIntervals*s.readDuration
}

// Checks implements admin.Status: what is known of the parts, and what the time
// that has passed makes of it.
func (r *relay) Checks() []admin.Check {
	now := time.Now()
	s := r.progress.current(now)
	checks := r.health.Checks()
	if s.mode == "" {
		return checks
	}
	for i := range checks {
		if c := &checks[i]; c.Name == "source" && c.OK {
			*c = s.sourceCheck(now, c.Detail)
		}
	}
	checks = append(checks, s.checkpointCheck(now))
	if lanes := r.currentDispatchers.Load(); lanes != nil {
		for _, name := range slices.Sorted(maps.Keys(*lanes)) {
			if c, some := refusedRowsCheck(name, (*lanes)[name]); some {
				checks = append(checks, c)
			}
		}
	}
	return checks
}

// sourceCheck is the check of a source that is connected.
func (s *sessionStats) sourceCheck(now time.Time, detail string) admin.Check {
	quiet, tooLong := s.silence(now)
	switch {
	case s.isPaused():
		return passedCheck("source", detail+"; paused: sink buffers full")
	case tooLong && s.mode == "poll":
		return failedCheck("source", fmt.Sprintf("the tables were last read %s ago", quiet.Round(time.Second)))
	case tooLong:
		return failedCheck("source", fmt.Sprintf("no message from the log for %s; heartbeats are due every %s",
			quiet.Round(time.Second), s.expectedInterval))
	}
	return passedCheck("source", detail)
}

// checkpointCheck is the check of the checkpoint's saves.
func (s *sessionStats) checkpointCheck(now time.Time) admin.Check {
	if s.saveFailingSince.IsZero() {
		if s.savedAt.IsZero() {
			return passedCheck("checkpoint", "nothing to save yet")
		}
		return passedCheck("checkpoint", fmt.Sprintf("saved at %s", s.saved.Position))
	}
	failing := now.Sub(s.saveFailingSince)
	c := failedCheck("checkpoint", fmt.Sprintf("checkpoint save failing for %s: %s", failing.Round(time.Second), s.saveError))
	c.OK = failing < maxUnsaved
	return c
}

// timedViewer notes when the tables were read for a source that polls.
type timedViewer struct {
	store.Viewer
	progress *progress
}

// View implements store.Viewer.
func (r timedViewer) View(ctx context.Context, snapshot string) (store.View, error) {
	v, err := r.Viewer.View(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	return timedView{v, r.progress}, nil
}

type timedView struct {
	store.View
	progress *progress
}

// Unsettled implements store.View.
func (v timedView) Unsettled(ctx context.Context, q store.UnsettledQuery) ([]store.Item, error) {
	began := time.Now()
	items, err := v.View.Unsettled(ctx, q)
	if err == nil {
		now := time.Now()
		v.progress.update(func() { v.progress.lastReceived, v.progress.readDuration = now, now.Sub(began) })
	}
	return items, err
}
