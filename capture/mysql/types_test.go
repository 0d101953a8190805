package mysql_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// sample is a column of a type, with values in SQL.
type sample struct {
	ddl    string
	values []string
	only   servers.Flavour
}

var samples = []sample{
	{ddl: "tinyint", values: []string{"-128", "127", "0"}},
	{ddl: "tinyint unsigned", values: []string{"255", "128", "0"}},
	{ddl: "smallint unsigned", values: []string{"65535", "32768"}},
	{ddl: "mediumint", values: []string{"-8388608", "8388607", "-1"}},
	{ddl: "mediumint unsigned", values: []string{"16777215", "8388608"}},
	{ddl: "int", values: []string{"-2147483648", "2147483647"}},
	{ddl: "int unsigned", values: []string{"4294967295", "2147483648"}},
	{ddl: "bigint", values: []string{"-9223372036854775808", "9223372036854775807"}},
	{ddl: "bigint unsigned", values: []string{"18446744073709551615", "9223372036854775808"}},
	{ddl: "decimal(30,10)", values: []string{"-12345678901234567890.0123456789", "0", "1.5", "-0.0000000001"}},
	{ddl: "char(10)", values: []string{"'abc'", "'abc   '", "''", "'äöü€'"}},
	{ddl: "char(255) CHARACTER SET utf8mb4", values: []string{"'x'", "repeat('😀', 255)"}},
	{ddl: "varchar(300)", values: []string{"'short'", "repeat('€', 300)", "'trailing  '"}},
	{ddl: "varchar(50) CHARACTER SET latin1", values: []string{"'Grüße'", "'€'", "convert(unhex('8190E9') USING latin1)"}},
	{ddl: "varchar(50) CHARACTER SET cp1251", values: []string{"'Привет'"}},
	{ddl: "varchar(50) CHARACTER SET utf16", values: []string{"'a😀€'"}},
	{ddl: "varchar(50) CHARACTER SET ucs2", values: []string{"'a€'"}},
	{ddl: "varchar(50) CHARACTER SET utf32", values: []string{"'a😀€'"}},
	{ddl: "varchar(50) CHARACTER SET ascii", values: []string{"'plain'"}},
	{ddl: "text", values: []string{"'text'", "repeat('xyz', 20000)"}},
	{ddl: "mediumtext CHARACTER SET latin1", values: []string{"'Grüße'"}},
	{ddl: "binary(16)", values: []string{"unhex('00112233445566778899aabbccddee00')", "unhex('0000')", "unhex('ffffffffffffffffffffffffffffffff')", "repeat(char(0), 16)"}},
	{ddl: "binary(255)", values: []string{"'x'"}},
	{ddl: "varbinary(20)", values: []string{"unhex('0011ff00')", "''"}},
	{ddl: "blob", values: []string{"unhex('0011ff00')", "''"}},
	{ddl: "enum('a','it''s','größe','x,y')", values: []string{"'a'", "'it''s'", "'größe'", "'x,y'"}},
	{ddl: "enum('é','ü') CHARACTER SET latin1", values: []string{"'é'", "'ü'"}},
	{ddl: "set('a','it''s','größe')", values: []string{"''", "'a'", "'a,größe'", "'a,it''s,größe'"}},
	{ddl: "date", values: []string{"'2026-02-28'", "'1000-01-01'", "'9999-12-31'"}},
	{ddl: "time", values: []string{"'-838:59:59'", "'00:00:00'", "'12:34:56'"}},
	{ddl: "time(6)", values: []string{"'-00:00:00.000001'", "'12:34:56.789012'"}},
	{ddl: "datetime", values: []string{"'2026-02-28 12:34:56'", "'1000-01-01 00:00:00'"}},
	{ddl: "datetime(3)", values: []string{"'2026-02-28 12:34:56.789'", "'2026-02-28 12:34:56.000'"}},
	{ddl: "datetime(6)", values: []string{"'2026-02-28 12:34:56.789012'", "'1969-12-31 23:59:59.999999'"}},
	{ddl: "timestamp NULL", values: []string{"'2026-02-28 12:34:56'"}},
	{ddl: "timestamp(6) NULL", values: []string{"'2026-02-28 12:34:56.789012'"}},
	{ddl: "year", values: []string{"2026", "0"}},
	{ddl: "json", values: []string{
		`'{"b": 1, "a": [1.0, 2.50, 1e3, -0.5, null, true, "x\\"y\\\\z\\n", {}], "long key": {"n": 18446744073709551615}}'`,
		`'[]'`, `'null'`, `'"text"'`, `'1.0'`, `'{"a": {"b": [1, [2, [3]]]}, "ä": "€ 😀"}'`,
	}},
	{ddl: "json", values: []string{
		"json_object('d', cast('1.50' AS decimal(10,2)), 't', cast('2026-02-28 12:34:56' AS datetime))", "json_array(cast('2026-02-28' AS date), cast('12:34:56.5' AS time(1)))",
	}, only: servers.MySQL},
	{ddl: "uuid", values: []string{"'123e4567-e89b-12d3-a456-426655440000'", "'00000000-0000-0000-0000-000000000000'", "'0190163d-8694-739b-aea5-966c26f8ad91'", "'ffffffff-ffff-4fff-bfff-ffffffffffff'"}, only: servers.MariaDB},
}

