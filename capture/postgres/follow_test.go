package postgres_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/postgres"
	"github.com/sluicebox/sluicebox/store"
)

// following is a source run by Follow.
type following struct {
	t    *testing.T
	src  *postgres.Source
	o    capture.OpenResult
	out  chan capture.Batch
	done chan error
	stop context.CancelFunc

	ids []string // of the view and the log
	mu  sync.Mutex
	why []error // errors of lost connections
}

// Connected implements capture.Observer.
func (f *following) Connected() {}

// Disconnected implements capture.Observer.
func (f *following) Disconnected(err error, _ time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.why = append(f.why, err)
}

func (f *following) disconnects() []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.why)
}

// follow opens a source, reads its view, and follows it.
func follow(t *testing.T, d *database, cfg postgres.Config, at store.Checkpoint) *following {
	t.Helper()
	f := &following{t: t, src: newSource(t, cfg), out: make(chan capture.Batch), done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	f.stop = cancel
	o, err := f.src.Open(ctx, at, d.tables())
	if err != nil {
		f.src.Close()
		t.Fatal(err)
	}
	if f.o = o; o.View != nil {
		items, err := o.View.Unsettled(ctx, store.UnsettledQuery{Outbox: "shop", Limit: 1 << 20})
		if err != nil {
			t.Error(err)
		}
		o.View.Close()
		for i := range items {
			f.ids = append(f.ids, items[i].ID)
		}
	}
	go func() { f.done <- capture.Follow(ctx, f.src, o.From, f.out, f) }()
	t.Cleanup(func() {
		cancel()
		if f.done != nil {
			if err := <-f.done; !errors.Is(err, context.Canceled) {
				t.Errorf("the source ended with %v", err)
			}
		}
		f.src.Close()
	})
	return f
}

func (f *following) take(b capture.Batch) {
	for i := range b.Items {
		f.ids = append(f.ids, b.Items[i].ID)
	}
}

// next receives the next batch with rows.
func (f *following) next() capture.Batch {
	f.t.Helper()
	timeout := time.After(testTimeout)
	for {
		select {
		case b := <-f.out:
			if f.take(b); len(b.Items) > 0 {
				return b
			}
		case err := <-f.done:
			f.done = nil
			f.t.Fatalf("the source ended with %v", err)
		case <-timeout:
			f.t.Fatalf("no batch arrived; connections lost: %v", f.disconnects())
		}
	}
}

// expect receives until exactly these rows have arrived, in any order.
func (f *following) expect(want ...string) {
	f.t.Helper()
	timeout := time.After(testTimeout)
	for len(f.ids) < len(want) {
		select {
		case b := <-f.out:
			f.take(b)
		case err := <-f.done:
			f.done = nil
			f.t.Fatalf("the source ended with %v", err)
		case <-timeout:
			f.t.Fatalf("got rows %q, want %q; connections lost: %v", f.ids, want, f.disconnects())
		}
	}
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(f.ids)); !slices.Equal(got, want) {
		f.t.Fatalf("got rows %q, want %q", got, want)
	}
}

// waitForEnd receives until the source ends by itself.
func (f *following) waitForEnd() error {
	f.t.Helper()
	timeout := time.After(2 * testTimeout)
	for {
		select {
		case b := <-f.out:
			f.take(b)
		case err := <-f.done:
			f.done = nil
			f.src.Close()
			return err
		case <-timeout:
			f.t.Fatalf("the source did not end; connections lost: %v", f.disconnects())
		}
	}
}

// expectLost expects a lost log.
func (f *following) expectLost(parts ...string) {
	f.t.Helper()
	err := f.waitForEnd()
	var lost *capture.LostError
	if !errors.As(err, &lost) {
		f.t.Fatalf("the source ended with %v, want a *capture.LostError", err)
	}
	f.t.Log(err)
	expectText(f.t, err, parts...)
}

// expectNoStream expects an error with a remedy for an operator.
func (f *following) expectNoStream(parts ...string) {
	f.t.Helper()
	err := f.waitForEnd()
	var no *capture.NoStreamError
	if !errors.As(err, &no) {
		f.t.Fatalf("the source ended with %v, want a *capture.NoStreamError", err)
	}
	f.t.Log(err)
	expectText(f.t, err, parts...)
}
