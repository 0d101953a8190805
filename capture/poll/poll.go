package poll

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// Config configures a source.
type Config struct {
	// Interval is the time between two reads that found less than a full batch.
	Interval time.Duration
	// BatchSize is the maximum number of rows of an outbox in one read.
	BatchSize int
	// Backoff stretches the interval of an outbox without rows.
	Backoff  Backoff
	Outboxes []store.Outbox
	// Room is the buffer space of the lanes. A payload above its share of the bytes stays in
	// its table, and one read takes only a small part of the bytes. The zero value is no
	// limit.
	Room store.ReadLimit
}

// roomDivisor is the part of the buffer's bytes that one read may fill (1/16). It is small
// because several reads are in flight.
const roomDivisor = 16

// Backoff stretches the interval of an outbox while its reads find nothing. The tags are the
// keys of the program's configuration file.
type Backoff struct {
	Threshold  int           `yaml:"threshold" doc:"The number of consecutive empty polls before the backoff starts."`
	Multiplier int           `yaml:"multiplier" doc:"The factor by which each further empty poll extends the interval. 1: no backoff."`
	Max        time.Duration `yaml:"max" doc:"The longest time between two polls, unless poll-interval is longer."`
}

// DefaultBackoff returns a backoff that begins after ten empty reads and doubles the
// interval up to 30 s.
func DefaultBackoff() Backoff {
	return Backoff{Threshold: 10, Multiplier: 2, Max: 30 * time.Second}
}

// Validate reports every value that is out of range, with its configuration key.
func (c *Config) Validate() error {
	var bad store.FieldErrors
	if c.Interval <= 0 {
		bad.Add("poll-interval", "is %s, must be above 0", c.Interval)
	}
	if c.BatchSize < 1 {
		bad.Add("poll-batch-size", "is %d, must be at least 1", c.BatchSize)
	}
	if c.Backoff.Threshold < 1 {
		bad.Add("poll-backoff.threshold", "is %d, must be at least 1", c.Backoff.Threshold)
	}
	if c.Backoff.Multiplier < 1 {
		bad.Add("poll-backoff.multiplier", "is %d, must be at least 1 (1 disables backoff)", c.Backoff.Multiplier)
	}
	if c.Backoff.Max <= 0 {
		bad.Add("poll-backoff.max", "is %s, must be above 0", c.Backoff.Max)
	}
	if len(c.Outboxes) == 0 {
		bad.Add("outboxes", "has no entry")
	}
	return bad.Err()
}

// Lanes is the source's view of the lanes that receive its rows. Its answers may be outdated
// as soon as they are returned.
type Lanes interface {
	// Held returns the ids of an outbox that lanes hold.
	Held(outbox string) []string
	// ExcludedLanes returns the lanes of an outbox whose rows must not be read now. The
	// source calls it before Held. A row that Held then returns for a lane not excluded is
	// the first of its lane.
	ExcludedLanes(outbox string) []store.LaneKey
	// Unload evicts the rows of lanes that do not move, so that Held does not return them.
	// The source calls it only while no row of the outbox is in flight.
	Unload(outbox string)
	// Room returns the number of rows of an outbox that the buffer has space for.
	Room(outbox string) int
}

// Source polls tables.
type Source struct {
	cfg      Config
	views    store.Viewer
	lanes    Lanes
	resume   capture.Resume
	inFlight []sentBatch // sent, but perhaps not yet held by the lanes; kept after a failed read
	woken    chan struct{}

	mu    sync.Mutex
	marks []string // requested, not yet sent
}

var _ capture.Resumer = (*Source)(nil)

// New returns a source that reads through views and excludes the rows that lanes reports.
// The configuration must be valid.
func New(cfg Config, views store.Viewer, lanes Lanes) *Source {
	return &Source{cfg: cfg, views: views, lanes: lanes, woken: make(chan struct{}, 1)}
}

// Open finds no log, and every read shows the present rows. The error is a *store.SetupError if
// a table does not show which of its rows are to be sent.
func (s *Source) Open(context.Context, store.Checkpoint, capture.Tables) (capture.OpenResult, error) {
	if err := Check(s.cfg.Outboxes); err != nil {
		return capture.OpenResult{}, err
	}
	return capture.OpenResult{Origin: "poll"}, nil
}

// ShowsUnsettled reports whether the tables show which of their rows are to be sent. Then a relay
// may change between the log and polling.
func ShowsUnsettled(outboxes []store.Outbox) bool {
	return !slices.ContainsFunc(outboxes, func(o store.Outbox) bool { return !o.Layout.ShowsUnsettled() })
}

// Check returns a *store.SetupError if polling cannot find the rows of an outbox.
func Check(outboxes []store.Outbox) error {
	if ReadsByPosition(outboxes) {
		return nil
	}
	for i := range outboxes {
		o := &outboxes[i]
		if o.MessagePrefix != "" {
			return &store.SetupError{
				Problem: fmt.Sprintf("outbox %s: messages with the prefix %s are in the log alone, and polling reads tables", o.Name, o.MessagePrefix),
				Remedy:  "let the relay read the log: source.mode: stream; `sluicebox doctor` says what is missing",
			}
		}
		if o.Layout.ReadsByPosition() {
			return &store.SetupError{
				Problem: fmt.Sprintf("outbox %s: a table that is polled by position needs a relay of its own", o.Name),
				Remedy:  "move the other outboxes to a relay with another name, or let the relay read the log: source.mode: stream",
			}
		}
		if !o.Layout.ShowsUnsettled() {
			return &store.SetupError{
				Problem: fmt.Sprintf("outbox %s: polling needs a state of the rows, and layout %s has none", o.Name, o.Layout.Name),
				Remedy:  "let the relay read the log (source.mode: stream; `sluicebox doctor` says what is missing), set delete-delivered, or on PostgreSQL name the column of the transaction in columns.transaction",
			}
		}
	}
	return nil
}

