package postgres_test

import (
	"slices"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func unsettledIDs(t *testing.T, st *postgres.Store) []string {
	t.Helper()
	v, err := st.View(ctx(t), "")
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	items, err := v.Unsettled(ctx(t), store.UnsettledQuery{Outbox: "events", Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for i := range items {
		list = append(list, items[i].ID)
	}
	return list
}

// TestSpilledIDTypes: views exclude spilled rows whatever the type of their id, by a hash
// and one by one, also next to ids that the type does not accept.
func TestSpilledIDTypes(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		for typ, ids := range map[string][]string{
			"uuid":     {"00000000-0000-0000-0000-00000000000a", "9f0c3d2e-0000-4000-8000-00000000abcd"},
			"bigint":   {"-9223372036854775808", "42"},
			"char(10)": {"0123456789", "abc       "},
			"bytea":    {`\x00ff`, `\x5c22`},
		} {
			r := newRig(t, url, `DROP SCHEMA IF EXISTS sluicebox CASCADE; DROP TABLE IF EXISTS outbox_events; CREATE TABLE outbox_events (
  id `+typ+` PRIMARY KEY, message_group text, payload text, status text DEFAULT 'PENDING',
  retry_count smallint, created_at timestamptz DEFAULT now(), processed_at timestamptz, error_message text)`, 0, flowBox)
			r.exec(t, "INSERT INTO outbox_events (id) VALUES ('"+ids[0]+"'), ('"+ids[1]+"')")
			r.spill(t, spilledRow(ids[1], 1), spilledRow("no id of that type", 2))
			few := unsettledIDs(t, r.store)
			r.exec(t, fillSpilled, 10_000, 10_000)
			if many := unsettledIDs(t, r.store); !slices.Equal(few, ids[:1]) || !slices.Equal(many, few) {
				t.Errorf("%s: got views %q with few and %q with many spilled rows, want %q", typ, few, many, ids[:1])
			}
		}
	})
}

// TestViewBeforeInstall: a view needs none of the relay's tables.
func TestViewBeforeInstall(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		servers.Exec(t, url, flowTable)
		r := &rig{url: url, conn: servers.Connect(t, url), store: openStore(t, url, 0, flowBox)}
		r.insert(t, "1")
		if got := unsettledIDs(t, r.store); !slices.Equal(got, []string{"1"}) {
			t.Errorf("without relay tables: got view %q", got)
		}
	})
}
