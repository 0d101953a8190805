package postgres

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestLargeTablePlans: with many settled rows and a large excluded lane, reads use the
// table's index, and deletes find rows by their ctid.
func TestLargeTablePlans(t *testing.T) {
	t.Parallel()
	const table = `
CREATE TABLE outbox_events (
  id varchar(13) PRIMARY KEY, type varchar(20), message_group varchar(255), payload text, status varchar(20) NOT NULL,
  retry_count int, created_at timestamp NOT NULL, processed_at timestamp, error_message text);
CREATE INDEX idx_outbox_events_status ON outbox_events (status, message_group, created_at);
INSERT INTO outbox_events SELECT lpad(i::text, 13, '0'), 'EVENT', (i % 1000)::text, repeat('x', 100), 'COMPLETED', 0, now(), now() FROM generate_series(1, 100000) i;
INSERT INTO outbox_events SELECT lpad(i::text, 13, '0'), 'EVENT', (i % 10)::text, '', 'PENDING', 0, now() FROM generate_series(100001, 100100) i`
	box := store.Outbox{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.FlowCatalyst()}
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			url := servers.Database(t, version)
			servers.Exec(t, url, table, "ANALYZE outbox_events")
			st, err := New(Config{URL: url, Name: "plans", Outboxes: []store.Outbox{box}})
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			servers.Exec(t, url, st.Script())
			var held []string
			for i := range 50 {
				held = append(held, fmt.Sprintf("%013d", 100_001+i))
			}
			planOf(t, st, held, nil, "Index Cond: ((status)::text")
			servers.Exec(t, url, `INSERT INTO outbox_events SELECT lpad(i::text, 13, '0'), 'EVENT', 'large', repeat('x', 100), 'PENDING', 0, now() FROM generate_series(200001, 300000) i`,
				"ANALYZE outbox_events")
			large := store.LaneKey{Outbox: "events", Kind: "EVENT", Group: store.GroupOf("large")}
			null := store.LaneKey{Outbox: "events", Kind: "EVENT"}
			other := store.LaneKey{Outbox: "events", Kind: "EVENT", Group: store.GroupOf("Zoo")}
			planOf(t, st, held, []store.LaneKey{large}, "(message_group)::text < 'large'::text")
			planOf(t, st, held, []store.LaneKey{other, null, large}, "(message_group)::text > 'large'::text")

			conn := servers.Connect(t, url)
			desc, err := describe(t.Context(), conn, &box)
			if err != nil {
				t.Fatal(err)
			}
			values := st.fenced(1)
			values["before"], values["limit"] = time.Now(), 500
			values["from"], values["to"] = blockTID(256), blockTID(512)
			prune := pruneQuery(desc)
			plan := explain(t, conn, prune.sql, prune.args(values))
			if !strings.Contains(plan, "Tid Range Scan on outbox_events") || !strings.Contains(plan, "Tid Scan on outbox_events") || strings.Contains(plan, "Seq Scan on outbox_events") {
				t.Errorf("unexpected plan for the delete:\n%s", plan)
			}
		})
	}
}

// TestOrderedPlan: with many unsettled rows, a poll reads as many as it wants in the
// order of an index, and sorts only rows that are equal in order-by.
func TestOrderedPlan(t *testing.T) {
	t.Parallel()
	const table = `
CREATE TABLE outbox_events (
  id text PRIMARY KEY, message_group text, payload text, status text NOT NULL, retry_count int, created_at timestamptz NOT NULL, processed_at timestamptz, error_message text,
  n bigint GENERATED ALWAYS AS IDENTITY);
CREATE INDEX ON outbox_events (created_at, id) WHERE status IN ('PENDING', 'PROCESSING');
INSERT INTO outbox_events SELECT md5(i::text), (i % 10)::text, '', 'PENDING', 0, now() + i / 100 * interval '1 ms' FROM generate_series(1, 100000) i`
	box := store.Outbox{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.FlowCatalyst()}
	for _, version := range servers.Spread(t, servers.Versions()) {
		url := servers.Database(t, version)
		servers.Exec(t, url, table, "ANALYZE outbox_events")
		st, err := New(Config{URL: url, Name: "plans", Outboxes: []store.Outbox{box}})
		if err != nil {
			t.Fatal(err)
		}
		servers.Exec(t, url, st.Script())
		planOf(t, st, nil, nil, "Presorted Key: o.created_at")
		planOf(t, st, nil, nil, "Index Scan using outbox_events_created_at_id_idx")
		st.Close()
	}
}

// newView returns the transaction of a view. Drop it before the store closes.
func newView(t *testing.T, st *Store) *view {
	t.Helper()
	v, err := st.dialView(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	return v
}

// planOf checks how rows are read.
func planOf(t *testing.T, st *Store, held []string, except []store.LaneKey, want string) {
	t.Helper()
	v := newView(t, st)
	defer v.Drop()
	desc, err := describe(t.Context(), v.conn, st.outboxes.Lookup("events"))
	if err != nil {
		t.Fatal(err)
	}
	read, _, err := v.unsettled(t.Context(), desc, store.UnsettledQuery{Outbox: "events", Limit: 20, ExcludeIDs: held, ExcludeLanes: except})
	if err != nil {
		t.Fatal(err)
	}
	plan := explain(t, v.conn, read.sql, read.args(nil))
	if !strings.Contains(plan, want) || strings.Contains(plan, "Seq Scan on outbox_events") || !strings.Contains(plan, "hashed SubPlan") {
		t.Errorf("excluding %v: got plan\n%s\nwant %s", except, plan, want)
	}
}

func explain(t *testing.T, conn *pgx.Conn, sql string, args []any) string {
	t.Helper()
	rows, err := conn.Query(t.Context(), "EXPLAIN "+sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

// TestHeldIsHashed: as many ids as the largest buffers hold are looked up in a hash, not
// compared one by one.
func TestHeldIsHashed(t *testing.T) {
	t.Parallel()
	box := store.Outbox{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.FlowCatalyst()}
	held := make([]string, 300_000)
	for i := range held {
		held[i] = fmt.Sprintf("%013d", i)
	}
	for _, version := range servers.Spread(t, servers.Versions()) {
		url := servers.Database(t, version)
		servers.Exec(t, url, "CREATE TABLE outbox_events (id varchar(13) PRIMARY KEY, message_group text, payload text, status text, retry_count int, created_at timestamp, processed_at timestamp, error_message text)",
			"CREATE INDEX ON outbox_events (status)", "SET enable_seqscan = off")
		st, err := New(Config{URL: url + "&enable_seqscan=off", Name: "plans", Outboxes: []store.Outbox{box}})
		if err != nil {
			t.Fatal(err)
		}
		servers.Exec(t, url, st.Script())
		planOf(t, st, held, nil, "")
		st.Close()
	}
}
