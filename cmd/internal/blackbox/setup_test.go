package blackbox

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// roleURL is the database's URL for another role.
func roleURL(database, role string) string {
	return strings.Replace(database, "postgres://postgres@", "postgres://"+role+"@", 1)
}

// expectEnd runs the program on a configuration that it must refuse, and checks the exit code
// and the message.
func expectEnd(t *testing.T, yaml string, code int, want ...string) {
	t.Helper()
	r := start(t, yaml)
	if got := r.exitCode(); got != code {
		t.Errorf("exit code %d, want %d", got, code)
	}
	for _, text := range want {
		if !strings.Contains(r.said(), text) {
			t.Errorf("the message lacks %q:\n%s", text, r.said())
		}
	}
}

// The program ends on bad configuration with a message that names the remedy.
func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		database, _ := prepare(t, postgresHost(version), seedTables)
		config := preset(database, "http://127.0.0.1:1", "")
		tests := map[string]struct {
			yaml string
			code int
			want []string
		}{
			"unknown key": {
				config + "dispach: {max-retries: 1}\n", 78, []string{"sluicebox.yaml:5", "dispach", "dispatch"},
			},
			"missing table": {
				strings.Replace(config, "flowcatalyst: {", "flowcatalyst: {events-table: outbox_event, ", 1), 78,
				[]string{`"outbox_event"`, "outbox_event"},
			},
			"wrong database": {
				strings.Replace(config, "?sslmode", "x?sslmode", 1), 78, []string{"does not exist", "URL"},
			},
			"no such role": {
				strings.Replace(config, "postgres://postgres@", "postgres://nobody_of_this_name@", 1), 78, []string{"nobody_of_this_name"},
			},
		}
		for name, test := range tests {
			t.Run(name, func(t *testing.T) { expectEnd(t, test.yaml, test.code, test.want...) })
		}
	})
}

func TestMissingColumn(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		s.exec("ALTER TABLE outbox_events RENAME COLUMN message_group TO grp")
		expectEnd(s.t, s.config, 78, "message_group", "outbox_events", "grp")
	})
}

// A relay with a role that owns nothing and has only its grants.
const grants = `
CREATE ROLE %[1]s LOGIN;
GRANT SELECT, UPDATE ON outbox_events, outbox_dispatch_jobs TO %[1]s;
GRANT CREATE ON DATABASE %[2]s TO %[1]s;
`

// role creates such a role, which is dropped at the end of the test.
func role(t *testing.T, database string) string {
	t.Helper()
	name := nameFor(database)
	conn := connect(t, database)
	current := ""
	if err := conn.row("SELECT current_database()").Scan(&current); err != nil {
		t.Fatal(err)
	}
	servers.Exec(t, database, fmt.Sprintf(grants, name, current))
	t.Cleanup(func() { servers.Exec(t, database, "DROP OWNED BY "+name+" CASCADE", "DROP ROLE "+name) })
	return name
}

// The relay tries whether a role may stream.
func TestRoleWithoutReplication(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		database, _ := prepare(t, postgresHost(version), seedTables)
		who := role(t, database)
		yaml := preset(roleURL(database, who), "http://127.0.0.1:1", "")
		expectEnd(t, yaml, 78, "ALTER ROLE", "REPLICATION", "CREATE PUBLICATION", "outbox_events")
		servers.Exec(t, database, "ALTER ROLE "+who+" REPLICATION")
		expectEnd(t, yaml, 78, "CREATE PUBLICATION", "as the owner")
	})
}

// The stream has a role of its own, which may read the log and no table. The relay's other role
// may not stream.
func TestRoleForTheStream(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(s *scene) {
		who := role(s.t, s.database)
		relayURL := roleURL(s.database, who)
		servers.Exec(s.t, s.database, "CREATE ROLE "+who+"_stream LOGIN REPLICATION",
			"CREATE PUBLICATION "+nameFor(relayURL)+" FOR TABLE outbox_events, outbox_dispatch_jobs WITH (publish = 'insert', publish_via_partition_root = true)")
		s.t.Cleanup(func() { servers.Exec(s.t, s.database, "DROP ROLE "+who+"_stream") })
		stream := fmt.Sprintf("source: {mode: stream, stream-url: %q, ", roleURL(s.database, who+"_stream"))
		s.config = strings.Replace(preset(relayURL, s.to.URL(), ""), "source: {mode: stream, ", stream, 1)
		r := s.run()
		write(s.t, s.database, load{transactions: 80, clients: 8, scripts: seedScripts(5)})()
		s.expectOnce()
		expectStop(s.t, r)
	})
}

