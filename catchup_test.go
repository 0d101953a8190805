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
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// fakeStatuses is a store that reports rows as settled if their id begins with s.
type fakeStatuses struct {
	batchSizes   []int         // rows per call
	latency      time.Duration // per call
	claimsDetect bool          // claims detect settled rows too
	err          error
}

func (k *fakeStatuses) ReadSettled(_ context.Context, rows []store.ClaimRow) ([]bool, error) {
	k.batchSizes = append(k.batchSizes, len(rows))
	<-time.After(k.latency)
	settled := make([]bool, len(rows))
	for i := range rows {
		settled[i] = strings.HasPrefix(rows[i].ID, "s")
	}
	return settled, k.err
}

// runCatchUp runs an intake that catches up until the marker "here".
func runCatchUp(t *testing.T, k *fakeStatuses, test func(f *intakeFixture, in chan<- capture.Batch)) {
	synctest.Test(t, func(t *testing.T) {
		f := newIntakeFixture(dispatch.DefaultConfig())
		f.beginCatchUp(k)
		f.claimsDetectSettled = k.claimsDetect
		f.onMarker = func(token string, _ store.Position, _ store.Seq) {
			if token == "here" {
				f.endCatchUp()
			}
		}
		in, done := make(chan capture.Batch), make(chan error, 1)
		ctx, cancel := context.WithCancel(context.Background())
		go func() { done <- f.run(ctx, in) }()
		test(f, in)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestCatchUpDropsSettledRows(t *testing.T) {
	k := &fakeStatuses{}
	runCatchUp(t, k, func(f *intakeFixture, in chan<- capture.Batch) {
		first, second, last := slices.Concat(of("events", "s1", "2", "s3"), of("jobs", "s4")), of("events", "5"), of("events", "s7")
		in <- capture.Batch{Position: "p1", Items: first}
		in <- capture.Batch{Position: "p2", Items: second}
		in <- capture.Batch{Marks: []string{"there"}}
		in <- capture.Batch{Position: "p3", Items: of("events", "s6"), Marks: []string{"here"}}
		synctest.Wait()
		in <- capture.Batch{Position: "p4", Items: last}
		synctest.Wait()
		f.expectLanes(t, "2 5 s7", "")
		expectEqual(t, "seqs", seqsOf(t, slices.Concat(first[:1], second, last)), "[1 2 3]") // in place, without settled rows
		expectEqual(t, "observed", f.observed, "map[events:3]")
		cp, _ := f.tracker.Watermark()
		expectEqual(t, "checkpoint", cp.Position, "")
	})
}

// Each batch has 100 rows. A settled row makes the intake check all rows that follow again.
func TestCatchUpChecksFewerRowsAfterUnsettledOnes(t *testing.T) {
	const rows = 100
	bring := func(f *intakeFixture, in chan<- capture.Batch, prefix string, batches int) {
		for b := range batches {
			items := make([]store.Item, 0, rows)
			for i := range rows {
				items = append(items, of("events", fmt.Sprintf("%s-%d-%d", prefix, b, i))...)
			}
			in <- capture.Batch{Position: "p", Items: items}
			synctest.Wait()
		}
	}
	for _, tell := range []bool{true, false} {
		k := &fakeStatuses{claimsDetect: tell}
		runCatchUp(t, k, func(f *intakeFixture, in chan<- capture.Batch) {
			bring(f, in, "u", 16)
			want := 16
			if tell {
				want = 4 // 1, 3, 7 and 15 batches in between are not checked
			}
			expectEqual(t, "looks among rows that are not settled", len(k.batchSizes), want)
			bring(f, in, "s", 16) // two of them are still unchecked
			bring(f, in, "s", 16)
			looked := len(k.batchSizes)
			bring(f, in, "s", 4)
			expectEqual(t, "looks among rows that are settled", len(k.batchSizes)-looked, 4)
		})
	}
}

func TestSettledTransactionMovesCheckpoint(t *testing.T) {
	runCatchUp(t, &fakeStatuses{}, func(f *intakeFixture, in chan<- capture.Batch) {
		in <- capture.Batch{Items: of("events", "s1")} // its transaction goes on
		in <- capture.Batch{Position: "p1", Items: of("events", "s2")}
		synctest.Wait()
		cp, _ := f.tracker.Watermark()
		expectEqual(t, "checkpoint", cp.Position, "p1")
	})
}

func TestCatchUpCoalescesBatches(t *testing.T) {
	k := &fakeStatuses{latency: time.Second}
	runCatchUp(t, k, func(_ *intakeFixture, in chan<- capture.Batch) {
		for i := range 5000 {
			if i == 1 {
				synctest.Wait() // the first status read is in flight
			}
			in <- capture.Batch{Items: of("events", fmt.Sprint("s", i))}
		}
		advance(10 * time.Second)
		expectEqual(t, "rows of each call", k.batchSizes, "[1 2000 2000 999]")
	})
}

func TestCatchUpLeavesSettledRowsToClaimsOnError(t *testing.T) {
	runCatchUp(t, &fakeStatuses{err: errors.New("away")}, func(f *intakeFixture, in chan<- capture.Batch) {
		in <- capture.Batch{Position: "p1", Items: of("events", "s1", "2")}
		synctest.Wait()
		f.expectLanes(t, "s1 2", "")
		expectEqual(t, "bytes", f.events.Stats().Bytes, 0) // a claim that reads a payload checks its row
	})
}

func TestSourceEndsDuringCatchUp(t *testing.T) {
	f := newIntakeFixture(dispatch.DefaultConfig())
	f.beginCatchUp(&fakeStatuses{})
	if err := f.take(capture.Batch{Position: "p1", Items: of("events", "1")}, capture.Batch{Position: "p2", Items: of("events", "2")}); err != nil {
		t.Fatal(err)
	}
	f.expectLanes(t, "1 2", "")
}
