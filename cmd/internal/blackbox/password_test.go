package blackbox

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// passwordOfTest is one that the servers check.
const passwordOfTest = "pass word'\"\\%/@"

// expectRelayedWithCommand relays a row of a database whose password only a program has. Another
// program has a wrong one.
func expectRelayedWithCommand(t *testing.T, h host, database string, lock func()) {
	t.Helper()
	if out, errs, code := command(t, nil, "init", "--outbox", "outbox-messages", "--table", "letters", "--source", database, "--apply"); code != 0 {
		t.Fatalf("init: %s%s", out, errs)
	}
	h.kind.run(t, database, "INSERT INTO letters (id, type, payload) VALUES ('1', 'EVENT', '{}')")
	lock()
	dir := t.TempDir()
	write := func(text string) string {
		file := filepath.Join(dir, "password")
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	file := write("wrong")
	config := fmt.Sprintf("name: %s\nadmin: {listen: %s}\nsource: {url: %q, mode: stream, password-command: [cat, %q]}\n", nameFor(database), adminKey, database, file) +
		"outboxes: [{table: letters, layout: outbox-messages, sink: all}]\nsinks: {all: {type: log}}\n"
	if out, errs, code := command(t, nil, "doctor", "-c", configFile(t, config)); code == 0 || strings.Contains(out+errs, passwordOfTest) {
		t.Errorf("doctor with a wrong password exits with %d:\n%s%s", code, out, errs)
	}
	write(passwordOfTest)
	r := start(t, config)
	r.waitFor("source connected")
	within(t, testTimeout, func() string {
		if n := r.metric(`sluicebox_rows_settled_total{sink="all",status="COMPLETED"}`); n != 1 {
			return fmt.Sprintf("%v rows in the metrics, want 1", n)
		}
		return ""
	})
	expectStop(t, r)
	if strings.Contains(r.said(), passwordOfTest) {
		t.Error("the log shows the password")
	}
}

// The program's password is that of all sessions, also of the binlog's. The servers check it in
// different ways: caching_sha2_password, mysql_native_password.
func TestPasswordCommandOnMySQL(t *testing.T) {
	t.Parallel()
	all := make([]host, 0, 2)
	for _, f := range servers.Flavours() {
		all = append(all, mysqlHost(f))
	}
	onHosts(t, all, func(t *testing.T, h host) {
		database := h.database(t)
		expectRelayedWithCommand(t, h, database, func() {
			u, err := url.Parse(database)
			if err != nil {
				t.Fatal(err)
			}
			quoted := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(passwordOfTest)
			servers.ExecMySQL(t, asRoot(t, database), "ALTER USER '"+u.User.Username()+"'@'%' IDENTIFIED BY '"+quoted+"'")
		})
	})
}

// The program's password is that of all sessions, also of the walsender's.
func TestPasswordCommandOnPostgres(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		server := servers.Start(t, version, nil)
		servers.Exec(t, server.URL, "CREATE ROLE relay SUPERUSER LOGIN PASSWORD '"+strings.ReplaceAll(passwordOfTest, "'", "''")+"'")
		database := strings.Replace(server.URL, "postgres@", "relay@", 1)
		expectRelayedWithCommand(t, postgresHost(version), database, func() {
			server.HBA("host all relay all scram-sha-256", "host replication relay all scram-sha-256")
		})
	})
}
