package blackbox

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// doctorFixtureMySQL is a relay configuration with a MySQL or MariaDB server of its own.
// The relay's account has exactly the privileges that it needs.
type doctorFixtureMySQL struct {
	*site
	server *servers.MySQLServer
}

const (
	seedRead  = "SELECT (id, message_group, payload, created_at, status, retry_count, processed_at, error_message)"
	seedWrite = "UPDATE (status, retry_count, processed_at, error_message)"
)

// newDoctorFixtureMySQL returns a fixture without faults.
func newDoctorFixtureMySQL(t *testing.T, f servers.Flavour) *doctorFixtureMySQL {
	g := &doctorFixtureMySQL{server: f.Start(t, map[string]string{"binlog-row-metadata": "FULL"})}
	g.site = newSite(t, f, g.server.Database(), "")
	g.config = strings.Replace(g.config, "://root@", "://relay@", 1)
	g.sql(seedTablesMySQL, "CREATE USER relay", "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO relay",
		"GRANT "+seedRead+", "+seedWrite+" ON outbox_events TO relay", "GRANT "+seedRead+", "+seedWrite+" ON outbox_dispatch_jobs TO relay")
	g.init()
	for _, table := range ownMySQL() {
		g.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON " + table + " TO relay")
	}
	return g
}

// ownMySQL returns the relay's tables.
func ownMySQL() []string {
	return []string{"sluicebox_meta", "sluicebox_leader", "sluicebox_record", "sluicebox_queue", "sluicebox_replay", "sluicebox_marker"}
}

// init runs `sluicebox init` as the administrator.
func (g *doctorFixtureMySQL) init() {
	g.t.Helper()
	as := strings.Replace(g.config, "://relay@", "://root@", 1)
	if _, stderr, code := command(g.t, nil, "init", "-c", configFile(g.t, as)); code != 0 {
		g.t.Fatalf("init: %s", stderr)
	}
}

// expectNoFaults expects doctor to report no fault.
func (g *doctorFixtureMySQL) expectNoFaults() {
	g.t.Helper()
	d, text, code := doctor(g.t, g.config)
	if code != 0 || d.Faults+d.Advice+d.Unreachable > 0 || !strings.HasSuffix(text, "\nNo problems found.\n") {
		g.t.Fatalf("exit code %d of a relay without faults, want 0:\n%s", code, text)
	}
}

// expectFault expects doctor to report a fault, and returns its findings.
func (g *doctorFixtureMySQL) expectFault(ill *faultCase) diagnosis {
	g.t.Helper()
	d, text, code := doctor(g.t, g.config)
	if want := map[bool]int{false: 78, true: 0}[ill.harmless]; code != want || (d.Advice > 0) != ill.harmless {
		g.t.Errorf("exit code %d, want %d", code, want)
	}
	said := d.complaints()
	if list := d.statements(); ill.harmless && len(list) != len(slices.Compact(slices.Sorted(slices.Values(list)))) {
		g.t.Errorf("advice is given twice: %q", list)
	}
	for _, want := range ill.want {
		if !strings.Contains(said, want) {
			g.t.Errorf("doctor output lacks %q:\n%s", want, text)
		}
	}
	return d
}

// diagnose runs doctor with --json.
func diagnose(t *testing.T, yaml string) (d diagnosis) {
	t.Helper()
	out, stderr, _ := command(t, nil, "doctor", "--json", "-c", configFile(t, yaml))
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatalf("doctor --json: %v\n%s%s", err, out, stderr)
	}
	return d
}

// complaints returns the texts and remedies of all findings that are not OK.
func (d *diagnosis) complaints() string {
	said := ""
	for _, f := range d.Findings {
		if f.Grade != "ok" {
			said += f.Text + "\n" + f.Remedy + "\n"
		}
	}
	return said
}

