package storetest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

func replayTests() []test {
	return []test{
		{"named checkpoints", (*suite).testSavepoints, isPlain},
		{"named checkpoints that cannot be", (*suite).testSavepointRefused, isPlain},
		{"named checkpoints of two relays", (*suite).testSavepointsOfTwoRelays, isPlain},
		{"replays", (*suite).testJobs, isPlain},
		{"more replays than are kept", (*suite).testJobsMany, isPlain},
		{"replays that the leader runs", (*suite).testJobStates, isPlain},
		{"replays that ended are deleted", (*suite).testJobsKept, isPlain},
		{"an old epoch replays nothing", (*suite).testReplayFence, isPlain},
		{"rows copied and read back", (*suite).testCopyRows, isPlain},
		{"what cannot be copied", (*suite).testCopyRefused, isPlain},
		{"rows and their cursor at once", (*suite).testCopyAtOnce, isPlain},
		{"a copied row of an open transaction", (*suite).testCopyOpenTxn, isPlain},
		{"lanes of a replay", (*suite).testReplayLanes, isPlain},
		{"rows that are done with", (*suite).testDoneRows, isPlain},
		{"requests beside rows that are done with", (*suite).testDoneDuringRequests, isPlain},
		{"more errors than are kept", (*suite).testErrorsKept, isPlain},
		{"rows cleared", (*suite).testClearRows, isPlain},
		{"rows counted that are not copied", (*suite).testCountRows, isPlain},
		{"the states of rows", (*suite).testStates, writesClaims},
		{"the state of an open transaction's row", (*suite).testStatesOpenTxn, many},
		{"a replay beside spilled rows", (*suite).testReplayAndSpill, many},
		{"replays of a closed store", (*suite).testReplayCancelAndClose, isPlain},
	}
}

// isPlain selects one layout for tests that do not depend on it. Every server runs the
// suite with this layout, exactly once.
func isPlain(l *store.Layout) bool { return l.Name == store.OutboxMessages().Name }

// job requests a replay from a store that never led.
func (b *bench) job(t *testing.T, id string) {
	t.Helper()
	if err := b.open(t, 0).RequestReplay(b.ctx(t), id, "{}"); err != nil {
		t.Fatal(err)
	}
}