func TestPublicationWithoutTheTable(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		database, _ := prepare(t, postgresHost(version), seedTables)
		who := role(t, database)
		servers.Exec(t, database, "ALTER ROLE "+who+" REPLICATION",
			"CREATE PUBLICATION "+nameFor(roleURL(database, who))+" FOR TABLE outbox_events WITH (publish = 'insert', publish_via_partition_root = true)")
		yaml := preset(roleURL(database, who), "http://127.0.0.1:1", "")
		expectEnd(t, yaml, 78,
			"ALTER PUBLICATION", "ADD TABLE", "outbox_dispatch_jobs")
	})
}

// Without wal_level=logical, mode stream fails and mode auto polls and logs the reason. After
// the server has it, the relay streams without a restart, and the rows stay in order through
// the switch.
func TestWALLevelReplica(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		server := servers.Start(t, version, map[string]string{"wal_level": "replica"})
		servers.Exec(t, server.URL, pgTables(), pgTruth)
		conn := connect(t, server.URL)
		to := sinktest.NewReceiver(t)
		yaml := preset(server.URL, to.URL(), "")
		expectEnd(t, yaml, 78,
			"wal_level", "ALTER SYSTEM SET wal_level = logical;", "restart")

		r := start(t, strings.Replace(yaml, "mode: stream", "poll-interval: 50ms", 1))
		r.waitFor("polling")
		r.waitFor("wal_level")
		write(t, server.URL, load{transactions: 400, clients: 1, scripts: seedScripts(20)})()
		arrive(t, to, 400)
		settle(t, conn)

		_ = conn.Close()
		server.Stop("fast")
		server.Restart(map[string]string{"wal_level": "logical"})
		through := write(t, server.URL, load{seconds: 8, rate: 50, clients: 1, scripts: seedScripts(20)})
		within(t, testTimeout, func() string {
			if r.metric(`sluicebox_source_mode{mode="stream"}`) != 1 || r.metric("sluicebox_source_connected") != 1 {
				return "the relay does not stream"
			}
			return ""
		})
		through()
		write(t, server.URL, load{transactions: 400, clients: 8, scripts: seedScripts(20)})()
		s := &scene{t: t, kind: postgresKind(), database: server.URL, conn: connect(t, server.URL), to: to}
		s.expectOnce()
		expectStop(t, r)
	})
}

// At the first start the relay waits half a minute for an unreachable database.
func TestUnreachableDatabase(t *testing.T) {
	t.Parallel()
	began := time.Now()
	expectEnd(t, preset("postgres://postgres@"+freeAddress(t)+"/x?sslmode=disable", "http://127.0.0.1:1", ""), 1,
		"database unreachable", "refused")
	if took := time.Since(began); took < 20*time.Second {
		t.Errorf("given up after %s", took)
	}
}

// An unreachable sink does not end the relay. Its rows wait and are not charged.
func TestUnreachableSink(t *testing.T) {
	t.Parallel()
	aScene(t, "dispatch: {backoff: {max: 500ms}}\n", func(s *scene) {
		way := newSwitchProxy(s.t, s.to.URL())
		s.config = strings.Replace(s.config, s.to.URL(), way.url(), 1)
		r := s.run()
		write(s.t, s.database, load{transactions: 80, clients: 8, scripts: seedScripts(5)})()
		s.expectAlarm(r, "unavailable")
		way.open()
		s.expectOnce()
		if left := none(s.t, s.conn, "paid for the outage", "SELECT count(*) FROM outbox_events WHERE retry_count > 0 OR error_message IS NOT NULL"); left != "" {
			s.t.Error(left)
		}
		within(s.t, testTimeout, func() string {
			if status, body := r.get("/readyz"); status != 200 {
				return body
			}
			return ""
		})
		if status, _ := r.get("/livez"); status != 200 {
			s.t.Errorf("/livez is %d, want 200", status)
		}
		expectStop(s.t, r)
	})
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	yaml := strings.Replace(preset("postgres://postgres@127.0.0.1:1/x?sslmode=disable", "http://127.0.0.1:1", ""), adminKey, l.Addr().String(), 1)
	expectEnd(t, yaml, 78, "admin.listen", l.Addr().String())
}

