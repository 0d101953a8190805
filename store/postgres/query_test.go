package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
	views "github.com/sluicebox/sluicebox/store/internal/view"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestVisible follows 32-bit transaction numbers through the wrap of 2^32.
func TestVisible(t *testing.T) {
	const wrap = 1 << 32
	for _, version := range servers.Spread(t, servers.Versions()) {
		conn := servers.Connect(t, servers.Postgres(t, version))
		for _, c := range []struct {
			name string
			snap string // xmin:xmax:running
			txn  uint64
			want bool
		}{
			{"old", "1000:1000:", 900, true},
			{"next", "1000:1000:", 1000, false},
			{"ahead", "1000:1000:", 1500, false},
			{"running", "990:1000:990,995", 995, false},
			{"ended beside running ones", "990:1000:990,995", 996, true},
			{"a frozen number", "1000:1000:", 2, true},
			{"young server, far ahead", "10:10:", 1<<31 - 1, false},
			{"just before the wrap", fmt.Sprintf("%d:%d:", wrap-5, wrap-5), wrap - 6, true},
			{"ahead, over the wrap", fmt.Sprintf("%d:%d:", wrap-5, wrap-5), 3, false},
			{"ahead, before the wrap", fmt.Sprintf("%d:%d:", wrap-5, wrap-5), wrap - 1, false},
			{"behind, over the wrap", fmt.Sprintf("%d:%d:", wrap+5, wrap+5), wrap - 1, true},
			{"running since before the wrap", fmt.Sprintf("%d:%d:%d", wrap-1, wrap+5, wrap-1), wrap - 1, false},
			{"running behind the wrap", fmt.Sprintf("%d:%d:%d", wrap-1, wrap+5, wrap+4), 4, false},
			{"ended behind the wrap", fmt.Sprintf("%d:%d:%d", wrap-1, wrap+5, wrap-1), 4, true},
			{"2^31 - 1 behind", fmt.Sprintf("%d:%d:", 3*wrap+5, 3*wrap+5), wrap/2 + 6, true},
			{"2^31 - 1 ahead", fmt.Sprintf("%d:%d:", 3*wrap+5, 3*wrap+5), wrap/2 + 4, false},
		} {
			query := `SELECT ` + visible + ` FROM (SELECT s, pg_snapshot_xmax(s)::text::bigint AS xmax
FROM (SELECT $1::text::pg_snapshot AS s) x) snap, (SELECT $2::bigint AS txn) w`
			var got bool
			if err := conn.QueryRow(t.Context(), query, c.snap, int64(uint32(c.txn))).Scan(&got); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if got != c.want {
				t.Errorf("%s: got visible %[4]t for %[2]d in %[3]s", c.name, uint32(c.txn), c.snap, got)
			}
		}
	}
}