// jobOf returns a replay as listed by a store.
func (b *bench) jobOf(t *testing.T, r Store, id string) store.Job {
	t.Helper()
	jobs, err := r.Jobs(b.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(jobs, func(j store.Job) bool { return j.ID == id })
	if i < 0 {
		t.Fatalf("replay %s not found", id)
	}
	return jobs[i]
}

// replayRow returns a row of a replay in a lane, without a transaction.
func replayRow(key store.LaneKey, id string, n int64) store.ReplayRow {
	return store.ReplayRow{N: n, Item: capturedRow(key, id, 3)} // Seq and RetryCount are not stored
}

func (b *bench) copyRows(t *testing.T, id string, at store.ReplayCursor, rows ...store.ReplayRow) {
	t.Helper()
	if err := b.store.CopyRows(b.ctx(t), b.epoch, id, rows, at); err != nil {
		t.Fatal(err)
	}
}

func replayAfter(key store.LaneKey, after int64) store.ReplayRange {
	return store.ReplayRange{Outbox: key.Outbox, Lane: key.Hash(), After: after}
}

func (b *bench) replayRows(t *testing.T, r Store, id string, each int, lanes ...store.ReplayRange) [][]store.ReplayRow {
	t.Helper()
	lists, err := r.ReplayRows(b.ctx(t), id, lanes, each)
	if err != nil {
		t.Fatal(err)
	}
	if len(lists) != len(lanes) {
		t.Fatalf("%d lists for %d lanes", len(lists), len(lanes))
	}
	return lists
}

// wantReplayRows compares the rows of a lane with the expected ones.
func (b *bench) wantReplayRows(t *testing.T, what, id string, key store.LaneKey, want ...store.ReplayRow) {
	t.Helper()
	got := b.replayRows(t, b.store, id, len(want)+1, replayAfter(key, 0))[0]
	if len(got) != len(want) {
		t.Errorf("%s: lane %.60s has %d rows, want %d", what, key, len(got), len(want))
		return
	}

	for i := range got {
		g, w := &got[i], &want[i]
		same := g.N == w.N && g.Ref == w.Ref && g.Kind == w.Kind && g.Group == w.Group && g.PayloadSize == w.PayloadSize &&
			g.Txn == w.Txn && g.Committed.Equal(w.Committed) && string(g.Payload) == string(w.Payload) && (g.Payload == nil) == (w.Payload == nil)
		if !same || g.RetryCount != 0 || g.Seq != 0 || !g.Captured.IsZero() {
			t.Errorf("%s: row %.300s, want %.300s", what, fmt.Sprintf("%+v", *g), fmt.Sprintf("%+v", *w))
		}
	}
}

// testReplayFence: an old leader changes nothing.
func (s *suite) testReplayFence(t *testing.T) {
	b := s.start(t, 0)
	r := b.store
	if err := errors.Join(r.RequestSavepoint(b.ctx(t), "here", true), r.RequestReplay(b.ctx(t), "job", "{}")); err != nil {
		t.Fatal(err)
	}

	key := lane("a", "EVENT", store.GroupOf("g"))
	kept := replayRow(key, "1", 1)
	b.copyRows(t, "job", store.ReplayCursor{Position: "p", Skip: 1}, kept)
	before := b.jobOf(t, r, "job")
	named, err := r.Savepoints(b.ctx(t))
	if err != nil {
		t.Fatal(err)
	}

	b.lead(t, b.open(t, 0))
	for _, epoch := range []store.Epoch{0, b.epoch, b.epoch + 1, b.epoch + 2} {
		for what, err := range map[string]error{
			"save a checkpoint":   r.SaveSavepoint(b.ctx(t), epoch, store.Savepoint{Name: "here", State: store.SavepointMade}),
			"save no checkpoint":  r.SaveSavepoint(b.ctx(t), epoch, store.Savepoint{Name: "nowhere", State: store.SavepointMade}),
			"delete a checkpoint": r.DeleteSavepoint(b.ctx(t), epoch, "here"),
			"save a replay":       r.SaveJob(b.ctx(t), epoch, store.Job{ID: "job", State: store.JobDone}),
			"save no replay":      r.SaveJob(b.ctx(t), epoch, store.Job{ID: "none", State: store.JobDone}),
			"copy":                r.CopyRows(b.ctx(t), epoch, "job", []store.ReplayRow{replayRow(key, "2", 2)}, store.ReplayCursor{Position: "q"}),
			"copy nothing":        r.CopyRows(b.ctx(t), epoch, "job", nil, store.ReplayCursor{Position: "q"}),
			"count":               r.SetRowCounts(b.ctx(t), epoch, "job", 7, 8),
			"count no replay":     r.SetRowCounts(b.ctx(t), epoch, "none", 7, 8),
			"clear":               second(r.ClearRows(b.ctx(t), epoch, "job", 5)),
			"clear nothing":       second(r.ClearRows(b.ctx(t), epoch, "none", 5)),
			"done":                r.FinishRows(b.ctx(t), epoch, "job", []store.FinishedRow{{N: 1, Lane: key, ID: "1"}}),
			"done with nothing":   r.FinishRows(b.ctx(t), epoch, "job", []store.FinishedRow{{N: 7, Lane: key, ID: "7"}}),
		} {
			if !errors.Is(err, store.ErrNotLeader) {
				t.Errorf("%s with epoch %d: %v", what, epoch, err)
			}
		}
	}

	if after := b.jobOf(t, r, "job"); !reflect.DeepEqual(after, before) {
		t.Errorf("the replay was %+v and is %+v", before, after)
	}
	if after, err := r.Savepoints(b.ctx(t)); err != nil || !reflect.DeepEqual(after, named) {
		t.Errorf("the checkpoints were %+v and are %+v, %v", named, after, err)
	}

	b.wantReplayRows(t, "after the old leader", "job", key, kept)
	b.epoch = b.lead(t, b.store)
	if err := r.FinishRows(b.ctx(t), b.epoch, "job", []store.FinishedRow{{N: 1, Lane: key, ID: "1"}}); err != nil {
		t.Errorf("session unusable: %v", err)
	}
}

// testReplayCancelAndClose: a canceled call leaves the store usable, empty calls do nothing, and a
// closed store returns errors.
func (s *suite) testReplayCancelAndClose(t *testing.T) {
	b := s.start(t, 0)
	r := b.store
	b.job(t, "job")
	key := lane("a", "EVENT", store.Group{})
	gone, cancel := contextDone(t)
	cancel()
	if err := r.CopyRows(gone, b.epoch, "job", []store.ReplayRow{replayRow(key, "1", 1)}, store.ReplayCursor{}); err == nil {
		t.Error("copy with a canceled context succeeded")
	}

	b.wantReplayRows(t, "after a call that was cut short", "job", key)
	for what, err := range map[string]error{
		"done with nothing": r.FinishRows(b.ctx(t), b.epoch, "job", nil),
		"rows of no lanes":  second(r.ReplayRows(b.ctx(t), "job", nil, 1)),
		"states of no rows": second(r.ReadStatuses(b.ctx(t), nil)),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}

	done := []store.FinishedRow{{N: 1, Lane: key}}
	b.store.Close()
	for what, err := range map[string]error{
		"request a checkpoint": r.RequestSavepoint(b.ctx(t), "x", false), "request its deletion": r.RequestSavepointDeletion(b.ctx(t), "x"),
		"request a replay": r.RequestReplay(b.ctx(t), "x", "{}"), "request a state": r.RequestJobState(b.ctx(t), "job", store.DesiredPause),
		"checkpoints": second(r.Savepoints(b.ctx(t))), "jobs": second(r.Jobs(b.ctx(t))), "errors": second(r.JobErrors(b.ctx(t), "job", 1)),
		"save a checkpoint": r.SaveSavepoint(b.ctx(t), b.epoch, store.Savepoint{Name: "x"}), "delete a checkpoint": r.DeleteSavepoint(b.ctx(t), b.epoch, "x"),
		"save a replay": r.SaveJob(b.ctx(t), b.epoch, store.Job{ID: "job"}), "copy": r.CopyRows(b.ctx(t), b.epoch, "job", nil, store.ReplayCursor{}),
		"count": r.SetRowCounts(b.ctx(t), b.epoch, "job", 1, 1),
		"clear": second(r.ClearRows(b.ctx(t), b.epoch, "job", 1)), "done": r.FinishRows(b.ctx(t), b.epoch, "job", done),
		"lanes": second(r.ReplayLanes(b.ctx(t), "job", 0, 1)), "rows": second(r.ReplayRows(b.ctx(t), "job", []store.ReplayRange{replayAfter(key, 0)}, 1)),
	} {
		if err == nil || errors.Is(err, store.ErrNotLeader) || errors.Is(err, store.ErrNoJob) || errors.Is(err, store.ErrNoSavepoint) {
			t.Errorf("%s on a closed store: %v", what, err)
		}
	}
}
