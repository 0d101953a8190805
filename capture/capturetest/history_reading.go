package capturetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// reading reads a range of the log.
type reading struct {
	t     *testing.T
	db    Database
	at    capture.StartPoint
	until store.Position
	items []store.Item

	src  Source
	out  chan capture.Batch
	done chan error
	stop context.CancelFunc
}

func newReading(t *testing.T, db Database, at capture.StartPoint, until store.Position) *reading {
	return &reading{t: t, db: db, at: at, until: until}
}

// begin starts another source where the last one ended.
func (r *reading) begin() {
	r.t.Helper()
	r.src = r.db.Source(r.t, Options{Outbox: outbox, BatchRows: batchRows})
	history, ok := r.src.(capture.HistoryReader)
	if !ok {
		r.t.Fatalf("%T is not a capture.HistoryReader", r.src)
	}
	ctx, cancel := context.WithCancel(context.Background())
	at, out, done := r.at, make(chan capture.Batch), make(chan error, 1)
	r.stop, r.out, r.done = cancel, out, done
	go func() { done <- history.ReadRange(ctx, at, r.until, out) }()
	r.t.Cleanup(r.cancel)
}

// cancel ends the source, if there is one.
func (r *reading) cancel() {
	if r.src == nil {
		return
	}
	r.stop()
	if err := <-r.done; err != nil && !errors.Is(err, context.Canceled) {
		r.t.Errorf("it was cancelled, and ended with %v", err)
	}
	r.src.Close()
	r.src = nil
}

// next receives until a batch with rows arrives. ended reports that the source ended
// instead.
func (r *reading) next() (ended bool, err error) {
	r.t.Helper()
	timeout := time.After(waitTimeout)
	for {
		select {
		case b := <-r.out:
			r.take(b)
			if len(b.Items) > 0 {
				return false, nil
			}
		case err := <-r.done:
			r.stop()
			r.src.Close()
			r.src = nil
			return true, err
		case <-timeout:
			r.t.Fatalf("nothing received; %d rows before", len(r.items))
		}
	}
}

func (r *reading) take(b capture.Batch) {
	if len(b.Items) > 0 && b.Position == "" && r.at.Position == "" {
		r.t.Error("a part of a transaction arrived without a position before it")
	}
	r.items = append(r.items, b.Items...)
	r.at.Skip += len(b.Items)
	if b.Position != "" {
		r.at.Position, r.at.Skip = b.Position, 0
	}
}

// rest receives until the source has ended, and returns its error.
func (r *reading) rest() error {
	r.t.Helper()
	for {
		if ended, err := r.next(); ended {
			return err
		}
	}
}

// expectRest receives the rest and checks that exactly these rows were received.
func (r *reading) expectRest(want []string) {
	r.t.Helper()
	if err := r.rest(); err != nil {
		r.t.Fatalf("range read up to %d rows: %v", len(r.items), err)
	}
	var ids []string
	for i := range r.items {
		ids = append(ids, r.items[i].ID)
	}
	sameOrder(r.t, ids, want)
}
