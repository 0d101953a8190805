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

// find returns the current state of a checkpoint, nil if there is none.
func (l *life) find(name string) *store.Savepoint {
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

// delete requests the deletion of a checkpoint and waits for it.
func (l *life) delete(name string) {
	l.t.Helper()
	if err := l.store.RequestSavepointDeletion(l.ctx(), name); err != nil {
		l.t.Fatal(err)
	}
	l.poke()
	until(l.t, func() string {
		if l.find(name) != nil {
			return "the end of checkpoint " + name
		}
		return ""
	})
}

// besides returns a SlotRetainer of the test's own.
func besides(t *testing.T, h host) replay.SlotRetainer {
	t.Helper()
	keeper, err := h.keeper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(keeper.Close)
	return keeper
}

// keptAre waits until log is retained for exactly these names.
func keptAre(t *testing.T, keeper capture.SlotRetainer, names ...string) {
	t.Helper()
	until(t, func() string {
		list, err := keeper.RetainedSlots(t.Context())
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

// TestRefusedNameIsDeleted: a checkpoint whose name cannot retain log is refused and
// can be deleted.
func TestRefusedNameIsDeleted(t *testing.T) {
	t.Parallel()
	l := lead(t, postgres(t), newReceiver())
	if n := l.named("cp_x", true); n.State != store.SavepointRefused || !strings.Contains(n.Reason, "cp_x") {
		t.Errorf("the checkpoint is %+v", n)
	}
	l.delete("cp_x")
}

// held is a log that brings no marker while it is not read.
type held struct {
	replay.LiveSource
	hold atomic.Bool
}

func (h *held) Mark(ctx context.Context, token string) error {
	if h.hold.Load() {
		return nil
	}
	return h.LiveSource.Mark(ctx, token)
}

// TestCheckpointsWhileTheLogIsNotRead: while the log is not read, a requested
// checkpoint waits and reports it. Others are deleted meanwhile.
func TestCheckpointsWhileTheLogIsNotRead(t *testing.T) {
	t.Parallel()
	h, log := postgres(t), &held{}
	l := lead(t, h, newReceiver(), func(d *replay.Controller) {
		log.LiveSource, d.Log.LiveSource = d.Log.LiveSource, log
		d.MarkFor(3 * time.Second)
	})

	l.named("here", true)
	log.hold.Store(true)
	if err := l.store.RequestSavepoint(l.ctx(), "later", true); err != nil {
		t.Fatal(err)
	}

	l.poke()
	until(t, func() string {
		if n := l.find("later"); n.State != store.SavepointRequested || !strings.Contains(n.Reason, "waiting for capture") {
			return "what it waits for: " + n.Reason
		}
		return ""
	})

	l.delete("here")
	log.hold.Store(false)
	until(t, func() string {
		if n := l.find("later"); n.State != store.SavepointRetained || n.Reason != "" || n.Position == "" {
			return "the checkpoint: " + string(n.State) + n.Reason
		}
		return ""
	})

	keptAre(t, besides(t, h), "later")
}

// TestStrayKeptLog: an orphaned log is released at the start of a session, even one
// that polls, and whenever the Controller checks the logs of other checkpoints.
func TestStrayKeptLog(t *testing.T) {
	t.Parallel()
	h := postgres(t)
	l := lead(t, h, newReceiver())
	l.named("first", true) // the relay's own slot exists
	l.delete("first")
	l.end()
	keeper := besides(t, h)
	keep := func(name string) {
		t.Helper()
		if _, err := keeper.RetainLog(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}

	keep("stray")
	l = lead(t, h, newReceiver())
	keptAre(t, keeper)
	l.named("here", true)
	keep("another")
	l.poke()
	keptAre(t, keeper, "here")
	l.delete("here")
	l.end()

	if err := l.store.RequestSavepoint(t.Context(), "wanted", true); err != nil {
		t.Fatal(err)
	}

	keep("wanted")
	l = lead(t, h, newReceiver(), func(d *replay.Controller) { d.Log = nil })
	keptAre(t, keeper)
	if n := l.find("wanted"); n.State != store.SavepointRefused {
		t.Errorf("the checkpoint is %+v", n)
	}
}

// TestNoKeeper: a relay that retains no log need not be able to list it.
func TestNoKeeper(t *testing.T) {
	t.Parallel()
	failed := make(chan error, 1)
	l := lead(t, postgres(t), newReceiver(), func(d *replay.Controller) {
		d.OpenRetainer = func() (replay.SlotRetainer, error) { return nil, errors.New("no log here") }
		d.Observer = failing{d.Observer, failed}
	})
	l.named("one", false)
	l.named("two", false) // the round of the first one is over
	select {
	case err := <-failed:
		t.Error(err)
	default:
	}
}

// failing forwards the first failure.
type failing struct {
	replay.Observer
	first chan<- error
}

func (f failing) ControllerFailed(err error) {
	select {
	case f.first <- err:
	default:
	}
}

// stubborn is a SlotRetainer that fails for one name, as if another program read its
// slot.
type stubborn struct {
	replay.SlotRetainer
	name string
}

func (s stubborn) RetainLog(ctx context.Context, name string) (string, error) {
	if name == s.name {
		return "", errors.New("the slot is active")
	}
	return s.SlotRetainer.RetainLog(ctx, name)
}

func (s stubborn) ReleaseLog(ctx context.Context, name string) error {
	if name == s.name {
		return errors.New("the slot is active")
	}
	return s.SlotRetainer.ReleaseLog(ctx, name)
}

// TestOneCheckpointFails: a failure of one checkpoint does not affect the others,
// neither on creation nor on release.
func TestOneCheckpointFails(t *testing.T) {
	t.Parallel()
	h, to := postgres(t), newReceiver()
	l := lead(t, h, to)
	l.named("a", true)
	l.named("b", true)
	l.end()
	if err := l.store.RequestSavepoint(t.Context(), "aa", true); err != nil {
		t.Fatal(err)
	}

	l = lead(t, h, to, func(d *replay.Controller) {
		d.OpenRetainer = func() (replay.SlotRetainer, error) {
			keeper, err := h.keeper()
			return stubborn{keeper, "aa"}, err
		}
	})

	l.named("c", true)
	if n := l.find("aa"); n.State != store.SavepointRequested {
		t.Errorf("the checkpoint is %+v", n)
	}

	l.end()
	h.exec(t, "CREATE TABLE unrelated AS SELECT i, repeat('x', 500) FROM generate_series(1, 5000) i")
	l = lead(t, h, to, func(d *replay.Controller) {
		d.MaxRetainedBytes = 1 << 20
		d.OpenRetainer = func() (replay.SlotRetainer, error) {
			keeper, err := h.keeper()
			return stubborn{keeper, "a"}, err
		}
	})

	until(t, func() string {
		if n := l.find("b"); n.State != store.SavepointLogLost || !strings.Contains(n.Reason, "max-kept") {
			return "the end of the kept log"
		}
		return ""
	})

	if n := l.find("a"); n.State != store.SavepointRetained {
		t.Errorf("the checkpoint is %+v", n)
	}
}