func TestUsage(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args []string
		code int
		want string
	}{
		"no command":      {nil, 64, "run"},
		"unknown command": {[]string{"relay"}, 64, "relay"},
		"unknown flag":    {[]string{"run", "--fast"}, 64, "--fast"},
		"no such file":    {[]string{"run", "-c", "/no/such/file.yaml"}, 78, "/no/such/file.yaml"},
		"no source":       {[]string{"run"}, 78, "no configuration"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, stderr, code := command(t, nil, test.args...)
			if code != test.code || !strings.Contains(stderr, test.want) {
				t.Errorf("exit code %d, want %d; said:\n%s", code, test.code, stderr)
			}
		})
	}
	stdout, _, code := command(t, nil, "version")
	if code != 0 || !strings.Contains(stdout, "v0.0.0-test") {
		t.Errorf("version: exit code %d, want 0, %q", code, stdout)
	}
}

// init creates all objects of a relay, so that a role with few grants can run it. Its printed
// statements create the same.
func TestInit(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		for _, how := range []string{"init", "the printed statements"} {
			database, conn := prepare(t, postgresHost(version), seedTables)
			file := filepath.Join(t.TempDir(), "c.yaml")
			yaml := strings.Replace(preset(database, "http://127.0.0.1:1", ""), adminKey, "127.0.0.1:0", 1)
			if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
				t.Fatal(err)
			}
			if how == "init" {
				if _, stderr, code := command(t, nil, "init", "-c", file); code != 0 {
					t.Fatalf("init: exit code %d, want 0\n%s", code, stderr)
				}
			} else {
				sql, stderr, code := command(t, nil, "init", "--print", "-c", file)
				if code != 0 {
					t.Fatalf("init --print: exit code %d, want 0\n%s", code, stderr)
				}
				servers.Exec(t, database, sql)
			}
			if n := count(t, conn, "SELECT count(*) FROM pg_publication_tables WHERE pubname = $1", nameFor(database)); n != 2 {
				t.Errorf("%s: the publication has %d tables", how, n)
			}
			if n := count(t, conn, "SELECT count(*) FROM pg_tables WHERE schemaname = 'sluicebox'"); n < 4 {
				t.Errorf("%s: %d relay tables", how, n)
			}
			if _, stderr, code := command(t, nil, "init", "-c", file); code != 0 {
				t.Errorf("%s, then init: exit code %d\n%s", how, code, stderr)
			}
		}
	})
}

// No secret of the configuration is printed.
func TestSecretsAreNotPrinted(t *testing.T) {
	t.Parallel()
	const canary = "s3cr3t-canary"
	file := filepath.Join(t.TempDir(), "c.yaml")
	secret := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(secret, []byte(canary+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	yaml := fmt.Sprintf("source: {url: 'postgres://u:%s@127.0.0.1:1/x?sslmode=disable'}\nflowcatalyst: {api-base-url: 'http://127.0.0.1:1', api-token: '${file:%s}'}\nadmin: {listen: '', token: %s}\n", canary, secret, canary)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"config", "check", "-c", file}, {"config", "check", "--json", "-c", file}, {"init", "--print", "-c", file}, {"init", "-c", file}} {
		stdout, stderr, _ := command(t, nil, args...)
		if strings.Contains(stdout+stderr, canary) {
			t.Errorf("%v prints a secret:\n%s%s", args, stdout, stderr)
		}
	}
}
