package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// planTypes returns types of ids, each with an expression that makes an id from a number
// n.
func planTypes() map[string]string {
	return map[string]string{
		"VARCHAR(36)":                      "CONCAT('id ', n)",
		"CHAR(36) CHARACTER SET ascii":     "CONCAT('id ', n)",
		"VARCHAR(36) CHARACTER SET latin1": "CONCAT('id ', n)",
		"VARCHAR(36) COLLATE utf8mb4_bin":  "CONCAT('id ', n)",
		"BINARY(16)":                       "UNHEX(LPAD(HEX(n), 32, '0'))",
		"BIGINT UNSIGNED":                  "n",
		"DECIMAL(20,2)":                    "n",
	}
}

// TestPlans checks that the statements on rows use the index on the id and examine no
// more rows than they name: in an empty, a small and a large table, with and without
// statistics.
func TestPlans(t *testing.T) {
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			url := f.Database(t)
			db := servers.OpenMySQL(t, url)
			for typ, value := range planTypes() {
				t.Run(typ, func(t *testing.T) {
					servers.ExecMySQL(t, url, "DROP TABLE IF EXISTS outbox", `
CREATE TABLE outbox (id `+typ+` PRIMARY KEY, payload TEXT, message_group VARCHAR(50), status VARCHAR(20) NOT NULL, retry_count INT NOT NULL DEFAULT 0,
  processed_at DATETIME(6), error_message TEXT, created_at DATETIME, INDEX (status, message_group, created_at)) DEFAULT CHARSET=utf8mb4`)
					for _, rows := range []int{0, 3, 20_000} {
						fillPlans(t, db, value, rows)
						wantPlans(t, f, url, db, rows)
					}
				})
			}
		})
	}
}

func fillPlans(t *testing.T, db *sql.DB, value string, rows int) {
	t.Helper()
	for _, text := range []string{
		"SET SESSION cte_max_recursion_depth = 100000", "SET SESSION max_recursive_iterations = 100000",
	} {
		_, _ = db.Exec(text) // each server knows one of them
	}

	fill := "INSERT INTO outbox (id, payload, status) WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < ?) SELECT " + value + ", '{}', 'PENDING' FROM s"
	for _, text := range []string{"DELETE FROM outbox", fill, "ANALYZE TABLE outbox"} {
		var args []any
		if strings.Contains(text, "?") {
			if rows == 0 {
				continue
			}
			args = append(args, rows)
		}
		if _, err := db.Exec(text, args...); err != nil {
			t.Fatalf("%v, in %s", err, text)
		}
	}
}

// wantPlans explains the statements that name 1, 7 and 512 rows.
func wantPlans(t *testing.T, f servers.Flavour, url string, db *sql.DB, rows int) {
	t.Helper()
	box := store.Outbox{Name: "box", Table: "outbox", Kind: "EVENT", Layout: store.FlowCatalyst()}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cfg, err := ParseURL(url, "test")
	if err != nil {
		t.Fatal(err)
	}

	c, err := dial(ctx, cfg, "READ COMMITTED", writeSettings(lockWait))
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	tab, err := c.table(ctx, &box)
	if err != nil {
		t.Fatal(err)
	}

	ids := map[family]string{familyText: "id %d", familyInteger: "%d", familyDecimal: "%d.00", familyBytes: "0x%032x"}
	for _, n := range []int{1, 7, maxKeys} {
		var keys []any
		for i := range n {
			key, ok := tab.id().key(fmt.Sprintf(ids[tab.id().family], i+1))
			if !ok {
				t.Fatal("no key")
			}
			keys = append(keys, key)
		}

		for what, make := range map[string]func(s *statement) string{
			"lock": func(s *statement) string { return strings.TrimSuffix(tab.lockText(s, keys, true, true), "FOR UPDATE") },
			"update": func(s *statement) string {
				return "UPDATE " + tab.from() + " SET o.status = 'x' WHERE " + tab.idExactlyIn(s, keys) + " AND " + tab.open(s)
			},
			"delete": func(s *statement) string {
				return "DELETE o FROM " + tab.from() + " WHERE " + tab.idExactlyIn(s, keys) + " AND " + tab.open(s)
			},
		} {
			s := &statement{}
			text := make(s)
			access, key, looked := explain(t, f, db, text, s.args)
			none := access == "" && rows == 0 // the server knows that no such row exists
			if !none && (!slices.Contains([]string{"const", "eq_ref", "ref", "range"}, access) || key != "PRIMARY" || looked > 2*placeholderCount(n)) {
				t.Errorf("%s of %d rows in a table of %d: %s by %q, %d rows", what, n, rows, access, key, looked)
			}
		}
	}
}

