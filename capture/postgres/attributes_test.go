package postgres_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// quoted returns a text as a literal.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// TestAttributes runs the suite's tests of attributes and of groups over several columns. For
// every type, see TestTypesOfTable.
func TestAttributes(t *testing.T) {
	t.Parallel()
	const table = `CREATE TYPE mood AS ENUM ('good', 'bad'); CREATE TABLE outbox_attributes (
	id text PRIMARY KEY, payload text, tenant_id varchar(20), partition_id text, aggregate_type varchar(20),
	event_type text, occurred_at timestamp(3), headers jsonb, delivered_at timestamptz,
	flag boolean, price numeric(10,2), digest bytea, mood mood, at timestamptz, tags text[])`
	oneVersion(t, func(t *testing.T, version int) {
		capturetest.RunAttributes(t, capturetest.AttributeTable{
			Setup: func(t *testing.T, box store.Outbox) capturetest.Database {
				return newDatabaseOf(t, servers.Database(t, version), table, func(name string) []store.Outbox {
					box.Name = name
					return []store.Outbox{box}
				})
			},
			Insert: func(t *testing.T, db capturetest.Database, literals map[string]string) {
				t.Helper()
				names := slices.Sorted(maps.Keys(literals))
				values := make([]string, len(names))
				for i, name := range names {
					values[i] = literals[name]
				}
				servers.Exec(t, db.(*database).url, "INSERT INTO outbox_attributes ("+strings.Join(names, ", ")+") VALUES ("+strings.Join(values, ", ")+")")
			},
			Quote: quoted,
			Time:  "'2026-02-03 04:05:06.789'",
			Columns: []capturetest.TypedColumn{
				{Name: "flag", Values: []capturetest.TypedValue{{Literal: "TRUE", Text: "t"}, {Literal: "FALSE", Text: "f"}}},
				{Name: "price", Values: []capturetest.TypedValue{{Literal: "12.5", Text: "12.50"}}},
				{Name: "digest", Values: []capturetest.TypedValue{{Literal: `'\x00ff'`, Text: `\x00ff`}, {Literal: "''", Text: `\x`}}},
				{Name: "mood", Values: []capturetest.TypedValue{{Literal: "'bad'", Text: "bad"}}},
				{Name: "at", Values: []capturetest.TypedValue{{Literal: "'2026-02-03 04:05:06+02'"}}},
				{Name: "tags", Values: []capturetest.TypedValue{{Literal: `ARRAY['a', 'b "c"', NULL]`, Text: `{a,"b \"c\"",NULL}`}}},
			},
		})
	})
}

