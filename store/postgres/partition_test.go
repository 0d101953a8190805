package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// partedTable has four partitions. Updated rows stay in their block.
const partedTable = `
CREATE TABLE outbox_events (id text, message_group text, payload text, status text, retry_count int, day int, created_at timestamptz DEFAULT now(),
  processed_at timestamptz, error_message text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE INDEX ON outbox_events (status, created_at);
CREATE TABLE day_1 PARTITION OF outbox_events FOR VALUES FROM (1) TO (2) WITH (fillfactor = 50);
CREATE TABLE day_2 PARTITION OF outbox_events FOR VALUES FROM (2) TO (3) WITH (fillfactor = 50);
CREATE TABLE days PARTITION OF outbox_events FOR VALUES FROM (3) TO (5) PARTITION BY LIST (day);
CREATE TABLE day_3 PARTITION OF days FOR VALUES IN (3);
CREATE TABLE day_4 PARTITION OF days FOR VALUES IN (4);`

// newPartedRig fills days 1 to 3 with 5000 delivered rows each.
func newPartedRig(t *testing.T, url string) *rig {
	r := newRig(t, url, partedTable, 0, flowBox)
	r.exec(t, `INSERT INTO outbox_events (id, payload, status, day, processed_at)
SELECT 'row ' || i, repeat('x', 200), 'COMPLETED', d, '2024-01-01' FROM generate_series(1, 5000) i, generate_series(1, 3) d; ANALYZE outbox_events`)
	return r
}

// emptied lists the partitions of the table that have no blocks. A deletion leaves them.
func (r *rig) emptied(t *testing.T) string {
	t.Helper()
	return ask[string](t, r.conn, `SELECT coalesce(string_agg(relname, ' ' ORDER BY relname), '') FROM pg_class
WHERE relname ~ '^day_\d$' AND relkind = 'r' AND pg_relation_size(oid) = 0`)
}

// TestPrunePartitions: a partition without a row that stays is emptied at once. Of any other
// the old rows are deleted.
func TestPrunePartitions(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		for name, c := range map[string]struct {
			change  string
			emptied string
			left    int
		}{
			"all old":         {"", "day_1 day_2 day_3 day_4", 0},
			"a FAILED row":    {"UPDATE outbox_events SET status = 'FAILED' WHERE id = 'row 4711' AND day = 1", "day_2 day_3 day_4", 1},
			"a PENDING row":   {"INSERT INTO outbox_events (id, status, day) VALUES ('new', 'PENDING', 3)", "day_1 day_2 day_4", 1},
			"a young row":     {"UPDATE outbox_events SET processed_at = now() + interval '1 day' WHERE id = 'row 1' AND day = 2", "day_1 day_3 day_4", 1},
			"no time":         {"UPDATE outbox_events SET processed_at = NULL WHERE id = 'row 1' AND day = 2", "day_1 day_3 day_4", 1},
			"unknown status":  {"UPDATE outbox_events SET status = NULL WHERE id = 'row 1' AND day = 2", "day_1 day_3 day_4", 1},
			"a trigger":       {"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN old; END'; CREATE TRIGGER f AFTER DELETE ON outbox_events FOR EACH ROW EXECUTE FUNCTION f()", "day_4", 0},
			"a detached part": {"ALTER TABLE outbox_events DETACH PARTITION day_1", "day_2 day_3 day_4", 0},
		} {
			t.Run(name, func(t *testing.T) {
				servers.Exec(t, url, "DROP TABLE IF EXISTS outbox_events, day_1, days; DROP FUNCTION IF EXISTS f; DROP SCHEMA IF EXISTS sluicebox CASCADE")
				r := newPartedRig(t, url)
				if c.change != "" {
					r.exec(t, c.change)
				}
				want := ask[int](t, r.conn, "SELECT count(*) FROM outbox_events") - c.left
				if n, refused := r.prune(t, 700); n != want || refused != nil {
					t.Errorf("rows deleted: got %d, want %d; %v", n, want, refused)
				}
				if left := ask[int](t, r.conn, "SELECT count(*) FROM outbox_events"); left != c.left {
					t.Errorf("rows left: got %d, want %d", left, c.left)
				}
				if got := r.emptied(t); got != c.emptied {
					t.Errorf("emptied: got %s, want %s", got, c.emptied)
				}
				if name == "a detached part" && ask[int](t, r.conn, "SELECT count(*) FROM day_1") != 5000 {
					t.Error("rows of a table that is no partition any more are gone")
				}
			})
		}
	})
}