// applyFixes runs the statements that doctor prints, and no others, until it reports no fault.
func (g *doctorFixtureMySQL) applyFixes(d diagnosis) {
	g.t.Helper()
	const most = 4 // a fix may let doctor see more
	for range most {
		said := d.complaints()
		if said == "" {
			return
		}
		if strings.Contains(said, "run `sluicebox init`") {
			g.init()
		} else if len(d.statements()) == 0 {
			g.t.Fatalf("doctor prints no statement to run:\n%s", said)
		}
		g.sql(d.statements()...)
		d = diagnose(g.t, g.config)
	}
	if said := d.complaints(); said != "" {
		g.t.Fatalf("doctor still reports faults after its fixes were run:\n%s", said)
	}
}

// checkFault causes a fault, applies its fixes and expects no faults afterwards.
func (g *doctorFixtureMySQL) checkFault(t *testing.T, ill *faultCase) {
	defer func(outer *testing.T, config string) { g.t, g.config = outer, config }(g.t, g.config)
	g.t = t
	g.sql(ill.cause...)
	if ill.change != nil {
		g.config = ill.change(g.config)
	}
	g.applyFixes(g.expectFault(ill))
	g.sql(ill.after...)
}

// faultCasesMySQL returns the faults of tables and privileges.
func (g *doctorFixtureMySQL) faultCasesMySQL() []faultCase {
	on := func(table string) string { return "`" + g.name + "`.`" + table + "` TO 'relay'@'%';" }
	all := "DROP TABLE " + strings.Join(ownMySQL(), ", ")
	const alter = "ALTER TABLE `outbox_events` "
	return []faultCase{
		{name: "own tables missing", cause: []string{all}, want: []string{"relay tables do not exist", "run `sluicebox init`"}},
		{name: "own tables that run makes", harmless: true, cause: []string{all, "GRANT CREATE ON " + g.name + ".* TO relay"},
			want: []string{"relay tables do not exist", "run `sluicebox init`, or start `sluicebox run`"}, after: []string{"REVOKE CREATE ON " + g.name + ".* FROM relay"}},
		{name: "own tables that run makes by a role", harmless: true, after: []string{"DROP ROLE maker"},
			cause: []string{all, "CREATE ROLE maker", "GRANT CREATE ON " + g.name + ".* TO maker", "GRANT maker TO relay", g.defaultRole("maker")},
			want:  []string{"run `sluicebox init`, or start `sluicebox run`"}},
		{name: "an own table missing", cause: []string{"DROP TABLE sluicebox_queue"}, want: []string{"relay table sluicebox_queue does not exist", "run `sluicebox init`"}},
		{name: "own tables of an older version", cause: []string{"UPDATE sluicebox_meta SET version = 0"}, want: []string{"have version 0", "run `sluicebox init`"}},
		{name: "an own table missing a grant", cause: []string{"REVOKE INSERT, DELETE ON sluicebox_queue FROM relay"}, want: []string{"GRANT INSERT, DELETE ON " + on("sluicebox_queue")}},
		{name: "the markers missing a grant", cause: []string{"REVOKE UPDATE ON sluicebox_marker FROM relay"}, want: []string{"GRANT UPDATE ON " + on("sluicebox_marker")}},
		{name: "no right on the database", want: []string{"is not accessible", "GRANT SELECT (`id`, `message_group`, ", "), UPDATE (`status`, "}, cause: append(g.revokeAll(), g.regrant()...)},
		{name: "no SELECT", cause: []string{"REVOKE SELECT (payload, status) ON outbox_events FROM relay"}, want: []string{"no column payload", "GRANT SELECT (`id`, `message_group`, `payload`, "}},
		{name: "no UPDATE of a column", cause: []string{"REVOKE UPDATE (error_message) ON outbox_events FROM relay"}, want: []string{"GRANT UPDATE (`error_message`) ON " + on("outbox_events")}},
		{name: "no DELETE", want: []string{"GRANT DELETE ON " + on("outbox_events")}, after: []string{"REVOKE DELETE ON outbox_events FROM relay", "REVOKE DELETE ON outbox_dispatch_jobs FROM relay"},
			change: func(config string) string {
				return strings.Replace(config, "flowcatalyst: {", "flowcatalyst: {retention: 7d, ", 1)
			}},
		{name: "no unique index", cause: []string{"ALTER TABLE outbox_events DROP PRIMARY KEY"}, want: []string{"CREATE UNIQUE INDEX `outbox_events_id` ON `outbox_events` (`id`);"}},
		{name: "another engine", cause: []string{"ALTER TABLE outbox_events DROP INDEX idx_outbox_events_status, ADD INDEX idx_outbox_events_status (status, created_at), ENGINE = MyISAM"}, want: []string{"storage engine MyISAM", alter + "ENGINE = InnoDB;"}},
		{name: "a column missing", cause: []string{"ALTER TABLE outbox_events DROP processed_at"}, want: []string{"no column processed_at", alter + "ADD COLUMN `processed_at` DATETIME(6);"}},
		{name: "a column of another type", cause: []string{"ALTER TABLE outbox_events MODIFY retry_count TEXT"}, want: []string{"is of type text", alter + "MODIFY COLUMN `retry_count` INT;"}},
		{name: "a status too short", cause: []string{"ALTER TABLE outbox_events MODIFY status VARCHAR(9) NOT NULL"}, want: []string{`cannot hold "PROCESSING"`, alter + "MODIFY COLUMN `status` VARCHAR(255) NOT NULL;"}},
		{name: "a constraint of the status", cause: []string{"ALTER TABLE outbox_events ADD CONSTRAINT words CHECK (status IN ('PENDING', 'COMPLETED', 'FAILED', 'it''s'))"},
			want: []string{"does not allow 'PROCESSING'", alter + "DROP CONSTRAINT `words`, ADD CONSTRAINT `words` CHECK (("}, after: []string{"ALTER TABLE outbox_events DROP CONSTRAINT words"},
			// MariaDB hides constraints from accounts with column privileges only.
			change: func(config string) string { return strings.Replace(config, "://relay@", "://root@", 1) }},
		{name: "no index of unsettled rows", harmless: true, cause: []string{"DROP INDEX idx_outbox_events_status ON outbox_events"},
			want: []string{"CREATE INDEX `outbox_events_unsettled` ON `outbox_events` (`status`, `created_at`, `id`);"}},
		{name: "no REPLICATION SLAVE", cause: []string{"REVOKE REPLICATION SLAVE ON *.* FROM relay"}, want: []string{"GRANT REPLICATION SLAVE ON *.* TO 'relay'@'%';"}},
		{name: "no REPLICATION CLIENT", cause: []string{"REVOKE REPLICATION CLIENT ON *.* FROM relay"}, want: []string{"ON *.* TO 'relay'@'%';"}},
		{name: "a stream's account of another host", cause: []string{"CREATE USER streams@'127.0.0.%'"}, want: []string{"GRANT REPLICATION SLAVE ON *.* TO 'streams'@'127.0.0.%';"}, after: []string{"DROP USER streams@'127.0.0.%'"},
			change: func(config string) string {
				return strings.Replace(config, "source: {", fmt.Sprintf("source: {stream-url: %q, ", userURL(g.database, "streams")), 1)
			}},
		{name: "few sessions for the account", cause: []string{"ALTER USER relay WITH MAX_USER_CONNECTIONS 4"}, want: []string{"may have 4 sessions", "ALTER USER 'relay'@'%' WITH MAX_USER_CONNECTIONS 70;"},
			after: []string{"ALTER USER relay WITH MAX_USER_CONNECTIONS 0"}},
	}
}