// TestPlans: a statement planned on an empty table finds rows by their id forever,
// although an index on the status looks as good at that time.
func TestPlans(t *testing.T) {
	for _, version := range servers.Spread(t, servers.Versions()) {
		url := servers.Database(t, version)
		servers.Exec(t, url, `
CREATE TABLE words (id varchar(13) PRIMARY KEY, message_group text, payload text, status varchar(20), retry_count int,
  created_at timestamp, processed_at timestamp, error_message text);
CREATE INDEX ON words (status, message_group, created_at);
CREATE INDEX ON words (status) WHERE status IN ('PENDING', 'PROCESSING');
CREATE TABLE numbers (id uuid, type text, message_group text, payload text, status smallint, retry_count int,
  created_at timestamp, updated_at timestamptz, error_message text, PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at);
CREATE TABLE numbers_1 PARTITION OF numbers FOR VALUES FROM (MINVALUE) TO ('2024-01-01');
CREATE TABLE numbers_2 PARTITION OF numbers FOR VALUES FROM ('2024-01-01') TO (MAXVALUE);
CREATE INDEX ON numbers (status, message_group, created_at);
CREATE TABLE times (id bigint PRIMARY KEY, payload text, sent timestamptz, dead timestamptz, taken timestamptz);
CREATE INDEX ON times (id) WHERE sent IS NULL;
CREATE INDEX ON times ((1)) WHERE sent IS NULL AND dead IS NULL`)
		boxes := []store.Outbox{
			{Name: "words", Table: "words", Layout: store.FlowCatalyst()},
			{Name: "numbers", Table: "numbers", Layout: store.OutboxMessages()},
			{Name: "times", Table: "times", Layout: store.Layout{Name: "times", State: store.StateTimestamps,
				Columns: store.Columns{ID: "id", Payload: "payload", Delivered: "sent", Failed: "dead", Claimed: "taken"}}},
		}
		st, err := New(Config{URL: url, Name: "plans", Outboxes: boxes})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		if err := st.Install(t.Context()); err != nil {
			t.Fatal(err)
		}
		err = st.claims.do(t.Context(), func(ctx context.Context, s *session) error {
			for i := range boxes {
				if err := checkPlans(ctx, t, s, &boxes[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func checkPlans(ctx context.Context, t *testing.T, s *session, o *store.Outbox) error {
	table, err := s.table(ctx, o)
	if err != nil {
		return err
	}
	box, unclaimed := *o, *table
	box.Layout.Unclaimed = true
	unclaimed.Outbox = &box
	chosen := &views.DeliveredRows{DeliveredQuery: store.DeliveredQuery{IDs: []string{"1"}}}
	queries := map[string]*query{
		"claim":           claimQuery(table, false, false),
		"takeover":        claimQuery(table, true, false),
		"claim around":    claimQuery(table, false, true),
		"unwritten claim": claimQuery(&unclaimed, false, false),
		"claim many":      claimManyQuery(table),
		"claim one":       claimOneQuery(table),
		"completed":       settleQuery(table, store.Completed, false),
		"completed many":  settleManyQuery(table),
		"pending":         settleQuery(table, store.Pending, false),
		"failed":          settleQuery(table, store.Failed, false),
		"around":          settleQuery(table, store.Completed, true),
		"look up":         rowStatesQuery(table),
		"look up failed":  failedQuery(table),
	}
	if len(o.Layout.OrderBy) > 0 {
		queries["delivered"] = deliveredQuery(table, chosen, true)
	}
	for name, q := range queries {
		lines, err := plan(ctx, s.conn, q)
		if err != nil {
			return fmt.Errorf("%s %s: %w", o.Name, name, err)
		}
		text := strings.Join(lines, "\n")
		found := 0
		for _, line := range lines {
			if strings.Contains(line, "Seq Scan on "+o.Name) || strings.Contains(line, "Hash Join") || strings.Contains(line, "Merge Join") {
				t.Errorf("%s %s scans the whole table:\n%s", o.Name, name, text)
			}
			if strings.Contains(line, "Index Cond: ") && strings.Contains(line, "status") {
				t.Errorf("%s %s uses the index on the status:\n%s", o.Name, name, text)
			}
			for _, cond := range []string{"(id = w", "((id)::text = (w", "(id = $", "((id)::text = ($", "(id = ANY (", "((id)::text = ANY (", "((id = ANY ("} {
				if strings.Contains(line, "Index Cond: "+cond) {
					found++
				}
			}
		}
		if found == 0 {
			t.Errorf("%s %s does not use the index on the id:\n%s", o.Name, name, text)
		}
	}
	return nil
}

func plan(ctx context.Context, conn *pgx.Conn, q *query) ([]string, error) {
	nulls := "(" + strings.Join(slices.Repeat([]string{"NULL"}, len(q.params)), ", ") + ")"
	_, err := conn.PgConn().Exec(ctx, "PREPARE plan_of AS "+q.sql).ReadAll()
	if err != nil {
		return nil, err
	}
	rows, err := conn.Query(ctx, "EXPLAIN (COSTS off) EXECUTE plan_of"+nulls, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return nil, err
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	_, err = conn.PgConn().Exec(ctx, "DEALLOCATE plan_of").ReadAll()
	return lines, err
}

func TestArrayLiteral(t *testing.T) {
	for _, version := range servers.Spread(t, servers.Versions()) {
		conn := servers.Connect(t, servers.Postgres(t, version))
		rapid.Check(t, func(rt *rapid.T) {
			want := rapid.SliceOf(rapid.StringOf(rapid.SampledFrom([]rune(`ab"\{}, 'NUL☃`+"\n\t")))).Draw(rt, "elements")
			var got []string
			if err := conn.QueryRow(t.Context(), "SELECT $1::varchar[]", arrayLiteral(want)).Scan(&got); err != nil {
				rt.Fatal(err)
			}
			if !slices.Equal(got, want) {
				rt.Fatalf("got %[2]q, want %[1]q", want, got)
			}
		})
	}
}
