package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/finding"
	"github.com/sluicebox/sluicebox/store/ledger"
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
			"lock": func(s *statement) string {
				return strings.TrimSuffix(tab.newLockedRow().lockText(s, keys, true, true), "FOR UPDATE")
			},
			"update": func(s *statement) string {
				return "UPDATE " + tab.from() + " SET o.status = 'x' WHERE " + tab.idExactlyIn(s, keys) + " AND " + tab.open(s)
			},
			"delete": func(s *statement) string {
				return "DELETE o FROM " + tab.from() + " WHERE " + tab.idExactlyIn(s, keys) + " AND " + tab.open(s)
			},
		} {
			s := &statement{}
			text := make(s)
			access, key, looked := explain(t, f, db, "", text, s.args)
			none := access == "" && rows == 0 // the server knows that no such row exists
			if !none && (!slices.Contains([]string{"const", "eq_ref", "ref", "range"}, access) || key != "PRIMARY" || looked > 2*placeholderCount(n)) {
				t.Errorf("%s of %d rows in a table of %d: %s by %q, %d rows", what, n, rows, access, key, looked)
			}
		}
	}
}

// explain returns how a plan reads a table, or the first one if table is "": the access type,
// the index, and the expected number of rows.
func explain(t *testing.T, f servers.Flavour, db *sql.DB, table, text string, args []any) (access, key string, looked int) {
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
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		values := make([]sql.NullString, len(names))
		into := make([]any, len(names))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		plan := map[string]string{}
		for i, name := range names {
			plan[strings.ToLower(name)] = values[i].String
		}
		if table == "" || plan["table"] == table {
			_, _ = fmt.Sscan(plan["rows"], &looked) // NULL is 0
			return plan["type"], plan["key"], looked
		}
	}
	t.Fatalf("no plan of table %q: %v, in %s", table, rows.Err(), text)
	return "", "", 0
}

// scriptLeader returns a leading store of the outbox "box" in scriptTable.
func scriptLeader(t *testing.T, url string) (*Store, store.Epoch) {
	t.Helper()
	servers.ExecMySQL(t, url, scriptTable)
	box := store.Outbox{Name: "box", Table: "outbox", Kind: "EVENT", Layout: store.FlowCatalyst()}
	st, err := New(Config{URL: url, Name: "rig", Outboxes: []store.Outbox{box}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	if err := st.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	epoch, err := st.AcquireLeadership(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st, epoch
}

// TestOwnPlans checks that the statements on the relay's tables use the index that is meant
// for them, with statistics of empty tables and with current ones.
func TestOwnPlans(t *testing.T) {
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			url := f.Database(t)
			db := servers.OpenMySQL(t, url)
			st, epoch := scriptLeader(t, url)
			const analyze = "ANALYZE TABLE sluicebox_record, sluicebox_queue, sluicebox_replay, outbox"
			if _, err := db.Exec(analyze); err != nil {
				t.Fatal(err)
			}
			fillOwn(t, st, epoch)
			wantOwnPlans(t, f, st, db, "with statistics of an empty table", math.MaxInt)
			wantHeadReads(t, st, "with statistics of an empty table")
			if _, err := db.Exec(analyze); err != nil {
				t.Fatal(err)
			}
			wantOwnPlans(t, f, st, db, "with statistics", 10)
			wantHeadReads(t, st, "with statistics")
		})
	}
}

