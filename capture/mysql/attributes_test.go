package mysql_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestAttributes runs the suite's tests of attributes and of groups over several columns. For
// every type, see testTypes.
func TestAttributes(t *testing.T) {
	const table = `CREATE TABLE outbox_attributes (
	id varchar(64) PRIMARY KEY, payload longtext, tenant_id varchar(20) CHARACTER SET latin1, partition_id varchar(20), aggregate_type varchar(20),
	event_type text, occurred_at datetime(3), headers json, delivered_at datetime,
	flag boolean, price decimal(10,2), digest varbinary(20), mood enum('good', 'bad'), at timestamp NULL) CHARACTER SET utf8mb4`
	quote := strings.NewReplacer(`\`, `\\`, `'`, `''`)
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		capturetest.RunAttributes(t, capturetest.AttributeTable{
			Setup: func(t *testing.T, box store.Outbox) capturetest.Database {
				return newDatabaseOf(t, f, f.Database(t), table, func(name string) []store.Outbox {
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
				db.(*database).exec(t, "INSERT INTO outbox_attributes ("+strings.Join(names, ", ")+") VALUES ("+strings.Join(values, ", ")+")")
			},
			Quote: func(text string) string { return "'" + quote.Replace(text) + "'" },
			Time:  "'2026-02-03 04:05:06.789'",
			Columns: []capturetest.TypedColumn{
				{Name: "flag", Values: []capturetest.TypedValue{{Literal: "TRUE", Text: "1"}, {Literal: "FALSE", Text: "0"}}},
				{Name: "price", Values: []capturetest.TypedValue{{Literal: "12.5", Text: "12.50"}}},
				{Name: "digest", Values: []capturetest.TypedValue{{Literal: "X'00FF'", Text: "0x00ff"}, {Literal: "''", Text: "0x"}}},
				{Name: "mood", Values: []capturetest.TypedValue{{Literal: "'bad'", Text: "bad"}}},
				{Name: "at", Values: []capturetest.TypedValue{{Literal: "'2026-02-03 04:05:06'"}}},
			},
		})
	})
}