// defaultRole activates a role at every login of the relay's account.
func (g *doctorFixtureMySQL) defaultRole(role string) string {
	if g.flavour == servers.MariaDB {
		return "SET DEFAULT ROLE " + role + " FOR relay"
	}
	return "SET DEFAULT ROLE " + role + " TO relay"
}

// revokeAll revokes all privileges on the database from the relay's account.
func (g *doctorFixtureMySQL) revokeAll() []string {
	return []string{"REVOKE ALL PRIVILEGES, GRANT OPTION FROM relay"}
}

// regrant grants the privileges that doctor asks for once it may read the tables.
func (g *doctorFixtureMySQL) regrant() []string {
	return []string{"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO relay"}
}

// settingsMySQL returns the faults of server settings, which change while the server runs.
func (g *doctorFixtureMySQL) settingsMySQL() []faultCase {
	set := func(name, value string) string { return "SET GLOBAL " + name + " = " + value }
	mend := func(name, value string) string {
		if g.flavour == servers.MariaDB {
			return "SET GLOBAL " + name + " = " + value + ";"
		}
		return "SET PERSIST " + name + " = " + value + ";"
	}
	readOnly := map[servers.Flavour]string{servers.MySQL: "transaction_read_only", servers.MariaDB: "tx_read_only"}[g.flavour]
	list := []faultCase{
		{name: "row_metadata", harmless: true, cause: []string{set("binlog_row_metadata", "MINIMAL")}, want: []string{mend("binlog_row_metadata", "'FULL'")}},
		{name: "sync_binlog", harmless: true, cause: []string{set("sync_binlog", "0")}, want: []string{"loses the last commits", mend("sync_binlog", "1")}},
		{name: "flush_log", harmless: true, cause: []string{set("innodb_flush_log_at_trx_commit", "2")}, want: []string{mend("innodb_flush_log_at_trx_commit", "1")}},
		{name: "retention", cause: []string{set("binlog_expire_logs_seconds", "7200")}, want: []string{"binlog is kept for 2 hours", mend("binlog_expire_logs_seconds", "604800")}},
		{name: "read-only", cause: []string{set("read_only", "ON")}, want: []string{"read-only", "SET GLOBAL read_only = OFF;"}},
		{name: "read-only transactions", cause: []string{set(readOnly, "ON")}, want: []string{"read-only by default", mend(readOnly, "OFF")}},
	}
	for _, format := range []string{"STATEMENT", "MIXED"} {
		list = append(list, faultCase{name: "format " + format, cause: []string{set("binlog_format", format)}, want: []string{"binlog_format is " + format, mend("binlog_format", "'ROW'")}})
	}
	list = append(list, faultCase{name: "format STATEMENT, polling", cause: []string{set("binlog_format", "STATEMENT")}, want: []string{"refuses the relay's READ COMMITTED", mend("binlog_format", "ROW")},
		change: func(config string) string { return strings.Replace(config, "mode: stream", "mode: poll", 1) }})
	for _, image := range []string{"MINIMAL", "NOBLOB"} {
		list = append(list, faultCase{name: "image " + image, cause: []string{set("binlog_row_image", image)}, want: []string{"binlog_row_image is " + image, mend("binlog_row_image", "'FULL'")}})
	}
	if g.flavour == servers.MariaDB {
		return append(list, faultCase{name: "statements are ended", harmless: true, cause: []string{set("max_statement_time", "5")},
			want: []string{"longer than 5 s", "ALTER USER 'relay'@'%' WITH MAX_STATEMENT_TIME 3600;"}, after: []string{set("max_statement_time", "0"), "ALTER USER relay WITH MAX_STATEMENT_TIME 0"}})
	}
	return append(list,
		faultCase{name: "statements are ended", harmless: true, cause: []string{set("max_execution_time", "5000")}, want: []string{"longer than 5 s", mend("max_execution_time", "0")}},
		faultCase{name: "row_value_options", cause: []string{set("binlog_row_value_options", "PARTIAL_JSON")}, want: []string{mend("binlog_row_value_options", "''")}},
		faultCase{name: "server_id", cause: []string{set("server_id", "0")}, want: []string{mend("server_id", "1")}},
		faultCase{name: "gtid_mode ON_PERMISSIVE", cause: []string{set("gtid_mode", "ON_PERMISSIVE")}, want: []string{"SET PERSIST gtid_mode = ON;"}},
		faultCase{name: "gtid_mode OFF", want: []string{"SET PERSIST enforce_gtid_consistency = ON;", "SET PERSIST gtid_mode = OFF_PERMISSIVE;", "SET PERSIST gtid_mode = ON;"},
			cause: []string{set("gtid_mode", "ON_PERMISSIVE"), set("gtid_mode", "OFF_PERMISSIVE"), set("gtid_mode", "OFF"), set("enforce_gtid_consistency", "OFF")}})
}

