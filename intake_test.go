package sluicebox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// intakeFixture is an intake of epoch 7 for the outboxes "events" and "jobs". Their dispatchers
// do not run, so appended rows stay in their lanes.
type intakeFixture struct {
	*intake
	events, jobs *dispatch.Dispatcher
	tracker      *checkpoint.Tracker
	observed     map[string]int
}

func newIntakeFixture(cfg dispatch.Config) *intakeFixture {
	k, freed := newFakeBackend(), make(chan struct{}, 1)
	f := &intakeFixture{
		events: dispatch.New(cfg, k.options(7, false, freed)), jobs: dispatch.New(cfg, k.options(7, false, freed)),
		tracker: checkpoint.NewTracker(store.Checkpoint{}), observed: map[string]int{},
	}
	f.intake = newIntake(f.tracker, 7, map[string]*dispatch.Dispatcher{"events": f.events, "jobs": f.jobs}, freed,
		func(outbox string, rows int) { f.observed[outbox] += rows })
	return f
}

// take runs the intake over batches and returns once all were taken.
func (f *intakeFixture) take(batches ...capture.Batch) error {
	in := make(chan capture.Batch, len(batches))
	for _, b := range batches {
		in <- b
	}
	close(in)
	return f.run(context.Background(), in)
}

// of returns rows of an outbox, all of one group.
func of(outbox string, ids ...string) []store.Item { return rowsOf(outbox, "g", ids...) }

// seqsOf returns the seq counters of rows. The intake numbers the rows of a batch in place.
func seqsOf(t *testing.T, rows []store.Item) (seqs []int64) {
	t.Helper()
	for i := range rows {
		if rows[i].Seq.Epoch() != 7 {
			t.Errorf("row %s has a seq of epoch %d", rows[i].ID, rows[i].Seq.Epoch())
		}
		seqs = append(seqs, int64(rows[i].Seq-store.NewSeq(7, 0)))
	}
	return seqs
}

// expectLanes compares the rows in the only lane of each dispatcher.
func (f *intakeFixture) expectLanes(t *testing.T, events, jobs string) {
	t.Helper()
	expectEqual(t, "rows of events", strings.Join(f.Held("events"), " "), events)
	expectEqual(t, "rows of jobs", strings.Join(f.Held("jobs"), " "), jobs)
}

func TestMixedBatchIsRoutedByOutbox(t *testing.T) {
	f := newIntakeFixture(dispatch.DefaultConfig())
	mixed := slices.Concat(of("events", "1", "2"), of("jobs", "3"), of("events", "4"))
	err := f.take(
		capture.Batch{Position: "p1", Items: mixed},
		capture.Batch{Position: "p2", Items: of("jobs", "5")},
	)
	if err != nil {
		t.Fatal(err)
	}
	f.expectLanes(t, "1 2 4", "3 5")
	expectEqual(t, "seqs", seqsOf(t, mixed), "[1 2 3 4]")
	expectEqual(t, "observed", f.observed, "map[events:3 jobs:2]")
}

func TestBacklogGoesInFront(t *testing.T) {
	f := newIntakeFixture(dispatch.DefaultConfig())
	backlog, fresh := slices.Concat(of("events", "1"), of("jobs", "9"), of("events", "2")), of("events", "3", "4")
	if err := f.placeBacklog(t.Context(), backlog, 5, "p0"); err != nil {
		t.Fatal(err)
	}
	if err := f.take(capture.Batch{Position: "p1", Items: fresh}); err != nil {
		t.Fatal(err)
	}
	f.expectLanes(t, "1 2 3 4", "9")
	expectEqual(t, "seqs", seqsOf(t, slices.Concat(backlog, fresh)), "[6 7 8 9 10]")
}

