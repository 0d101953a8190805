package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// replayFill adds rows to a replay, in that many lanes.
func replayFill(job string, rows, lanes int) string {
	return fmt.Sprintf(`
INSERT INTO sluicebox.queue (name, queue, outbox, lane, n, id, kind, xid, retry_count, payload_size)
SELECT 'plans', '%s', 'events', substr(sha256(int8send(i %% %d)), 1, 20), i, convert_to('row ' || i, 'UTF8'), 'EVENT', 0, 0, 0 FROM generate_series(1, %d) i`, job, lanes, rows)
}

// TestReplayPlans: whatever the table held when its statistics and the plans were made,
// each statement uses the index meant for it.
func TestReplayPlans(t *testing.T) {
	t.Parallel()
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			url := servers.Database(t, version)
			st := planStore(t, url)
			for _, stage := range []struct {
				name       string
				statements []string
			}{
				{"new", nil},
				{"a row, analyzed", []string{replayFill("job", 1, 1), "ANALYZE sluicebox.queue"}},
				{"full, with statistics of a row", []string{"DELETE FROM sluicebox.queue", replayFill("job", 20_000, 1000)}},
				{"full, analyzed", []string{"ANALYZE sluicebox.queue"}},
				{"one lane of another, analyzed", []string{"DELETE FROM sluicebox.queue", replayFill("another", 10_000, 1), "VACUUM ANALYZE sluicebox.queue"}},
				{"full, with statistics of that lane", []string{replayFill("job", 20_000, 1)}},
			} {
				servers.Exec(t, url, stage.statements...)
				checkReplayPlans(t, st, stage.name)
			}
			began := time.Now()
			lanes, err := st.ReplayLanes(t.Context(), "job", 1, 5)
			if err != nil || len(lanes) != 0 {
				t.Errorf("after the first lane: got %+v, error %v", lanes, err)
			}
			t.Logf("20000 rows of one lane skipped in %s", time.Since(began))
		})
	}
}

// checkReplayPlans checks the plans that a session with the store's settings would make
// now and keep.
func checkReplayPlans(t *testing.T, st *Store, stage string) {
	t.Helper()
	tx := &transaction{}
	for what, of := range map[string]struct {
		q    *query
		want string // the indexes of queue
	}{
		"copying": {tx.enqueueQuery("", nil), ""}, "clearing": {tx.clearQuery(ledger.Scan{}), "queue_n"}, "done": {tx.dequeueQuery("", nil, true), "queue_n"},
		"lanes": {tx.scanQuery(ledger.Scan{Heads: true}), "queue_n queue_pkey"}, "rows": {tx.rangeQuery("", nil, 0), "queue_pkey"},
	} {
		err := st.replay.do(t.Context(), func(_ context.Context, sess *session) error {
			plan := genericPlan(t, sess.conn, of.q)
			for _, index := range []string{"queue_pkey", "queue_n"} {
				if strings.Contains(plan, "using "+index) != strings.Contains(of.want, index) {
					t.Errorf("%s: %s: want index %q in plan\n%s", stage, what, of.want, plan)
				}
			}
			for _, bad := range []string{"Seq Scan on queue", "Bitmap Heap Scan on queue", "Hash Join", "Merge Join", "Sort Key: ((q.n + 0"} {
				if strings.Contains(plan, bad) {
					t.Errorf("%s: %s: unwanted %s in plan\n%s", stage, what, bad, plan)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
