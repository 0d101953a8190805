package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// replayFill adds rows to a replay, in that many lanes.
func replayFill(job string, rows, lanes int) string {
	return fmt.Sprintf(`
INSERT INTO sluicebox.replay_row (name, job, outbox, lane, n, id, kind, xid, payload_size)
SELECT 'plans', '%s', 'events', substr(sha256(int8send(i %% %d)), 1, 20), i, convert_to('row ' || i, 'UTF8'), 'EVENT', 0, 0 FROM generate_series(1, %d) i`, job, lanes, rows)
}

// TestReplayPlans: whatever the table held when its statistics and the plans were made,
// each statement uses the index meant for it.
func TestReplayPlans(t *testing.T) {
	for _, version := range servers.Versions() {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			url := servers.Database(t, version)
			st, err := New(Config{URL: url, Name: "plans", Outboxes: []store.Outbox{{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.FlowCatalyst()}}})
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			servers.Exec(t, url, st.Script(), "ALTER TABLE sluicebox.replay_row SET (autovacuum_enabled = off)",
				"INSERT INTO sluicebox.replay (name, job, nth, wish, spec, state) VALUES ('plans', 'job', 1, 'run', '', 'playing')")
			for _, stage := range []struct {
				name       string
				statements []string
			}{
				{"new", nil},
				{"a row, analyzed", []string{replayFill("job", 1, 1), "ANALYZE sluicebox.replay_row"}},
				{"full, with statistics of a row", []string{"DELETE FROM sluicebox.replay_row", replayFill("job", 20_000, 1000)}},
				{"full, analyzed", []string{"ANALYZE sluicebox.replay_row"}},
				{"one lane of another, analyzed", []string{"DELETE FROM sluicebox.replay_row", replayFill("another", 10_000, 1), "VACUUM ANALYZE sluicebox.replay_row"}},
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
	for what, of := range map[string]struct {
		q    *query
		want string // the indexes of replay_row
	}{
		"copying": {copyQuery(), ""}, "clearing": {clearQuery(), "replay_row_n"}, "done": {finishRowsQuery(), "replay_row_pkey"},
		"lanes": {replayLanesQuery(), "replay_row_n replay_row_pkey"}, "rows": {replayRowsQuery(), "replay_row_pkey"},
	} {
		err := st.replay.do(t.Context(), func(_ context.Context, sess *session) error {
			plan := genericPlan(t, sess.conn, of.q)
			for _, index := range []string{"replay_row_pkey", "replay_row_n"} {
				if strings.Contains(plan, "using "+index) != strings.Contains(of.want, index) {
					t.Errorf("%s: %s: want index %q in plan\n%s", stage, what, of.want, plan)
				}
			}
			for _, bad := range []string{"Seq Scan on replay", "Bitmap Heap Scan on replay_row", "Hash Join", "Merge Join", "Sort Key: ((r.n + 0"} {
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
