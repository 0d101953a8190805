package mysql_test

import (
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store/storetest/rigs"
)

// TestExcludedLaneCollations checks that lanes are excluded one by one even if the table's
// types and collations treat them as equal.
func TestExcludedLaneCollations(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		for _, typ := range []string{
			"VARCHAR(20) COLLATE utf8mb4_general_ci", "VARCHAR(20) COLLATE utf8mb4_bin", "CHAR(9)", "VARBINARY(20)", "BLOB",
			"VARCHAR(20) CHARACTER SET latin1", "JSON", "VARCHAR(20) CHARACTER SET utf16",
		} {
			t.Run(typ, func(t *testing.T) {
				r := newRig(t, url, "DROP TABLE IF EXISTS outbox_events;\n"+
					strings.Replace(strings.Replace(flowTable, "message_group VARCHAR(255)", "message_group "+typ, 1), "    INDEX idx_outbox_events_status (status, message_group, created_at)", "    INDEX (status)", 1), 0, flowBox())
				for i, group := range []any{`"a"`, `"A"`, nil, `"a "`, `""`, `"é"`, `"e"`} {
					r.exec(t, "INSERT INTO outbox_events (id, payload, message_group) VALUES (?, '{}', ?)", i, group)
				}
				rigs.CheckExcludeLanes(t, r.store, 7)
			})
		}
	})
}