// TestPartitionsWithRowSecurity: row security of a partition, which hides a row from the relay's
// role there and not in the outbox's table, keeps the partition from being emptied. Retention goes
// on: the old rows are deleted one by one.
func TestPartitionsWithRowSecurity(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newPartedRig(t, url)
		subject := asRole(t, url, "pruner")
		for _, statement := range []string{
			"UPDATE outbox_events SET status = 'PENDING' WHERE id = 'row 4711' AND day = 2",
			"ALTER TABLE day_2 ENABLE ROW LEVEL SECURITY",
			"CREATE POLICY visible ON day_2 USING (id <> 'row 4711')",
			"GRANT ALL ON ALL TABLES IN SCHEMA public TO pruner",
			"GRANT ALL ON ALL TABLES IN SCHEMA sluicebox TO pruner",
			"GRANT ALL ON ALL SEQUENCES IN SCHEMA sluicebox TO pruner",
			"GRANT USAGE ON SCHEMA sluicebox TO pruner",
		} {
			r.exec(t, statement)
		}
		st := openStore(t, subject, 0, flowBox)
		if err := st.Check(ctx(t)); err != nil {
			t.Fatal(err)
		}
		epoch, err := st.AcquireLeadership(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		if n, refused := rigs.Prune(t, st, epoch, time.Now(), 700); n != 14999 || refused != nil {
			t.Errorf("rows deleted: got %d, want 14999; %v", n, refused)
		}
		if got := ask[string](t, r.conn, "SELECT string_agg(id || status, ' ') FROM outbox_events"); got != "row 4711PENDING" {
			t.Errorf("left: %s", got)
		}
		if got := r.emptied(t); got != "day_1 day_3 day_4" {
			t.Errorf("emptied: %s", got)
		}
	})
}

// TestPartitionChangesMeanwhile: a row that becomes undelivered after its block was read keeps
// the partition. A deposed leader empties none, and neither does a role without the right.
func TestPartitionChangesMeanwhile(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newPartedRig(t, url)
		p := store.PruneRequest{Outbox: "events", Before: time.Now(), Limit: 200}
		step := func(epoch store.Epoch) error {
			done, err := r.store.Prune(ctx(t), epoch, p)
			if err == nil {
				p.From = done.Next
			}
			return err
		}
		if err := step(r.epoch); err != nil || r.emptied(t) != "day_4" {
			t.Fatalf("the first step: %v, emptied %s", err, r.emptied(t))
		}
		r.exec(t, "UPDATE outbox_events SET status = 'PENDING' WHERE id = 'row 1' AND day = 1")
		if block := ask[int](t, r.conn, "SELECT split_part(trim('(' from ctid::text), ',', 1)::int FROM day_1 WHERE id = 'row 1'"); block != 0 {
			t.Fatalf("the changed row is in block %d, which was not read yet", block)
		}
		var err error
		for err == nil && p.From != "" {
			err = step(r.epoch + 1)
		}
		if !errors.Is(err, store.ErrNotLeader) || r.emptied(t) != "day_4" {
			t.Errorf("another epoch: got error %v, emptied %s", err, r.emptied(t))
		}
		for p.From != "" {
			if err = step(r.epoch); err != nil {
				t.Fatal(err)
			}
		}
		if got := ask[string](t, r.conn, "SELECT string_agg(id || status, ' ') FROM outbox_events"); got != "row 1PENDING" {
			t.Errorf("left: %s", got)
		}
	})
}

