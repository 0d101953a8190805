package blackbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// doctorFixture is a relay configuration with a server of its own. The relay's role has exactly
// the privileges that it needs.
type doctorFixture struct {
	t      *testing.T
	server *servers.Server
	to     *sinktest.Receiver
	config string
}

const (
	patientRole = "relay"
	patientName = "clinic"
)

// newDoctorFixture returns a fixture without faults.
func newDoctorFixture(t *testing.T, version int) *doctorFixture {
	p := &doctorFixture{t: t, to: sinktest.NewReceiver(t)}
	p.server = servers.Start(t, version, map[string]string{"max_slot_wal_keep_size": "1GB", "min_wal_size": "32MB", "max_wal_size": "32MB"})
	p.config = fmt.Sprintf("name: %s\nsource: {mode: stream, url: %q}\nflowcatalyst: {api-base-url: %q}\nadmin: {listen: %s}\n",
		patientName, roleURL(p.server.URL, patientRole), p.to.URL(), adminKey)
	p.sql(pgTables(), "CREATE ROLE relay LOGIN REPLICATION",
		"GRANT SELECT, UPDATE (status, retry_count, processed_at, error_message) ON outbox_events, outbox_dispatch_jobs TO relay")
	p.init()
	p.sql("GRANT USAGE ON SCHEMA sluicebox TO relay", "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA sluicebox TO relay")
	return p
}

func (p *doctorFixture) sql(statements ...string) {
	p.t.Helper()
	servers.Exec(p.t, p.server.URL, statements...)
}

// init runs `sluicebox init` as the administrator.
func (p *doctorFixture) init() {
	p.t.Helper()
	as := strings.Replace(p.config, patientRole+"@", "postgres@", 1)
	if _, stderr, code := command(p.t, nil, "init", "-c", configFile(p.t, as)); code != 0 {
		p.t.Fatalf("init: %s", stderr)
	}
}

// expectNoFaults expects doctor to report no fault.
func (p *doctorFixture) expectNoFaults() {
	p.t.Helper()
	d, text, code := doctor(p.t, p.config)
	if code != 0 || d.Faults+d.Advice+d.Unreachable > 0 || !strings.HasSuffix(text, "\nNo problems found.\n") {
		p.t.Fatalf("exit code %d of a relay without faults, want 0:\n%s", code, text)
	}
}

// applyFixes runs the statements that doctor prints, and no others, until it reports no fault.
func (p *doctorFixture) applyFixes(restart bool) {
	p.t.Helper()
	const most = 3 // a fix may let doctor see more
	for range most {
		d, text, code := doctor(p.t, p.config)
		if code == 0 && d.Advice == 0 {
			return
		}
		statements := d.statements()
		p.sql(statements...)
		if strings.Contains(text, "run `sluicebox init`") {
			p.init()
			continue
		}
		if len(statements) == 0 {
			p.t.Fatalf("exit code %d, and nothing to run:\n%s", code, text)
		}
		if restart {
			p.server.Restart(nil)
		}
	}
	p.expectNoFaults()
}

// faultCase is one fault of a doctorFixture.
type faultCase struct {
	name  string
	cause []string // statements that cause the fault
	// want are texts that doctor prints, above all the statement that fixes the fault.
	want []string
	// harmless faults are advice with exit code 0.
	harmless bool
	// after are statements that clean up after the fixes.
	after []string
	// change modifies the configuration while the fault lasts.
	change func(config string) string
}

