package postgres_test

import (
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store/outbox/outboxtest"
	"github.com/sluicebox/sluicebox/store/outbox/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func TestDiagnose(t *testing.T) {
	url := servers.Database(t, servers.Spread(t, servers.Versions())[0])
	role := "writer_" + strings.ToLower(t.Name())
	servers.Exec(t, url, `CREATE TABLE whole (id text PRIMARY KEY, payload text NOT NULL, extra text, seq bigint GENERATED ALWAYS AS IDENTITY, at timestamptz NOT NULL DEFAULT now())`,
		`CREATE TABLE lacking (id text PRIMARY KEY, payload text NOT NULL, extra text NOT NULL, shard int NOT NULL)`,
		"CREATE ROLE "+role+" LOGIN")
	t.Cleanup(func() { servers.Exec(t, url, "DROP OWNED BY "+role, "DROP ROLE "+role) })
	_, rest, _ := strings.Cut(url, "@")
	outboxtest.RunDiagnose(t, &outboxtest.Diagnosis{
		Diagnose: postgres.Diagnose, URL: url, Powerless: "postgres://" + role + "@" + rest,
		Apply: func(remedy string) { servers.Exec(t, url, strings.ReplaceAll(remedy, "…", "0")) },
	})
}
