package storetest

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

func leadTests() []test {
	return []test{
		{"lead raises the epoch for good", (*suite).testLead, isWords},
		{"an old epoch writes nothing", (*suite).testOldEpoch, plainNames},
		{"no write of an old epoch lands behind a new one", (*suite).testLeadRace, fencesApart},
		{"outcomes in two calls at once", (*suite).testSettleAtOnce, func(l *store.Layout) bool { return isWords(l) || l.DeleteDelivered }},
		{"who leads", (*suite).testLeader, isWords},
		{"commits wait for no standby", (*suite).testCommitsWait, isWords},
		{"a lock has one holder", (*suite).testLock, isWords},
		{"a lock is watched and goes on", (*suite).testLockWatch, isWords},
		{"a closed store holds no lock", (*suite).testLockClosed, isWords},
		{"a lock counts requests", (*suite).testLockRequests, isPlain},
	}
}

// fencesApart selects a layout for each way to claim: a write, nothing, and without a state.
func fencesApart(l *store.Layout) bool { return isWords(l) || skipsClaims(l) || !keepsState(l) }

// testCommitsWait reads the setting on a server without standbys. Tests of each database
// read it on servers of their own with a standby.
func (s *suite) testCommitsWait(t *testing.T) {
	b := s.start(t, 0)
	if setting, err := b.store.CommitsWait(b.ctx(t)); setting != "" || err != nil {
		t.Errorf("commits wait because of %q: %v", setting, err)
	}
}

// openNamed opens a store of the named relay, with a holder name.
func (b *bench) openNamed(t *testing.T, name, holder string) Store {
	t.Helper()
	st := b.db.Store(t, Config{Outboxes: b.boxes, Name: name, Holder: holder})
	t.Cleanup(st.Close)
	return st
}

func (b *bench) lock(t *testing.T, st Store) store.Lock {
	t.Helper()
	lock, err := st.Lock(b.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lock.Release)
	return lock
}

// wantLocked checks that a store cannot acquire the lock and learns its holder.
func (b *bench) wantLocked(t *testing.T, what string, st Store, holder string) {
	t.Helper()
	lock, err := st.Lock(b.ctx(t))
	if err == nil {
		lock.Release()
	}
	var locked *store.LockedError
	if !errors.As(err, &locked) || !strings.Contains(locked.Holder, holder) {
		t.Errorf("%s: %v, want the lock held by %q", what, err, holder)
	}
}

