package postgres

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// spillFill spills rows of a relay in that many lanes.
func spillFill(name string, rows, lanes int) string {
	return fmt.Sprintf(`
INSERT INTO sluicebox.queue (queue, name, outbox, lane, n, id, kind, xid, retry_count, payload_size)
SELECT '', '%s', 'events', substr(sha256(int8send(i %% %d)), 1, 20), i, convert_to('row ' || i, 'UTF8'), 'EVENT', 0, 0, 0 FROM generate_series(1, %d) i`, name, lanes, rows)
}

// planStore returns a store of the outbox "events" with the statements run. Nothing changes the
// statistics of its queues behind the test.
func planStore(t *testing.T, url string, statements ...string) *Store {
	t.Helper()
	st, err := New(Config{URL: url, Name: "plans", Outboxes: []store.Outbox{{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.FlowCatalyst()}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	servers.Exec(t, url, st.Script(), "ALTER TABLE sluicebox.queue SET (autovacuum_enabled = off)")
	servers.Exec(t, url, statements...)
	return st
}

// TestSpillPlans: whatever the table held when its statistics and the plans were made,
// each statement uses the one index meant for it.
func TestSpillPlans(t *testing.T) {
	t.Parallel()
	const outbox = "CREATE TABLE outbox_events (id varchar(13) PRIMARY KEY, message_group text, payload text, status text, retry_count int, created_at timestamp, processed_at timestamp, error_message text)"
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			// A server without other sessions, because an old snapshot keeps VACUUM from
			// emptying the table.
			url := servers.Start(t, version, nil).URL
			st := planStore(t, url, outbox)
			for _, stage := range []struct {
				name       string
				statements []string
			}{
				{"new", nil},
				{"empty, analyzed", []string{"ANALYZE sluicebox.queue"}},
				{"a row, analyzed", []string{spillFill("plans", 1, 1), "ANALYZE sluicebox.queue"}},
				{"full, with statistics of a row", []string{"DELETE FROM sluicebox.queue", spillFill("plans", 50_000, 1000)}},
				{"full, analyzed", []string{"ANALYZE sluicebox.queue"}},
				{"emptied and vacuumed", []string{"DELETE FROM sluicebox.queue", "VACUUM sluicebox.queue"}},
				{"one lane of another relay, analyzed", []string{spillFill("another", 20_000, 1), "ANALYZE sluicebox.queue"}},
				{"full, with statistics of that lane", []string{spillFill("plans", 50_000, 1000)}},
			} {
				servers.Exec(t, url, stage.statements...)
				checkSpillPlans(t, st, stage.name)
			}
		})
	}
}

