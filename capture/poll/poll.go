package poll

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// Config says what to read and how often.
type Config struct {
	// Interval is the time between two reads that found less than a full batch.
	Interval time.Duration
	// BatchSize is the most rows of an outbox in one read.
	BatchSize int
	// Backoff is how much less often an outbox is read that has no rows.
	Backoff  Backoff
	Outboxes []store.Outbox
	// Room is what the lanes have room for: a payload above its share of the bytes is
	// left in its table, and what one read finds is a small part of them. The zero
	// Bound is none.
	Room store.ReadLimit
}

// roomDivisor is by how much less than the room one read may find: more than one is on its way.
const roomDivisor = 16

// Backoff stretches the interval of an outbox while its reads find nothing.
type Backoff struct {
	// Threshold is how many reads in a row must find nothing before it begins.
	Threshold int
	// Multiplier is by how much each read that finds nothing then stretches the
	// interval; 1 is no back-off.
	Multiplier int
	// Max is the longest time between two reads, if the interval is not longer.
	Max time.Duration
}

// DefaultBackoff returns a back-off that begins after ten reads without a row and
// doubles the interval up to 30 s.
func DefaultBackoff() Backoff {
	return Backoff{Threshold: 10, Multiplier: 2, Max: 30 * time.Second}
}

// Validate reports every value that is out of range, by its configuration key.
func (c *Config) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Interval <= 0 {
		fault("poll-interval is %s, must be above 0", c.Interval)
	}
	if c.BatchSize < 1 {
		fault("poll-batch-size is %d, must be at least 1", c.BatchSize)
	}
	if c.Backoff.Threshold < 1 {
		fault("poll-backoff.threshold is %d, must be at least 1", c.Backoff.Threshold)
	}
	if c.Backoff.Multiplier < 1 {
		fault("poll-backoff.multiplier is %d, must be at least 1, which is no back-off", c.Backoff.Multiplier)
	}
	if c.Backoff.Max <= 0 {
		fault("poll-backoff.max is %s, must be above 0", c.Backoff.Max)
	}
	if len(c.Outboxes) == 0 {
		fault("outboxes: none is configured")
	}
	return errors.Join(errs...)
}

// Lanes is what a source asks of those who take its rows. The answers may be old
// the moment that they are given.
type Lanes interface {
	// Held returns the ids of an outbox that lanes hold.
	Held(outbox string) []string
	// ExcludedLanes returns the lanes of an outbox whose rows are to be left out. It is
	// asked before Held: rows that Held names then, of a lane that it did not name,
	// are the first of their lane.
	ExcludedLanes(outbox string) []store.LaneKey
	// Unload lets go of rows of standing lanes, which Held then does not return.
	// It is called while no row of the outbox is on its way.
	Unload(outbox string)
	// Room returns how many rows of an outbox there is room for.
	Room(outbox string) int
}

// HeldFunc is lanes of which only is known what they hold: they take everything,
// and none stands still. Nil holds nothing.
type HeldFunc func(outbox string) []string

// Held implements Lanes.
func (f HeldFunc) Held(outbox string) []string {
	if f == nil {
		return nil
	}
	return f(outbox)
}

// ExcludedLanes implements Lanes.
func (HeldFunc) ExcludedLanes(string) []store.LaneKey { return nil }

// Unload implements Lanes.
func (HeldFunc) Unload(string) {}

// Room implements Lanes.
func (HeldFunc) Room(string) int { return math.MaxInt }

// Source reads tables.
type Source struct {
	cfg      Config
	views    store.Viewer
	lanes    Lanes
	resume   capture.Resume
	inFlight []sentBatch // on the way to the lanes, also after a read that failed
	woken    chan struct{}

	mu    sync.Mutex
	marks []string // asked for, not yet brought back
}

var _ capture.Resumer = (*Source)(nil)

// New returns a source that reads through views and leaves out what the lanes
// say. The configuration must be valid.
func New(cfg Config, views store.Viewer, lanes Lanes) *Source {
	return &Source{cfg: cfg, views: views, lanes: lanes, woken: make(chan struct{}, 1)}
}

// Open has nothing to find: every read shows what is there.
func (s *Source) Open(context.Context, store.Checkpoint, capture.Tables) (capture.OpenResult, error) {
	return capture.OpenResult{Origin: "poll"}, nil
}

// Run reads at once, then as often as the package's text says. A failed read ends
// it. It sends no positions, and its span means nothing.
func (s *Source) Run(ctx context.Context, _ capture.Span, out chan<- capture.Batch) error {
	s.resume.Reset("") // what is unsettled is read again; there is no place to resume at
	s.resume.Start(s, "")
	r := pollRun{Source: s, sender: sender{out: out, resume: &s.resume, inFlight: s.inFlight}}
	defer func() { s.inFlight = r.sender.inFlight }()
	now := time.Now()
	for i := range s.cfg.Outboxes {
		r.schedules = append(r.schedules, &schedule{outbox: s.cfg.Outboxes[i].Name, due: now})
	}
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.woken:
			r.wake(time.Now())
		case <-wait.C:
		}
		if err := r.read(ctx); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
		wait.Reset(r.untilNext(time.Now()))
	}
}

// pollRun is one run.
type pollRun struct {
	*Source
	sender
	schedules []*schedule
	connected bool
}