func samplesOf(f servers.Flavour) []sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s sample) bool { return s.only != "" && s.only != f })
}

// testTypes checks that values from the binlog equal the values in the table byte for
// byte: every type, as a group, as a part of a group, as a payload and as an attribute, with
// and without column names in the binlog.
func testTypes(t *testing.T, f servers.Flavour, url string) {
	list := samplesOf(f)
	ddl := "CREATE TABLE outbox_events (id varchar(64) PRIMARY KEY, delivered_at datetime, failed_at datetime"
	var boxes []store.Outbox
	for i, s := range list {
		ddl += fmt.Sprintf(", c%d %s", i, s.ddl)
		c := fmt.Sprintf("c%d", i)
		boxes = append(boxes, store.Outbox{Name: fmt.Sprintf("%d %s", i, s.ddl), Table: "outbox_events", Layout: store.Layout{
			Name: "custom", State: store.StateTimestamps, Columns: store.Columns{ID: "id", Group: c, Kind: c, Payload: c, Delivered: "delivered_at", Failed: "failed_at"},
		}}, store.Outbox{Name: fmt.Sprintf("%d %s beside others", i, s.ddl), Table: "outbox_events", Layout: store.Layout{
			Name: "custom", State: store.StateTimestamps, Columns: store.Columns{ID: "id", Group: c, Payload: c, Delivered: "delivered_at"},
			GroupRest:  []string{"failed_at", fmt.Sprintf("c%d", (i+1)%len(list))},
			Attributes: []store.AttributeColumn{{Column: c, Name: "as text"}, {Column: c, Name: store.AttributeTime}, {Column: c, Spread: true}},
		}})
	}

	d := newDatabaseOf(t, f, url, ddl+") CHARACTER SET utf8mb4", func(string) []store.Outbox { return boxes })
	got := d.readItems(t, boxes, func() {
		for i, s := range list {
			for j, v := range s.values {
				d.exec(t, fmt.Sprintf("INSERT INTO outbox_events (id, c%d) VALUES ('%02d-%d', %s)", i, i, j, v))
			}
		}
	})

	d.compare(t, boxes, got)
}

// idTypes are the types that an id may have.
var idTypes = []string{"varchar(64)", "char(36)", "varchar(64) CHARACTER SET latin1", "varchar(64) CHARACTER SET ascii", "binary(16)", "varbinary(20)",
	"bigint", "bigint unsigned", "int unsigned", "mediumint unsigned", "decimal(20,0)", "uuid"}

// testIDTypes checks that an id in the binlog equals the id by which the store claims.
func testIDTypes(t *testing.T, f servers.Flavour, url string) {
	var ddl []string
	var boxes []store.Outbox
	values := map[string][]string{}
	for _, s := range samplesOf(f) {
		i := len(ddl)
		if !slices.Contains(idTypes, s.ddl) {
			continue
		}
		table := fmt.Sprintf("t%d", i)
		ddl = append(ddl, fmt.Sprintf("CREATE TABLE %s (id %s PRIMARY KEY, payload text, delivered_at datetime, failed_at datetime) CHARACTER SET utf8mb4", table, s.ddl))
		values[table] = s.values
		boxes = append(boxes, store.Outbox{Name: s.ddl, Table: table, Layout: store.Layout{
			Name: "custom", State: store.StateTimestamps, Columns: store.Columns{ID: "id", Payload: "payload", Delivered: "delivered_at", Failed: "failed_at"},
		}})
	}

	d := newDatabaseOf(t, f, url, strings.Join(ddl, "; "), func(string) []store.Outbox { return boxes })
	got := d.readItems(t, boxes, func() {
		for table, list := range values {
			for _, v := range list {
				d.exec(t, fmt.Sprintf("INSERT IGNORE INTO %s (id, payload) VALUES (%s, 'x')", table, v))
			}
		}
	})

	d.compare(t, boxes, got)
}

