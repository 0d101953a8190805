package postgres

import (
	"fmt"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestStatusConstraints: a constraint on the status column alone that refuses a value of
// the relay is reported with that value. The remedy allows the value and keeps the rest
// of the constraint.
func TestStatusConstraints(t *testing.T) {
	t.Parallel()
	numbered := store.FlowCatalyst()
	numbered.State, numbered.Words = store.StateNumbers, nil
	numbered.Numbers = map[store.Status]int{store.Pending: 0, store.Processing: 9, store.Completed: 1, store.Failed: 3}
	numbered.FailedNumbers = nil
	deleted := store.FlowCatalyst()
	deleted.DeleteDelivered = true
	unclaimed := store.FlowCatalyst()
	unclaimed.Unclaimed = true
	for _, version := range servers.Spread(t, servers.Versions()) {
		for name, c := range map[string]struct {
			layout      store.Layout
			typ, checks string
			refused     string // "" for none
			bad         string // still refused after the fix
		}{
			"all words":      {store.FlowCatalyst(), "text", "CHECK (status IN ('PENDING', 'PROCESSING', 'COMPLETED', 'FAILED'))", "", ""},
			"a word lacks":   {store.FlowCatalyst(), "varchar(20)", "CHECK (status IN ('PENDING', 'it''s', 'COMPLETED', 'FAILED'))", "'PROCESSING'", "'GONE'"},
			"two lack":       {store.FlowCatalyst(), "text", "CHECK (status IN ('PENDING', 'COMPLETED'))", "'PROCESSING', 'FAILED'", "'GONE'"},
			"never written":  {deleted, "text", "CHECK (status <> 'COMPLETED')", "", ""},
			"no claims":      {unclaimed, "text", "CHECK (status <> 'PROCESSING')", "", ""},
			"numbers":        {numbered, "smallint", "CHECK (status BETWEEN 0 AND 3)", "9", "4"},
			"of the row":     {store.FlowCatalyst(), "text", "CHECK (status <> 'FAILED' OR retry_count > 0)", "", ""},
			"of another":     {store.FlowCatalyst(), "text", "CHECK (retry_count > 7)", "", ""},
			"cannot be told": {store.FlowCatalyst(), "text", "CHECK (1 / length(substr(status, 100)) = 0)", "", ""},
		} {
			t.Run(fmt.Sprintf("pg%d/%s", version, name), func(t *testing.T) {
				url := servers.Database(t, version)
				servers.Exec(t, url, fmt.Sprintf(`CREATE TABLE box (id text PRIMARY KEY, message_group text, payload text, status %s NOT NULL CONSTRAINT "of it" %s,
					retry_count int NOT NULL DEFAULT 0, created_at timestamptz, processed_at timestamptz, error_message text, updated_at timestamptz)`, c.typ, c.checks),
					"CREATE INDEX ON box (status)")
				examine := diagnoser(t, url, store.Outbox{Name: "box", Table: "box", Kind: "EVENT", Layout: c.layout})
				if c.refused == "" {
					if found := findingsOf(examine(), "outbox box"); store.CountFaults(found) > 0 {
						t.Errorf("%+v", found)
					}
					return
				}
				expectFixed(t, url, examine, "outbox box", store.GradeFault, "constraint of it of \"box\" does not allow "+c.refused+" in column status")
				if _, err := servers.Connect(t, url).Exec(t.Context(), "INSERT INTO box (id, status) VALUES ('x', "+c.bad+")"); err == nil {
					t.Errorf("after the fix the constraint allows %s", c.bad)
				}
			})
		}
	}
}
