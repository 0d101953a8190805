package mysql_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestStatusConstraints checks that a constraint on the status column alone is reported
// if it refuses a value that the relay writes, and that the remedy fixes it without
// loosening it otherwise.
func TestStatusConstraints(t *testing.T) {
	numbered := store.FlowCatalyst()
	numbered.State, numbered.Words = store.StateNumbers, nil
	numbered.Numbers = map[store.Status]int{store.Pending: 0, store.Processing: 9, store.Completed: 1, store.Failed: 3}
	deleted := store.FlowCatalyst()
	deleted.DeleteDelivered = true
	unclaimed := store.FlowCatalyst()
	unclaimed.Unclaimed = true
	eachFlavour(t, func(t *testing.T, url string) {
		for name, c := range map[string]struct {
			layout     store.Layout
			typ, check string
			refused    string // "" means none
			bad        string // still refused after the fix
		}{
			"all words":      {store.FlowCatalyst(), "VARCHAR(20)", "status IN ('PENDING', 'PROCESSING', 'COMPLETED', 'FAILED')", "", ""},
			"a word lacks":   {store.FlowCatalyst(), "VARCHAR(20)", `status IN ('PENDING', 'it''s', 'a\\b', 'COMPLETED', 'FAILED')`, "'PROCESSING'", "'GONE'"},
			"two lack":       {store.FlowCatalyst(), "VARCHAR(20) CHARACTER SET latin1", "status IN ('PENDING', 'COMPLETED')", "'PROCESSING', 'FAILED'", "'GONE'"},
			"never written":  {deleted, "VARCHAR(20)", "status <> 'COMPLETED'", "", ""},
			"no claims":      {unclaimed, "VARCHAR(20)", "status <> 'PROCESSING'", "", ""},
			"numbers":        {numbered, "SMALLINT", "status BETWEEN 0 AND 3", "9", "4"},
			"of the row":     {store.FlowCatalyst(), "VARCHAR(20)", "status <> 'FAILED' OR retry_count > 0", "", ""},
			"of another":     {store.FlowCatalyst(), "VARCHAR(20)", "retry_count > 7", "", ""},
			"cannot be told": {store.FlowCatalyst(), "VARCHAR(20)", "CAST(status AS JSON) IS NULL OR LENGTH(status) < 30", "", ""},
		} {
			if strings.Contains(url, "mariadb") && strings.Contains(c.check, "AS JSON") {
				continue // MariaDB lacks this cast
			}
			box := store.Outbox{Name: "box", Table: strings.ReplaceAll(name, " ", "_"), Kind: "EVENT", Layout: c.layout}
			servers.ExecMySQL(t, url, fmt.Sprintf(`CREATE TABLE %s (id VARCHAR(20) PRIMARY KEY, message_group TEXT, payload TEXT, status %s NOT NULL,
				retry_count INT NOT NULL DEFAULT 0, created_at DATETIME, processed_at DATETIME, error_message TEXT, CONSTRAINT `+"`of %[1]s`"+` CHECK (%[3]s))`, box.Table, c.typ, c.check))

			st := openStore(t, url, 0, box)
			if err := st.Install(ctx(t)); err != nil {
				t.Fatal(err)
			}

			err := st.Check(ctx(t))
			if c.refused == "" {
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				continue
			}

			rigs.WantSetup(t, name, err, "constraint of "+box.Table, "does not allow "+c.refused+" in column status")
			var setup *store.SetupError
			if !errors.As(err, &setup) {
				continue
			}

			for line := range strings.Lines(setup.Remedy) {
				if strings.HasPrefix(line, "ALTER") {
					servers.ExecMySQL(t, url, strings.TrimSuffix(strings.TrimSpace(line), ";"))
				}
			}

			if err := st.Check(ctx(t)); err != nil {
				t.Errorf("%s, after the fix: %v", name, err)
			}
			if _, err := servers.OpenMySQL(t, url).Exec("INSERT INTO " + box.Table + " (id, status) VALUES ('x', " + c.bad + ")"); err == nil {
				t.Errorf("%s: the fixed constraint allows %s", name, c.bad)
			}
		}
	})
}

// TestMayInstall checks that MayInstall predicts the result of Install, whichever way the
// right to create tables is granted.
func TestMayInstall(t *testing.T) {
	eachFlavour(t, func(t *testing.T, admin string) {
		servers.ExecMySQL(t, admin, flowTable)
		url, account := asAccount(t, admin, "secret")
		own := []string{"meta", "leader", "record", "queue", "replay", "marker"}
		grant := func(rights string, tables ...string) {
			for _, table := range tables {
				servers.ExecMySQL(t, admin, "GRANT "+rights+" ON sluicebox_"+table+" TO "+account)
			}
		}

		servers.ExecMySQL(t, admin, "GRANT SELECT, UPDATE ON outbox_events TO "+account)
		st := openStore(t, url, 0, flowBox())
		expect := func(what string, want bool) {
			t.Helper()
			may, err := st.MayInstall(ctx(t))
			if err != nil || may != want {
				t.Errorf("%s: MayInstall: got %t, %v", what, may, err)
			}
			if err := st.Install(ctx(t)); !want && err == nil {
				t.Errorf("%s: Install succeeded, want an error", what)
			} else if want && err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}

		expect("no right", false)
		grant("CREATE, SELECT", own[1:]...)
		expect("one table lacks", false)
		grant("CREATE, SELECT", "meta")
		expect("the version cannot be written", false)
		grant("INSERT, UPDATE", "meta")
		expect("all rights", true)
		if may, err := st.MayInstall(ctx(t)); err != nil || may {
			t.Errorf("MayInstall after Install: got %t, %v", may, err)
		}

		servers.ExecMySQL(t, admin, "DROP TABLE sluicebox_queue")
		expect("a table is gone", true)
	})
}
