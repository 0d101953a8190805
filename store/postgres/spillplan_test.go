package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// spillFill spills rows of a relay in that many lanes.
func spillFill(name string, rows, lanes int) string {
	return fmt.Sprintf(`
INSERT INTO sluicebox.parked (name, outbox, lane, seq, id, kind, xid, retry_count, payload_size)
SELECT '%s', 'events', substr(sha256(int8send(i %% %d)), 1, 20), i, convert_to('row ' || i, 'UTF8'), 'EVENT', 0, 0, 0 FROM generate_series(1, %d) i`, name, lanes, rows)
}

// TestSpillPlans: whatever the table held when its statistics and the plans were made,
// each statement uses the one index meant for it.
func TestSpillPlans(t *testing.T) {
	const outbox = "CREATE TABLE outbox_events (id varchar(13) PRIMARY KEY, message_group text, payload text, status text, retry_count int, created_at timestamp, processed_at timestamp, error_message text)"
	const still = "ALTER TABLE sluicebox.parked SET (autovacuum_enabled = off)"
	box := store.Outbox{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.FlowCatalyst()}
	for _, version := range servers.Versions() {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			url := servers.Database(t, version)
			st, err := New(Config{URL: url, Name: "plans", Outboxes: []store.Outbox{box}})
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			servers.Exec(t, url, outbox, st.Script(), still)
			for _, stage := range []struct {
				name       string
				statements []string
			}{
				{"new", nil},
				{"empty, analyzed", []string{"ANALYZE sluicebox.parked"}},
				{"a row, analyzed", []string{spillFill("plans", 1, 1), "ANALYZE sluicebox.parked"}},
				{"full, with statistics of a row", []string{"DELETE FROM sluicebox.parked", spillFill("plans", 50_000, 1000)}},
				{"full, analyzed", []string{"ANALYZE sluicebox.parked"}},
				{"emptied and vacuumed", []string{"DELETE FROM sluicebox.parked", "VACUUM sluicebox.parked"}},
				{"one lane of another relay, analyzed", []string{spillFill("another", 20_000, 1), "ANALYZE sluicebox.parked"}},
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
	check := func(what string, sess *session, make func(*table) *query, want ...string) {
		t.Helper()
		err := sess.do(t.Context(), func(ctx context.Context, sess *session) error {
			desc, err := sess.table(ctx, st.outboxes.Lookup("events"))
			if err != nil {
				return err
			}
			plan := genericPlan(t, sess.conn, make(desc))
			for _, index := range []string{"parked_pkey", "parked_id", "parked_seq"} {
				wanted := false
				for _, w := range want {
					wanted = wanted || w == index
				}
				if strings.Contains(plan, "using "+index) != wanted {
					t.Errorf("%s: %s, uses %s: %v, in plan\n%s", stage, what, index, !wanted, plan)
				}
			}
			for _, bad := range []string{"Seq Scan on parked", "Bitmap Heap Scan on parked", "Hash Join", "Merge Join", "Seq Scan on outbox"} {
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
	plain := func(make func() *query) func(*table) *query { return func(*table) *query { return make() } }
	check("reading lanes", st.spillSession, plain(readSpilledQuery), "parked_pkey")
	check("counting lanes", st.spillSession, plain(spilledLanesQuery), "parked_pkey")
	check("the kinds of lanes", st.spillSession, plain(spilledKindQuery), "parked_pkey")
	check("unparking", st.spillSession, plain(deleteSpilledQuery), "parked_id")
	check("forgetting", st.spillSession, plain(deleteSpilledAfterQuery), "parked_seq")
	check("deleting settled spilled rows", st.outcomes, deleteSettledSpilledQuery, "parked_id")
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
	const table = `
CREATE TABLE outbox_events (id varchar(13) PRIMARY KEY, message_group text, payload text, status text, retry_count int, created_at timestamp, processed_at timestamp, error_message text);
INSERT INTO outbox_events SELECT 'row ' || i, 'g', '{}', 'PENDING', 0, now() FROM generate_series(1, 200010) i`
	box := store.Outbox{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.FlowCatalyst()}
	for _, version := range servers.Versions() {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			url := servers.Database(t, version)
			st, err := New(Config{URL: url, Name: "plans", Outboxes: []store.Outbox{box}})
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			servers.Exec(t, url, table, "ANALYZE outbox_events", st.Script(), "ALTER TABLE sluicebox.parked SET (autovacuum_enabled = off)",
				spillFill("another", 10, 1), "VACUUM ANALYZE sluicebox.parked", spillFill("plans", 200_000, 1000))
			opened, err := st.View(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer opened.Close()
			v := newView(t, st)
			defer v.Drop()
			q := store.UnsettledQuery{Outbox: "events", Limit: 100}
			desc, err := describe(t.Context(), v.conn, &box)
			if err != nil {
				t.Fatal(err)
			}
			read, args, _, err := v.unsettled(t.Context(), desc, q)
			if err != nil {
				t.Fatal(err)
			}
			if plan := explain(t, v.conn, read.sql, args); !strings.Contains(plan, "using parked_id") || strings.Contains(plan, "Seq Scan on parked") {
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