// Doctor reports each fault with the statement that fixes it, and reports no fault once its
// statements were run.
func TestDoctorMySQL(t *testing.T) {
	t.Parallel()
	aFlavour(t, func(t *testing.T, f servers.Flavour) {
		g := newDoctorFixtureMySQL(t, f)
		g.expectNoFaults()
		for _, ill := range slices.Concat(g.faultCasesMySQL(), g.settingsMySQL()) {
			t.Run(ill.name, func(t *testing.T) { g.checkFault(t, &ill) })
		}
		g.expectNoFaults()
		if f == servers.MySQL {
			t.Run("offline", g.offline)
		}
		t.Run("few connections", g.cramped)
		t.Run("no connection", g.crowded)
		t.Run("no binlog", g.withoutBinlog)
	})
}

// quiet waits until no session reads the binlog. A client that only checked whether the
// server sends it stays in the process list until the server notices the disconnect, and
// MySQL waits for such sessions at its shutdown.
func (g *doctorFixtureMySQL) quiet() {
	g.t.Helper()
	within(g.t, testTimeout, func() string {
		if n := g.count("SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"); n > 0 {
			return fmt.Sprintf("%d binlog dumps", n)
		}
		return ""
	})
}

// offline sets offline_mode, which admits only administrators. The relay waits.
func (g *doctorFixtureMySQL) offline(t *testing.T) {
	defer func(outer *testing.T) { g.t = outer }(g.t)
	g.t = t
	r := start(t, g.config)
	r.waitFor("source connected")
	g.sql("SET GLOBAL offline_mode = ON")
	g.ask("offline", g.config, 1, "offline mode")
	g.number(1, 100, nine)
	g.sql("SET GLOBAL offline_mode = OFF")
	g.expectNumbered(100)
	expectStop(t, r)
}

