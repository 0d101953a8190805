package postgres_test

import (
	"math"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// customBox is an outbox with a custom layout.
func customBox(change func(*store.Layout)) store.Outbox {
	l := store.Layout{
		Name: "custom",
		Columns: store.Columns{
			ID: "Id", Kind: "order", Group: "Body", Payload: "Body", Status: "State",
			RetryCount: "tries", Claimed: "taken", Settled: "ended", Error: "why",
		},
		State: store.StateWords,
		Words: map[store.Status]string{
			store.Pending: "NEW", store.Processing: "SENDING", store.Completed: "SENT", store.Failed: "DEAD",
		},
		OrderBy:   []string{"made"},
		GroupPath: []string{"customer", "id"},
	}
	if change != nil {
		change(&l)
	}
	return store.Outbox{Name: "events", Schema: "The Shop", Table: "Out Box", Layout: l}
}

const customTable = `
DROP SCHEMA IF EXISTS "The Shop" CASCADE; CREATE SCHEMA "The Shop"; DROP SCHEMA IF EXISTS sluicebox CASCADE;
CREATE TABLE "The Shop"."Out Box" (
  "Id" bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "order" text, "Body" BODY, "State" varchar(10) NOT NULL DEFAULT 'NEW',
  tries int NOT NULL DEFAULT 0, taken timestamptz, ended timestamp, why text, made timestamptz NOT NULL DEFAULT now(),
  delivered timestamptz, gone timestamptz, required timestamptz NOT NULL DEFAULT now(), code smallint NOT NULL DEFAULT 0)`

// TestGroupPathOfAPayload: the group is found in the payload, whatever its type, and in
// the log's form of the column.
func TestGroupPathOfAPayload(t *testing.T) {
	values := []string{
		`{"customer":{"id":"c-1"}}`, `{"customer": {"id": 12345678901234567890}}`, `{"customer": {"id": 1.0}}`,
		`{"customer": {}}`, `[1]`, `{"customer": {"id": "gr\u00fc\u00df"}, "x": "\\"}`, `{"customer": {"id": {"a": [1, true]}}}`,
	}
	want := []store.Group{
		store.GroupOf("c-1"), store.GroupOf("12345678901234567890"), store.GroupOf("1.0"),
		{}, {}, store.GroupOf("grüß"), store.GroupOf(`{"a":[1,true]}`), {},
	}
	aVersion(t, func(t *testing.T, url string) {
		for _, typ := range []string{"text", "json", "jsonb", "bytea", "varchar(200)"} {
			t.Run(typ, func(t *testing.T) {
				box := customBox(nil)
				r := newRig(t, url, strings.Replace(customTable, "BODY", typ, 1), 0, box)
				const insert = `INSERT INTO "The Shop"."Out Box" ("order", "Body") VALUES ('k', `
				for _, v := range values {
					if typ == "bytea" {
						r.exec(t, insert+"convert_to($1, 'UTF8'))", v)
					} else {
						r.exec(t, insert+"$1)", v)
					}
				}
				r.exec(t, insert+"NULL)")
				view, err := r.store.View(ctx(t), "")
				if err != nil {
					t.Fatal(err)
				}
				defer view.Close()
				items, err := view.Unsettled(ctx(t), store.UnsettledQuery{Outbox: "events", Limit: 20, MaxPayload: 1})
				if err != nil || len(items) != len(want) {
					t.Fatalf("got %d rows, error %v", len(items), err)
				}
				for i, it := range items {
					if it.Group != want[i] || it.Kind != "k" {
						t.Errorf("row %s of kind %q: got group %#v, want %#v", it.ID, it.Kind, it.Group, want[i])
					}
				}
				for _, it := range items {
					if got := r.claim(t, row(it.ID))[0].Result; got != store.Claimed {
						t.Errorf("row %s is %s", it.ID, got)
					}
				}
				if _, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{outcome(items[0].ID, store.Completed), outcome(items[1].ID, store.Failed)}); err != nil {
					t.Fatal(err)
				}
				if got := ask[string](t, r.conn, `SELECT string_agg("State", ' ' ORDER BY "Id") FROM "The Shop"."Out Box"`); got !=
					"SENT DEAD"+strings.Repeat(" SENDING", len(want)-2) {
					t.Errorf("got states %s", got)
				}
			})
		}
	})
}

// TestMalformedGroups: rows whose payload is not JSON keep one lane.
func TestMalformedGroups(t *testing.T) {
	url := servers.Database(t, servers.Versions()[0])
	r := newRig(t, url, strings.Replace(customTable, "BODY", "text", 1), 0, customBox(nil))
	r.exec(t, `INSERT INTO "The Shop"."Out Box" ("Body") VALUES ('no JSON'), ('{"customer":'), ('')`)
	view, err := r.store.View(ctx(t), "")
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	items, err := view.Unsettled(ctx(t), store.UnsettledQuery{Outbox: "events", Limit: 20})
	if err != nil || len(items) != 3 {
		t.Fatalf("got %d rows, error %v", len(items), err)
	}
	for _, it := range items {
		if it.Group != store.GroupOf("") {
			t.Errorf("row %s: got group %#v", it.ID, it.Group)
		}
	}
}

