package postgres_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// replayRow is a row of a replay in the lane of group g.
func replayRow(n int64) store.ReplayRow {
	return store.ReplayRow{N: n, Item: spilledRow(fmt.Sprint(n), 0)}
}

func replayLane() store.LaneKey {
	return store.LaneKey{Outbox: "events", Kind: "EVENT", Group: store.GroupOf("g")}
}

// job requests a replay and copies rows for it.
func (r *rig) job(t *testing.T, id string, rows ...store.ReplayRow) {
	t.Helper()
	if err := r.store.RequestReplay(ctx(t), id, "{}"); err != nil {
		t.Fatal(err)
	}
	if err := r.store.CopyRows(ctx(t), r.epoch, id, rows, store.ReplayCursor{}); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) jobOf(t *testing.T, id string) store.Job {
	t.Helper()
	jobs, err := r.store.Jobs(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(jobs, func(j store.Job) bool { return j.ID == id })
	if i < 0 {
		t.Fatalf("replay %s not found", id)
	}
	return jobs[i]
}

// TestRequestsCounted: each request is counted for its relay, in the order in which it
// becomes visible.
func TestRequestsCounted(t *testing.T) {
	eachVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		rigs.CheckRequestCounts(t, r.store, func() int {
			return ask[int](t, r.conn, "SELECT coalesce(max(n), 0) FROM sluicebox.wish WHERE name = 'rig'")
		})
		tx := r.begin(t, "UPDATE sluicebox.wish SET n = n + 1")
		asked := rigs.Async(func() (int, error) { return 0, r.store.RequestReplay(ctx(t), "next", "{}") })
		r.waitBlocked(t, 1)
		end(t, tx, true)
		if a := <-asked; a.Err != nil {
			t.Fatal(a.Err)
		}
		if n := ask[int](t, r.conn, "SELECT r.nth FROM sluicebox.replay r JOIN sluicebox.wish w USING (name) WHERE r.job = 'next' AND w.n = r.nth"); n != 6 {
			t.Errorf("got number %d for the next request", n)
		}
	})
}

// TestReplayCountsUnderConcurrentChange: another session changes the replay's row under
// each statement that updates its counts; both changes survive.
func TestReplayCountsUnderConcurrentChange(t *testing.T) {
	eachVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		r.job(t, "job", replayRow(1), replayRow(2), replayRow(3), replayRow(4))
		key := replayLane()
		for what, call := range map[string]func() error{
			"copy": func() error {
				return r.store.CopyRows(ctx(t), r.epoch, "job", []store.ReplayRow{replayRow(4), replayRow(5)}, store.ReplayCursor{Skip: 7})
			},
			"done": func() error {
				return r.store.FinishRows(ctx(t), r.epoch, "job", []store.FinishedRow{
					{N: 1, Lane: key}, {N: 2, Lane: key, Result: store.ReplayRefused, Error: "no"}, {N: 9, Lane: key},
				})
			},
			"clear": func() error {
				_, err := r.store.ClearRows(ctx(t), r.epoch, "job", 1)
				return err
			},
			"save": func() error {
				return r.store.SaveJob(ctx(t), r.epoch, store.Job{ID: "job", State: store.JobCopying})
			},
		} {
			wish := store.DesiredState("wished beside " + what)
			tx := r.begin(t, "UPDATE sluicebox.replay SET wish = $1, total = total + 100", string(wish))
			before := r.jobOf(t, "job")
			called := rigs.Async(func() (int, error) { return 0, call() })
			r.waitBlocked(t, 1)
			end(t, tx, true)
			if a := <-called; a.Err != nil {
				t.Errorf("%s: %v", what, a.Err)
			}
			after := r.jobOf(t, "job")
			want := before
			want.Desired, want.Total = wish, before.Total+100
			switch what {
			case "copy":
				want.Cursor.Skip, want.Total = 7, want.Total+1
			case "done": // each of the two may have been cleared
				gone := after.Sent + after.Refused
				want.Sent, want.Refused = after.Sent, after.Refused
				if gone == 0 || gone > 2 {
					t.Errorf("%d rows were finished", gone)
				}
			case "clear":
				want.Total--
			case "save":
				want.State, want.StartedAt = store.JobCopying, after.StartedAt
			}
			if after != want {
				t.Errorf("%s: got replay\n%+v, want\n%+v", what, after, want)
			}
		}
		if left := ask[int](t, r.conn, "SELECT count(*) FROM sluicebox.replay_row"); left != int(r.jobOf(t, "job").Total)-400-int(r.jobOf(t, "job").Sent+r.jobOf(t, "job").Refused) {
			t.Errorf("%d rows are left of %+v", left, r.jobOf(t, "job"))
		}
	})
}

