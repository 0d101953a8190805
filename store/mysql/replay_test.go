package mysql_test

import (
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
)

// TestRequestsCounted checks that each request increments its relay's counter, and that a
// rejected one does not.
func TestRequestsCounted(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		rigs.CheckRequestCounts(t, r.store, func() int {
			return ask[int](t, r.db, "SELECT coalesce(max(version), 0) FROM sluicebox_record WHERE name = 'rig' AND record_key = 'requests'")
		})
		if nth := ask[int](t, r.db, "SELECT JSON_EXTRACT(body, '$.nth') FROM sluicebox_record WHERE kind = 'job' AND record_key = 'job'"); nth != 3 {
			t.Errorf("replay number: got %d, want 3", nth)
		}
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
			set := func(field, id, hours string) {
				r.exec(t, "UPDATE sluicebox_record SET body = JSON_SET(body, '$."+field+"', DATE_FORMAT(UTC_TIMESTAMP() - INTERVAL "+hours+" HOUR, '%Y-%m-%dT%H:%i:%sZ')) WHERE kind = 'job' AND record_key = ?", id)
			}
			set("startedAt", "open", "192")
			set("finishedAt", "old", "169")
			set("finishedAt", "young", "167")
		}
		const keys = "SELECT CONVERT(GROUP_CONCAT(record_key ORDER BY record_key SEPARATOR ' ') USING utf8mb4) FROM sluicebox_record WHERE kind = ?"
		for kind, want := range map[string]string{
			"job": "last open young", "job-spec": "last open young", "job-error": "last/0000000000000000001 open/0000000000000000001 young/0000000000000000001",
		} {
			if got := ask[string](t, r.db, keys, kind); got != want {
				t.Errorf("records %s: got %s, want %s", kind, got, want)
			}
		}
	})
}