func faultCases() []faultCase {
	const table = `"outbox_events"`
	return []faultCase{
		{name: "own tables missing", cause: []string{"DROP SCHEMA sluicebox CASCADE"}, want: []string{"relay tables do not exist", "run `sluicebox init`"}},
		{name: "own tables that run makes", harmless: true, cause: []string{"DROP SCHEMA sluicebox CASCADE", "GRANT CREATE ON DATABASE postgres TO relay"},
			want: []string{"relay tables do not exist", "run `sluicebox init`, or start `sluicebox run`"}, after: []string{"REVOKE CREATE ON DATABASE postgres FROM relay"}},
		{name: "an own table missing a grant", cause: []string{"REVOKE INSERT ON sluicebox.queue FROM relay"}, want: []string{`GRANT INSERT ON sluicebox.queue TO "relay";`}},
		{name: "no USAGE on the own schema", cause: []string{"REVOKE USAGE ON SCHEMA sluicebox FROM relay"}, want: []string{`GRANT USAGE ON SCHEMA sluicebox TO "relay";`}},
		{name: "no USAGE on the outbox's schema", cause: []string{"REVOKE USAGE ON SCHEMA public FROM PUBLIC"}, want: []string{`GRANT USAGE ON SCHEMA "public" TO "relay";`}},
		{name: "no SELECT", cause: []string{"REVOKE SELECT ON outbox_events FROM relay"}, want: []string{"lacks SELECT", `GRANT SELECT ("id", "message_group", "payload", "created_at", "status", "retry_count", "processed_at", "error_message") ON ` + table + ` TO "relay";`}},
		{name: "no UPDATE of a column", cause: []string{"REVOKE UPDATE (error_message) ON outbox_events FROM relay"}, want: []string{`GRANT UPDATE ("error_message") ON ` + table + ` TO "relay";`}},
		{name: "no DELETE", want: []string{`GRANT DELETE ON ` + table + ` TO "relay";`}, after: []string{"REVOKE DELETE ON outbox_events, outbox_dispatch_jobs FROM relay"},
			change: func(config string) string {
				return strings.Replace(config, "flowcatalyst: {", "flowcatalyst: {retention: 7d, ", 1)
			}},
		{name: "row-level security", cause: []string{"ALTER TABLE outbox_events ENABLE ROW LEVEL SECURITY"}, want: []string{`ALTER ROLE "relay" BYPASSRLS;`},
			after: []string{"ALTER TABLE outbox_events DISABLE ROW LEVEL SECURITY"}},
		{name: "no unique index", cause: []string{"ALTER TABLE outbox_events DROP CONSTRAINT outbox_events_pkey"}, want: []string{"CREATE UNIQUE INDEX CONCURRENTLY ON " + table + ` ("id");`}},
		{name: "a column missing", cause: []string{"ALTER TABLE outbox_events DROP processed_at"}, want: []string{"no column processed_at", "ALTER TABLE " + table + ` ADD COLUMN "processed_at" timestamptz;`}},
		{name: "a column of another type", cause: []string{"ALTER TABLE outbox_events ALTER retry_count DROP DEFAULT, ALTER retry_count TYPE text"},
			want: []string{"is of type text", "ALTER TABLE " + table + ` ALTER COLUMN "retry_count" TYPE integer USING "retry_count"::integer;`}},
		{name: "a status too short", cause: []string{"ALTER TABLE outbox_events ALTER status TYPE varchar(9)"}, want: []string{"cannot hold \"PROCESSING\"", "ALTER TABLE " + table + ` ALTER COLUMN "status" TYPE text`}},
		{name: "a constraint of the status", cause: []string{"ALTER TABLE outbox_events ADD CONSTRAINT words CHECK (status IN ('PENDING', 'COMPLETED', 'FAILED'))"},
			want: []string{"does not allow 'PROCESSING'", "ALTER TABLE " + table + ` DROP CONSTRAINT "words", ADD CONSTRAINT "words" CHECK (`}, after: []string{"ALTER TABLE outbox_events DROP CONSTRAINT words"}},
		{name: "no publication", cause: []string{"DROP PUBLICATION clinic"}, want: []string{`CREATE PUBLICATION "clinic" FOR TABLE "public"."outbox_events", "public"."outbox_dispatch_jobs" WITH (publish = 'insert', publish_via_partition_root = true);`}},
		{name: "a table unpublished", cause: []string{"ALTER PUBLICATION clinic DROP TABLE outbox_events"}, want: []string{`ALTER PUBLICATION "clinic" ADD TABLE "public"."outbox_events";`}},
		{name: "updates published", cause: []string{"ALTER PUBLICATION clinic SET (publish = 'update')"}, want: []string{`ALTER PUBLICATION "clinic" SET (publish = 'insert', publish_via_partition_root = true);`}},
		{name: "a row filter", cause: []string{"ALTER PUBLICATION clinic SET TABLE outbox_dispatch_jobs, outbox_events WHERE (id > '5')"}, want: []string{"filters the rows", `DROP TABLE "public"."outbox_events";`}},
		{name: "a column list", cause: []string{"ALTER PUBLICATION clinic SET TABLE outbox_dispatch_jobs, outbox_events (id)"}, want: []string{"omits layout columns", `ADD TABLE "public"."outbox_events";`}},
		{name: "no REPLICATION", cause: []string{"ALTER ROLE relay NOREPLICATION"}, want: []string{`ALTER ROLE "relay" REPLICATION;`}},
		{name: "another program's slot", cause: []string{"SELECT pg_create_physical_replication_slot('clinic')"}, want: []string{"another program", "SELECT pg_drop_replication_slot('clinic');"}},
		{name: "read-only transactions", cause: []string{"ALTER ROLE relay IN DATABASE postgres SET default_transaction_read_only = on"},
			want: []string{`ALTER ROLE "relay" IN DATABASE "postgres" SET default_transaction_read_only = off;`}},

		{name: "a slot without its log", harmless: true, want: []string{"has lost its WAL", "SELECT pg_drop_replication_slot('clinic');"},
			cause: slices.Concat([]string{"CREATE TABLE noise (n int)", "SELECT pg_create_logical_replication_slot('clinic', 'pgoutput')", "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()"},
				slices.Repeat([]string{"INSERT INTO noise VALUES (1)", "SELECT pg_switch_wal()"}, 4), []string{"CHECKPOINT"}),
			after: []string{"ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()", "DROP TABLE noise"}},
		{name: "no index of unsettled rows", harmless: true, cause: []string{"DROP INDEX idx_outbox_events_status"},
			want: []string{"CREATE INDEX CONCURRENTLY ON " + table + ` ("created_at", "id") WHERE "status" IN ('PENDING', 'PROCESSING');`}},
		{name: "no bound on the log", harmless: true, cause: []string{"ALTER SYSTEM SET max_slot_wal_keep_size = -1", "SELECT pg_reload_conf()"},
			want: []string{"ALTER SYSTEM SET max_slot_wal_keep_size = '20GB';"}, after: []string{"ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()"}},
		{name: "no fsync", harmless: true, cause: []string{"ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()"}, want: []string{"ALTER SYSTEM SET fsync = on;"}},
		{name: "few sessions for the role", harmless: true, cause: []string{"ALTER ROLE relay CONNECTION LIMIT 8"}, want: []string{`ALTER ROLE "relay" CONNECTION LIMIT `}, after: []string{"ALTER ROLE relay CONNECTION LIMIT -1"}},
		{name: "a short statement_timeout", harmless: true, cause: []string{"ALTER ROLE relay SET statement_timeout = '3s'"},
			want: []string{`ALTER ROLE "relay" IN DATABASE "postgres" SET statement_timeout = 0;`}},
	}
}

