package blackbox

import (
	"bytes"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/sluicebox/sluicebox/store/storetest/ddl"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func postgresHost(version int) host {
	return host{
		name: fmt.Sprintf("pg%d", version), kind: postgresKind(),
		database: func(t testing.TB) string { return servers.Database(t, version) },
		start: func(t testing.TB, settings map[string]string) (string, ownServer) {
			s := servers.Start(t, version, settings)
			return s.URL, s
		},
	}
}

func postgresKind() *kind {
	return &kind{
		postgres: true, shutdown: 3 * time.Second,
		tables: pgTables(), truth: pgTruth, messages: ddl.Postgres().Messages(), copyOfMessages: pgCopyOfMessages,
		numbers: "generate_series(%[1]d, %[2]d) i", asText: "(%s)::text", n: "(payload::jsonb->>'n')::int",
		object: `CREATE FUNCTION object() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN IF NEW.id = ''%s'' AND NEW.status = ''COMPLETED'' THEN RAISE ''not this one''; END IF; RETURN NEW; END';
			CREATE TRIGGER object BEFORE UPDATE ON outbox_events FOR EACH ROW EXECUTE FUNCTION object()`,
		unobject: "DROP TRIGGER object ON outbox_events", like: "CREATE TABLE %[1]s (LIKE %[2]s INCLUDING ALL)",
		audit: pgAudit, writes: pgWrites, business: pgBusiness,
		spilled: "sluicebox.spilled", checkpoints: "sluicebox.record",
		checkpoint: "(SELECT body->>'position' AS position FROM sluicebox.record WHERE key = 'checkpoint') AS c",
		sessions: func(string) string {
			return "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'sluicebox %'"
		},
		end: func(t testing.TB, s *scene) {
			t.Helper()
			count(t, s.conn, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'sluicebox %'")
		},
		waiting: "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%'",
		as: func(_ testing.TB, database, who string) (url, noted string) {
			return database + "&relay.who=" + who, who
		},
		run: servers.Exec, pool: openPostgres, write: pgbench,
	}
}

func openPostgres(t testing.TB, database string) *sql.DB {
	t.Helper()
	cfg, err := pgx.ParseConfig(database)
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDB(*cfg)
	t.Cleanup(func() { _ = db.Close() }) // the server may be gone
	return db
}

const pgBusiness = "CREATE TABLE business (n text)"

// pgTables are the two FlowCatalyst tables.
func pgTables() string {
	return ddl.Postgres().FlowCatalyst("outbox_events") + ddl.Postgres().FlowCatalyst("outbox_dispatch_jobs")
}

const pgTruth = `
CREATE SEQUENCE row_ids;
CREATE TABLE truth (outbox text, grp int, n bigint NOT NULL DEFAULT 0, PRIMARY KEY (outbox, grp)) WITH (fillfactor = 20);
INSERT INTO truth SELECT o, g FROM unnest(ARRAY['events', 'jobs', 'messages']) o, generate_series(1, 200) g;
`

const pgCopyOfMessages = `
CREATE TABLE outbox_messages_copy (id varchar(26) PRIMARY KEY, message_group varchar(255));
CREATE FUNCTION keep_message() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN INSERT INTO outbox_messages_copy VALUES (NEW.id, NEW.message_group); RETURN NEW; END';
CREATE TRIGGER keep AFTER INSERT ON outbox_messages FOR EACH ROW EXECUTE FUNCTION keep_message();
`

const pgAudit = `
CREATE TABLE audit (n bigserial PRIMARY KEY, what text, id text, status text, who text, epoch bigint, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN
  INSERT INTO audit (what, id, status, who, epoch) SELECT TG_TABLE_NAME, to_jsonb(NEW)->>''id'', to_jsonb(NEW)->>''status'',
    current_setting(''relay.who''), max(epoch) FROM sluicebox.leader;
  RETURN NEW; END';
CREATE TRIGGER note AFTER UPDATE ON outbox_events FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER note AFTER UPDATE ON outbox_dispatch_jobs FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER note AFTER INSERT OR UPDATE ON sluicebox.record FOR EACH ROW WHEN (NEW.key = 'checkpoint') EXECUTE FUNCTION note();
`

const pgWrites = `
CREATE TABLE writes (id text, status text);
CREATE FUNCTION note_write() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN
  INSERT INTO writes VALUES (NEW.id, NEW.status); RETURN NEW; END';
CREATE TRIGGER note AFTER UPDATE ON outbox_events FOR EACH ROW EXECUTE FUNCTION note_write();
CREATE TRIGGER note AFTER UPDATE ON outbox_dispatch_jobs FOR EACH ROW EXECUTE FUNCTION note_write();
`

// pgScript returns a script in pgbench's format.
func pgScript(s script) string {
	if s.plain != "" {
		return s.plain + ";\n"
	}
	group, values := "'group-:g'", "'{\"id\": \":id\", \"type\": \"order.created\", \"n\": :n}'"
	if s.ungrouped {
		group = "NULL"
	}
	columns, rest := ", status, created_at", ", 'PENDING', now()"
	if s.outbox == "messages" {
		columns, rest = "", "" // they have defaults
	}
	choose, begin := fmt.Sprintf("\\set g random(1, %d)\n", s.groups), "BEGIN;\n"
	if s.ownGroups {
		choose = fmt.Sprintf("\\set g :client_id * %[1]d + random(1, %[1]d)\n", s.groups)
	}
	if s.late {
		begin = "\\set ms random(0, 40)\nBEGIN;\n\\sleep :ms ms\n"
	}
	return choose + begin + fmt.Sprintf(`UPDATE truth SET n = n + 1 WHERE outbox = '%s' AND grp = :g RETURNING n AS n \gset
SELECT lpad(nextval('row_ids')::text, 13, '0') AS id \gset
INSERT INTO %s (id, type, message_group, payload%s) VALUES (':id', '%s', %s, %s%s);
COMMIT;
`, s.outbox, s.table, columns, s.kind, group, values, rest)
}

// pgbench writes a load with the program pgbench.
func pgbench(t testing.TB, database string, l load) (wait func()) {
	t.Helper()
	path, env := servers.Pgbench(t)
	args := []string{"-n", "-c", fmt.Sprint(l.clients), "-j", "2"}
	if l.transactions > 0 {
		args = append(args, "-t", fmt.Sprint(l.transactions/l.clients))
	} else {
		args = append(args, "-T", fmt.Sprint(l.seconds))
	}
	if l.rate > 0 {
		args = append(args, "-R", fmt.Sprint(l.rate))
	}
	for i, s := range l.scripts {
		file := filepath.Join(t.TempDir(), fmt.Sprintf("script%d.sql", i))
		if err := os.WriteFile(file, []byte(pgScript(s)), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-f", file)
	}
	cmd := exec.Command(path, append(args, database)...)
	cmd.Env = env
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return func() {
		t.Helper()
		select {
		case err := <-done:
			if failed := err != nil || !strings.Contains(out.String(), "number of failed transactions: 0"); failed != l.broken {
				t.Fatalf("pgbench: %v\n%s", err, out.String())
			}
		case <-time.After(l.most()):
			t.Fatalf("pgbench does not end:\n%s", out.String())
		}
	}
}