// crowded leaves no connections for a relay, and then none at all.
func (g *doctorFixtureMySQL) crowded(t *testing.T) {
	defer func(outer *testing.T) { g.t = outer }(g.t)
	g.t = t
	g.quiet()
	g.sql("SET GLOBAL max_connections = 10")
	busy := servers.OpenMySQL(t, userURL(g.database, "relay"))
	for {
		conn, err := busy.Conn(t.Context())
		if err != nil {
			break
		}
		defer func() { _ = conn.Close() }()
	}
	g.ask("no session left", g.config, 1, "no session left for the relay: Too many connections", "raise max_connections", "SHOW PROCESSLIST;")
	_ = busy.Close()
	g.sql("SET GLOBAL max_connections = 151")
}

// cramped sets too few connections for a relay.
func (g *doctorFixtureMySQL) cramped(t *testing.T) {
	g.quiet()
	g.checkFault(t, &faultCase{harmless: true, cause: []string{"SET GLOBAL max_connections = 13"}, want: []string{"and a relay needs 14", "max_connections = "}})
}

// withoutBinlog turns the binlog off, and then excludes the database from it. With mode auto
// that is advice. With mode poll doctor does not check it.
func (g *doctorFixtureMySQL) withoutBinlog(t *testing.T) {
	defer func(outer *testing.T) { g.t = outer }(g.t)
	g.t = t
	g.quiet()
	g.server.Restart(map[string]string{"log-bin": "-", "skip-log-bin": ""})
	stream := g.config
	g.expectFault(&faultCase{want: []string{"log_bin is off", "`log_bin=binlog`", "restart it"}})
	g.config = strings.Replace(stream, "mode: stream", "mode: auto", 1)
	g.expectFault(&faultCase{harmless: true, want: []string{"until fixed, the relay polls"}})
	g.config = strings.Replace(stream, "mode: stream", "mode: poll", 1)
	g.expectNoFaults()
	g.config = stream

	g.server.Restart(map[string]string{"log-bin": "binlog", "skip-log-bin": "-", "binlog-ignore-db": g.name, "binlog-do-db": "another"})
	g.expectFault(&faultCase{want: []string{"excludes database " + g.name, "binlog_do_db is \"another\"", "restart it"}})
	g.quiet()
	g.server.Restart(map[string]string{"binlog-ignore-db": "-", "binlog-do-db": "-"})
	g.expectNoFaults()
}
