package capturetest

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// reader follows a source and records its batches. It receives only inside until, so the
// source is paused between calls. It is for one goroutine.
type reader struct {
	t    *testing.T
	src  Source
	from store.Position
	out  chan capture.Batch
	stop context.CancelFunc
	done chan error

	bounded bool // the database limits its log

	batches []capture.Batch
	ids     []string // in order of arrival
	marks   []string
	last    store.Position

	mu        sync.Mutex
	held      []string
	connected int
	lost      []error
	lostOnce  chan struct{} // holds a signal after a lost connection
}

func newReader(t *testing.T, src Source) *reader {
	return &reader{t: t, src: src, out: make(chan capture.Batch), done: make(chan error, 1), lostOnce: make(chan struct{}, 1)}
}

// follow opens a source at a checkpoint and follows it.
func follow(t *testing.T, db Database, at store.Checkpoint) (*reader, capture.OpenResult) {
	t.Helper()
	r := newReader(t, nil)
	r.src = db.Source(t, Options{Outbox: outbox, BatchRows: batchRows, Held: r.hold})
	o := open(t, r.src, db, at)
	r.start(o.From)
	return r, o
}

func (r *reader) start(from store.Position) {
	ctx, cancel := context.WithCancel(context.Background())
	r.stop, r.from, r.last = cancel, from, from
	go func() { r.done <- capture.Follow(ctx, r.src, from, r.out, r) }()
	r.t.Cleanup(r.close)
}

// Connected implements capture.Observer.
func (r *reader) Connected() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connected++
}

// Disconnected implements capture.Observer.
func (r *reader) Disconnected(err error, _ time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = append(r.lost, err)
	select {
	case r.lostOnce <- struct{}{}:
	default:
	}
}

// loses waits, without receiving, until the source has lost its connection.
func (r *reader) loses() {
	r.t.Helper()
	select {
	case <-r.lostOnce:
	case <-time.After(waitTimeout):
		r.t.Fatal("the source did not notice that its connection was closed")
	}
}

func (r *reader) losses() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lost)
}

func (r *reader) hold(string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.held)
}

// close ends the source and checks its error. It may be called again.
func (r *reader) close() {
	r.t.Helper()
	if r.stop == nil {
		return
	}
	r.stop()
	r.stop = nil
	select {
	case err := <-r.done:
		if !errors.Is(err, context.Canceled) {
			r.t.Errorf("Follow ended with %v, want the context's error", err)
		}
	case <-time.After(waitTimeout):
		r.t.Errorf("Follow has not ended %s after its context", waitTimeout)
	}
	r.src.Close()
}

// until receives batches until the condition holds.
func (r *reader) until(what string, holds func() bool) {
	r.t.Helper()
	timeout := time.NewTimer(waitTimeout)
	defer timeout.Stop()
	for !holds() {
		select {
		case b := <-r.out:
			r.take(b)
		case err := <-r.done:
			r.stop = nil
			r.src.Close()
			r.t.Fatalf("waiting for %s: Follow ended with %v", what, err)
		case <-timeout.C:
			r.t.Fatalf("waiting for %s: not there after %s; %d rows received, connections lost: %v", what, waitTimeout, len(r.ids), r.losses())
		}
	}
}

// ends receives until the source ends by itself, closes it, and returns its error.
func (r *reader) ends() error {
	r.t.Helper()
	timeout := time.NewTimer(waitTimeout)
	defer timeout.Stop()
	for {
		select {
		case b := <-r.out:
			r.take(b)
		case err := <-r.done:
			r.stop()
			r.stop = nil
			r.src.Close()
			return err
		case <-timeout.C:
			r.t.Fatalf("the source has not ended after %s; %d rows received, connections lost: %v", waitTimeout, len(r.ids), r.losses())
		}
	}
}

// rows receives until n rows have arrived.
func (r *reader) rows(n int) {
	r.t.Helper()
	r.until("rows", func() bool { return len(r.ids) >= n })
}

func (r *reader) take(b capture.Batch) {
	r.t.Helper()
	if b.Position != "" {
		if r.src.Compare(b.Position, r.last) <= 0 {
			r.t.Errorf("position %s came after %s", b.Position, r.last)
		}
		if r.src.Compare(r.last, b.Position) >= 0 || r.src.Compare(b.Position, b.Position) != 0 {
			r.t.Errorf("Compare contradicts itself on %s and %s", r.last, b.Position)
		}
		r.last = b.Position
	}

	r.batches = append(r.batches, b)
	r.marks = append(r.marks, b.Marks...)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range b.Items {
		it := &b.Items[i]
		if it.Outbox != outbox || it.PayloadSize != len(it.Payload) && (it.Payload != nil || r.src.Resume().MaxPayload == 0) || it.Captured.IsZero() {
			r.t.Errorf("row %s is incomplete: %+v", it.ID, it)
		}
		r.ids = append(r.ids, it.ID)
		r.held = append(r.held, it.ID)
	}
}

// expect checks that exactly these rows were received, in this order.
func (r *reader) expect(want []string) {
	r.t.Helper()
	sameOrder(r.t, r.ids, want)
}

func sameOrder(t *testing.T, got, want []string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			t.Fatalf("got %d rows, want %d; the first missing row is %s", len(got), len(want), want[i])
		case i >= len(want):
			t.Fatalf("got %d rows, want %d; the first unexpected row is %s", len(got), len(want), got[i])
		case got[i] != want[i]:
			t.Fatalf("row %d is %s, want %s", i, got[i], want[i])
		}
	}
}

// expectAny checks that exactly these rows were received, in any order.
func (r *reader) expectAny(want []string) {
	r.t.Helper()
	sameOrder(r.t, slices.Sorted(slices.Values(r.ids)), slices.Sorted(slices.Values(want)))
}

// HeldFunc implements poll.Lanes with a function that returns the held ids. Such lanes exclude
// nothing and have unlimited room. A nil HeldFunc holds nothing.
type HeldFunc func(outbox string) []string

// Held implements poll.Lanes.
func (f HeldFunc) Held(outbox string) []string {
	if f == nil {
		return nil
	}
	return f(outbox)
}

// ExcludedLanes implements poll.Lanes.
func (HeldFunc) ExcludedLanes(string) []store.LaneKey { return nil }

// Unload implements poll.Lanes.
func (HeldFunc) Unload(string) {}

// Room implements poll.Lanes.
func (HeldFunc) Room(string) int { return math.MaxInt }
