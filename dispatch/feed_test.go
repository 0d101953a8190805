package dispatch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/store"
)

// feedFixture is a feed of epoch 7 for the outboxes "events" and "jobs". Their dispatchers
// do not run, so appended rows stay in their lanes.
type feedFixture struct {
	*Feed
	events, jobs *Dispatcher
	tracker      *checkpoint.Tracker
	observed     map[string]int
}

func newFeedFixture(cfg Config) *feedFixture {
	k := newFakeBackend()
	f := &feedFixture{
		events: New(cfg, k, k, 7, k, time.Second), jobs: New(cfg, k, k, 7, k, time.Second),
		tracker: checkpoint.NewTracker(store.Checkpoint{}), observed: map[string]int{},
	}
	f.Feed = NewFeed(f.tracker, 7, map[string]*Dispatcher{"events": f.events, "jobs": f.jobs},
		func(outbox string, rows int) { f.observed[outbox] += rows })
	return f
}

// run feeds batches and returns once all were taken.
func (f *feedFixture) run(batches ...capture.Batch) error {
	in := make(chan capture.Batch, len(batches))
	for _, b := range batches {
		in <- b
	}
	close(in)
	return f.Run(context.Background(), in)
}

// of returns rows of an outbox, all of one group.
func of(outbox string, ids ...string) []store.Item {
	rows := items("g", ids...)
	for i := range rows {
		rows[i].Outbox = outbox
	}
	return rows
}

func concatRows(parts ...[]store.Item) (rows []store.Item) {
	for _, p := range parts {
		rows = append(rows, p...)
	}
	return rows
}

// laneOf returns the ids and the seq counters of the rows in a dispatcher's only lane.
func laneOf(t *testing.T, d *Dispatcher) (ids string, seqs []int64) {
	t.Helper()
	var all []string
	for _, l := range d.core.lanes {
		for _, rw := range l.rows {
			all = append(all, rw.ID)
			if rw.Seq.Epoch() != 7 {
				t.Errorf("row %s has a seq of epoch %d", rw.ID, rw.Seq.Epoch())
			}
			seqs = append(seqs, int64(rw.Seq-store.NewSeq(7, 0)))
		}
	}
	return strings.Join(all, " "), seqs
}

func (f *feedFixture) expect(t *testing.T, d *Dispatcher, ids string, seqs ...int64) {
	t.Helper()
	gotIDs, gotSeqs := laneOf(t, d)
	newFakeBackend().expect(t, "rows", gotIDs, ids)
	newFakeBackend().expect(t, "seqs", gotSeqs, seqs)
}

func TestMixedBatchIsRoutedByOutbox(t *testing.T) {
	f := newFeedFixture(DefaultConfig())
	err := f.run(
		capture.Batch{Position: "p1", Items: concatRows(of("events", "1", "2"), of("jobs", "3"), of("events", "4"))},
		capture.Batch{Position: "p2", Items: of("jobs", "5")},
	)
	if err != nil {
		t.Fatal(err)
	}
	f.expect(t, f.events, "1 2 4", 1, 2, 4)
	f.expect(t, f.jobs, "3 5", 3, 5)
	newFakeBackend().expect(t, "observed", f.observed, "map[events:3 jobs:2]")
}

func TestBacklogGoesInFront(t *testing.T) {
	f := newFeedFixture(DefaultConfig())
	if err := f.Backlog(concatRows(of("events", "1"), of("jobs", "9"), of("events", "2")), 5, "p0"); err != nil {
		t.Fatal(err)
	}
	if err := f.run(capture.Batch{Position: "p1", Items: of("events", "3", "4")}); err != nil {
		t.Fatal(err)
	}
	f.expect(t, f.jobs, "9", 7)
	f.expect(t, f.events, "1 2 3 4", 6, 8, 9, 10)
}

