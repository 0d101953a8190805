package shadow

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// Stream is a log to watch. It holds sessions until Close.
type Stream interface {
	capture.Watcher
	Acknowledge(p store.Position)
	Close()
}

// Config configures a Shadow.
type Config struct {
	Outboxes []store.Outbox
	Limits   Limits
	// Interval is the time between two reports in the log.
	Interval time.Duration
	// Open returns a stream, without a connection.
	Open func() (Stream, error)
	// Passes reports whether an error may pass by itself.
	Passes func(error) bool
	Log    *slog.Logger
}

// Shadow watches the outboxes and compares. Its methods are safe for concurrent use.
type Shadow struct {
	cfg      Config
	mu       sync.Mutex
	comparer *Comparer
	since    time.Time
	gaps     int
	watching bool
	problem  string // why it does not watch
}

// New returns a shadow. It starts nothing.
// The error is a *store.SetupError about an outbox that cannot be judged.
func New(cfg Config) (*Shadow, error) {
	for i := range cfg.Outboxes {
		if o := &cfg.Outboxes[i]; o.Layout.LogOnly() {
			return nil, &store.SetupError{
				Problem: "shadow of outbox " + o.Name + ": the table has no state, so nothing shows what its processor did",
				Remedy:  "remove the outbox from the configuration of the shadow",
			}
		}
	}
	return &Shadow{cfg: cfg, comparer: NewComparer(cfg.Outboxes, cfg.Limits), problem: "the log is not open yet"}, nil
}

// Run watches until the context ends, and returns its error. After a lost log it goes on with the
// changes that commit from then on. It returns the error if a retry cannot help.
func (s *Shadow) Run(ctx context.Context) error {
	retry := backoff.Doubling{Min: 200 * time.Millisecond, Max: 5 * time.Second}
	for {
		err := s.watch(ctx, retry.Reset)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var setup *store.SetupError
		if errors.As(err, &setup) && !s.cfg.Passes(err) {
			return err
		}
		wait := retry.Next()
		s.lose(err, wait)
		if err := backoff.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// lose notes a lost log.
func (s *Shadow) lose(err error, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watching {
		s.gaps++
		s.comparer.Forget()
	}
	s.watching, s.problem = false, err.Error()
	s.cfg.Log.Warn("shadow lost the log; retrying", "error", err, "wait", wait)
}

// watch reads one stream until it ends.
func (s *Shadow) watch(ctx context.Context, begun func()) error {
	src, err := s.cfg.Open()
	if err != nil {
		return err
	}
	defer src.Close()
	batches := make(chan capture.Batch)
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error {
		defer close(batches)
		return src.Watch(ctx, batches, func() { begun(); s.begin() })
	})
	work.Go(func() error {
		s.compare(batches, src.Acknowledge)
		return nil
	})
	return work.Wait()
}

func (s *Shadow) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watching, s.problem = true, ""
	if s.since.IsZero() {
		s.since = time.Now()
	}
	s.cfg.Log.Info("shadow started", "interruptions", s.gaps)
}

// overdueInterval is how often overdue rows are looked for.
const overdueInterval = time.Second

// compare takes the batches of a stream.
func (s *Shadow) compare(batches <-chan capture.Batch, acknowledge func(store.Position)) {
	overdue := time.NewTicker(min(overdueInterval, max(time.Millisecond, s.cfg.Limits.StuckAfter/4)))
	defer overdue.Stop()
	report := time.NewTicker(s.cfg.Interval)
	defer report.Stop()
	for {
		select {
		case b, more := <-batches:
			if !more {
				return
			}
			s.mu.Lock()
			s.comparer.Apply(b.Changes)
			s.mu.Unlock()
			acknowledge(b.Position)
		case now := <-overdue.C:
			s.mu.Lock()
			s.comparer.Advance(now)
			s.mu.Unlock()
		case <-report.C:
			s.logInterval()
		}
	}
}

// logInterval logs the findings of an interval.
func (s *Shadow) logInterval() {
	s.mu.Lock()
	list, watching := s.comparer.Interval(), s.watching
	s.mu.Unlock()
	if !watching {
		return
	}
	for i := range list {
		o := &list[i]
		s.cfg.Log.Info("shadow interval", "outbox", o.Outbox, "seen", o.Seen, "delivered", o.Delivered, "failed", o.Failed, "open", o.Open,
			"captured_p99", seconds(o.Captured.P99), "taken_p99", seconds(o.TakenLatency.P99), "delivered_p99", seconds(o.DeliveredLatency.P99))
		if o.HasFindings() {
			s.cfg.Log.Warn("shadow findings", "outbox", o.Outbox, "out_of_order", o.OutOfOrder, "stuck", o.Stuck,
				"unreached", o.Unreached, "deleted", o.Deleted, "returned", o.Returned)
		}
	}
}

// Report returns what was found so far.
func (s *Shadow) Report() Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.comparer.Advance(time.Now())
	l := s.cfg.Limits
	return Report{
		Since: s.since, Until: time.Now(), Interruptions: s.gaps, Outboxes: s.comparer.Report(),
		StuckAfter: l.StuckAfter.Seconds(), LostAfter: l.LostAfter.Seconds(), MaxRows: l.MaxRows,
	}
}

// Watching reports whether the shadow follows the log, and otherwise why it does not.
func (s *Shadow) Watching() (problem string, watching bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem, s.watching
}