// TestMetadata runs tests with the minimal and the full binlog_row_metadata, because it
// decides whether the binlog has names and types of the columns.
func TestMetadata(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		least := map[servers.Flavour]string{servers.MySQL: "MINIMAL", servers.MariaDB: "NO_LOG"}[f]
		all := f.Start(t, map[string]string{"binlog-row-metadata": "FULL"})
		for name, test := range map[string]func(t *testing.T, f servers.Flavour, url string){
			"schema changes": testSchemaChanges, "behind a schema change": testRowsBeforeSchemaChange,
			"dropped column": testDroppedColumn, "generated columns": testGeneratedColumns, "hidden columns": testHiddenColumns,
			"replace": testReplace, "types": testTypes, "types of ids": testIDTypes,
		} {
			t.Run(name+"/"+least, func(t *testing.T) { test(t, f, f.Database(t)) })
			t.Run(name+"/FULL", func(t *testing.T) { test(t, f, all.Database()) })
		}
	})
}

// readItems runs a source from now on, lets write commit, and returns the items up to a
// marker behind it.
func (d *database) readItems(t *testing.T, boxes []store.Outbox, write func()) []store.Item {
	t.Helper()
	cfg := d.config()
	cfg.Outboxes = boxes
	src := newSource(t, cfg)
	defer src.Close()
	o := capturetest.OpenWithoutCheckpoint(t, src, d.tables())
	write()
	if err := src.Mark(t.Context(), "end"); err != nil {
		t.Fatal(err)
	}
	return upToMark(t, src, o.From)
}

// upToMark returns the rows up to a marker.
func upToMark(t testing.TB, src capture.Source, from store.Position) []store.Item {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := make(chan capture.Batch)
	done := make(chan error, 1)
	go func() { done <- src.Run(ctx, capture.Span{From: from}, out) }()
	var items []store.Item
	for {
		select {
		case b := <-out:
			items = append(items, b.Items...)
			if len(b.Marks) > 0 {
				cancel()
				drain(done)
				return items
			}
		case err := <-done:
			t.Fatalf("the run ended: %v", err)
		}
	}
}

// compare checks that rows are as the store reads them.
func (d *database) compare(t *testing.T, boxes []store.Outbox, got []store.Item) {
	t.Helper()
	view, err := d.views.View(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	type key struct{ outbox, id string }
	came := map[key]store.Item{}

	for _, it := range got {
		came[key{it.Outbox, it.ID}] = it
	}

	read := 0
	for i := range boxes {
		want, err := view.Unsettled(t.Context(), store.UnsettledQuery{Outbox: boxes[i].Name, Limit: 10000})
		if err != nil {
			t.Fatalf("%s: %v", boxes[i].Name, err)
		}
		read += len(want)
		checkExcluded(t, view, boxes[i].Name, want)
		for _, w := range want {
			g, ok := came[key{w.Outbox, w.ID}]
			switch {
			case !ok:
				t.Errorf("%s: row %q is missing", w.Outbox, w.ID)
			case g.Group != w.Group || g.Kind != w.Kind || string(g.Payload) != string(w.Payload) || !slices.Equal(g.Attributes, w.Attributes):
				t.Errorf("%s: row %q: got\ngroup %.100q, kind %.100q, payload %.100q, attributes %.300q; want\ngroup %.100q, kind %.100q, payload %.100q, attributes %.300q",
					w.Outbox, w.ID, g.Group.Name, g.Kind, g.Payload, g.Attributes, w.Group.Name, w.Kind, w.Payload, w.Attributes)
			}
		}
	}

	if read == 0 || read != len(got) {
		t.Errorf("got %d rows, want %d", len(got), read)
	}
}

// checkExcluded checks that a view without the lanes of all rows has none.
func checkExcluded(t *testing.T, view store.View, outbox string, all []store.Item) {
	t.Helper()
	q := store.UnsettledQuery{Outbox: outbox, Limit: 1}
	for i := range all {
		q.ExcludeLanes = append(q.ExcludeLanes, all[i].Lane())
	}
	if left, err := view.Unsettled(t.Context(), q); err != nil || len(left) > 0 {
		t.Errorf("%s: without the lanes of all rows: %.300q, %v", outbox, fmt.Sprint(left), err)
	}
}