// samples are types of columns, with values in SQL. A value of 100 kB is stored outside its row.
var samples = []struct {
	ddl    string
	values []string
}{
	{"text", []string{"'text'", "''", "'a/b\\c'", "'äöü€😀'", "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 3200) i)"}},
	{"varchar(300)", []string{"'short'", "'trailing  '", "repeat('€', 300)"}},
	{"char(10)", []string{"'abc'", "'abc   '", "''"}},
	{"name", []string{"'a name'"}},
	{"citext_of_tests", []string{"'Domain'"}},
	{"mood", []string{"'good'", "'it''s bad'"}},
	{"uuid", []string{"'123E4567-e89b-12d3-a456-426655440000'"}},
	{"smallint", []string{"-32768", "0"}},
	{"int", []string{"-2147483648", "2147483647"}},
	{"bigint", []string{"-9223372036854775808", "9223372036854775807"}},
	{"numeric", []string{"12345678901234567890.0123456789", "1.50", "'NaN'", "-0.0000000001", "1e20"}},
	{"numeric(10,2)", []string{"1.5", "0"}},
	{"real", []string{"0.1", "1e-30", "'Infinity'", "16777217"}},
	{"double precision", []string{"0.1", "1.0 / 3", "1e300", "'-Infinity'"}},
	{"money", []string{"12.5"}},
	{"bool", []string{"TRUE", "FALSE"}},
	{"timestamptz", []string{"'2026-02-28 12:34:56.789012+05:30'", "'0044-03-15 12:00:00+00 BC'", "'infinity'", "'2026-07-01 00:00:00+00'"}},
	{"timestamp", []string{"'2026-02-28 12:34:56.789'", "'2026-02-28'", "'-infinity'"}},
	{"timestamp(3)", []string{"'2026-02-28 12:34:56.7896'"}},
	{"date", []string{"'2026-02-28'", "'9999-12-31'"}},
	{"time", []string{"'12:34:56.5'"}},
	{"timetz", []string{"'12:34:56+02'"}},
	{"interval", []string{"'1 year 2 mons 3 days 04:05:06.789'", "'-1 day'"}},
	{"json", []string{`'{"b":  1, "a": [1.0, 2.50, 1e3, null, true, "x\"y"], "b": 2, "ä": "€", "n": 18446744073709551615}'`, `'[]'`, `'null'`, `' "text" '`}},
	{"jsonb", []string{`'{"b":  1, "a": [1.0, 2.50, 1e3, null, true, "x\"y"], "b": 2, "ä": "€", "n": 18446744073709551615}'`, `'[]'`, `'null'`, `'"text"'`,
		"(SELECT jsonb_object_agg(i, md5(i::text)) FROM generate_series(1, 3000) i)"}},
	{"bytea", []string{`'\x0011ff00'`, "''", "(SELECT string_agg(sha512(i::text::bytea), '') FROM generate_series(1, 1600) i)"}},
	{"bytes_of_tests", []string{`'\x0011ff00'`}},
	{"text[]", []string{"'{}'", `ARRAY['a', 'b,"c"', NULL, '']`, "ARRAY[ARRAY['a'], ARRAY['b']]"}},
	{"int[]", []string{"'{1,2,NULL}'", "'[0:1]={1,2}'"}},
	{"bytea[]", []string{`ARRAY['\x00ff'::bytea]`}},
	{"timestamptz[]", []string{"ARRAY['2026-02-28 12:34:56+00'::timestamptz]"}},
	{"float8[]", []string{"ARRAY[0.1, 1.0/3]"}},
	{"inet", []string{"'10.0.0.1'", "'10.0.0.0/8'"}},
	{"bit(3)", []string{"B'101'"}},
	{"int4range", []string{"'[1,5]'", "'empty'"}},
	{"xml", []string{"'<a  b=\"c\"/>'"}},
	{"oid", []string{"42"}},
	{"pair", []string{"ROW(1, 'a b')::pair", "ROW(NULL, '')::pair", "ROW(NULL, NULL)::pair"}},
}

// TestTypesOfTable: a row of the WAL equals the row of the table, with a column of each type as its
// payload, its kind, its group, a part of its group, and as attributes. The database has a
// time zone and formats of its own, which must not show.
func TestTypesOfTable(t *testing.T) {
	t.Parallel()
	inTurn(t, servers.Spread(t, servers.Versions()), func(t *testing.T, version int) {
		ddl := []string{
			"CREATE TYPE mood AS ENUM ('good', 'it''s bad')", "CREATE DOMAIN citext_of_tests AS text", "CREATE DOMAIN bytes_of_tests AS bytea",
			"CREATE TYPE pair AS (n int, t text)",
		}
		table := "CREATE TABLE outbox_types (id text PRIMARY KEY, delivered_at timestamptz, note text"
		for i, s := range samples {
			table += fmt.Sprintf(", c%d %s", i, s.ddl)
		}
		url := servers.Database(t, version)
		name := url[strings.LastIndex(url, "/")+1 : strings.LastIndex(url, "?")]
		for setting, value := range map[string]string{
			"TimeZone": "America/New_York", "DateStyle": "SQL, DMY", "IntervalStyle": "iso_8601", "bytea_output": "escape", "extra_float_digits": "0", "xmlbinary": "hex",
		} {
			ddl = append(ddl, fmt.Sprintf("ALTER DATABASE %s SET %s = %s", name, setting, quoted(value)))
		}
		d := newDatabaseOf(t, url, strings.Join(append(ddl, table+")"), "; "), typedOutboxes)
		r := run(t, d, d.config(), store.Checkpoint{})
		want := 0
		for i, s := range samples {
			for j, v := range s.values {
				servers.Exec(t, url, fmt.Sprintf("INSERT INTO outbox_types (id, c%d) VALUES ('%02d-%d', %s)", i, i, j, v))
				want += 2 * len(samples)
			}
		}
		logged := map[store.Ref]store.Item{}
		for len(logged) < want {
			for _, it := range r.next().Items {
				logged[it.Ref] = it
			}
		}
		compareWithTable(t, d, logged)
	})
}

