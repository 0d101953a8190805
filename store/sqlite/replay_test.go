package sqlite_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
)

// TestRequestsAreCounted: each request is counted for its relay, a refused one is not.
func TestRequestsAreCounted(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	rigs.CheckRequestCounts(t, r.store, func() int {
		return ask[int](t, r.db, "SELECT coalesce(max(n), 0) FROM sluicebox_wish WHERE name = 'rig'")
	})
	if nth := ask[int](t, r.db, "SELECT nth FROM sluicebox_replay WHERE job = 'job'"); nth != 3 {
		t.Errorf("the replay is number %d", nth)
	}
}

// TestOldJobsAreDeleted: the end of a replay deletes the jobs that ended long ago.
func TestOldJobsAreDeleted(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	for _, id := range []string{"old", "young", "open", "last"} {
		state := store.JobDone
		if id == "open" {
			state = store.JobPlaying
		}
		rigs.EndJob(t, r.store, r.epoch, "events", id, state)
		r.exec(t, "UPDATE sluicebox_replay SET began_at = datetime('now', '-8 days') WHERE job = 'open'")
		r.exec(t, "UPDATE sluicebox_replay SET finished_at = datetime('now', '-169 hours') WHERE job = 'old'")
		r.exec(t, "UPDATE sluicebox_replay SET finished_at = datetime('now', '-167 hours') WHERE job = 'young'")
	}
	for _, table := range []string{"sluicebox_replay", "sluicebox_replay_error"} {
		if got := ask[string](t, r.db, "SELECT group_concat(job, ' ') FROM (SELECT job FROM "+table+" ORDER BY job)"); got != "last open young" {
			t.Errorf("%s is of %s", table, got)
		}
	}
}

// TestUpgradeToReplays: the relay's tables of an older version are upgraded. Before that,
// calls about replays return the remedy.
func TestUpgradeToReplays(t *testing.T) {
	path := newFile(t)
	r := &rig{path: path, db: openSQL(t, path)}
	r.exec(t, flowTable)
	for n := 1; n <= 4; n++ {
		text, err := os.ReadFile(fmt.Sprintf("schema/%04d.sql", n))
		if err != nil {
			t.Fatal(err)
		}
		r.exec(t, string(text))
	}
	r.store = openStore(t, path, "rig", 0, flowBox())
	var err error
	if r.epoch, err = r.store.AcquireLeadership(ctx(t)); err != nil {
		t.Fatal(err)
	}
	r.spill(t, r.spillItem("2", "a", 1))
	paused := store.Hold{Lane: rigs.Lane(store.GroupOf("a")), Kind: store.Paused, Reason: "x"}
	if err := r.store.Hold(ctx(t), r.epoch, paused); err != nil {
		t.Fatal(err)
	}
	rigs.WantSetup(t, "check", r.store.Check(ctx(t)), "version 4, this program needs 6", "sluicebox init")
	_, err = r.store.Savepoints(ctx(t))
	rigs.WantSetup(t, "named", err, "sluicebox init")
	rigs.WantSetup(t, "request", r.store.RequestReplay(ctx(t), "job", "{}"), "sluicebox init")
	rigs.WantSetup(t, "copy", r.store.CopyRows(ctx(t), r.epoch, "job", nil, store.ReplayCursor{}), "sluicebox init")
	before := r.epoch
	r.epoch = rigs.InstallAndLead(t, r.store)
	wantIDs(t, "spilled", r.spilled(t, laneOf("a"))) // by the lane hashes of versions before 6
	if holds, err := r.store.LoadHolds(ctx(t)); err != nil || len(holds) != 0 || r.epoch != before+1 {
		t.Errorf("the holds are %+v, %v; the epoch is %d", holds, err, r.epoch)
	}
	rigs.EndJob(t, r.store, r.epoch, "events", "job", store.JobDone)
}
