package sqlite_test

import (
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
)

// TestRequestsAreCounted: each request is counted for its relay, a refused one is not.
func TestRequestsAreCounted(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	rigs.CheckRequestCounts(t, r.store, func() int {
		return ask[int](t, r.db, "SELECT coalesce(max(version), 0) FROM sluicebox_record WHERE name = 'rig' AND key = 'requests'")
	})
	if nth := ask[int](t, r.db, "SELECT json_extract(body, '$.nth') FROM sluicebox_record WHERE kind = 'job' AND key = 'job'"); nth != 3 {
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
		set := func(field, id, modifier string) {
			r.exec(t, "UPDATE sluicebox_record SET body = json_set(body, ?, strftime('%Y-%m-%dT%H:%M:%SZ', 'now', ?)) WHERE kind = 'job' AND key = ?", "$."+field, modifier, id)
		}
		set("startedAt", "open", "-8 days")
		set("finishedAt", "old", "-169 hours")
		set("finishedAt", "young", "-167 hours")
	}
	if got := ask[string](t, r.db, "SELECT group_concat(job, ' ') FROM (SELECT job FROM sluicebox_jobs ORDER BY job)"); got != "last open young" {
		t.Errorf("the jobs are %s", got)
	}
	const keys = "SELECT group_concat(key, ' ') FROM (SELECT key FROM sluicebox_record WHERE kind = ? ORDER BY key)"
	for kind, want := range map[string]string{
		"job": "last open young", "job-spec": "last open young", "job-error": "last/0000000000000000001 open/0000000000000000001 young/0000000000000000001",
	} {
		if got := ask[string](t, r.db, keys, kind); got != want {
			t.Errorf("the records %s are %s, want %s", kind, got, want)
		}
	}
}
