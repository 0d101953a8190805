package storetest

import (
	"errors"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// pinged pings a lock and returns its request count.
func (b *bench) pinged(t *testing.T, held store.Lock) int64 {
	t.Helper()
	if err := held.Ping(b.ctx(t)); err != nil {
		t.Fatal(err)
	}
	return held.RequestCount()
}

// testLockWishes: a ping counts each earlier request of other stores, but no request to
// another relay and no write of the leader.
func (s *suite) testLockWishes(t *testing.T) {
	b := s.start(t, 0)
	held := b.lock(t, b.store)
	b.epoch = b.lead(t, b.store)
	other, stranger := b.open(t, 0), b.named(t, "other", "")
	theirs := b.lock(t, stranger)
	if n, first := held.RequestCount(), b.pinged(t, held); n != 0 || first != 0 {
		t.Errorf("before any wish: %d, and %d by a ping", n, first)
	}
	seen := int64(0)
	wish := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if n := held.RequestCount(); n != seen {
			t.Errorf("%s: %d wishes before the ping, want %d", what, n, seen)
		}
		seen++
		for range 2 {
			if n := b.pinged(t, held); n != seen {
				t.Errorf("%s: %d wishes, want %d", what, n, seen)
			}
		}
	}
	wish("a checkpoint", other.RequestSavepoint(b.ctx(t), "here", false))
	wish("a replay", other.RequestReplay(b.ctx(t), "job", "{}"))
	wish("a pause", other.RequestJobState(b.ctx(t), "job", store.DesiredPause))
	wish("the end of a checkpoint", b.store.RequestSavepointDeletion(b.ctx(t), "here"))
	b.insert(t, "a", row("1"))
	b.take(t, "a", "1")
	err := errors.Join(b.store.SaveJob(b.ctx(t), b.epoch, store.Job{ID: "job", State: store.JobDone}), b.store.SaveCheckpoint(b.ctx(t), b.epoch, store.Checkpoint{}))
	if n := b.pinged(t, held); err != nil || n != seen {
		t.Errorf("after the leader's own writes: %d wishes, want %d; %v", n, seen, err)
	}
	if n := b.pinged(t, theirs); n != 0 {
		t.Errorf("the other relay has %d wishes", n)
	}
	if err := stranger.RequestSavepoint(b.ctx(t), "there", false); err != nil {
		t.Fatal(err)
	}
	if a, o := b.pinged(t, held), b.pinged(t, theirs); a != seen || o != 1 {
		t.Errorf("after a wish for the other relay: %d and %d wishes", a, o)
	}
	held.Release()
	if again := b.lock(t, other); again.RequestCount() != 0 || b.pinged(t, again) != seen {
		t.Errorf("the next holder sees %d wishes, want %d", again.RequestCount(), seen)
	}
}
