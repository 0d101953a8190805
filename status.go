package sluicebox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// Status is the state of a relay at one time. A zero value means unknown, or not applicable
// on a standby.
type Status struct {
	// Holder identifies this process.
	Holder string

	// Leads reports whether this relay is the leader, Epoch its latest epoch.
	Leads bool
	Epoch store.Epoch

	// Leader is the holder of the leader, as far as it is known.
	Leader string

	// Mode is "" between sessions; the fields below are zero then.
	Mode Mode

	// SourceDetail describes the source and the reason for it.
	SourceDetail string
	Claims       ClaimsStatus
	Source       SourceStatus
	Checkpoint   CheckpointStatus

	// Sinks are the sinks of a session, by name. nil: there is no session.
	Sinks   map[string]SinkStatus
	Replays ReplayStatus
}

// SourceStatus is the state of the log, or of polling.
type SourceStatus struct {
	Connected bool `json:"connected"`
	Paused    bool `json:"paused"` // because the sink buffers are full
	// Position is the latest position read. LastReceivedAt is the time of the last
	// message.
	Position       store.Position `json:"position"`
	LastReceivedAt *time.Time     `json:"last_received_at"`
	// RetainedBytes is the log that the database retains for the relay, from the
	// checkpoint to the log's head. Above RetainedLimitBytes the relay spills rows. Both
	// are null without a log, or before the first check.
	RetainedBytes      *int64 `json:"retained_bytes"`
	RetainedLimitBytes *int64 `json:"retained_limit_bytes"`
}

// CheckpointStatus is the position below which every row is settled or spilled.
type CheckpointStatus struct {
	Position store.Position `json:"position"`
	Seq      store.Seq      `json:"seq"`
	SavedAt  *time.Time     `json:"saved_at"` // null: not saved yet by this leader
}

// SinkStatus is the state of a sink.
type SinkStatus struct {
	dispatch.Stats

	// Refused counts the rows that the table of an outbox refuses, by outbox.
	Refused map[string]int
}

// ReplayStatus summarizes the replay jobs.
type ReplayStatus struct {
	// Current is the oldest started job, or the oldest waiting one if none has started. nil:
	// there is none.
	Current *store.Job
	Waiting int // further jobs
	Paused  int
}

// Status returns the state of the relay. The time is linear in the rows in memory.
func (r *Relay) Status() Status {
	leads, _ := r.Leader()
	s := Status{Holder: r.opt().Holder, Leads: leads}
	if leads {
		s.Epoch, s.Leader = store.Epoch(r.epoch.Load()), r.opt().Holder
	} else if other := r.otherLeader.Load(); other != nil {
		s.Leader = *other
	}

	p := r.progress.current(time.Now())
	at, received := p.lastRead()
	s.Mode, s.SourceDetail = p.mode, p.sourceDetail
	if c := r.claims.Load(); c != nil && s.Mode != "" {
		s.Claims = *c
	}
	s.Source = SourceStatus{Connected: p.connected, Paused: p.isPaused(), Position: at, LastReceivedAt: timeOrNil(received)}
	if p.retainedLimit > 0 {
		s.Source.RetainedBytes, s.Source.RetainedLimitBytes = &p.retained.Bytes, &p.retainedLimit
	}
	s.Checkpoint = CheckpointStatus{Position: p.saved.Position, Seq: p.saved.Seq, SavedAt: timeOrNil(p.savedAt)}
	if jobs := r.replayStatus.Load(); jobs != nil {
		s.Replays = *jobs
	}

	if lanes := r.currentDispatchers.Load(); lanes != nil {
		s.Sinks = make(map[string]SinkStatus, len(*lanes))
		for name, d := range *lanes {
			_, refused, _ := d.RefusedRows(0)
			s.Sinks[name] = SinkStatus{Stats: d.Stats(), Refused: refused}
		}
	}
	return s
}

// timeOrNil returns nil for the zero time.
func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Ping calls every dispatcher and returns once all have answered. If one is deadlocked, Ping
// does not return. So a watchdog can detect it.
func (r *Relay) Ping() {
	if lanes := r.currentDispatchers.Load(); lanes != nil {
		for _, d := range *lanes {
			d.Room()
		}
	}
}

// Check is one condition of readiness.
type Check struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Warning marks a check that an operator should look at, also if it is OK.
	Warning bool   `json:"warning,omitempty"`
	Detail  string `json:"detail"` // the reason, without secrets; may be empty if OK
}

// health collects the recorded checks.
type health struct {
	mu     sync.Mutex
	checks map[string]Check
}

// newHealth returns a health that is not ready, because the database and the source have
// not been reached yet.
func newHealth() *health {
	h := &health{}
	h.replaceAll(failedCheck("database", "not yet reached"), failedCheck("source", "not yet reading"))
	return h
}

func passedCheck(name, detail string) Check {
	return Check{Name: name, OK: true, Detail: detail}
}
func failedCheck(name, detail string) Check { return Check{Name: name, Detail: detail} }

func (h *health) ok(name, detail string)   { h.set(passedCheck(name, detail)) }
func (h *health) fail(name, detail string) { h.set(failedCheck(name, detail)) }

// replaceAll replaces all checks.
func (h *health) replaceAll(checks ...Check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = map[string]Check{}
	for _, c := range checks {
		h.checks[c.Name] = c
	}
}

// remove deletes a check.
func (h *health) remove(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.checks, name)
}

func (h *health) set(c Check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks[c.Name] = c
}

