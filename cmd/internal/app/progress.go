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
	// silences is how many times in a row what must come from a source may stay
	// away before it counts as silent, and leastSilence the least time for that.
	silences     = 3
	leastSilence = 10 * time.Second
	// mostUnsaved is how long saves of the checkpoint may fail. Nothing is lost
	// meanwhile; but the log grows, and a restart sends more again.
	mostUnsaved = time.Minute
)

// progress is how far the life that runs has come. What it is told of the stream
// are facts: rows, positions, answers; that a goroutine is alive is none.
type progress struct {
	mu sync.Mutex
	strides
}

// strides are what progress forgets at the end of a life.
type strides struct {
	mode    string // stream or poll; "" while no life runs
	reading string // what is read, and why
	from    store.Position
	tracker *checkpoint.Tracker
	paused  func() bool
	// every is how often something must come from the source: a heartbeat, or the
	// answer to a read. 0: nothing need.
	every time.Duration

	connected bool
	heard     time.Time     // when something last came that the tracker does not see
	took      time.Duration // the latest read of a table
	kept      capture.Retained
	bound     int64 // 0 before the log was first looked at
	saved     store.Checkpoint
	savedAt   time.Time
	unsaved   time.Time // since when saves fail; zero if the latest did not
	why       string    // they do
}

// begin is told of a new life. end ends it.
func (p *progress) begin(s strides) (end func()) {
	p.set(func() { p.strides = s })
	return func() { p.set(func() { p.strides = strides{} }) }
}

// set changes what is known.
func (p *progress) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// look returns what is known now.
func (p *progress) look(now time.Time) strides {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isPaused() {
		p.heard = now // silence counts from the end of the pause
	}
	return p.strides
}

// isPaused reports whether nothing is read for want of room.
func (s *strides) isPaused() bool { return s.paused != nil && s.paused() }

// read returns the latest position that was read, and when anything was heard of
// the source.
func (s *strides) read() (at store.Position, heard time.Time) {
	at, heard = s.from, s.heard
	if s.tracker != nil {
		position, when := s.tracker.Read()
		if position != "" {
			at = position
		}
		if when.After(heard) {
			heard = when
		}
	}
	return at, heard
}

// silent reports how long nothing has come from the source, if that is too long.
func (s *strides) silent(now time.Time) (quiet time.Duration, tooLong bool) {
	_, heard := s.read()
	if s.every == 0 || heard.IsZero() {
		return 0, false
	}
	quiet = now.Sub(heard)
	// A read of a table is followed by a pause that is no shorter.
	return quiet, quiet > max(leastSilence, silences*s.every)+silences*s.took
}

// Checks implements admin.Status: what is known of the parts, and what the time
// that has passed makes of it.
func (r *relay) Checks() []admin.Check {
	now := time.Now()
	s := r.progress.look(now)
	checks := r.health.Checks()
	if s.mode == "" {
		return checks
	}
	for i := range checks {
		if c := &checks[i]; c.Name == "source" && c.OK {
			*c = s.source(now, c.Detail)
		}
	}
	checks = append(checks, s.checkpoint(now))
	if lanes := r.lanes.Load(); lanes != nil {
		for _, name := range slices.Sorted(maps.Keys(*lanes)) {
			if c, some := refused(name, (*lanes)[name]); some {
				checks = append(checks, c)
			}
		}
	}
	return checks
}

// source is the check of a source that is connected.
func (s *strides) source(now time.Time, detail string) admin.Check {
	quiet, tooLong := s.silent(now)
	switch {
	case s.isPaused():
		return right("source", detail+"; paused for want of room in the sinks' buffers")
	case tooLong && s.mode == "poll":
		return wrong("source", fmt.Sprintf("the tables were last read %s ago", quiet.Round(time.Second)))
	case tooLong:
		return wrong("source", fmt.Sprintf("nothing has come from the log for %s, not even a heartbeat, of which there is one every %s",
			quiet.Round(time.Second), s.every))
	}
	return right("source", detail)
}

// checkpoint is the check of the checkpoint's saves.
func (s *strides) checkpoint(now time.Time) admin.Check {
	if s.unsaved.IsZero() {
		if s.savedAt.IsZero() {
			return right("checkpoint", "nothing to save yet")
		}
		return right("checkpoint", fmt.Sprintf("saved at %s", s.saved.Position))
	}
	failing := now.Sub(s.unsaved)
	c := wrong("checkpoint", fmt.Sprintf("not saved for %s, trying again: %s", failing.Round(time.Second), s.why))
	c.OK = failing < mostUnsaved
	return c
}

// reader notes when the tables were read for a source that polls.
type reader struct {
	store.Viewer
	progress *progress
}

// View implements store.Viewer.
func (r reader) View(ctx context.Context, snapshot string) (store.View, error) {
	v, err := r.Viewer.View(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	return readView{v, r.progress}, nil
}

type readView struct {
	store.View
	progress *progress
}

// Unsettled implements store.View.
func (v readView) Unsettled(ctx context.Context, q store.Unsettled) ([]store.Item, error) {
	began := time.Now()
	items, err := v.View.Unsettled(ctx, q)
	if err == nil {
		now := time.Now()
		v.progress.set(func() { v.progress.heard, v.progress.took = now, now.Sub(began) })
	}
	return items, err
}
