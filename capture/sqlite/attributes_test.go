package sqlite_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
)

func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// TestAttributes runs the suite's tests of attributes and of groups over several columns.
func TestAttributes(t *testing.T) {
	const table = `CREATE TABLE outbox_attributes (
	id TEXT PRIMARY KEY, payload TEXT, tenant_id VARCHAR(20), partition_id, aggregate_type TEXT,
	event_type TEXT, occurred_at DATETIME, headers JSON, delivered_at DATETIME,
	flag BOOLEAN, price DECIMAL(10,2), amount REAL, digest BLOB, n INTEGER, untyped)`
	capturetest.RunAttributes(t, capturetest.AttributeTable{
		Setup: func(t *testing.T, box store.Outbox) capturetest.Database {
			box.Name = "shop"
			return newDatabaseOf(t, table, box)
		},
		Insert: func(t *testing.T, db capturetest.Database, literals map[string]string) {
			t.Helper()
			names := slices.Sorted(maps.Keys(literals))
			values := make([]string, len(names))
			for i, name := range names {
				values[i] = literals[name]
			}
			db.(*database).exec(t, "INSERT INTO outbox_attributes ("+strings.Join(names, ", ")+") VALUES ("+strings.Join(values, ", ")+")")
		},
		Quote: quoted,
		Time:  "'2026-02-03 04:05:06.789'",
		Columns: []capturetest.TypedColumn{
			{Name: "flag", Values: []capturetest.TypedValue{{Literal: "TRUE", Text: "1"}, {Literal: "FALSE", Text: "0"}}},
			{Name: "price", Values: []capturetest.TypedValue{{Literal: "12.5", Text: "12.5"}, {Literal: "12", Text: "12"}}},
			{Name: "amount", Values: []capturetest.TypedValue{{Literal: "12", Text: "12.0"}, {Literal: "0.1"}, {Literal: "1e300"}, {Literal: "9e999", Text: "Inf"}}},
			{Name: "digest", Values: []capturetest.TypedValue{{Literal: "X'00FF41'", Text: "\ufffd\ufffdA"}, {Literal: "X''"}, {Literal: "X'7B7D'", Text: "{}"}}},
			{Name: "n", Values: []capturetest.TypedValue{{Literal: "-9223372036854775808", Text: "-9223372036854775808"}, {Literal: "'text'", Text: "text"}}},
			{Name: "untyped", Values: []capturetest.TypedValue{
				{Literal: "'a' || char(0) || 'b'", Text: "a\ufffdb"}, {Literal: "'\"\\' || char(10, 127, 233, 8232)", Text: "\"\\\n\x7fé\u2028"}, {Literal: "CAST(X'61FF62' AS TEXT)", Text: "a\ufffdb"},
			}},
		},
	})
}

// TestGroupOfTypes: the log and the table agree on a group over columns of each type, and a
// view leaves out exactly its lane.
func TestGroupOfTypes(t *testing.T) {
	values := []string{
		"NULL", "''", "'a'", "'A'", "'a/b'", "'\\N'", "'\\'", "7", "'7'", "7.5", "1e300", "X'6162'", "X'00FF'", "TRUE", "'é😀'", "'a' || char(0) || 'b'",
	}
	box := store.Outbox{Name: "shop", Table: "outbox_groups", Layout: store.Layout{
		Name: store.CustomLayout, State: store.StateTimestamps, GroupRest: []string{"b", "c"},
		Columns: store.Columns{ID: "id", Group: "a", Payload: "payload", Delivered: "sent_at"},
	}}
	d := newDatabaseOf(t, "CREATE TABLE outbox_groups (id INTEGER PRIMARY KEY, a TEXT COLLATE NOCASE, b, c NUMERIC, payload TEXT, sent_at INTEGER)", box)
	cfg := d.config()
	cfg.Outboxes = []store.Outbox{box}
	src := newSource(t, cfg)
	defer src.Close()
	o := capturetest.OpenWithoutCheckpoint(t, src, &capturetest.Tables{Viewer: d.views})
	var rows []string
	for _, a := range values {
		for _, b := range values {
			rows = append(rows, fmt.Sprintf("(%s, %s, %s, 'x')", a, b, values[len(rows)%len(values)]))
		}
	}
	d.exec(t, "INSERT INTO outbox_groups (a, b, c, payload) VALUES "+strings.Join(rows, ", "))
	logged := first(t, t.Context(), src, o.From)
	view, err := d.views.View(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	shown, err := view.Unsettled(t.Context(), store.UnsettledQuery{Outbox: "shop", Limit: 1000})
	if err != nil || len(shown) != len(rows) || len(logged) != len(rows) {
		t.Fatalf("%d rows in the log, %d in the table, want %d: %v", len(logged), len(shown), len(rows), err)
	}
	numbers := map[store.LaneKey]int{} // of lanes
	for i := range shown {
		if logged[i].ID != shown[i].ID || logged[i].Group != shown[i].Group {
			t.Errorf("row %s has group %q in the log and %q in the table", shown[i].ID, logged[i].Group.Name, shown[i].Group.Name)
		}
		if _, known := numbers[shown[i].Lane()]; !known {
			numbers[shown[i].Lane()] = len(numbers)
		}
	}
	// Of any two lanes, some query leaves out the first and not the second: their numbers differ
	// in a bit.
	ids := func(items []store.Item) (list []string) {
		for i := range items {
			list = append(list, items[i].ID)
		}
		return list
	}
	for mask := 1; mask < len(numbers); mask <<= 1 {
		for _, value := range []int{0, mask} {
			without := func(lane store.LaneKey) bool { return numbers[lane]&mask == value }
			var excluded []store.LaneKey
			for lane := range numbers {
				if without(lane) {
					excluded = append(excluded, lane)
				}
			}
			left, err := view.Unsettled(t.Context(), store.UnsettledQuery{Outbox: "shop", Limit: 1000, ExcludeLanes: excluded})
			if err != nil {
				t.Fatal(err)
			}
			want := slices.DeleteFunc(slices.Clone(shown), func(it store.Item) bool { return without(it.Lane()) })
			if got := ids(left); !slices.Equal(got, ids(want)) {
				t.Errorf("without the lanes with bit %d = %d there are rows %v, want %v", mask, value, got, ids(want))
			}
		}
	}
}
