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

// journal records the calls of a saver, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
	fail  error         // error of the next save
	gate  chan struct{} // blocks a save, if set
}

func (j *journal) SaveCheckpoint(_ context.Context, _ store.Epoch, cp store.Checkpoint) error {
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

func (j *journal) note(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) failNext(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.fail = err
}

func (j *journal) Acknowledge(p store.Position) { j.note("ack " + string(p)) }
func (j *journal) Saved(store.Checkpoint)       {}
func (j *journal) SaveFailed(error)             { j.note("failed") }

func (j *journal) expect(t *testing.T, want ...string) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	if !slices.Equal(j.lines, want) {
		t.Fatalf("the keeper did %q, want %q", j.lines, want)
	}
	j.lines = nil
}

// pass advances fake time and waits for everything that is due.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// keep runs a test with a saver in fake time.
func keep(t *testing.T, test func(j *journal, tr *Tracker, k *CheckpointSaver)) {
	synctest.Test(t, func(t *testing.T) {
		j, tr := &journal{}, NewTracker(store.Checkpoint{Position: "start"})
		test(j, tr, &CheckpointSaver{
			Config: DefaultSaverConfig(), Tracker: tr, Store: j, Source: j, Epoch: 1, Observer: j,
		})
	})
}

// run starts the saver. The returned function ends it and returns its error.
func run(k *CheckpointSaver) (end func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	return func() error { cancel(); return <-done }
}

func TestKeeperSavesBeforeItAcknowledges(t *testing.T) {
	keep(t, func(j *journal, tr *Tracker, k *CheckpointSaver) {
		end := run(k)
		a, b := tr.Begin("a", 1, 1), tr.Begin("b", 2, 1)
		b.Done(1)
		pass(time.Second)
		j.expect(t)
		a.Done(1)
		pass(time.Second)
		j.expect(t, "save b", "ack b")
		if err := end(); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	})
}

func TestKeeperAcknowledgesOnlyWhatSettledBeforeTheSaveBegan(t *testing.T) {
	keep(t, func(j *journal, tr *Tracker, k *CheckpointSaver) {
		j.gate = make(chan struct{})
		end := run(k)
		a, b := tr.Begin("a", 1, 1), tr.Begin("b", 2, 1)
		a.Done(1)
		synctest.Wait() // the save of a is in flight
		b.Done(1)
		j.gate <- struct{}{}
		synctest.Wait()
		j.expect(t, "save a", "ack a")
		close(j.gate)
		pass(time.Second)
		j.expect(t, "save b", "ack b")
		_ = end()
	})
}

func TestKeeperAcknowledgesNothingThatItCouldNotSave(t *testing.T) {
	keep(t, func(j *journal, tr *Tracker, k *CheckpointSaver) {
		j.failNext(errors.New("disk full"))
		end := run(k)
		tr.Begin("a", 1, 1).Done(1)
		synctest.Wait()
		j.expect(t, "save a", "failed")
		pass(time.Second)
		j.expect(t, "save a", "ack a")
		j.failNext(store.ErrNotLeader)
		tr.Begin("b", 2, 1).Done(1)
		pass(time.Second)
		j.expect(t, "save b")
		if err := end(); !errors.Is(err, store.ErrNotLeader) {
			t.Fatal(err)
		}
	})
}

func TestKeeperWritesSeldomWhileOnlyPositionsMove(t *testing.T) {
	keep(t, func(j *journal, tr *Tracker, k *CheckpointSaver) {
		end := run(k)
		tr.Begin("a", 1, 1).Done(1)
		pass(time.Second)
		j.expect(t, "save a", "ack a")
		tr.Begin("b", 1, 0)
		pass(time.Second)
		tr.Begin("c", 1, 0)
		pass(time.Second)
		j.expect(t)
		pass(k.Config.IdleSave - 2*time.Second)
		j.expect(t, "save c", "ack c")
		tr.Begin("d", 1, 0)
		pass(time.Second)
		tr.Begin("e", 2, 1).Done(1) // a row is saved without delay
		pass(time.Second)
		j.expect(t, "save e", "ack e")
		tr.Begin("f", 2, 0)
		pass(time.Second)
		_ = end()
		j.expect(t, "save f", "ack f")
	})
}

// TestKeeperSavesAtOnceWhenItIsUrged: an idle outbox does not retain a log that grows
// fast.
func TestKeeperSavesAtOnceWhenItIsUrged(t *testing.T) {
	keep(t, func(j *journal, tr *Tracker, k *CheckpointSaver) {
		urge := make(chan struct{})
		k.SaveNow = urge
		end := run(k)
		tr.Begin("1", 1, 0)
		pass(time.Second)
		j.expect(t, "save 1", "ack 1")
		tr.Begin("2", 2, 0)
		pass(time.Second)
		j.expect(t)
		urge <- struct{}{}
		pass(time.Second)
		j.expect(t, "save 2", "ack 2")
		urge <- struct{}{}
		pass(time.Second)
		j.expect(t)
		_ = end()
	})
}

func TestKeeperMakesALastRound(t *testing.T) {
	keep(t, func(j *journal, tr *Tracker, k *CheckpointSaver) {
		end := run(k)
		tr.Begin("a", 1, 1).Done(1)
		pass(time.Second)
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
