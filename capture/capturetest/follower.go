package capturetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// followTimeout bounds every wait of a Follower, on a machine that is busy with other tests.
const followTimeout = 2 * time.Minute

// Follower follows a source and collects its batches, for tests of one source. It receives
// only inside its methods, so the source is paused between calls. It is for one goroutine.
type Follower struct {
	// Items are the rows received so far.
	Items []store.Item
	// Marks are the markers received so far.
	Marks []string
	// Position is the last position received.
	Position store.Position

	t    *testing.T
	out  chan capture.Batch
	stop context.CancelFunc
	done chan struct{} // closed when the source has ended
	err  error         // the error it ended with
	lost []error
}

// FollowFrom follows an opened source until End or the end of the test.
func FollowFrom(t *testing.T, src capture.Resumer, from store.Position) *Follower {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f := &Follower{t: t, out: make(chan capture.Batch), stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		f.err = capture.Follow(ctx, src, from, f.out, followed{f})
	}()
	t.Cleanup(f.End)
	return f
}

// followed is the observer of a Follower. Follow calls it on its own goroutine.
type followed struct{ *Follower }

// Connected implements capture.Observer.
func (followed) Connected() {}

// Disconnected implements capture.Observer.
func (f followed) Disconnected(err error, _ time.Duration) { f.lost = append(f.lost, err) }

// End ends the source. It may be called again, and after the source has ended.
func (f *Follower) End() {
	f.stop()
	<-f.done
}

// Batches returns the channel of the source, for a test that inspects each batch.
func (f *Follower) Batches() <-chan capture.Batch { return f.out }

// Done is closed when the source has ended.
func (f *Follower) Done() <-chan struct{} { return f.done }

// Err returns the error that the source ended with.
func (f *Follower) Err() error { return f.err }

// Disconnects returns the errors of the lost connections, once the source has ended.
func (f *Follower) Disconnects() []error { return f.lost }

// Rows receives until n rows have arrived.
func (f *Follower) Rows(n int) {
	f.t.Helper()
	f.Until(fmt.Sprintf("%d rows", n), func() bool { return len(f.Items) >= n })
}

// Until receives until a condition holds.
func (f *Follower) Until(what string, holds func() bool) {
	f.t.Helper()
	timeout := time.NewTimer(followTimeout)
	defer timeout.Stop()
	for !holds() {
		select {
		case b := <-f.out:
			f.take(b)
		case <-f.done:
			f.t.Fatalf("waiting for %s: the source ended: %v", what, f.err)
		case <-timeout.C:
			f.t.Fatalf("waiting for %s: %d rows received", what, len(f.Items))
		}
	}
}

func (f *Follower) take(b capture.Batch) {
	f.Items = append(f.Items, b.Items...)
	f.Marks = append(f.Marks, b.Marks...)
	if b.Position != "" {
		f.Position = b.Position
	}
}

// WaitEnd receives until the source ends by itself, and returns its error.
func (f *Follower) WaitEnd() error {
	f.t.Helper()
	timeout := time.NewTimer(followTimeout)
	defer timeout.Stop()
	for {
		select {
		case b := <-f.out:
			f.take(b)
		case <-f.done:
			return f.err
		case <-timeout.C:
			f.t.Fatal("the source does not end")
		}
	}
}

// IDs returns the ids of the received rows.
func (f *Follower) IDs() (ids []string) {
	for i := range f.Items {
		ids = append(ids, f.Items[i].ID)
	}
	return ids
}

// Expect checks that exactly these rows were received, in this order.
func (f *Follower) Expect(ids ...string) {
	f.t.Helper()
	if got := f.IDs(); strings.Join(got, " ") != strings.Join(ids, " ") {
		f.t.Errorf("got rows %q, want %q", got, ids)
	}
}

// ReadRange reads a part of a log with a source, which it closes, and returns the ids of the
// rows. take, if not nil, is called with each batch before the next one is received.
func ReadRange(t *testing.T, src capture.HistoryReader, at capture.StartPoint, until store.Position, take func(capture.Batch)) (ids []string, err error) {
	t.Helper()
	defer src.(Source).Close()
	ctx, cancel := context.WithTimeout(t.Context(), followTimeout)
	defer cancel()
	out, done := make(chan capture.Batch), make(chan error, 1)
	go func() { done <- src.ReadRange(ctx, at, until, out) }()
	for {
		select {
		case b := <-out:
			for i := range b.Items {
				ids = append(ids, b.Items[i].ID)
			}
			if take != nil {
				take(b)
			}
		case err := <-done:
			return ids, err
		}
	}
}