// typedOutboxes returns two outboxes for each type, which read its column.
func typedOutboxes(string) []store.Outbox {
	var boxes []store.Outbox
	for i, s := range samples {
		c := fmt.Sprintf("c%d", i)
		l := store.Layout{Name: store.CustomLayout, State: store.StateTimestamps,
			Columns: store.Columns{ID: "id", Group: c, Kind: c, Payload: c, Delivered: "delivered_at"}}
		alone := store.Outbox{Name: fmt.Sprintf("%d %s", i, s.ddl), Table: "outbox_types", Layout: l}
		l.Columns.Kind, l.GroupRest = "", []string{"note", fmt.Sprintf("c%d", (i+1)%len(samples))}
		l.Attributes = []store.AttributeColumn{{Column: c, Name: "as text"}, {Column: c, Name: store.AttributeTime}, {Column: c, Spread: true}}
		boxes = append(boxes, alone, store.Outbox{Name: alone.Name + " beside others", Table: "outbox_types", Layout: l})
	}
	return boxes
}

// compareWithTable checks that rows of the WAL are as the table has them.
func compareWithTable(t *testing.T, d *database, logged map[store.Ref]store.Item) {
	t.Helper()
	view, err := d.views.View(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	for _, box := range d.outboxes("") {
		rows, err := view.Unsettled(t.Context(), store.UnsettledQuery{Outbox: box.Name, Limit: 10000})
		if err != nil {
			t.Fatalf("%s: %v", box.Name, err)
		}
		lanes := store.UnsettledQuery{Outbox: box.Name, Limit: 1}
		for _, w := range rows {
			lanes.ExcludeLanes = append(lanes.ExcludeLanes, w.Lane())
			g := logged[w.Ref]
			if g.Group != w.Group || g.Kind != w.Kind || string(g.Payload) != string(w.Payload) || !slices.Equal(g.Attributes, w.Attributes) {
				t.Errorf("%s: row %s is in the WAL\ngroup %.100q, kind %.100q, payload %.100q, attributes %.300q; in the table\ngroup %.100q, kind %.100q, payload %.100q, attributes %.300q",
					w.Outbox, w.ID, g.Group.Name, g.Kind, g.Payload, g.Attributes, w.Group.Name, w.Kind, w.Payload, w.Attributes)
			}
		}
		if left, err := view.Unsettled(t.Context(), lanes); err != nil || len(left) > 0 || len(rows) == 0 {
			t.Errorf("%s: of %d rows, without their lanes: %.300q, %v", box.Name, len(rows), fmt.Sprint(left), err)
		}
	}
}

// TestColumnListWithoutAttribute: a diagnosis notices a publication whose column list lacks
// the column of an attribute, or a further column of the group.
func TestColumnListWithoutAttribute(t *testing.T) {
	oneVersion(t, func(t *testing.T, version int) {
		d := newDatabaseOf(t, servers.Database(t, version), "CREATE TABLE outbox_events (id text PRIMARY KEY, a text, b text, payload text, type text, sent timestamptz)",
			func(name string) []store.Outbox {
				return []store.Outbox{{Name: name, Table: "outbox_events", Layout: store.Layout{
					Name: store.CustomLayout, State: store.StateTimestamps, GroupRest: []string{"b"},
					Columns:    store.Columns{ID: "id", Group: "a", Payload: "payload", Delivered: "sent"},
					Attributes: []store.AttributeColumn{{Column: "type", Name: store.AttributeType}},
				}}}
			})
		list := func(columns string) string { return "outbox_events (id, a, payload" + columns + ")" }
		servers.Exec(t, d.url, "CREATE PUBLICATION "+d.name+" FOR TABLE "+list(", b, type")+" WITH (publish = 'insert', publish_via_partition_root)")
		expectFinding(t, d.config(), "publication", store.GradeOK)
		for _, columns := range []string{", b", ", type"} {
			servers.Exec(t, d.url, "ALTER PUBLICATION "+d.name+" SET TABLE "+list(columns))
			expectFinding(t, d.config(), "publication", store.GradeFault, "omits layout columns of table", "ADD TABLE")
		}
	})
}
