package storetest

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// wantSavepoints compares the listed named checkpoints with the expected ones.
func (b *bench) wantSavepoints(t *testing.T, what string, r Store, want ...store.Savepoint) {
	t.Helper()
	got, err := r.Savepoints(b.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n%+v, want\n%+v", what, got, want)
	}
}

func (b *bench) saveSavepoint(t *testing.T, n store.Savepoint) {
	t.Helper()
	if err := b.store.SaveSavepoint(b.ctx(t), b.epoch, n); err != nil {
		t.Fatal(err)
	}
}

// testSavepoints requests checkpoints from a store that never led, and saves them as the leader.
func (s *suite) testSavepoints(t *testing.T) {
	b := s.start(t, 0)
	leader, other := b.store, b.open(t, 0)
	b.wantSavepoints(t, "at first", leader)
	long := "abc-def_9" + strings.Repeat("-z", 27)
	for _, name := range []string{"b", "_", "0", long} {
		if err := other.RequestSavepoint(b.ctx(t), name, name == "b"); err != nil {
			t.Fatal(err)
		}
	}

	if err := other.RequestSavepoint(b.ctx(t), "b", false); !errors.Is(err, store.ErrSavepointExists) {
		t.Errorf("used name: got %v, want ErrSavepointExists", err)
	}

	want := []store.Savepoint{{Name: "0"}, {Name: "_"}, {Name: long}, {Name: "b", RetainLog: true}}
	for i := range want {
		want[i].State = store.SavepointRequested
	}

	b.wantSavepoints(t, "asked for", leader, want...)
	want[3].Checkpoint = store.Checkpoint{Origin: "server-1/3 ünï '\"\\", Position: "0/16B3748", Seq: store.NewSeq(b.epoch, 1<<39)}
	want[3].At, want[3].State, want[3].Reason, want[3].RetainedBytes = now(), store.SavepointRetained, "since noon ☃", 1<<40
	saved := want[3]
	saved.RetainLog, saved.DeleteRequested = false, true // not the leader's fields
	b.saveSavepoint(t, saved)
	b.wantSavepoints(t, "made", other, want...)
	for range 2 {
		if err := other.RequestSavepointDeletion(b.ctx(t), "b"); err != nil {
			t.Fatal(err)
		}
	}

	if err := other.RequestSavepointDeletion(b.ctx(t), "c"); !errors.Is(err, store.ErrNoSavepoint) {
		t.Errorf("deletion of an unknown checkpoint: got %v, want ErrNoSavepoint", err)
	}
	if err := other.RequestSavepoint(b.ctx(t), "b", false); !errors.Is(err, store.ErrSavepointExists) {
		t.Errorf("name of a checkpoint to delete: got %v, want ErrSavepointExists", err)
	}

	want[3].State, want[3].Reason, want[3].DeleteRequested, want[3].At, want[3].Checkpoint = store.SavepointRefused, "", true, time.Time{}, store.Checkpoint{}
	saved = want[3]
	saved.DeleteRequested = false
	b.saveSavepoint(t, saved)
	b.wantSavepoints(t, "to be dropped", other, want...)
	for range 2 {
		if err := leader.DeleteSavepoint(b.ctx(t), b.epoch, "b"); err != nil {
			t.Fatal(err)
		}
	}

	if err := leader.SaveSavepoint(b.ctx(t), b.epoch, saved); !errors.Is(err, store.ErrNoSavepoint) {
		t.Errorf("save of a deleted checkpoint: got %v, want ErrNoSavepoint", err)
	}

	b.wantSavepoints(t, "deleted", other, want[:3]...)
}