// TestPartitionLocked: a transaction that has used a partition keeps it from being emptied,
// and its rows are deleted. Claims wait only briefly.
func TestPartitionLocked(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newPartedRig(t, url)
		held := r.begin(t, "SELECT FROM day_2 LIMIT 1")
		began := time.Now()
		if n, _ := r.prune(t, 5000); n != 15000 {
			t.Errorf("rows deleted: got %d, want 15000", n)
		}
		if got := r.emptied(t); got != "day_1 day_3 day_4" {
			t.Errorf("emptied: %s", got)
		}
		t.Logf("took %s", time.Since(began))
		end(t, held, false)

		role := asRole(t, url, "relay_parts")
		servers.Exec(t, url, "GRANT USAGE ON SCHEMA sluicebox TO relay_parts; GRANT ALL ON ALL TABLES IN SCHEMA sluicebox TO relay_parts; GRANT SELECT, UPDATE, DELETE ON outbox_events TO relay_parts",
			"INSERT INTO outbox_events (id, status, day, processed_at) VALUES ('a', 'COMPLETED', 1, '2024-01-01')")
		relay := openStore(t, role, 0, flowBox)
		epoch, err := relay.AcquireLeadership(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		if n, refused := rigs.Prune(t, relay, epoch, time.Now(), 100); n != 1 || refused != nil || r.emptied(t) != "day_3 day_4" {
			t.Errorf("without the right: %d rows deleted, %v, emptied %s", n, refused, r.emptied(t))
		}
	})
}

// TestPartitionsBesideWriters: services that insert into every partition, and set delivered
// rows back, neither fail nor lose a row while partitions are emptied.
func TestPartitionsBesideWriters(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		const insert = "INSERT INTO outbox_events (id, status, day, processed_at) SELECT $1, 'COMPLETED', d, '2024-01-01' FROM generate_series(1, 3) d"
		r := newPartedRig(t, url)
		stop, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var writers sync.WaitGroup
		var longest [3]time.Duration
		lost := make(chan string, 10_000)
		for w := range longest {
			conn := servers.Connect(t, url)
			writers.Go(func() {
				for i := 0; stop.Err() == nil; i++ {
					id, day, began := fmt.Sprintf("w%d-%d", w, i), 1+i%3, time.Now()
					_, err := conn.Exec(t.Context(), insert, id)
					var set, delivered pgconn.CommandTag
					if err == nil { // it may be deleted by now
						set, err = conn.Exec(t.Context(), "UPDATE outbox_events SET status = 'PENDING' WHERE id = $1 AND day = $2", id, day)
					}
					longest[w] = max(longest[w], time.Since(began))
					if err == nil && set.RowsAffected() == 1 {
						delivered, err = conn.Exec(t.Context(), "UPDATE outbox_events SET status = 'COMPLETED' WHERE id = $1 AND day = $2 AND status = 'PENDING'", id, day)
						if err == nil && delivered.RowsAffected() != 1 {
							lost <- id
						}
					}
					if err != nil {
						t.Errorf("a service: %v", err)
						return
					}
				}
			})
		}
		emptied := 0
		request := store.PruneRequest{Outbox: "events", Before: time.Now(), Limit: 5000}
		for emptied < 20 && stop.Err() == nil {
			done, err := r.store.Prune(ctx(t), r.epoch, request)
			if err != nil {
				t.Errorf("pruning: %v", err)
				break
			}
			if done.Rows > 0 {
				emptied++
			}
			if request.From = done.Next; !strings.HasPrefix(done.Next, "p") {
				request.From = "" // the rest of a pass deletes row by row
			}
		}
		cancel()
		writers.Wait()
		if len(lost) > 0 {
			t.Errorf("%d PENDING rows were deleted, for example %s", len(lost), <-lost)
		}
		if emptied < 20 {
			t.Errorf("partitions emptied: %d in 20 s", emptied)
		}
		t.Logf("an insert and an update took up to %v", longest)
	})
}
