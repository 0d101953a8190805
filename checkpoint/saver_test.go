package checkpoint

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// recorder records the calls of a saver, in order.
type recorder struct {
	mu    sync.Mutex
	lines []string
	fail  error         // error of the next save
	gate  chan struct{} // blocks a save, if set
}

func (j *recorder) SaveCheckpoint(_ context.Context, _ store.Epoch, cp store.Checkpoint) error {
	j.note("save " + string(cp.Position))
	if j.gate != nil {
		<-j.gate
	}
	j.mu.Lock()
	defer j.mu.Unlock()

	err := j.fail
	j.fail = nil
	return err
}

func (j *recorder) note(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *recorder) failNext(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.fail = err
}

func (j *recorder) Acknowledge(p store.Position) { j.note("ack " + string(p)) }
func (j *recorder) Saved(store.Checkpoint)       {}
func (j *recorder) SaveFailed(error)             { j.note("failed") }

func (j *recorder) expect(t *testing.T, want ...string) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()

	if !slices.Equal(j.lines, want) {
		t.Fatalf("calls are %q, want %q", j.lines, want)
	}
	j.lines = nil
}

// advance advances fake time and waits for everything that is due.
func advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// withSaver runs a test with a saver in fake time.
func withSaver(t *testing.T, test func(j *recorder, tr *Tracker, k *Saver)) {
	synctest.Test(t, func(t *testing.T) {
		j, tr := &recorder{}, NewTracker(store.Checkpoint{Position: "start"})
		test(j, tr, &Saver{
			Config: DefaultSaverConfig(), Tracker: tr, Store: j, Source: j, Epoch: 1, Observer: j,
		})
	})
}

// startSaver starts the saver. The returned function ends it and returns its error.
func startSaver(k *Saver) (end func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	return func() error { cancel(); return <-done }
}

func TestSaverSavesBeforeAcknowledging(t *testing.T) {
	withSaver(t, func(j *recorder, tr *Tracker, k *Saver) {
		end := startSaver(k)
		a, b := tr.Begin("a", 1, 1), tr.Begin("b", 2, 1)
		b.Done(1)
		advance(time.Second)
		j.expect(t)
		a.Done(1)
		advance(time.Second)
		j.expect(t, "save b", "ack b")
		if err := end(); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	})
}

func TestSaverAcknowledgesRowsSettledBeforeTheSave(t *testing.T) {
	withSaver(t, func(j *recorder, tr *Tracker, k *Saver) {
		j.gate = make(chan struct{})
		end := startSaver(k)
		a, b := tr.Begin("a", 1, 1), tr.Begin("b", 2, 1)
		a.Done(1)
		synctest.Wait() // the save of a is in flight
		b.Done(1)
		j.gate <- struct{}{}
		synctest.Wait()
		j.expect(t, "save a", "ack a")
		close(j.gate)
		advance(time.Second)
		j.expect(t, "save b", "ack b")
		_ = end()
	})
}

func TestSaverDoesNotAcknowledgeFailedSave(t *testing.T) {
	withSaver(t, func(j *recorder, tr *Tracker, k *Saver) {
		j.failNext(errors.New("disk full"))
		end := startSaver(k)
		tr.Begin("a", 1, 1).Done(1)
		synctest.Wait()
		j.expect(t, "save a", "failed")
		advance(time.Second)
		j.expect(t, "save a", "ack a")
		j.failNext(store.ErrNotLeader)
		tr.Begin("b", 2, 1).Done(1)
		advance(time.Second)
		j.expect(t, "save b")
		if err := end(); !errors.Is(err, store.ErrNotLeader) {
			t.Fatal(err)
		}
	})
}

func TestSaverWritesRarelyWithoutSettledRows(t *testing.T) {
	withSaver(t, func(j *recorder, tr *Tracker, k *Saver) {
		end := startSaver(k)
		tr.Begin("a", 1, 1).Done(1)
		advance(time.Second)
		j.expect(t, "save a", "ack a")
		tr.Begin("b", 1, 0)
		advance(time.Second)
		tr.Begin("c", 1, 0)
		advance(time.Second)
		j.expect(t)
		advance(k.Config.IdleSave - 2*time.Second)
		j.expect(t, "save c", "ack c")
		tr.Begin("d", 1, 0)
		advance(time.Second)
		tr.Begin("e", 2, 1).Done(1) // a row is saved without delay
		advance(time.Second)
		j.expect(t, "save e", "ack e")
		tr.Begin("f", 2, 0)
		advance(time.Second)
		_ = end()
		j.expect(t, "save f", "ack f")
	})
}

// TestSaverSavesAtOnceOnSaveNow: an idle outbox does not retain a log that grows
// fast.
func TestSaverSavesAtOnceOnSaveNow(t *testing.T) {
	withSaver(t, func(j *recorder, tr *Tracker, k *Saver) {
		urge := make(chan struct{})
		k.SaveNow = urge
		end := startSaver(k)
		tr.Begin("1", 1, 0)
		advance(time.Second)
		j.expect(t, "save 1", "ack 1")
		tr.Begin("2", 2, 0)
		advance(time.Second)
		j.expect(t)
		urge <- struct{}{}
		advance(time.Second)
		j.expect(t, "save 2", "ack 2")
		urge <- struct{}{}
		advance(time.Second)
		j.expect(t)
		_ = end()
	})
}

func TestSaverMakesLastRound(t *testing.T) {
	withSaver(t, func(j *recorder, tr *Tracker, k *Saver) {
		end := startSaver(k)
		tr.Begin("a", 1, 1).Done(1)
		advance(time.Second)
		tr.Begin("b", 2, 1).Done(1)
		synctest.Wait()
		j.expect(t, "save a", "ack a", "save b", "ack b")
		tr.Begin("c", 3, 1).Done(1) // within the interval after the last round
		synctest.Wait()
		j.expect(t)
		_ = end()
		j.expect(t, "save c", "ack c")
	})
}