// Run reads at once, then on the schedule in the package documentation. A failed read ends
// it. It sends no positions and ignores its span.
func (s *Source) Run(ctx context.Context, _ capture.Span, out chan<- capture.Batch) error {
	if err := s.resume.RefuseSeparate("tables"); err != nil {
		return err
	}
	s.resume.Reset("") // unsettled rows are read again; there is no position to resume at
	s.resume.Start(s, "")
	r := pollRun{Source: s, sender: sender{out: out, resume: &s.resume, inFlight: s.inFlight}}
	defer func() { s.inFlight = r.sender.inFlight }()
	now := time.Now()
	for i := range s.cfg.Outboxes {
		r.schedules = append(r.schedules, &schedule{outbox: &s.cfg.Outboxes[i], due: now})
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

// pollRun is the state of one run.
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

// untilNext returns the time until an outbox is due.
func (r *pollRun) untilNext(now time.Time) time.Duration {
	next := r.schedules[0].nextCheck(now)
	for _, t := range r.schedules[1:] {
		if at := t.nextCheck(now); at.Before(next) {
			next = at
		}
	}
	return next.Sub(now)
}

// read reads each due outbox once, in one view, and sends the rows after closing the view.
func (r *pollRun) read(ctx context.Context) error {
	requested := r.pendingMarks() // before opening the view, which shows everything committed by then
	if len(requested) > 0 {
		r.wake(time.Now())
	}

	due := r.dueSchedules(time.Now())
	if len(due) == 0 {
		return r.sendBarrierAfterRows(ctx)
	}
	if err := r.sendBarrier(ctx); err != nil {
		return err
	}

	found, full, err := r.readRows(ctx, due)
	if err != nil {
		return err
	}

	for _, b := range found {
		if err := r.send(ctx, b); err != nil {
			return err
		}
	}
	if full || len(due) < len(r.schedules) || len(requested) == 0 {
		return nil // a marker must come after every row that was there
	}
	if err := r.send(ctx, capture.Batch{Marks: requested}); err != nil {
		return err
	}

	r.dropMarks(len(requested))
	return nil
}

// dueSchedules returns the outboxes to read now: they are due, and the buffer has space for
// at least a part of a batch of each. So the lanes accept everything that is sent, and
// nothing is stuck in flight behind lanes that do not move. Outboxes without space go first
// the next time, so that one outbox cannot starve another.
func (r *pollRun) dueSchedules(now time.Time) (due []*schedule) {
	inFlight := r.inFlightRows()
	var others []*schedule
	for _, t := range r.schedules {
		t.noRoom = false
		if t.isDue(now, r.lanes) {
			room := r.lanes.Room(t.outbox.Name) - inFlight
			if room <= 0 {
				inFlight -= r.evict()
				room = r.lanes.Room(t.outbox.Name) - inFlight
			}
			if room > 0 {
				due = append(due, t)
				inFlight += r.cfg.BatchSize
				continue
			}
			t.noRoom = true
		}
		others = append(others, t)
	}

	r.schedules = append(others, due...)
	return due
}

// evict unloads rows of lanes that do not move. It returns the number of rows that arrived
// in their lanes meanwhile.
func (r *pollRun) evict() (landed int) {
	landed = r.dropLanded(r.lanes.Held)
	if r.inFlightRows() > 0 {
		return landed
	}
	for _, t := range r.schedules {
		r.lanes.Unload(t.outbox.Name)
	}
	return landed
}

// readRows reads the rows that no lane holds, and reports whether an outbox may have more.
// It closes the view before rows are sent, so that a full lane keeps no view open.
func (r *pollRun) readRows(ctx context.Context, due []*schedule) (found []capture.Batch, full bool, err error) {
	view, err := r.views.View(ctx, "")
	if err != nil {
		return nil, false, err
	}
	defer view.Close()
	if !r.connected {
		r.connected = true
		r.Source.resume.Connected()
	}

	for _, t := range due {
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

// query builds the query for the rows that an outbox may send now.
func (r *pollRun) query(t *schedule) store.UnsettledQuery {
	// In-flight ids first: the rows may reach the lanes while Held is computed.
	held := r.inFlightIDs(t.outbox.Name)
	if len(held) == 0 {
		r.lanes.Unload(t.outbox.Name)
	}
	t.excluded = r.lanes.ExcludedLanes(t.outbox.Name)
	held = append(held, r.lanes.Held(t.outbox.Name)...)
	q := r.cfg.Room.Query(t.outbox)
	q.Limit, q.MaxBytes = r.cfg.BatchSize, (q.MaxBytes+roomDivisor-1)/roomDivisor
	q.ExcludeIDs, q.ExcludeLanes = held, t.excluded
	return q
}

// Acknowledge does nothing: there is no log.
func (s *Source) Acknowledge(store.Position) {}

// Retained returns zero: there is no log.
func (s *Source) Retained(context.Context) (capture.RetainedLog, error) {
	return capture.RetainedLog{}, nil
}

// Mark requests a marker after the rows of the next full read, and wakes the source.
func (s *Source) Mark(_ context.Context, token string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks = append(s.marks, token)
	s.Wake()
	return nil
}

// Wake makes all outboxes due at once and resets their backoff.
func (s *Source) Wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// Compare returns 0: there are no positions.
func (s *Source) Compare(_, _ store.Position) int { return 0 }

// Resume returns the source's Resume. It only records whether something was sent, because
// each run starts over.
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