// TestOldReplays: the end of a replay deletes replays that ended long ago.
func TestOldReplays(t *testing.T) {
	eachVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		for _, id := range []string{"old", "young", "open", "last"} {
			r.job(t, id, replayRow(1))
			if err := r.store.FinishRows(ctx(t), r.epoch, id, []store.FinishedRow{{N: 1, Lane: replayLane(), Result: store.ReplayRefused}}); err != nil {
				t.Fatal(err)
			}
			state := store.JobDone
			if id == "open" {
				state = store.JobPlaying
			}
			if err := r.store.SaveJob(ctx(t), r.epoch, store.Job{ID: id, State: state}); err != nil {
				t.Fatal(err)
			}
			r.exec(t, "UPDATE sluicebox.replay SET began_at = now() - interval '8 days' WHERE job = 'open'")
			r.exec(t, "UPDATE sluicebox.replay SET finished_at = now() - interval '169 hours' WHERE job = 'old'")
			r.exec(t, "UPDATE sluicebox.replay SET finished_at = now() - interval '167 hours' WHERE job = 'young'")
		}
		for table, want := range map[string]string{"replay": "last open young", "replay_error": "last open young"} {
			if got := ask[string](t, r.conn, "SELECT string_agg(job, ' ' ORDER BY job) FROM sluicebox."+table); got != want {
				t.Errorf("%s: got %s, want %s", table, got, want)
			}
		}
	})
}

// TestUpgradeToReplays: the relay's tables of the previous version are upgraded with all
// their rows. Before the upgrade, replays return an error with the remedy.
func TestUpgradeToReplays(t *testing.T) {
	eachVersion(t, func(t *testing.T, url string) {
		servers.Exec(t, url, flowTable)
		for n := 1; n <= 4; n++ {
			text, err := os.ReadFile(fmt.Sprintf("schema/%04d.sql", n))
			if err != nil {
				t.Fatal(err)
			}
			servers.Exec(t, url, string(text))
		}
		r := &rig{url: url, conn: servers.Connect(t, url), store: openStore(t, url, 0, flowBox)}
		var err error
		if r.epoch, err = r.store.AcquireLeadership(ctx(t)); err != nil {
			t.Fatal(err)
		}
		r.insert(t, "1")
		const lane = "sha256(int8send(5) || 'EVENT\001g'::bytea)" // of versions 2 to 5
		r.exec(t, "INSERT INTO sluicebox.parked VALUES (7, 0, 0, 2, NULL, 'rig', 'events', "+lane+", '1', 'EVENT', 'g')")
		r.exec(t, "INSERT INTO sluicebox.hold VALUES ('rig', 'events', "+lane+", 'paused', 'EVENT', 'g', '', 0, '', now())")
		_, named := r.store.Savepoints(ctx(t))
		for what, err := range map[string]error{
			"check": r.store.Check(ctx(t)), "named": named, "wish": r.store.RequestReplay(ctx(t), "job", "{}"),
			"copy": r.store.CopyRows(ctx(t), r.epoch, "job", nil, store.ReplayCursor{}),
		} {
			var setup *store.SetupError
			if !errors.As(err, &setup) || !strings.Contains(err.Error(), "sluicebox init") {
				t.Errorf("%s on the previous version: got error %v", what, err)
			}
		}
		before := r.epoch
		r.install(t)
		it := spilledRow("1", 7)
		lists, err := r.store.ReadSpilled(ctx(t), []store.SpilledRange{laneOf(it)}, 9)
		if err != nil || len(lists[0]) != 1 || lists[0][0].ID != "1" || lists[0][0].Lane() != it.Lane() {
			t.Errorf("got spilled rows %+v, error %v", lists, err)
		}
		if err := r.store.Release(ctx(t), r.epoch, it.Lane(), store.Paused); err != nil || r.holds(t) != 0 || r.epoch != before+1 {
			t.Errorf("got %d holds, epoch %d, error %v", r.holds(t), r.epoch, err)
		}
		r.job(t, "job", replayRow(1))
	})
}