// fillOwn spills rows, and copies ten times as many for replays, which must not slow the
// lookups of spilled rows. The replay "deep" has them in two lanes. It blocks lanes, too.
func fillOwn(t *testing.T, st *Store, epoch store.Epoch) {
	t.Helper()
	var items []store.Item
	for i := range 2000 {
		items = append(items, store.Item{Ref: store.Ref{Outbox: "box", ID: fmt.Sprint("id ", i)}, Kind: "EVENT", Group: store.GroupOf(fmt.Sprint(i % 50)), Seq: store.Seq(i + 1)})
	}
	err := st.Spill(t.Context(), epoch, items)
	rows := make([]store.ReplayRow, len(items))
	for i := range items {
		rows[i] = store.ReplayRow{N: int64(i + 1), Item: items[i]}
	}
	for job := range 10 {
		id := fmt.Sprint("job", job)
		err = errors.Join(err, st.RequestReplay(t.Context(), id, "{}"), st.CopyRows(t.Context(), epoch, id, rows, store.ReplayCursor{}))
	}
	for i := range rows {
		rows[i].Group = store.GroupOf(fmt.Sprint(i % 2))
	}
	err = errors.Join(err, st.RequestReplay(t.Context(), "deep", "{}"), st.CopyRows(t.Context(), epoch, "deep", rows, store.ReplayCursor{}))
	for i := range 300 {
		lane := store.LaneKey{Outbox: "box", Kind: "EVENT", Group: store.GroupOf(fmt.Sprint(i))}
		err = errors.Join(err, st.Hold(t.Context(), epoch, store.Hold{Lane: lane, Kind: store.Blocked, ID: fmt.Sprint("id ", i)}))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// wantOwnPlans explains the statements on the relay's tables. The server should expect up to
// spilled rows of one id.
func wantOwnPlans(t *testing.T, f servers.Flavour, st *Store, db *sql.DB, stage string, spilled int) {
	t.Helper()
	r := reader{name: "rig"}
	lane := store.LaneKey{Outbox: "box", Kind: "EVENT", Group: store.GroupOf("7")}.Hash()
	byNumber := func(queue string) string { return string(tableOf(queue)) + "_n" }
	want := func(what, index string, limit int, text string, args []any) {
		t.Helper()
		wantPlan(t, f, db, stage+": "+what, "", index, limit, text, args)
	}

	for _, queue := range []string{"", "job3"} {
		want("range", "PRIMARY", 100, rangeText(queue), []any{"rig", queue, "box", lane[:], 7, 10})
	}
	for what, q := range map[string]ledger.Scan{
		"scan":             {Queue: "job3", After: 1990, Limit: 10},
		"scan of outboxes": {Queue: "", Outboxes: []string{"box", "other"}, After: 1990, Limit: 10},
	} {
		s := &statement{}
		want(what, byNumber(q.Queue), 100, r.scanText(s, q), s.args)
		s = &statement{}
		want("clear by "+what, byNumber(q.Queue), 100, writeTx{r}.clearText(s, q, 1995, "box"), s.args)
	}
	heads := &statement{}
	text := r.headsText(heads, ledger.Scan{Queue: "job3", After: 1990}, 1995, 10)
	wantPlan(t, f, db, stage+": first rows", "r", "PRIMARY", 10, text, heads.args)
	wantPlan(t, f, db, stage+": first rows of their lanes", "e", "PRIMARY", math.MaxInt, text, heads.args)

	for _, n := range []int{1, 7, maxKeys} {
		var numbers, byID, byLane []any
		var keys []string
		for i := range n {
			numbers, keys = append(numbers, i+1), append(keys, fmt.Sprint("key ", i))
			byID, byLane = append(byID, []byte(fmt.Sprint(i+1, " id ", i))), append(byLane, []byte(fmt.Sprint(i+1, " lane")))
		}
		limit := 2 * placeholderCount(n)
		for _, verb := range []string{"SELECT r.n FROM ", "DELETE r FROM "} {
			for _, rm := range []removal{{"", "box", false}, {"job3", "box", true}} {
				s := &statement{}
				pairs := map[bool][]any{false: byID, true: byLane}[rm.byLane]
				want(fmt.Sprint(verb, n, " rows"), byNumber(rm.queue), limit, verb+rm.text(s, "rig", numbers, pairs), s.args)
			}
		}
		s := &statement{}
		want(fmt.Sprint("get ", n), "PRIMARY", limit, r.getText(s, "hold", keys), s.args)
		s = &statement{}
		want(fmt.Sprint("lock ", n), "PRIMARY", limit, r.getText(s, "hold", keys)+" FOR UPDATE", s.args)
		list := `["` + strings.Join(keys, `", "`) + `"]`
		wantPlan(t, f, db, fmt.Sprint(stage, ": delete ", n), "r", "PRIMARY", 1, deleteText, []any{list, "rig", "hold"})
	}
	s := &statement{}
	err := st.operator.do(t.Context(), func(ctx context.Context, c *conn) error {
		tab, err := c.table(ctx, st.outboxes.Lookup("box"))
		if err == nil {
			view := reading{table: tab, query: store.UnsettledQuery{Outbox: "box", Limit: 10}, relay: "rig", hasSpilledTable: true}
			text = view.text(s, tab.newRowReader())
		}
		return errors.Join(err, c.rollback(ctx))
	})
	if err != nil {
		t.Fatal(err)
	}
	wantPlan(t, f, db, stage+": unsettled rows without spilled ones", "p", string(spilledRows)+"_id", spilled, text, s.args)
}

// wantHeadReads checks that a scan for the first rows of lanes reads each row three times and the first
// one of a lane a few times, not all rows of a lane for each of them.
func wantHeadReads(t *testing.T, st *Store, stage string) {
	t.Helper()
	for _, q := range []struct {
		queue, what string
		rows, heads int
	}{{"job3", "40 rows a lane", 2000, 50}, {"deep", "1000 rows a lane", 2000, 2}} {
		before, after, heads := 0, 0, 0
		err := st.replay.do(t.Context(), func(ctx context.Context, c *conn) error {
			var err error
			if before, err = rowReads(ctx, c); err != nil {
				return err
			}
			list, err := reader{c, "rig"}.Scan(ctx, ledger.Scan{Queue: q.queue, Limit: 200, Heads: true})
			if err != nil {
				return err
			}
			heads = len(list)
			after, err = rowReads(ctx, c)
			return errors.Join(err, c.rollback(ctx))
		})
		if err != nil {
			t.Fatal(err)
		}
		if n := after - before; heads != q.heads || n < q.rows || n > 7*q.rows/2 {
			t.Errorf("%s: first rows of %s: got %d in %d reads, want %d in up to %d", stage, q.what, heads, n, q.heads, 7*q.rows/2)
		}
	}
}

// rowReads returns how many rows a session has read from tables and their indexes.
func rowReads(ctx context.Context, c *conn) (sum int, err error) {
	const reads = "SHOW SESSION STATUS WHERE Variable_name IN ('Handler_read_first', 'Handler_read_key', 'Handler_read_last', 'Handler_read_next', 'Handler_read_prev')"
	err = c.query(ctx, reads, nil, func(rows *sql.Rows) error {
		var name string
		var n int
		err := rows.Scan(&name, &n)
		sum += n
		return err
	})
	return sum, err
}

// wantPlan checks that a statement reads a table, or its first one, by an index, and expects
// up to limit rows.
func wantPlan(t *testing.T, f servers.Flavour, db *sql.DB, what, table, index string, limit int, text string, args []any) {
	t.Helper()
	access, key, looked := explain(t, f, db, table, text, args)
	if access == "" {
		return // the server knows that there is no such row
	}
	if !slices.Contains([]string{"const", "eq_ref", "ref", "range"}, access) || key != index || looked > limit {
		t.Errorf("%s: %s by %q, %d rows", what, access, key, looked)
	}
}

// Only a checked certificate counts as verified.
func TestEncryptionOfURL(t *testing.T) {
	for query, want := range map[string]finding.Encryption{
		"": {Encrypted: true, Verified: true}, "?tls=skip-verify": {Encrypted: true}, "?tls=preferred": {Encrypted: true}, "?tls=false": {},
	} {
		cfg, err := ParseURL("mysql://u@db.example/d"+query, "test")
		if err != nil {
			t.Fatal(err)
		}
		if got := encryption(cfg, want.Encrypted); got != want {
			t.Errorf("%s: got %+v, want %+v", query, got, want)
		}
	}
}