func (r *pollRun) wake(now time.Time) {
	for _, t := range r.schedules {
		t.wake(now)
	}
}

// untilNext is how long no outbox is to be asked for.
func (r *pollRun) untilNext(now time.Time) time.Duration {
	next := r.schedules[0].nextCheck(now)
	for _, t := range r.schedules[1:] {
		if at := t.nextCheck(now); at.Before(next) {
			next = at
		}
	}
	return next.Sub(now)
}

// read reads each outbox whose turn it is once, in one view, and sends what it
// found once the view is closed.
func (r *pollRun) read(ctx context.Context) error {
	asked := r.pendingMarks() // before the view, which shows what had committed by then
	if len(asked) > 0 {
		r.wake(time.Now())
	}
	turns := r.dueSchedules(time.Now())
	if len(turns) == 0 {
		return r.sendBarrierAfterRows(ctx)
	}
	if err := r.sendBarrier(ctx); err != nil {
		return err
	}
	found, full, err := r.readRows(ctx, turns)
	if err != nil {
		return err
	}
	for _, b := range found {
		if err := r.send(ctx, b); err != nil {
			return err
		}
	}
	if full || len(turns) < len(r.schedules) || len(asked) == 0 {
		return nil // markers come behind everything that was there
	}
	if err := r.send(ctx, capture.Batch{Marks: asked}); err != nil {
		return err
	}
	r.dropMarks(len(asked))
	return nil
}

// dueSchedules returns the outboxes to read now: their turn has come, and there is room
// for a batch of each, or for a part of one. So all that is sent is taken, and
// nothing waits on its way for rows that do not move. Those that had no room are
// asked first the next time, or what one has would never leave room for another.
func (r *pollRun) dueSchedules(now time.Time) (turns []*schedule) {
	coming := r.inFlightRows()
	var others []*schedule
	for _, t := range r.schedules {
		t.noRoom = false
		if t.isDue(now, r.lanes) {
			room := r.lanes.Room(t.outbox) - coming
			if room <= 0 {
				coming -= r.evict()
				room = r.lanes.Room(t.outbox) - coming
			}
			if room > 0 {
				turns = append(turns, t)
				coming += r.cfg.BatchSize
				continue
			}
			t.noRoom = true
		}
		others = append(others, t)
	}
	r.schedules = append(others, turns...)
	return turns
}

// evict lets go of rows in memory that do not move, and returns how many rows
// have come to the lanes meanwhile.
func (r *pollRun) evict() (landed int) {
	landed = r.dropLanded(r.lanes.Held)
	if r.inFlightRows() > 0 {
		return landed
	}
	for _, t := range r.schedules {
		r.lanes.Unload(t.outbox)
	}
	return landed
}

// readRows reads what no lane holds, and reports whether an outbox may have more. It
// keeps no view open while a full lane waits.
func (r *pollRun) readRows(ctx context.Context, turns []*schedule) (found []capture.Batch, full bool, err error) {
	view, err := r.views.View(ctx, "")
	if err != nil {
		return nil, false, err
	}
	defer view.Close()
	if !r.connected {
		r.connected = true
		r.Source.resume.Connected()
	}
	for _, t := range turns {
		began := time.Now()
		q := r.query(t)
		items, err := view.Unsettled(ctx, q)
		if err != nil {
			return nil, false, err
		}
		now := time.Now()
		t.recordRead(&r.cfg, len(items), q.MayHaveMore(items), now.Sub(began), now)
		full = full || q.MayHaveMore(items)
		if len(items) == 0 {
			continue
		}
		for i := range items {
			items[i].Captured = now
		}
		found = append(found, capture.Batch{Items: items})
	}
	return found, full, nil
}

// query asks for what an outbox may give now.
func (r *pollRun) query(t *schedule) store.UnsettledQuery {
	// The rows on their way first: they come to the lanes meanwhile.
	held := r.inFlightIDs(t.outbox)
	if len(held) == 0 {
		r.lanes.Unload(t.outbox)
	}
	t.excluded = r.lanes.ExcludedLanes(t.outbox)
	held = append(held, r.lanes.Held(t.outbox)...)
	q := r.cfg.Room.Query(t.outbox)
	q.Limit, q.MaxBytes = r.cfg.BatchSize, (q.MaxBytes+roomDivisor-1)/roomDivisor
	q.ExcludeIDs, q.ExcludeLanes = held, t.excluded
	return q
}

// Acknowledge does nothing: there is no log to give away.
func (s *Source) Acknowledge(store.Position) {}

// Retained returns zero: there is no log to keep.
func (s *Source) Retained(context.Context) (capture.RetainedLog, error) {
	return capture.RetainedLog{}, nil
}

// Mark asks for a marker behind what the next full reading finds, and wakes the
// source.
func (s *Source) Mark(_ context.Context, token string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks = append(s.marks, token)
	s.Wake()
	return nil
}

// Wake has all outboxes read at once, however long they had no rows.
func (s *Source) Wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// Compare finds all positions equal: there are none.
func (s *Source) Compare(_, _ store.Position) int { return 0 }

// Resume returns whether something was sent; a run begins anew each time.
func (s *Source) Resume() *capture.Resume { return &s.resume }

func (s *Source) pendingMarks() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.marks)
}

func (s *Source) dropMarks(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks = s.marks[n:]
}
