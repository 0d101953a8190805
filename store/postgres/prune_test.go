package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// prune prunes the whole table, n rows at a time. It returns the number of rows deleted,
// and the errors that did not stop it.
func (r *rig) prune(t *testing.T, n int) (rows int, refused []error) {
	t.Helper()
	return rigs.Prune(t, r.store, r.epoch, time.Now(), n)
}

// fillFlow inserts that many delivered rows, about 25 to a block.
const fillFlow = `
INSERT INTO outbox_events (id, type, message_group, payload, status, created_at, processed_at)
SELECT lpad(i::text, 6, '0'), 'EVENT', 'g', repeat('x', 200), 'COMPLETED', now(), '2024-01-01' FROM generate_series(1, $1::int) i`

// TestPruneWalks: rows of every block are found, also where new rows reused space; a
// locked row is not waited for.
func TestPruneWalks(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		r.exec(t, fillFlow, 20_000)
		held := r.begin(t, "SELECT FROM outbox_events WHERE id IN ('000001', '010000', '020000') FOR UPDATE")
		if n, _ := r.prune(t, 500); n != 20_000-3 {
			t.Errorf("deleted %d rows, want all but the locked ones", n)
		}
		end(t, held, false)
		if n, _ := r.prune(t, 500); n != 3 {
			t.Errorf("deleted %d rows, want the formerly locked ones", n)
		}
		if left := ask[int](t, r.conn, "SELECT count(*) FROM outbox_events"); left != 0 {
			t.Errorf("%d rows are left", left)
		}
	})
}

// TestPruneTree: partitions and inherited tables are pruned too.
func TestPruneTree(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		const columns = "id text, message_group text, payload text, status text, retry_count int, created_at int, processed_at timestamptz, error_message text"
		for name, ddl := range map[string]string{
			"partitioned": "CREATE TABLE outbox_events (" + columns + ", PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at);" +
				"CREATE TABLE part_1 PARTITION OF outbox_events FOR VALUES FROM (0) TO (100);" +
				"CREATE TABLE part_2 PARTITION OF outbox_events FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (created_at);" +
				"CREATE TABLE part_3 PARTITION OF part_2 FOR VALUES FROM (100) TO (200)",
			"inherited": "CREATE TABLE outbox_events (" + columns + ", PRIMARY KEY (id));" +
				"CREATE TABLE part_1 () INHERITS (outbox_events); CREATE TABLE part_3 () INHERITS (outbox_events)",
		} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, url, "DROP TABLE IF EXISTS outbox_events CASCADE; DROP SCHEMA IF EXISTS sluicebox CASCADE; "+ddl, 0, flowBox)
				for i, part := range []string{"part_1", "part_3"} {
					r.exec(t, fmt.Sprintf(`INSERT INTO %s (id, payload, status, created_at, processed_at)
SELECT 'row ' || i, repeat('x', 200), CASE WHEN i %% 2 = 0 THEN 'COMPLETED' ELSE 'FAILED' END, %d, '2024-01-01' FROM generate_series(1, 9000) i`, part, i*100))
				}
				if n, _ := r.prune(t, 700); n != 9000 {
					t.Errorf("%d rows were deleted, want 9000", n)
				}
				if left := ask[int](t, r.conn, "SELECT count(*) FROM outbox_events WHERE status = 'FAILED'"); left != 9000 {
					t.Errorf("%d FAILED rows are left", left)
				}
			})
		}
	})
}

// TestPruneRefused: the cause that keeps a row is named, and pruning continues after it.
func TestPruneRefused(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		r.exec(t, fillFlow, 20_000)
		r.exec(t, "CREATE TABLE copies (of varchar(13) REFERENCES outbox_events (id)); INSERT INTO copies VALUES ('000001')")
		n, refused := r.prune(t, 500)
		if len(refused) != 1 || !strings.Contains(refused[0].Error(), "copies") || n == 0 {
			t.Errorf("%d rows were deleted, %v", n, refused)
		}
		if left := ask[int](t, r.conn, "SELECT count(*) FROM outbox_events"); left != 20_000-n || left > 10_000 {
			t.Errorf("%d rows are left", left)
		}
		r.exec(t, `DROP TABLE copies; CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER keep BEFORE DELETE ON outbox_events FOR EACH ROW EXECUTE FUNCTION keep()`)
		if n, _ := r.prune(t, 10); n != 0 {
			t.Errorf("deleted %d rows that a trigger keeps", n)
		}
		lock := r.begin(t, "LOCK TABLE outbox_events")
		var locked *store.RefusedError
		done, err := r.store.Prune(ctx(t), r.epoch, store.PruneRequest{Outbox: "events", Before: time.Now(), Limit: 10})
		if !errors.As(err, &locked) || done != (store.PruneResult{}) {
			t.Errorf("locked table: got %+v, error %v", done, err)
		}
		end(t, lock, false)
	})
}