func (b *bench) leader(t *testing.T, st Store) store.Leader {
	t.Helper()
	l, err := st.Leader(b.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// testLeader: the leader row names the latest leader, and only its store writes, whatever
// epoch another store names.
func (s *suite) testLeader(t *testing.T) {
	b := s.start(t, 0)
	stranger := b.openNamed(t, "other", "")
	if l, err := stranger.Leader(b.ctx(t)); !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("name without a leader: got %+v, %v, want ErrNotLeader", l, err)
	}

	b.insert(t, "a", row("1"), row("2"))
	b.settle(t, store.Outcome{Ref: ref("a", "2"), Status: store.Completed, At: origin()}) // to be deleted
	first, second := b.openNamed(t, "", "host-1/41"), b.openNamed(t, "", "host-2/42")
	epoch := b.lead(t, first)
	before := b.leader(t, second)
	if before.Epoch != epoch || !strings.HasPrefix(before.Holder, "host-1/41#") || !near(before.Since, time.Now()) {
		t.Errorf("first leader: got %+v", before)
	}
	if err := errors.Join(first.Hold(b.ctx(t), epoch, paused()), first.SaveCheckpoint(b.ctx(t), epoch, store.Checkpoint{Position: "kept"})); err != nil {
		t.Fatal(err)
	}

	kept := [2]RowContent{b.read(t, "a", "1"), b.read(t, "a", "2")}
	took := b.lead(t, second)
	for _, st := range []Store{first, second, b.store} {
		if l := b.leader(t, st); l.Epoch != took || !strings.HasPrefix(l.Holder, "host-2/42#") {
			t.Errorf("second leader: got %+v", l)
		}
	}

	twin := b.openNamed(t, "", "host-2/42")
	for who, st := range map[string]Store{"who led before": first, "who has the leader's name": twin} {
		for _, e := range []store.Epoch{epoch, took, took + 1} {
			for what, err := range b.everyWrite(t, st, e) {
				if !errors.Is(err, store.ErrNotLeader) {
					t.Errorf("%s, %s with epoch %d: %v", who, what, e, err)
				}
			}
		}
	}

	b.wantHolds(t, "after writes that were refused", second, paused())
	if cp, err := second.LoadCheckpoint(b.ctx(t)); err != nil || cp.Position != "kept" {
		t.Errorf("the checkpoint is %+v, %v", cp, err)
	}
	if after := [2]RowContent{b.read(t, "a", "1"), b.read(t, "a", "2")}; after != kept {
		t.Errorf("the rows were %+v and are %+v", kept, after)
	}
	if err := errors.Join(second.Release(b.ctx(t), took, paused().Lane, store.Paused), stranger.SaveCheckpoint(b.ctx(t), b.lead(t, stranger), store.Checkpoint{})); err != nil {
		t.Errorf("the leaders of both names: %v", err)
	}
	if l := b.leader(t, stranger); l.Epoch != 1 || l.Holder == "" || l.Holder == b.leader(t, b.store).Holder {
		t.Errorf("leader without a holder name: got %+v", l)
	}
}

func paused() store.Hold {
	return store.Hold{Lane: lane("a", "EVENT", store.GroupOf("g")), Kind: store.Paused, Since: origin()}
}

// everyWrite calls every method that needs a leader.
func (b *bench) everyWrite(t *testing.T, st Store, epoch store.Epoch) map[string]error {
	t.Helper()
	ctx, one := b.ctx(t), ref("a", "1")
	it := capturedRow(paused().Lane, "1", 7)
	settle := func(o store.Outcome) error {
		o.Ref, o.At = one, now()
		return second(st.Settle(ctx, epoch, []store.Outcome{o}))
	}
	errs := map[string]error{
		"claim":                second(st.Claim(ctx, epoch, now(), []store.ClaimRow{{Ref: one}})),
		"completed":            settle(store.Outcome{Status: store.Completed}),
		"failed":               settle(store.Outcome{Status: store.Failed}),
		"retry":                settle(store.Outcome{Status: store.Pending, RetryCount: 1}),
		"outcome of a spilled": settle(store.Outcome{Status: store.Completed, SpilledSeq: it.Seq}),
		"checkpoint":           st.SaveCheckpoint(ctx, epoch, store.Checkpoint{Position: "late"}),
		"hold":                 st.Hold(ctx, epoch, paused()),
		"release":              st.Release(ctx, epoch, paused().Lane, store.Paused),
		"spill":                st.Spill(ctx, epoch, []store.Item{it}),
		"delete spilled":       st.DeleteSpilled(ctx, epoch, []store.SpilledRef{spilledRef(&it)}),
		"delete after":         second(st.DeleteSpilledAfter(ctx, epoch, store.Checkpoint{Seq: 0})),
	}
	if b.stateful() {
		f := store.DeadLetterFilter{Outbox: "a"}
		blocked := store.Outcome{Status: store.Failed, Block: &store.Hold{Lane: paused().Lane, Since: origin()}}
		maps.Copy(errs, map[string]error{
			"block": settle(blocked), "requeue": second(st.Requeue(ctx, epoch, f, 9)), "discard": second(st.Discard(ctx, epoch, f, 9)),
		})
	}

	if prunes(&b.layout) {
		errs["prune"] = second(st.Prune(ctx, epoch, store.PruneRequest{Outbox: "a", Before: now(), Limit: 9}))
	}

	return errs
}

// testLock: one relay of a name holds the lock, and others learn its holder.
func (s *suite) testLock(t *testing.T) {
	b := s.start(t, 0)
	first, second := b.openNamed(t, "", "host-1/41"), b.openNamed(t, "", "host-2/42")
	held := b.lock(t, first)
	b.lead(t, first)
	for range 3 {
		b.wantLocked(t, "held by another", second, "host-1/41#")
	}

	b.wantLocked(t, "held by the store itself", first, "host-1/41#")
	other := b.lock(t, b.openNamed(t, "other", ""))
	if err := errors.Join(held.Ping(b.ctx(t)), other.Ping(b.ctx(t))); err != nil {
		t.Errorf("ping: %v", err)
	}

	held.Release()
	held.Release()
	for range 2 { // repeatedly
		if err := held.Ping(b.ctx(t)); err == nil {
			t.Error("ping of a released lock succeeded")
		}
		if err := held.Watch(b.ctx(t)); err == nil {
			t.Error("watch of a released lock succeeded")
		}
	}

	again := b.lock(t, second)
	b.lead(t, second)
	b.wantLocked(t, "after a change", first, "host-2/42#")
	again.Release()
	b.lock(t, first)
	if err := other.Ping(b.ctx(t)); err != nil {
		t.Errorf("the lock of another name: %v", err)
	}
}

// testLockWatch: a watch that ends with its context keeps the lock, and a release ends a
// watch with an error.
func (s *suite) testLockWatch(t *testing.T) {
	b := s.start(t, 0)
	held := b.lock(t, b.store)
	rival := b.open(t, 0)
	for i := range 12 {
		watch, end := context.WithTimeout(b.ctx(t), time.Duration(i)*time.Millisecond)
		err := held.Watch(watch)
		end()
		if err != nil {
			t.Fatalf("watch %d: %v", i, err)
		}
		if err := held.Ping(b.ctx(t)); err != nil {
			t.Fatalf("ping after watch %d: %v", i, err)
		}
	}

	b.wantLocked(t, "after it was watched", rival, "")
	watched := make(chan error, 1)
	forever := b.ctx(t)
	go func() { watched <- held.Watch(forever) }()
	held.Release()
	if err := <-watched; err == nil || forever.Err() != nil {
		t.Errorf("watch of a lock during its release: %v, %v", err, forever.Err())
	}

	b.lock(t, rival)
}

// testLockClosed: closing a store releases its lock.
func (s *suite) testLockClosed(t *testing.T) {
	b := s.start(t, 0)
	rival := b.open(t, 0)
	held := b.lock(t, b.store)
	b.wantLocked(t, "before the end", rival, "")
	b.store.Close()
	if err := held.Ping(b.ctx(t)); err == nil {
		t.Error("ping of a closed store's lock succeeded")
	}
	if err := held.Watch(b.ctx(t)); err == nil {
		t.Error("watch of a closed store's lock succeeded")
	}

	b.lock(t, rival)
	held.Release()
	var locked *store.LockedError
	if lock, err := b.store.Lock(b.ctx(t)); err == nil || errors.As(err, &locked) {
		t.Errorf("lock of a closed store: %v, %v", lock, err)
	}

	gone, cancel := contextDone(t)
	cancel()
	if lock, err := b.open(t, 0).Lock(gone); err == nil || errors.As(err, &locked) {
		t.Errorf("lock with a canceled context: %v, %v", lock, err)
	}
}

// pinged pings a lock and returns its request count.
func (b *bench) pinged(t *testing.T, held store.Lock) int64 {
	t.Helper()
	if err := held.Ping(b.ctx(t)); err != nil {
		t.Fatal(err)
	}
	return held.RequestCount()
}

// testLockRequests: a ping counts each earlier request of other stores, but no request to
// another relay and no write of the leader.
func (s *suite) testLockRequests(t *testing.T) {
	b := s.start(t, 0)
	held := b.lock(t, b.store)
	b.epoch = b.lead(t, b.store)
	other, stranger := b.open(t, 0), b.openNamed(t, "other", "")
	theirs := b.lock(t, stranger)
	if n, first := held.RequestCount(), b.pinged(t, held); n != 0 || first != 0 {
		t.Errorf("before any request: %d, and %d by a ping", n, first)
	}

	seen := int64(0)
	request := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if n := held.RequestCount(); n != seen {
			t.Errorf("%s: %d requests before the ping, want %d", what, n, seen)
		}
		seen++
		for range 2 {
			if n := b.pinged(t, held); n != seen {
				t.Errorf("%s: %d requests, want %d", what, n, seen)
			}
		}
	}

	request("a checkpoint", other.RequestSavepoint(b.ctx(t), "here", false))
	request("a replay", other.RequestReplay(b.ctx(t), "job", "{}"))
	request("a pause", other.RequestJobState(b.ctx(t), "job", store.DesiredPause))
	request("the end of a checkpoint", b.store.RequestSavepointDeletion(b.ctx(t), "here"))
	b.insert(t, "a", row("1"))
	b.take(t, "a", "1")
	err := errors.Join(b.store.SaveJob(b.ctx(t), b.epoch, store.Job{ID: "job", State: store.JobDone}), b.store.SaveCheckpoint(b.ctx(t), b.epoch, store.Checkpoint{}))
	if n := b.pinged(t, held); err != nil || n != seen {
		t.Errorf("after the leader's own writes: %d requests, want %d; %v", n, seen, err)
	}
	if n := b.pinged(t, theirs); n != 0 {
		t.Errorf("the other relay has %d requests", n)
	}
	if err := stranger.RequestSavepoint(b.ctx(t), "there", false); err != nil {
		t.Fatal(err)
	}
	if a, o := b.pinged(t, held), b.pinged(t, theirs); a != seen || o != 1 {
		t.Errorf("after a request for the other relay: %d and %d requests", a, o)
	}

	held.Release()
	if again := b.lock(t, other); again.RequestCount() != 0 || b.pinged(t, again) != seen {
		t.Errorf("the next holder sees %d requests, want %d", again.RequestCount(), seen)
	}
}