// explain returns the access type of a plan's first table, its index, and the expected
// number of rows.
func explain(t *testing.T, f servers.Flavour, db *sql.DB, text string, args []any) (access, key string, looked int) {
	t.Helper()
	how := "EXPLAIN "
	if f == servers.MySQL { // MySQL's default format differs since version 9
		how = "EXPLAIN FORMAT=TRADITIONAL "
	}

	rows, err := db.Query(how+text, args...)
	if err != nil {
		t.Fatalf("%v, in %s", err, text)
	}
	defer func() { _ = rows.Close() }()
	names, err := rows.Columns()
	if err != nil || !rows.Next() {
		t.Fatalf("no plan: %v", err)
	}

	values := make([]sql.NullString, len(names))
	into := make([]any, len(names))
	for i := range values {
		into[i] = &values[i]
	}

	if err := rows.Scan(into...); err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		switch strings.ToLower(name) {
		case "type":
			access = values[i].String
		case "key":
			key = values[i].String
		case "rows":
			_, _ = fmt.Sscan(values[i].String, &looked) // NULL is 0
		}
	}

	return access, key, looked
}

// TestOwnPlans checks that the relay's tables are read by their indexes.
func TestOwnPlans(t *testing.T) {
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			url := f.Database(t)
			db := servers.OpenMySQL(t, url)
			box := store.Outbox{Name: "box", Table: "outbox", Kind: "EVENT", Layout: store.FlowCatalyst()}
			st, err := New(Config{URL: url, Name: "rig", Outboxes: []store.Outbox{box}})
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()

			if err := st.Install(t.Context()); err != nil {
				t.Fatal(err)
			}
			epoch, err := st.AcquireLeadership(t.Context())
			if err != nil {
				t.Fatal(err)
			}

			var items []store.Item
			for i := range 5000 {
				items = append(items, store.Item{Ref: store.Ref{Outbox: "box", ID: fmt.Sprint("id ", i)}, Kind: "EVENT", Group: store.GroupOf(fmt.Sprint(i % 50)), Seq: store.Seq(i + 1)})
			}

			if err := st.Spill(t.Context(), epoch, items); err != nil {
				t.Fatal(err)
			}
			rows := make([]store.ReplayRow, len(items))
			for i := range items {
				rows[i] = store.ReplayRow{N: int64(i + 1), Item: items[i]}
			}

			if err := errors.Join(st.RequestReplay(t.Context(), "job", "{}"), st.CopyRows(t.Context(), epoch, "job", rows, store.ReplayCursor{})); err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec("ANALYZE TABLE sluicebox_parked, sluicebox_replay_row"); err != nil {
				t.Fatal(err)
			}

			lane := items[0].Lane().Hash()
			for text, c := range map[string]struct {
				args []any
				key  string
			}{
				"SELECT * FROM sluicebox_parked WHERE name = ? AND outbox = ? AND lane = ? AND seq > ? ORDER BY seq LIMIT 10": {[]any{"rig", "box", lane[:], 7}, "PRIMARY"},
				"DELETE FROM sluicebox_parked WHERE name = ? AND outbox = ? AND seq > ? ORDER BY seq LIMIT 100":               {[]any{"rig", "box", 4990}, "sluicebox_parked_seq"},
				"SELECT * FROM sluicebox_parked FORCE INDEX (sluicebox_parked_id) WHERE name = ? AND outbox = ? AND id = ?":   {[]any{"rig", "box", []byte("id 7")}, "sluicebox_parked_id"},
				"SELECT * FROM sluicebox_replay_row FORCE INDEX (PRIMARY) WHERE name = ? AND job = ? AND outbox = ? AND lane = ? AND n > ? ORDER BY n LIMIT 10": {
					[]any{"rig", "job", "box", lane[:], 7}, "PRIMARY"},
				"DELETE r FROM sluicebox_replay_row AS r FORCE INDEX (sluicebox_replay_row_n) WHERE r.name = ? AND r.job = ? AND r.n <= ?": {
					[]any{"rig", "job", 100}, "sluicebox_replay_row_n"},
				"DELETE FROM sluicebox_hold WHERE name = ? AND outbox = ? AND id = ? AND hold = ?": {[]any{"rig", "box", "1", "blocked"}, ""},
			} {
				access, key, looked := explain(t, f, db, text, c.args)
				if access == "ALL" || access == "index" || c.key != "" && key != c.key || looked > 150 {
					t.Errorf("%s: %s by %q, %d rows", text, access, key, looked)
				}
			}
		})
	}
}