// TestPruneGrant: a retention needs the right to delete, and a layout with the columns it
// needs.
func TestPruneGrant(t *testing.T) {
	aVersion(t, func(t *testing.T, admin string) {
		servers.Exec(t, admin, flowTable)
		owner := openStore(t, admin, 0, flowBox)
		if err := owner.Install(ctx(t)); err != nil {
			t.Fatal(err)
		}
		role := asRole(t, admin, "relay_prune")
		servers.Exec(t, admin, "GRANT USAGE ON SCHEMA sluicebox TO relay_prune", "GRANT ALL ON ALL TABLES IN SCHEMA sluicebox TO relay_prune",
			"GRANT SELECT, UPDATE ON outbox_events TO relay_prune")
		box := flowBox
		if err := openStore(t, role, 0, box).Check(ctx(t)); err != nil {
			t.Errorf("without a retention: got error %v", err)
		}
		box.Retention = time.Hour
		relay := openStore(t, role, 0, box)
		err := relay.Check(ctx(t))
		if got := remedies(t, err); len(got) != 1 || got[0] != `GRANT DELETE ON "outbox_events" TO "relay_prune";` {
			t.Errorf("with a retention: got error %v", err)
		}
		servers.Exec(t, admin, remedies(t, err)...)
		if err := relay.Check(ctx(t)); err != nil {
			t.Errorf("with the privilege: got error %v", err)
		}
		box.Layout = store.OutboxMessages()
		if _, err := postgres.New(postgres.Config{URL: role, Name: "rig", Outboxes: []store.Outbox{box}}); err == nil || !strings.Contains(err.Error(), "deletes them at once") {
			t.Errorf("retention of rows that are deleted at once: got error %v", err)
		}
	})
}

// TestExcludedLaneCollations: lanes that the table's types and collations treat as equal
// are excluded one by one.
func TestExcludedLaneCollations(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		servers.Exec(t, url, `DO $$ BEGIN
  CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
  CREATE EXTENSION citext;
EXCEPTION WHEN feature_not_supported THEN NULL; END $$`)
		folds := ask[bool](t, servers.Connect(t, url), "SELECT to_regcollation('ci') IS NOT NULL AND to_regtype('citext') IS NOT NULL")
		for _, typ := range []string{"text COLLATE ci", "varchar(20) COLLATE ci", "citext", "char(4)", "json", "bytea", `text COLLATE "C"`, "text"} {
			if !folds && strings.Contains(typ, "ci") {
				t.Logf("%s: this server has none", typ)
				continue
			}
			t.Run(typ, func(t *testing.T) {
				r := newRig(t, url, `DROP TABLE IF EXISTS outbox_events; CREATE TABLE outbox_events (id text PRIMARY KEY, type text, message_group `+typ+`, payload text,
  status text NOT NULL DEFAULT 'PENDING', retry_count smallint, created_at timestamptz, error_message text, processed_at timestamptz)`, 0, flowBox)
				r.exec(t, `INSERT INTO outbox_events (id, message_group) VALUES ('1', '"a"'), ('2', '"A"'), ('3', NULL), ('4', '"b"')`)
				all := rigs.CheckExcludeLanes(t, r.store, 4)
				for i, out := range all {
					for j, also := range all {
						if got := rigs.Groups(t, r.store, rigs.Lane(out), rigs.Lane(also)); i != j && len(got) != 2 {
							t.Errorf("without %v and %v: %v", out, also, got)
						}
					}
				}
			})
		}
	})
}
