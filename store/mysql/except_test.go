package mysql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// TestExceptCollations: lanes that the table's own types and collations take for the
// same are left out one by one.
func TestExceptCollations(t *testing.T) {
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
				read := func(except ...store.LaneKey) (groups []store.Group) {
					view, err := r.store.View(ctx(t), "")
					if err != nil {
						t.Fatal(err)
					}
					defer view.Close()
					items, err := view.Unsettled(ctx(t), store.Unsettled{Outbox: "events", Limit: 9, Except: except})
					if err != nil {
						t.Fatal(err)
					}
					for _, it := range items {
						groups = append(groups, it.Group)
					}
					return groups
				}
				all := read()
				if len(all) != 7 {
					t.Fatalf("there are %d rows", len(all))
				}
				for i, out := range all {
					rest := fmt.Sprint(append(append([]store.Group{}, all[:i]...), all[i+1:]...))
					if got := fmt.Sprint(read(store.LaneKey{Outbox: "events", Kind: "EVENT", Group: out})); got != rest {
						t.Errorf("without %v: %s, want %s", out, got, rest)
					}
				}
			})
		}
	})
}