// TestCheckOfCustomLayouts: a mismatch between layout and table is reported with the
// table, the column and the key.
func TestCheckOfCustomLayouts(t *testing.T) {
	times := func(l *store.Layout) {
		l.State, l.Words, l.Columns.Status = store.StateTimestamps, nil, ""
		l.Columns.Delivered, l.Columns.Failed = "delivered", "gone"
	}
	numbers := func(l *store.Layout) {
		l.State, l.Words, l.Columns.Status = store.StateNumbers, nil, "code"
		l.Numbers = map[store.Status]int{store.Pending: 0, store.Processing: 1, store.Completed: 2, store.Failed: 3}
	}
	url := servers.Database(t, servers.Versions()[0])
	r := newRig(t, url, strings.Replace(customTable, "BODY", "jsonb", 1), 0, customBox(nil))
	r.exec(t, `CREATE TYPE mood AS ENUM ('NEW', 'SENT'); ALTER TABLE "The Shop"."Out Box" ADD mood mood, ADD citizen text`)
	const table = `"The Shop"."Out Box"`
	for _, c := range []struct {
		name   string
		change func(*store.Layout)
		want   []string // empty if nothing is wrong
	}{
		{"words", nil, nil},
		{"times", times, nil},
		{"numbers", numbers, nil},
		{"a missing column", func(l *store.Layout) { l.Columns.Error = "wy"; l.OrderBy = []string{"MADE"} },
			[]string{table + " has no column MADE (order-by; did you mean made?), wy (columns.error; did you mean why?), which layout custom names; its columns are Id, order, Body"}},
		{"a path in a number", func(l *store.Layout) { l.Columns.Group = "code" },
			[]string{"column code (columns.group) of " + table + " is of type smallint", "JSON or a text for the group-path"}},
		{"words in a number", func(l *store.Layout) { l.Columns.Status = "code" },
			[]string{"column code (columns.status) of " + table + " is of type smallint, and layout custom needs a text or an enumeration"}},
		{"words of an enumeration", func(l *store.Layout) { l.Columns.Status = "mood" },
			[]string{`column mood (columns.status) of ` + table + `, of type mood, cannot hold "SENDING", which layout custom names for PROCESSING`, `"DEAD"`}},
		{"a long word", func(l *store.Layout) { l.Words[store.Failed] = "GIVEN UP FOR GOOD" }, []string{`cannot hold "GIVEN UP FOR GOOD"`}},
		{"numbers in a text", func(l *store.Layout) { numbers(l); l.Columns.Status = "State" },
			[]string{"column State (columns.status) of " + table + " is of type character varying(10), and layout custom needs an integer"}},
		{"a large number", func(l *store.Layout) { numbers(l); l.FailedNumbers = map[store.Reason]int{store.ReasonGateway: 40000} },
			[]string{"column code (columns.status) of " + table + ", of type smallint, cannot hold 40000"}},
		{"times in a text", func(l *store.Layout) { times(l); l.Columns.Delivered = "citizen" },
			[]string{"column citizen (columns.delivered) of " + table + " is of type text, and layout custom needs a timestamp"}},
		{"a time that is never NULL", func(l *store.Layout) { times(l); l.Columns.Failed = "required" },
			[]string{"column required (columns.failed) of " + table + " is NOT NULL", "DROP NOT NULL"}},
		{"receipts", func(l *store.Layout) { l.Record = recordInto("citizen", 0) }, nil},
		{"an offset in a text", func(l *store.Layout) { l.Record = recordInto("citizen", math.MaxInt64) }, nil},
		{"an offset in 2 bytes", func(l *store.Layout) { l.Record = recordInto("code", math.MaxInt64) },
			[]string{"column code (record.r) of " + table + " is of type smallint, and layout custom needs an integer of 8 bytes", `TYPE bigint`}},
		{"a partition in 2 bytes", func(l *store.Layout) { l.Record = recordInto("code", math.MaxInt32) },
			[]string{"column code (record.r) of " + table + " is of type smallint, and layout custom needs an integer", `TYPE integer`}},
		{"a receipt that is never NULL", func(l *store.Layout) { l.Record = recordInto("required", 0) },
			[]string{"column required (record.r) of " + table + " is NOT NULL, but NULL marks a row without a receipt", "needs a text"}},
		{"a missing column for a receipt", func(l *store.Layout) { l.Record = recordInto("citizn", 0) },
			[]string{"has no column citizn (record.r; did you mean citizen?)"}},
		{"an error in a time", func(l *store.Layout) { l.Columns.Error = "delivered" },
			[]string{"column delivered (columns.error) of " + table + " is of type timestamp with time zone, and layout custom needs a text"}},
	} {
		err := openStore(t, url, 0, customBox(c.change)).Check(ctx(t))
		if c.want == nil && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: Check error lacks %q: %v", c.name, want, err)
			}
		}
	}
}

// recordInto returns a column for a receipt whose largest value is limit, 0 for a text.
func recordInto(column string, limit int64) []store.RecordColumn {
	return []store.RecordColumn{{Receipt: "r", Column: column, Max: limit}}
}
