package postgres_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
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
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		rigs.CheckRequestCounts(t, r.store, func() int {
			return ask[int](t, r.conn, "SELECT coalesce(max(version), 0) FROM sluicebox.record WHERE name = 'rig' AND key = 'requests'")
		})
		tx := r.begin(t, "UPDATE sluicebox.record SET version = version + 1 WHERE key = 'requests'")
		asked := rigs.Async(func() (int, error) { return 0, r.store.RequestReplay(ctx(t), "next", "{}") })
		r.waitBlocked(t, 1)
		end(t, tx, true)
		if a := <-asked; a.Err != nil {
			t.Fatal(a.Err)
		}
		if n := ask[int](t, r.conn, "SELECT (r.body->>'nth')::int FROM sluicebox.record r JOIN sluicebox.record w USING (name) WHERE r.kind = 'job' AND r.key = 'next' AND w.key = 'requests' AND w.version = (r.body->>'nth')::int"); n != 6 {
			t.Errorf("got number %d for the next request", n)
		}
	})
}

// TestOldReplays: the end of a replay deletes replays that ended long ago.
func TestOldReplays(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
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
			set := func(field, id, age string) {
				r.exec(t, "UPDATE sluicebox.record SET body = (body::jsonb || jsonb_build_object($1::text, now() - $2::text::interval))::json WHERE kind = 'job' AND key = $3", field, age, id)
			}
			set("startedAt", "open", "8 days")
			set("finishedAt", "old", "169 hours")
			set("finishedAt", "young", "167 hours")
		}
		if got := ask[string](t, r.conn, "SELECT string_agg(job, ' ' ORDER BY job) FROM sluicebox.jobs"); got != "last open young" {
			t.Errorf("the jobs are %s", got)
		}
		if n := ask[int](t, r.conn, "SELECT count(*) FROM sluicebox.record WHERE kind = 'job-error'"); n != 3 {
			t.Errorf("%d errors", n)
		}
	})
}
