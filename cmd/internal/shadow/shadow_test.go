package shadow

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is a stream that sends batches, and then ends with an error, or at the end of the context
// without one.
type script struct {
	batches []capture.Batch
	err     error
	acked   *atomic.Value
}

func (s *script) Watch(ctx context.Context, out chan<- capture.Batch, begun func()) error {
	if len(s.batches) > 0 {
		begun()
	}
	for _, b := range s.batches {
		select {
		case out <- b:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if s.err != nil {
		return s.err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (s *script) Acknowledge(p store.Position) { s.acked.Store(p) }

func (s *script) Close() {}

func changeOf(kind capture.ChangeKind, id string, status store.Status, txn store.Txn) capture.Batch {
	now := time.Now()
	return capture.Batch{Position: store.Position(id), Changes: []capture.Change{{
		Kind: kind, ID: id, Status: status, Txn: txn, Committed: now, Captured: now, Lane: store.LaneKey{Outbox: "box"},
	}}}
}

// newScripted returns a shadow that reads one stream after another.
func newScripted(t *testing.T, logged *strings.Builder, streams ...*script) (*Shadow, *atomic.Value) {
	t.Helper()
	var acked atomic.Value
	s, err := New(Config{
		Outboxes: []store.Outbox{{Name: "box", Layout: store.FlowCatalyst()}}, Interval: time.Hour,
		Limits: Limits{StuckAfter: 50 * time.Millisecond, LostAfter: time.Hour, MaxRows: 10},
		Passes: func(err error) bool { return strings.Contains(err.Error(), "passes") },
		Log:    slog.New(slog.NewTextHandler(logged, nil)),
		Open: func() (Stream, error) {
			next := streams[0]
			streams = streams[1:]
			next.acked = &acked
			return next, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, &acked
}

// await waits until a report is as wanted.
func await(t *testing.T, s *Shadow, is func(r *Report) bool) *Report {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		if r := s.Report(); is(&r) {
			return &r
		} else if time.Now().After(end) {
			t.Fatalf("the report is %+v", r)
		}
		time.Sleep(time.Millisecond)
	}
}

// A lost log costs the rows that were unfinished, and a stuck row is found while nothing arrives.
func TestShadowInterrupted(t *testing.T) {
	var logged strings.Builder
	s, acked := newScripted(t, &logged,
		&script{err: &store.SetupError{Problem: "passes"}},
		&script{batches: []capture.Batch{changeOf(capture.Inserted, "a", store.Pending, 1)}, err: errors.New("lost")},
		&script{batches: []capture.Batch{
			changeOf(capture.Updated, "a", store.Completed, 2), changeOf(capture.Inserted, "b", store.Pending, 3), changeOf(capture.Updated, "b", store.Processing, 4),
		}},
	)
	if problem, watching := s.Watching(); watching || problem == "" {
		t.Errorf("before its start it says %q", problem)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	r := await(t, s, func(r *Report) bool { return r.Outboxes[0].StuckNow == 1 })
	if o := &r.Outboxes[0]; r.Interruptions != 1 || o.Seen != 2 || o.Forgotten != 1 || o.Unknown != 1 || o.Open != 1 || o.Delivered != 0 {
		t.Errorf("the report is %+v", r)
	}
	if p := acked.Load(); p != store.Position("b") {
		t.Errorf("acknowledged up to %v", p)
	}
	if problem, watching := s.Watching(); !watching {
		t.Errorf("it does not watch: %s", problem)
	}
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	for _, want := range []string{`"shadow started" interruptions=0`, `"shadow started" interruptions=1`, `"shadow lost the log; retrying" error=lost`} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, logged.String())
		}
	}
}

func TestShadowEndsWithASetupError(t *testing.T) {
	setup := &store.SetupError{Problem: "no grant"}
	s, _ := newScripted(t, &strings.Builder{}, &script{err: setup})
	if err := s.Run(t.Context()); err != error(setup) {
		t.Errorf("it ended with %v", err)
	}
	if text := (&Report{}).Text(); !strings.Contains(text, "never open") {
		t.Errorf("the report says %q", text)
	}
}

func TestShadowRefusesATableWithoutAState(t *testing.T) {
	_, err := New(Config{Outboxes: []store.Outbox{{Name: "events", Layout: store.Layout{State: store.StateNone}}}})
	var setup *store.SetupError
	if !errors.As(err, &setup) || !strings.Contains(setup.Problem, "outbox events") || setup.Remedy == "" {
		t.Errorf("New returned %v", err)
	}
}