func TestRowWithoutSinkIsAnError(t *testing.T) {
	f := newFeedFixture(DefaultConfig())
	for name, err := range map[string]error{
		"stream":  f.run(capture.Batch{Position: "p1", Items: concatRows(of("events", "1"), of("mails", "2"))}),
		"backlog": f.Backlog(of("mails", "2"), 0, "p1"),
	} {
		if err == nil || !strings.Contains(err.Error(), "row 2 of outbox mails: no sink") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPositionFollowsSettledRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeedFixture(DefaultConfig())
		at := func(position store.Position, n int64) {
			t.Helper()
			cp, _ := f.tracker.Watermark()
			newFakeBackend().expect(t, "checkpoint", cp, store.Checkpoint{Position: position, Seq: store.NewSeq(7, n)})
		}
		if err := f.run(capture.Batch{Position: "p1"}); err != nil {
			t.Fatal(err)
		}
		at("p1", 0)
		err := f.run(
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

// waitEnded waits for a feed that the test has ended.
func waitEnded(t *testing.T, done <-chan error) {
	t.Helper()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// fill sends batches of one row until the feed takes no more, and returns how many it took.
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

func TestFullBuffersPauseFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.BufferRows = 3
		f := newFeedFixture(cfg)
		ctx, cancel := context.WithCancel(context.Background())
		in := make(chan capture.Batch)
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx, in) }()
		newFakeBackend().expect(t, "rows taken for one sink while the other has room", fill(in, "jobs", 1000), 3*maxBufferFactor)
		newFakeBackend().expect(t, "rows taken for the other", fill(in, "events", 1000), 0)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.BufferRows = 3
		f := newFeedFixture(cfg)
		ctx, cancel := context.WithCancel(context.Background())
		in := make(chan capture.Batch)
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx, in) }()
		newFakeBackend().expect(t, "rows taken for one", fill(in, "jobs", 5), 5)
		newFakeBackend().expect(t, "rows taken for the other", fill(in, "events", 1000), 3)
		cancel()
		waitEnded(t, done)
	})
}

func TestFeedResumesWithRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.BufferRows = 1
		f := newFeedFixture(cfg)
		ctx, cancel := context.WithCancel(context.Background())
		in := make(chan capture.Batch)
		done := make(chan error, 2)
		go func() { done <- f.Run(ctx, in) }()
		fill(in, "jobs", 1)
		newFakeBackend().expect(t, "rows taken", fill(in, "events", 1000), 1)
		go func() { done <- f.events.Run(ctx) }()
		advance(time.Second)
		for range 3 {
			newFakeBackend().expect(t, "more rows", fill(in, "events", 10), 1)
			advance(time.Second)
		}
		cancel()
		waitEnded(t, done)
		waitEnded(t, done)
	})
}

// A marker is reported after the rows that committed before it, with the position up to
// which all rows are in lanes. The same holds during a catch-up.
func TestMarkerFollowsRowsOfItsBatch(t *testing.T) {
	for _, look := range []store.StatusReader{nil, &fakeStatuses{}} {
		f := newFeedFixture(DefaultConfig())
		if look != nil {
			f.BeginCatchUp(look)
		}
		var reported []string
		f.OnMarker = func(token string, at store.Position, seq store.Seq) {
			events, _ := laneOf(t, f.events)
			jobs, _ := laneOf(t, f.jobs)
			reported = append(reported, fmt.Sprintf("%s at %s, %d of %d: %s, %s", token, at, seq-store.NewSeq(7, 0), seq.Epoch(), events, jobs))
		}
		err := f.run(
			capture.Batch{Position: "p1", Marks: []string{"a"}},
			capture.Batch{Items: of("events", "1")}, // its transaction goes on
			capture.Batch{Position: "p2", Items: concatRows(of("events", "2"), of("jobs", "3")), Marks: []string{"b", "c"}},
			capture.Batch{Position: "p3", Items: of("events", "4")},
			capture.Batch{Marks: []string{"d"}}, // of a source without a log
		)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"a at p1, 0 of 7: , ", "b at p2, 3 of 7: 1 2, 3", "c at p2, 3 of 7: 1 2, 3", "d at , 4 of 7: 1 2 4, 3"}
		newFakeBackend().expect(t, "markers", strings.Join(reported, "; "), strings.Join(want, "; "))
	}
}