// testSavepointRefused requests checkpoints with invalid names, and saves a reason that no table
// accepts unchanged.
func (s *suite) testSavepointRefused(t *testing.T) {
	b := s.start(t, 0)
	for _, name := range []string{"", "A", "-a", "ä", strings.Repeat("a", 64)} {
		if err := b.store.RequestSavepoint(b.ctx(t), name, false); err == nil {
			t.Errorf("checkpoint name %q accepted", name)
		}
	}

	if err := b.store.RequestSavepoint(b.ctx(t), "0", false); err != nil {
		t.Fatal(err)
	}

	b.saveSavepoint(t, store.Savepoint{Name: "0", State: store.SavepointMade, Reason: "a\x00b \xff " + strings.Repeat("lóng ", 1000)})
	got, err := b.store.Savepoints(b.ctx(t))
	if err != nil || len(got) != 1 || !strings.HasPrefix(got[0].Reason, "ab ") || len(got[0].Reason) < 100 || len(got[0].Reason) > 4000 {
		t.Errorf("hostile reason: %d checkpoints, %v", len(got), err)
	}
}

// testSavepointsOfTwoRelays: two relays on the same tables have separate checkpoints and replays,
// which survive the store.
func (s *suite) testSavepointsOfTwoRelays(t *testing.T) {
	b := s.start(t, 0)
	second := b.db.Store(t, Config{Outboxes: b.boxes, Name: "second"})
	t.Cleanup(second.Close)
	other := second
	key := lane("a", "EVENT", store.GroupOf("g"))
	epoch := b.lead(t, second)
	for _, r := range []Store{b.store, other} {
		if err := errors.Join(r.RequestSavepoint(b.ctx(t), "here", r == other), r.RequestReplay(b.ctx(t), "job", "of "+map[bool]string{true: "the other"}[r == other])); err != nil {
			t.Fatal(err)
		}
	}

	theirs := replayRow(key, "theirs", 1)
	if err := other.CopyRows(b.ctx(t), epoch, "job", []store.ReplayRow{theirs, replayRow(key, "more", 2)}, store.ReplayCursor{Position: "theirs"}); err != nil {
		t.Fatal(err)
	}

	ours := replayRow(key, "ours", 1)
	b.copyRows(t, "job", store.ReplayCursor{Position: "ours"}, ours)
	b.saveSavepoint(t, store.Savepoint{Name: "here", State: store.SavepointMade})
	if err := b.store.FinishRows(b.ctx(t), b.epoch, "job", []store.FinishedRow{{N: 2, Lane: key}, {N: 1, Lane: key, Result: store.ReplayRefused}}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.store.SaveJob(b.ctx(t), b.epoch, store.Job{ID: "job", State: store.JobDone}), b.store.DeleteSavepoint(b.ctx(t), b.epoch, "here")); err != nil {
		t.Fatal(err)
	}

	b.store.Close()
	b.store = b.open(t, 0)
	b.wantSavepoints(t, "ours", b.store)
	b.wantSavepoints(t, "theirs", other, store.Savepoint{Name: "here", RetainLog: true, State: store.SavepointRequested})
	if j := b.jobOf(t, b.store, "job"); j.State != store.JobDone || j.Spec != "of " || j.Refused != 1 || j.Total != 1 || j.Cursor.Position != "ours" {
		t.Errorf("our replay is %+v", j)
	}
	if j := b.jobOf(t, other, "job"); j.State != store.JobWaiting || j.Spec != "of the other" || j.Refused != 0 || j.Total != 2 || j.Cursor.Position != "theirs" {
		t.Errorf("their replay is %+v", j)
	}
	if errs, err := other.JobErrors(b.ctx(t), "job", 5); err != nil || len(errs) != 0 {
		t.Errorf("their errors are %+v, %v", errs, err)
	}
	if got := b.replayRows(t, other, "job", 5, replayAfter(key, 0))[0]; len(got) != 2 || got[0].ID != "theirs" {
		t.Errorf("their rows are %+v", got)
	}
	if lanes, err := b.store.ReplayLanes(b.ctx(t), "job", 0, 5); err != nil || len(lanes) != 0 {
		t.Errorf("our lanes are %+v, %v", lanes, err)
	}
}
