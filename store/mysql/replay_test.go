package mysql_test

import (
	"os"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestRequestsCounted checks that each request increments its relay's counter, and that a
// rejected one does not.
func TestRequestsCounted(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		rigs.CheckRequestCounts(t, r.store, func() int {
			return ask[int](t, r.db, "SELECT coalesce(max(n), 0) FROM sluicebox_wish WHERE name = 'rig'")
		})
		if nth := ask[int](t, r.db, "SELECT nth FROM sluicebox_replay WHERE job = 'job'"); nth != 3 {
			t.Errorf("replay number: got %d, want 3", nth)
		}
	})
}

// TestNarrowSavepointNames: a table with a narrower name column accepts names that fit,
// and the error for a longer one has the statement that widens the column.
func TestNarrowSavepointNames(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		r.exec(t, "ALTER TABLE sluicebox_named MODIFY checkpoint VARBINARY(40) NOT NULL")
		long := strings.Repeat("z", 41)
		if err := r.store.RequestSavepoint(ctx(t), long[:40], false); err != nil {
			t.Error(err)
		}
		rigs.WantSetup(t, "a longer name", r.store.RequestSavepoint(ctx(t), long, false), "at most 40 characters", "ALTER TABLE sluicebox_named MODIFY checkpoint VARBINARY(63)")
	})
}

// TestOldReplaysDeleted checks that the end of a replay deletes replays that ended long ago.
func TestOldReplaysDeleted(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		for _, id := range []string{"old", "young", "open", "last"} {
			state := store.JobDone
			if id == "open" {
				state = store.JobPlaying
			}
			rigs.EndJob(t, r.store, r.epoch, "events", id, state)
			r.exec(t, "UPDATE sluicebox_replay SET began_at = UTC_TIMESTAMP(6) - INTERVAL 8 DAY WHERE job = 'open'")
			r.exec(t, "UPDATE sluicebox_replay SET finished_at = UTC_TIMESTAMP(6) - INTERVAL 169 HOUR WHERE job = 'old'")
			r.exec(t, "UPDATE sluicebox_replay SET finished_at = UTC_TIMESTAMP(6) - INTERVAL 167 HOUR WHERE job = 'young'")
		}
		for _, table := range []string{"sluicebox_replay", "sluicebox_replay_error"} {
			if got := ask[string](t, r.db, "SELECT CONVERT(GROUP_CONCAT(job ORDER BY job SEPARATOR ' ') USING utf8mb4) FROM "+table); got != "last open young" {
				t.Errorf("%s is of %s", table, got)
			}
		}
	})
}

// TestUpgradeToReplays checks the upgrade from the previous version of the relay's
// tables. Before the upgrade, replays fail with the remedy.
func TestUpgradeToReplays(t *testing.T) {
	first, err := os.ReadFile("schema/0001.sql")
	if err != nil {
		t.Fatal(err)
	}

	eachFlavour(t, func(t *testing.T, url string) {
		servers.ExecMySQL(t, url, append(strings.Split(strings.TrimSpace(string(first)), ";\n"), flowTable)...)
		r := &rig{url: url, db: servers.OpenMySQL(t, url), store: openStore(t, url, 0, flowBox())}
		r.lead(t)
		item := store.Item{Ref: store.Ref{Outbox: "events", ID: "1"}, Kind: "EVENT", Group: store.GroupOf("g"), Seq: 7}
		if err := r.store.Spill(ctx(t), r.epoch, []store.Item{item}); err != nil {
			t.Fatal(err)
		}

		if err := r.store.Hold(ctx(t), r.epoch, store.Hold{Lane: item.Lane(), Kind: store.Paused, Reason: "x"}); err != nil {
			t.Fatal(err)
		}
		_, named := r.store.Savepoints(ctx(t))
		for what, err := range map[string]error{
			"check": r.store.Check(ctx(t)), "named": named, "wish": r.store.RequestReplay(ctx(t), "job", "{}"),
			"copy": r.store.CopyRows(ctx(t), r.epoch, "job", nil, store.ReplayCursor{}),
		} {
			rigs.WantSetup(t, what, err, "sluicebox init")
		}

		if may, err := r.store.MayInstall(ctx(t)); err != nil || !may {
			t.Errorf("MayInstall: got %t, %v", may, err)
		}
		before := r.epoch
		r.epoch = rigs.InstallAndLead(t, r.store)
		parked, err := r.store.ReadSpilled(ctx(t), []store.SpilledRange{{Outbox: "events", Lane: item.Lane().Hash()}}, 5)
		if err != nil || len(parked[0]) != 0 { // its hashes are from before version 3
			t.Errorf("spilled rows: got %+v, %v", parked, err)
		}

		if holds, err := r.store.LoadHolds(ctx(t)); err != nil || len(holds) != 0 || r.epoch != before+1 {
			t.Errorf("holds: got %+v, %v; epoch %d", holds, err, r.epoch)
		}
		rigs.EndJob(t, r.store, r.epoch, "events", "job", store.JobDone)
	})
}