func TestRowWithoutSinkIsAnError(t *testing.T) {
	f := newIntakeFixture(dispatch.DefaultConfig())
	for name, err := range map[string]error{
		"stream":  f.take(capture.Batch{Position: "p1", Items: slices.Concat(of("events", "1"), of("mails", "2"))}),
		"backlog": f.placeBacklog(t.Context(), of("mails", "2"), 0, "p1"),
	} {
		if err == nil || !strings.Contains(err.Error(), "row 2 of outbox mails: no sink") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPositionFollowsSettledRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newIntakeFixture(dispatch.DefaultConfig())
		at := func(position store.Position, n int64) {
			t.Helper()
			cp, _ := f.tracker.Watermark()
			expectEqual(t, "checkpoint", cp, store.Checkpoint{Position: position, Seq: store.NewSeq(7, n)})
		}
		if err := f.take(capture.Batch{Position: "p1"}); err != nil {
			t.Fatal(err)
		}
		at("p1", 0)
		err := f.take(
			capture.Batch{Items: of("events", "1")}, // its transaction goes on
			capture.Batch{Position: "p2", Items: of("events", "2")},
			capture.Batch{Position: "p3"},
		)
		if err != nil {
			t.Fatal(err)
		}
		at("p1", 0)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- f.events.Run(ctx) }()
		advance(time.Second)
		at("p3", 2)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// fill sends batches of one row until the intake takes no more, and returns how many it took.
func fill(in chan<- capture.Batch, outbox string, most int) int {
	for n := range most {
		synctest.Wait()
		select {
		case in <- capture.Batch{Items: of(outbox, fmt.Sprint(outbox, n))}:
		default:
			return n
		}
	}
	return most
}

func TestFullBuffersPauseIntake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := dispatch.DefaultConfig()
		cfg.BufferRows = 3
		f := newIntakeFixture(cfg)
		ctx, cancel := context.WithCancel(context.Background())
		in := make(chan capture.Batch)
		done := make(chan error, 1)
		go func() { done <- f.run(ctx, in) }()
		expectEqual(t, "rows taken for one sink while the other has room", fill(in, "jobs", 1000), 3*maxBufferFactor)
		expectEqual(t, "rows taken for the other", fill(in, "events", 1000), 0)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		cfg := dispatch.DefaultConfig()
		cfg.BufferRows = 3
		f := newIntakeFixture(cfg)
		in := make(chan capture.Batch)
		end := runParts(t, func(ctx context.Context) error { return f.run(ctx, in) })
		expectEqual(t, "rows taken for one", fill(in, "jobs", 5), 5)
		expectEqual(t, "rows taken for the other", fill(in, "events", 1000), 3)
		end()
	})
}

func TestIntakeResumesWithRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := dispatch.DefaultConfig()
		cfg.BufferRows = 1
		f := newIntakeFixture(cfg)
		in := make(chan capture.Batch)
		endIntake := runParts(t, func(ctx context.Context) error { return f.run(ctx, in) })
		fill(in, "jobs", 1)
		expectEqual(t, "rows taken", fill(in, "events", 1000), 1)
		endDispatch := runParts(t, f.events.Run)
		advance(time.Second)
		for range 3 {
			expectEqual(t, "more rows", fill(in, "events", 10), 1)
			advance(time.Second)
		}
		endIntake()
		endDispatch()
	})
}

// A marker is reported after the rows that committed before it, with the position up to
// which all rows are in lanes. The same holds during a catch-up.
func TestMarkerFollowsRowsOfItsBatch(t *testing.T) {
	for _, look := range []store.StatusReader{nil, &fakeStatuses{}} {
		f := newIntakeFixture(dispatch.DefaultConfig())
		if look != nil {
			f.beginCatchUp(look)
		}
		var reported []string
		f.onMarker = func(token string, at store.Position, seq store.Seq) {
			events, jobs := strings.Join(f.Held("events"), " "), strings.Join(f.Held("jobs"), " ")
			reported = append(reported, fmt.Sprintf("%s at %s, %d of %d: %s, %s", token, at, seq-store.NewSeq(7, 0), seq.Epoch(), events, jobs))
		}
		err := f.take(
			capture.Batch{Position: "p1", Marks: []string{"a"}},
			capture.Batch{Items: of("events", "1")}, // its transaction goes on
			capture.Batch{Position: "p2", Items: slices.Concat(of("events", "2"), of("jobs", "3")), Marks: []string{"b", "c"}},
			capture.Batch{Position: "p3", Items: of("events", "4")},
			capture.Batch{Marks: []string{"d"}}, // of a source without a log
		)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"a at p1, 0 of 7: , ", "b at p2, 3 of 7: 1 2, 3", "c at p2, 3 of 7: 1 2, 3", "d at , 4 of 7: 1 2 4, 3"}
		expectEqual(t, "markers", strings.Join(reported, "; "), strings.Join(want, "; "))
	}
}
