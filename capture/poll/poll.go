package poll

import (
	"context"
	"errors"
	"fmt"
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
	Outboxes  []store.Outbox
}

// Validate reports every value that is out of range, by its configuration key.
func (c *Config) Validate() error {
	var errs []error
	if c.Interval <= 0 {
		errs = append(errs, fmt.Errorf("poll-interval is %s, must be above 0", c.Interval))
	}
	if c.BatchSize < 1 {
		errs = append(errs, fmt.Errorf("poll-batch-size is %d, must be at least 1", c.BatchSize))
	}
	if len(c.Outboxes) == 0 {
		errs = append(errs, errors.New("outboxes: none is configured"))
	}
	return errors.Join(errs...)
}

// Source reads tables.
type Source struct {
	cfg    Config
	views  store.Viewer
	held   func(outbox string) []string
	resume capture.Resume
	way    []load // on the way to the lanes, also after a read that failed

	mu    sync.Mutex
	marks []string // asked for, not yet brought back
}

var _ capture.Resumer = (*Source)(nil)

// New returns a source that reads through views. held returns the ids that the
// lanes of an outbox hold. The configuration must be valid.
func New(cfg Config, views store.Viewer, held func(outbox string) []string) *Source {
	return &Source{cfg: cfg, views: views, held: held}
}

// Open has nothing to find: every read shows what is there.
func (s *Source) Open(context.Context, store.Checkpoint, capture.Tables) (capture.Opening, error) {
	return capture.Opening{Origin: "poll"}, nil
}

// Run reads at once, then each interval, and at once again after a full batch. A
// failed read ends it. It sends no positions, and its span means nothing.
func (s *Source) Run(ctx context.Context, _ capture.Span, out chan<- capture.Batch) error {
	s.resume.Reset("") // what is unsettled is read again; there is no place to resume at
	s.resume.Start(s, "")
	r := reading{Source: s, sender: sender{out: out, resume: &s.resume, way: s.way}}
	defer func() { s.way = r.sender.way }()
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-wait.C:
		}
		full, err := r.read(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		if full {
			wait.Reset(0)
		} else {
			wait.Reset(s.cfg.Interval)
		}
	}
}

// reading is one run.
type reading struct {
	*Source
	sender
	connected bool
}

// read reads each outbox once, in one view, sends what it found once the view is
// closed, and reports whether an outbox may hold more.
func (r *reading) read(ctx context.Context) (full bool, err error) {
	if err := r.settle(ctx); err != nil {
		return false, err
	}
	asked := r.asked() // before the view, which shows what had committed by then
	found, full, err := r.find(ctx)
	if err != nil {
		return false, err
	}
	for _, b := range found {
		if err := r.send(ctx, b); err != nil {
			return false, err
		}
	}
	if full || len(asked) == 0 {
		return full, nil // markers come behind everything that was there
	}
	if err := r.send(ctx, capture.Batch{Marks: asked}); err != nil {
		return false, err
	}
	r.brought(len(asked))
	return false, nil
}

// find reads what no lane holds. It keeps no view open while a full lane waits.
func (r *reading) find(ctx context.Context) (found []capture.Batch, full bool, err error) {
	view, err := r.views.View(ctx, "")
	if err != nil {
		return nil, false, err
	}
	defer view.Close()
	if !r.connected {
		r.connected = true
		r.Source.resume.Connected()
	}
	for i := range r.cfg.Outboxes {
		name := r.cfg.Outboxes[i].Name
		// The rows on their way first: they come to the lanes meanwhile.
		held := r.onTheWay(name)
		held = append(held, r.held(name)...)
		items, err := view.Unsettled(ctx, store.Unsettled{Outbox: name, Limit: r.cfg.BatchSize, Held: held})
		if err != nil {
			return nil, false, err
		}
		full = full || len(items) == r.cfg.BatchSize
		if len(items) == 0 {
			continue
		}
		now := time.Now()
		for i := range items {
			items[i].Captured = now
		}
		found = append(found, capture.Batch{Items: items})
	}
	return found, full, nil
}

// Acknowledge does nothing: there is no log to give away.
func (s *Source) Acknowledge(store.Position) {}

// Mark asks for a marker behind what the next full reading finds.
func (s *Source) Mark(_ context.Context, token string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks = append(s.marks, token)
	return nil
}

// Compare finds all positions equal: there are none.
func (s *Source) Compare(_, _ store.Position) int { return 0 }

// Resume returns whether something was sent; a run begins anew each time.
func (s *Source) Resume() *capture.Resume { return &s.resume }

func (s *Source) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.marks)
}

func (s *Source) brought(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks = s.marks[n:]
}
