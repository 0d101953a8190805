package replay_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/store"
)

// findCheckpoint returns the current state of a checkpoint, nil if there is none.
func (l *testRelay) findCheckpoint(name string) *store.Savepoint {
	l.t.Helper()
	list, err := l.store.Savepoints(l.ctx())
	if err != nil {
		l.t.Fatal(err)
	}
	if i := slices.IndexFunc(list, func(n store.Savepoint) bool { return n.Name == name }); i >= 0 {
		return &list[i]
	}
	return nil
}

// deleteCheckpoint requests the deletion of a checkpoint and waits for it.
func (l *testRelay) deleteCheckpoint(name string) {
	l.t.Helper()
	if err := l.store.RequestSavepointDeletion(l.ctx(), name); err != nil {
		l.t.Fatal(err)
	}

	l.notify()
	eventually(l.t, func() string {
		if l.findCheckpoint(name) != nil {
			return "the end of checkpoint " + name
		}
		return ""
	})
}

// openRetainer returns a SlotRetainer of the test's own.
func openRetainer(t *testing.T, h testDB) replay.SlotRetainer {
	t.Helper()
	retainer, err := h.retainer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(retainer.Close)
	return retainer
}

// wantRetained waits until log is retained for exactly these names.
func wantRetained(t *testing.T, retainer capture.SlotRetainer, names ...string) {
	t.Helper()
	eventually(t, func() string {
		list, err := retainer.RetainedSlots(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var are []string
		for _, one := range list {
			are = append(are, one.Name)
		}
		if slices.Equal(are, names) {
			return ""
		}
		return "that log is kept for " + strings.Join(names, ", ") + ", not " + strings.Join(are, ", ")
	})
}

// TestNamesThatSlotsLack: a checkpoint whose name does not fit a slot name retains its log
// through a change of leaders, and releases it when it is deleted.
func TestNamesThatSlotsLack(t *testing.T) {
	t.Parallel()
	h, to := postgres(t), newReceiver()
	l := startRelay(t, h, to)
	names := []string{"before-two", "cp_x", strings.Repeat("z", 63)}
	for _, name := range names {
		if n := l.createCheckpoint(name, true); n.State != store.SavepointRetained {
			t.Errorf("got checkpoint %+v", n)
		}
	}
	l.end()
	l = startRelay(t, h, to)
	l.createCheckpoint("plain", true) // the controller has checked the retained logs
	for _, name := range names {
		if n := l.findCheckpoint(name); n.State != store.SavepointRetained {
			t.Errorf("after a change of leader: got checkpoint %+v", n)
		}
		l.deleteCheckpoint(name)
	}
	wantRetained(t, openRetainer(t, h), "plain")
}

// pausedLog is a log that brings no marker while it is not read.
type pausedLog struct {
	replay.LiveSource
	hold atomic.Bool
}

func (h *pausedLog) Mark(ctx context.Context, token string) error {
	if h.hold.Load() {
		return nil
	}
	return h.LiveSource.Mark(ctx, token)
}

// TestCheckpointWaitsForCapture: while the log is not read, a requested
// checkpoint waits and reports it. Others are deleted meanwhile.
func TestCheckpointWaitsForCapture(t *testing.T) {
	t.Parallel()
	h, log := postgres(t), &pausedLog{}
	l := startRelay(t, h, newReceiver(), func(d *replay.Controller) {
		log.LiveSource, d.Log.LiveSource = d.Log.LiveSource, log
		d.SetMarkerTimeout(3 * time.Second)
	})

	l.createCheckpoint("here", true)
	log.hold.Store(true)
	if err := l.store.RequestSavepoint(l.ctx(), "later", true); err != nil {
		t.Fatal(err)
	}

	l.notify()
	eventually(t, func() string {
		if n := l.findCheckpoint("later"); n.State != store.SavepointRequested || !strings.Contains(n.Reason, "waiting for capture") {
			return "what it waits for: " + n.Reason
		}
		return ""
	})

	l.deleteCheckpoint("here")
	log.hold.Store(false)
	eventually(t, func() string {
		if n := l.findCheckpoint("later"); n.State != store.SavepointRetained || n.Reason != "" || n.Position == "" {
			return "the checkpoint: " + string(n.State) + n.Reason
		}
		return ""
	})

	wantRetained(t, openRetainer(t, h), "later")
}

// TestOrphanedLogIsReleased: an orphaned log is released at the start of a session,
// even one that polls, and whenever the Controller checks the logs of other
// checkpoints.
func TestOrphanedLogIsReleased(t *testing.T) {
	t.Parallel()
	h := postgres(t)
	l := startRelay(t, h, newReceiver())
	l.createCheckpoint("first", true) // the relay's own slot exists
	l.deleteCheckpoint("first")
	l.end()
	retainer := openRetainer(t, h)
	keep := func(name string) {
		t.Helper()
		if _, err := retainer.RetainLog(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}

	keep("stray")
	l = startRelay(t, h, newReceiver())
	wantRetained(t, retainer)
	l.createCheckpoint("here", true)
	keep("another")
	l.notify()
	wantRetained(t, retainer, "here")
	l.deleteCheckpoint("here")
	l.end()

	if err := l.store.RequestSavepoint(t.Context(), "wanted", true); err != nil {
		t.Fatal(err)
	}

	keep("wanted")
	l = startRelay(t, h, newReceiver(), func(d *replay.Controller) { d.Log = nil })
	wantRetained(t, retainer)
	if n := l.findCheckpoint("wanted"); n.State != store.SavepointRefused {
		t.Errorf("got checkpoint %+v", n)
	}
}

// TestRelayWithoutRetainer: a relay that retains no log need not be able to list it.
func TestRelayWithoutRetainer(t *testing.T) {
	t.Parallel()
	failed := make(chan error, 1)
	l := startRelay(t, postgres(t), newReceiver(), func(d *replay.Controller) {
		d.OpenRetainer = func() (replay.SlotRetainer, error) { return nil, errors.New("no log here") }
		d.Observer = errorObserver{d.Observer, failed}
	})

	l.createCheckpoint("one", false)
	l.createCheckpoint("two", false) // the round of the first one is over
	select {
	case err := <-failed:
		t.Error(err)
	default:
	}
}

// errorObserver forwards the first failure.
type errorObserver struct {
	replay.Observer
	first chan<- error
}

func (f errorObserver) ControllerFailed(err error) {
	select {
	case f.first <- err:
	default:
	}
}

// failingRetainer is a SlotRetainer that fails for one name, as if another program
// read its slot.
type failingRetainer struct {
	replay.SlotRetainer
	name string
}

func (s failingRetainer) RetainLog(ctx context.Context, name string) (string, error) {
	if name == s.name {
		return "", errors.New("the slot is active")
	}
	return s.SlotRetainer.RetainLog(ctx, name)
}

func (s failingRetainer) ReleaseLog(ctx context.Context, name string) error {
	if name == s.name {
		return errors.New("the slot is active")
	}
	return s.SlotRetainer.ReleaseLog(ctx, name)
}

// TestCheckpointFailureDoesNotAffectOthers: a failure of one checkpoint does not
// affect the others, neither on creation nor on release.
func TestCheckpointFailureDoesNotAffectOthers(t *testing.T) {
	t.Parallel()
	h, to := postgres(t), newReceiver()
	l := startRelay(t, h, to)
	l.createCheckpoint("a", true)
	l.createCheckpoint("b", true)
	l.end()
	if err := l.store.RequestSavepoint(t.Context(), "aa", true); err != nil {
		t.Fatal(err)
	}

	l = startRelay(t, h, to, func(d *replay.Controller) {
		d.OpenRetainer = func() (replay.SlotRetainer, error) {
			retainer, err := h.retainer()
			return failingRetainer{retainer, "aa"}, err
		}
	})

	l.createCheckpoint("c", true)
	if n := l.findCheckpoint("aa"); n.State != store.SavepointRequested {
		t.Errorf("got checkpoint %+v", n)
	}

	l.end()
	h.exec(t, "CREATE TABLE unrelated AS SELECT i, repeat('x', 500) FROM generate_series(1, 5000) i")
	l = startRelay(t, h, to, func(d *replay.Controller) {
		d.MaxRetainedBytes = 1 << 20
		d.OpenRetainer = func() (replay.SlotRetainer, error) {
			retainer, err := h.retainer()
			return failingRetainer{retainer, "a"}, err
		}
	})

	eventually(t, func() string {
		if n := l.findCheckpoint("b"); n.State != store.SavepointLogLost || !strings.Contains(n.Reason, "max-kept") {
			return "the end of the kept log"
		}
		return ""
	})

	if n := l.findCheckpoint("a"); n.State != store.SavepointRetained {
		t.Errorf("got checkpoint %+v", n)
	}
}
