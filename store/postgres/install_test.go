package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestMayInstall: MayInstall predicts whether Install succeeds.
func TestMayInstall(t *testing.T) {
	t.Parallel()
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			admin := servers.Database(t, version)
			database := databaseOf(t, admin)
			role := "maker_" + database
			servers.Exec(t, admin, "CREATE ROLE "+role+" LOGIN")
			t.Cleanup(func() { dropRole(t, admin, role) })
			st, err := New(Config{URL: strings.Replace(admin, "postgres@", role+"@", 1), Name: "rig",
				Outboxes: []store.Outbox{{Name: "box", Table: "box", Kind: "EVENT", Layout: store.FlowCatalyst()}}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(st.Close)
			for _, step := range []struct {
				name, change string
				may          bool
			}{
				{"no right", "SELECT", false},
				{"a right on the database", "GRANT CREATE ON DATABASE " + database + " TO " + role, true},
				{"an empty schema of another", "CREATE SCHEMA sluicebox", false},
				{"a right on the schema", "GRANT ALL ON SCHEMA sluicebox TO " + role, true},
				{"a table of another", "CREATE TABLE sluicebox.other (n int)", false},
				{"none again", "DROP TABLE sluicebox.other", true},
			} {
				servers.Exec(t, admin, step.change)
				if may, err := st.MayInstall(t.Context()); err != nil || may != step.may {
					t.Errorf("%s: %t, %v", step.name, may, err)
				}
			}
			if err := st.Install(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, step := range []struct {
				name, change string
				may          bool
			}{
				{"all is there", "SELECT", false},
				{"newer", "UPDATE sluicebox.meta SET version = 99; ALTER TABLE sluicebox.leader OWNER TO " + role, false},
				{"without its version", "DROP TABLE sluicebox.meta", false},
			} {
				servers.Exec(t, admin, step.change)
				if may, err := st.MayInstall(t.Context()); err != nil || may != step.may {
					t.Errorf("%s: %t, %v", step.name, may, err)
				}
				if step.may {
					if err := st.Install(t.Context()); err != nil {
						t.Errorf("%s: %v", step.name, err)
					}
				}
			}
		})
	}
}

// databaseOf returns the database that a URL names.
func databaseOf(t *testing.T, raw string) string {
	t.Helper()
	cfg, err := pgx.ParseConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	return cfg.Database
}

// dropRole drops a role after the test's own context has ended.
func dropRole(t *testing.T, admin, role string) {
	conn, err := pgx.Connect(context.Background(), admin)
	if err == nil {
		_, err = conn.Exec(context.Background(), "DROP OWNED BY "+role+" CASCADE; DROP ROLE "+role, pgx.QueryExecModeSimpleProtocol)
		_ = conn.Close(context.Background())
	}
	if err != nil {
		t.Error(err)
	}
}