// Checks returns the checks, sorted by name.
func (h *health) Checks() []Check {
	h.mu.Lock()
	defer h.mu.Unlock()
	checks := make([]Check, 0, len(h.checks))
	for _, c := range h.checks {
		checks = append(checks, c)
	}
	slices.SortFunc(checks, func(a, b Check) int { return strings.Compare(a.Name, b.Name) })
	return checks
}

// Working reports whether the relay reads as leader or stands by. Checks of a sink do not
// count, because a receiver may be down or a row may be unspillable, and a service manager
// would end a relay that delivers everything else.
func (r *Relay) Working() bool {
	for _, c := range r.health.Checks() {
		if !c.OK && !strings.HasPrefix(c.Name, "sink ") && !strings.HasPrefix(c.Name, spillCheckPrefix) {
			return false
		}
	}
	return true
}

const (
	// maxMissedIntervals is the number of consecutive missed heartbeats or polls after
	// which a source counts as silent. minSilence is the shortest time for that.
	maxMissedIntervals = 3
	minSilence         = 10 * time.Second
	// maxUnsaved is how long checkpoint saves may fail before readiness fails. No row is
	// lost meanwhile, but the database retains more log and a restart sends more rows
	// again.
	maxUnsaved = time.Minute
)

// progress is the state of the current session. It is based on events of the stream
// (rows, positions, responses), because a live goroutine proves nothing.
type progress struct {
	mu sync.Mutex
	sessionStats
}

// sessionStats is the part of progress that is reset when a session ends.
type sessionStats struct {
	mode          Mode   // "" between sessions
	sourceDetail  string // the source and the reason for it
	startPosition store.Position
	tracker       *checkpoint.Tracker
	distance      capture.Distance // nil if the source cannot tell
	paused        func() bool
	// expectedInterval is the longest time between two signs of life from the source:
	// heartbeats or poll results. 0 means that silence is normal.
	expectedInterval time.Duration

	connected        bool
	lastReceived     time.Time     // last message that the tracker does not record
	readDuration     time.Duration // of the latest poll
	retained         capture.RetainedLog
	retainedLimit    int64 // 0 before the first check
	saved            store.Checkpoint
	savedAt          time.Time
	saveFailingSince time.Time // zero if the latest save succeeded
	saveError        string    // of the latest failed save
}

// startSession begins a session. end resets its state.
func (p *progress) startSession(s sessionStats) (end func()) {
	p.update(func() { p.sessionStats = s })
	return func() { p.update(func() { p.sessionStats = sessionStats{} }) }
}

// newSessionStats returns the stats of a session that starts.
func (r *Relay) newSessionStats(begin *checkpoint.StartPoint, tracker *checkpoint.Tracker, in *intake, src source) sessionStats {
	s := sessionStats{
		mode: ModeStream, sourceDetail: r.sourceDetail, startPosition: begin.From, tracker: tracker, paused: in.isPaused,
		expectedInterval: r.db.MaxSilence(), saved: begin.Watermark,
	}
	s.distance, _ = src.(capture.Distance)
	if r.isPolling.Load() {
		c := r.opt().pollConfig()
		s.mode, s.expectedInterval = ModePoll, c.Interval
		if c.Backoff.Multiplier > 1 {
			s.expectedInterval = max(c.Interval, c.Backoff.Max)
		}
	}
	return s
}

// update changes the state under the lock.
func (p *progress) update(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// current returns a copy of the state.
func (p *progress) current(now time.Time) sessionStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isPaused() {
		p.lastReceived = now // silence counts from the end of the pause
	}
	return p.sessionStats
}

// isPaused reports whether capture is paused because the sink buffers are full.
func (s *sessionStats) isPaused() bool { return s.paused != nil && s.paused() }

// lastRead returns the latest position read and the time of the last message.
func (s *sessionStats) lastRead() (at store.Position, received time.Time) {
	at, received = s.startPosition, s.lastReceived
	if s.tracker != nil {
		position, when := s.tracker.LastRead()
		if position != "" {
			at = position
		}
		if when.After(received) {
			received = when
		}
	}
	return at, received
}

// silence returns the time since the last message and whether it is too long.
func (s *sessionStats) silence(now time.Time) (quiet time.Duration, tooLong bool) {
	_, received := s.lastRead()
	if s.expectedInterval == 0 || received.IsZero() {
		return 0, false
	}
	quiet = now.Sub(received)
	// A poll is followed by a pause at least as long as the poll took.
	return quiet, quiet > max(minSilence, maxMissedIntervals*s.expectedInterval)+maxMissedIntervals*s.readDuration
}

// Checks returns the conditions of readiness at this time, by name. It returns at once.
func (r *Relay) Checks() []Check {
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

// sourceCheck returns the check of a connected source.
func (s *sessionStats) sourceCheck(now time.Time, detail string) Check {
	quiet, tooLong := s.silence(now)
	switch {
	case s.isPaused():
		return passedCheck("source", detail+"; paused: sink buffers full")
	case tooLong && s.mode == ModePoll:
		return failedCheck("source", fmt.Sprintf("last poll %s ago", quiet.Round(time.Second)))
	case tooLong:
		return failedCheck("source", fmt.Sprintf("no message from the log for %s; heartbeats are due every %s",
			quiet.Round(time.Second), s.expectedInterval))
	}
	return passedCheck("source", detail)
}

// checkpointCheck returns the check of the checkpoint saves.
func (s *sessionStats) checkpointCheck(now time.Time) Check {
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

// timedViewer records the table reads of a polling source.
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
