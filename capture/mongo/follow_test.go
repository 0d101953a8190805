package mongo_test

import (
	"context"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/mongo"
	"github.com/sluicebox/sluicebox/store"
)

// opening opens a source and closes the view that it may return. The test's end closes the
// source.
func (d *database) opening(t *testing.T, cfg mongo.Config, at store.Checkpoint) (*mongo.Source, capture.OpenResult) {
	t.Helper()
	src := newSource(t, cfg)
	t.Cleanup(src.Close)
	o, err := src.Open(t.Context(), at, d.tables())
	if err != nil {
		t.Fatal(err)
	}
	if o.View != nil {
		o.View.Close()
	}
	return src, o
}

// follow opens a source and follows it until the test ends.
func (d *database) follow(t *testing.T, cfg mongo.Config, at store.Checkpoint) (*capturetest.Follower, *mongo.Source, capture.OpenResult) {
	t.Helper()
	src, o := d.opening(t, cfg, at)
	return capturetest.FollowFrom(t, src, o.From), src, o
}

// upToMark writes a marker, runs a source from a position until the marker comes back, and
// returns the batches.
func upToMark(t testing.TB, src *mongo.Source, from store.Position) (batches []capture.Batch) {
	t.Helper()
	if err := src.Mark(t.Context(), "end"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, done := make(chan capture.Batch), make(chan error, 1)
	go func() { done <- src.Run(ctx, capture.Span{From: from}, out) }()
	for marked := false; !marked; {
		select {
		case b := <-out:
			batches = append(batches, b)
			marked = len(b.Marks) > 0
		case err := <-done:
			t.Fatal(err)
		}
	}
	cancel()
	drain(done)
	return batches
}

// drain waits for the end of a cancelled run.
func drain(done <-chan error) {
	err := <-done
	_ = err
}

func itemsOf(batches []capture.Batch) (items []store.Item) {
	for _, b := range batches {
		items = append(items, b.Items...)
	}
	return items
}