// checkFault causes a fault, applies its fixes and expects no faults afterwards.
func (p *doctorFixture) checkFault(t *testing.T, ill *faultCase) {
	defer func(outer *testing.T, config string) { p.t, p.config = outer, config }(p.t, p.config)
	p.t = t
	p.sql(ill.cause...)
	if ill.change != nil {
		p.config = ill.change(p.config)
	}
	p.expectFault(ill)
	p.applyFixes(false)
	p.sql(ill.after...)
}

// expectFault expects doctor to report a fault.
func (p *doctorFixture) expectFault(ill *faultCase) {
	p.t.Helper()
	d, text, code := doctor(p.t, p.config)
	if want := map[bool]int{false: 78, true: 0}[ill.harmless]; code != want || (d.Advice > 0) != ill.harmless {
		p.t.Errorf("exit code %d, want %d", code, want)
	}
	said := ""
	for _, f := range d.Findings {
		if f.Grade != "ok" {
			said += f.Text + "\n" + f.Remedy + "\n"
		}
	}
	for _, want := range ill.want {
		if !strings.Contains(said, want) {
			p.t.Errorf("doctor output lacks %q:\n%s", want, text)
		}
	}
}

// serverFaultCases returns the faults that need a restart. cause are statements before the
// restart.
func serverFaultCases() []faultCase {
	return []faultCase{
		{name: "wal_level", cause: []string{"ALTER SYSTEM SET wal_level = replica"}, want: []string{"ALTER SYSTEM SET wal_level = logical;", "restart the server"}},
		{name: "no slot left", cause: []string{"ALTER SYSTEM SET max_replication_slots = 1", "SELECT pg_create_physical_replication_slot('other')"},
			want: []string{"ALTER SYSTEM SET max_replication_slots = 6;", "restart the server"}, after: []string{"SELECT pg_drop_replication_slot('other')"}},
		{name: "no walsender left", cause: []string{"ALTER SYSTEM SET max_wal_senders = 0"}, want: []string{"ALTER SYSTEM SET max_wal_senders = 5;", "restart the server"}},
		{name: "few connections", harmless: true, cause: []string{"ALTER SYSTEM SET max_connections = 11"}, want: []string{"ALTER SYSTEM SET max_connections = ", "restart the server"}},
	}
}

func (p *doctorFixture) checkFaultWithRestart(t *testing.T, ill *faultCase) {
	defer func(outer *testing.T) { p.t = outer }(p.t)
	p.t = t
	p.sql(ill.cause...)
	p.server.Restart(nil)
	p.expectFault(ill)
	p.applyFixes(true)
	p.sql(append(ill.after, "ALTER SYSTEM RESET ALL")...)
	p.server.Restart(nil)
}