// checkSpillPlans checks the plans that sessions with the store's settings would make now
// and keep.
func checkSpillPlans(t *testing.T, st *Store, stage string) {
	t.Helper()
	check := func(what string, sess *session, q *query, want ...string) {
		t.Helper()
		err := sess.do(t.Context(), func(_ context.Context, sess *session) error {
			plan := genericPlan(t, sess.conn, q)
			for _, index := range []string{"queue_pkey", "queue_id", "queue_n"} {
				wanted := slices.Contains(want, index)
				if strings.Contains(plan, "using "+index) != wanted {
					t.Errorf("%s: %s, uses %s: %v, in plan\n%s", stage, what, index, !wanted, plan)
				}
			}
			for _, bad := range []string{"Seq Scan on queue", "Bitmap Heap Scan on queue", "Hash Join", "Merge Join", "Seq Scan on outbox"} {
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
	tx := &transaction{}
	check("reading lanes", st.spillSession.session, tx.rangeQuery("", nil, 0), "queue_pkey")
	check("counting lanes", st.spillSession.session, tx.lanesQuery("", ""), "queue_pkey")
	check("the kinds of lanes", st.spillSession.session, tx.laneKindQuery("", "", nil), "queue_pkey")
	ofOutboxes := ledger.Scan{Outboxes: []string{}}
	check("spilling", st.spillSession.session, tx.enqueueQuery("", nil))
	check("finding a number that is taken", st.spillSession.session, tx.takenQuery("", nil), "queue_n")
	check("deleting", st.spillSession.session, tx.dequeueQuery("", nil, false), "queue_n")
	check("deleting after a number", st.spillSession.session, tx.clearQuery(ofOutboxes), "queue_n")
	check("reading by number", st.spillSession.session, tx.scanQuery(ofOutboxes), "queue_n")
	check("deleting settled spilled rows", st.outcomes[0].session, tx.dequeueQuery("", nil, false), "queue_n")
}

// recordFill writes records of legs of a relay.
func recordFill(name string, from, to int) string {
	return fmt.Sprintf(`
INSERT INTO sluicebox.record (name, kind, key, body, version)
SELECT '%s', 'leg', 'key ' || i, '{"outbox": "events"}', 1 FROM generate_series(%d, %d) i`, name, from, to)
}

// TestRecordPlans: whatever the table held when its statistics and the plans were made, a statement
// looks up each record that it names, and reads no other of the kind.
func TestRecordPlans(t *testing.T) {
	t.Parallel()
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			url := servers.Database(t, version)
			st := planStore(t, url, "ALTER TABLE sluicebox.record SET (autovacuum_enabled = off)")
			for _, stage := range []struct {
				name       string
				statements []string
			}{
				{"new", nil},
				{"empty, analyzed", []string{"VACUUM ANALYZE sluicebox.record"}},
				{"a row, analyzed", []string{recordFill("plans", 1, 1), "ANALYZE sluicebox.record"}},
				{"another relay, analyzed", []string{recordFill("another", 1, 5000), "ANALYZE sluicebox.record"}},
				{"full, with statistics of another relay", []string{recordFill("plans", 2, 20_000)}},
				{"full, analyzed", []string{"ANALYZE sluicebox.record"}},
			} {
				servers.Exec(t, url, stage.statements...)
				checkRecordPlans(t, st, stage.name)
			}
		})
	}
}

// checkRecordPlans checks the plans that sessions would make now: those of spilled rows and outcomes to
// keep, the operator's for a thousand keys.
func checkRecordPlans(t *testing.T, st *Store, stage string) {
	t.Helper()
	tx, keys := &transaction{name: "plans"}, make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprint("key ", i+1)
	}
	for name, sess := range map[string]*session{"spilled rows": st.spillSession.session, "outcomes": st.outcomes[0].session, "operator": st.operator.session} {
		for what, q := range map[string]*query{
			"read": tx.getQuery("leg", keys, ""), "lock": tx.getQuery("leg", keys, lockRecords), "delete": tx.deleteQuery("leg", keys[0]),
		} {
			err := sess.do(t.Context(), func(_ context.Context, sess *session) error {
				plan := ""
				if name == "operator" {
					plan = explain(t, sess.conn, q.sql, q.args(nil))
				} else {
					plan = genericPlan(t, sess.conn, q)
				}
				byKey := regexp.MustCompile(`Index Cond: .*name = .*kind = .*key = `).MatchString(plan)
				small := name == "operator" && strings.Contains(plan, "Seq Scan on record") && !strings.HasPrefix(stage, "full")
				if !byKey && !small || strings.Contains(plan, "Filter:") && !small {
					t.Errorf("%s: %s, %s: does not look up each key, in plan\n%s", stage, name, what, plan)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// genericPlan returns the plan that is used for all values.
func genericPlan(t *testing.T, conn *pgx.Conn, q *query) string {
	t.Helper()
	if _, err := conn.Exec(t.Context(), "PREPARE planned AS "+q.sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	nulls := strings.TrimSuffix(strings.Repeat("NULL, ", len(q.params)), ", ")
	rows, err := conn.Query(t.Context(), "EXPLAIN EXECUTE planned ("+nulls+")", pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "DEALLOCATE planned", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

// TestSpilledViewPlan: with many spilled rows, a view looks up each row in the index on
// the id, with statistics that do not cover them.
func TestSpilledViewPlan(t *testing.T) {
	t.Parallel()
	const table = `
CREATE TABLE outbox_events (id varchar(13) PRIMARY KEY, message_group text, payload text, status text, retry_count int, created_at timestamp, processed_at timestamp, error_message text);
INSERT INTO outbox_events SELECT 'row ' || i, 'g', '{}', 'PENDING', 0, now() FROM generate_series(1, 200010) i`
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			url := servers.Database(t, version)
			st := planStore(t, url, table, "ANALYZE outbox_events",
				spillFill("another", 10, 1), "VACUUM ANALYZE sluicebox.queue", spillFill("plans", 200_000, 1000))
			opened, err := st.View(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer opened.Close()
			v := newView(t, st)
			defer v.Drop()
			q := store.UnsettledQuery{Outbox: "events", Limit: 100}
			desc, err := describe(t.Context(), v.conn, st.outboxes.Lookup("events"))
			if err != nil {
				t.Fatal(err)
			}
			read, _, err := v.unsettled(t.Context(), desc, q)
			if err != nil {
				t.Fatal(err)
			}
			if plan := explain(t, v.conn, read.sql, read.args(nil)); !strings.Contains(plan, "using queue_id") || strings.Contains(plan, "Seq Scan on queue") {
				t.Errorf("unexpected plan to exclude spilled rows:\n%s", plan)
			}
			started := time.Now()
			items, err := opened.Unsettled(t.Context(), q)
			if err != nil || len(items) != 10 {
				t.Errorf("got %d rows that are not spilled, error %v", len(items), err)
			}
			t.Logf("200000 spilled rows skipped in %s", time.Since(started))
		})
	}
}

// TestSpilledIDsPlan: the ids of spilled rows are read through their index, also if a replay
// has filled the table before.
func TestSpilledIDsPlan(t *testing.T) {
	t.Parallel()
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			url := servers.Database(t, version)
			replayed := strings.Replace(spillFill("plans", 100_000, 1000), "SELECT ''", "SELECT 'job'", 1)
			st := planStore(t, url, replayed, spillFill("plans", 30_000, 1000), "ANALYZE sluicebox.queue")
			v := newView(t, st)
			defer v.Drop()
			plan := explain(t, v.conn, readSpilledIDs, []any{"plans", "events", maxHashedIDs + 1})
			if !strings.Contains(plan, "using queue_id") || strings.Contains(plan, "Sort") {
				t.Errorf("unexpected plan:\n%s", plan)
			}
		})
	}
}
