package blackbox

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// shopTable is the table of the README's example, as a service brings it.
const shopTable = `
CREATE SCHEMA shop;
CREATE TABLE shop.outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer   text,
    body       jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    sent_at    timestamptz,
    failed_at  timestamptz,
    error      text
)`

// firstUser is a first user with a server with default settings, an outbox table, a receiver,
// the README and the program's output.
type firstUser struct {
	t          *testing.T
	server     *servers.Server
	file       string
	done       []string // statements
	transcript strings.Builder
}

// note adds to the transcript.
func (n *firstUser) note(format string, args ...any) {
	fmt.Fprintf(&n.transcript, format+"\n", args...)
}

// readmeExample returns the README's configuration for any table, and a file for its key.
func readmeExample(t *testing.T) (yaml, secret string) {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join("..", "..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(readme), "```yaml\nsource:\n  url: postgres://relay@db.example/shop      #")
	yaml, _, ends := strings.Cut(rest, "```")
	if !found || !ends {
		t.Fatal("the README has no example for any table")
	}
	secret = filepath.Join(t.TempDir(), "webhook")
	key := "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))
	if err := os.WriteFile(secret, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	return "source:\n  url: postgres://relay@db.example/shop      #" + yaml, secret
}

// example returns the README's configuration for any table, with the test's addresses.
func (n *firstUser) example(receiver string) string {
	n.t.Helper()
	yaml, secret := readmeExample(n.t)
	for was, is := range map[string]string{
		"postgres://relay@db.example/shop": roleURL(n.server.URL, "relay"),
		"https://receiver.example":         receiver,
		"/run/secrets/webhook":             secret,
	} {
		if !strings.Contains(yaml, was) {
			n.t.Fatalf("the example has no %s:\n%s", was, yaml)
		}
		yaml = strings.ReplaceAll(yaml, was, is)
	}
	return yaml + "admin: {listen: ''}\n"
}

// sql runs a statement as the administrator.
func (n *firstUser) sql(statement string) {
	n.t.Helper()
	n.note("shop=# %s", statement)
	servers.Exec(n.t, n.server.URL, statement)
	n.done = append(n.done, statement)
}

// sluicebox runs a command and returns its output.
func (n *firstUser) sluicebox(env []string, args ...string) (said string, code int) {
	n.t.Helper()
	n.note("\n$ sluicebox %s -c sluicebox.yaml", strings.Join(args, " "))
	stdout, stderr, code := command(n.t, env, append(args, "-c", n.file)...)
	n.note("%s%s(exit code %d)", stdout, stderr, code)
	return stdout + stderr, code
}

// followDoctor does everything that doctor printed: the statements as the administrator, then
// `sluicebox init`, then a restart of the server. It reports whether there was anything new
// to do.
func (n *firstUser) followDoctor(said string) (did bool) {
	n.t.Helper()
	for line := range strings.Lines(said) {
		line = strings.TrimSpace(line)
		if !strings.HasSuffix(line, ";") || strings.HasPrefix(line, "--") || slices.Contains(n.done, line) {
			continue
		}
		n.sql(line)
		did = true
	}
	if strings.Contains(said, "run `sluicebox init`") {
		// The relay's role may create nothing; its keys are set by environment variables.
		if _, code := n.sluicebox([]string{"SLUICEBOX_SOURCE_URL=" + n.server.URL}, "init"); code != 0 {
			n.t.Fatalf("init did not work:\n%s", n.transcript.String())
		}
		did = true
	}
	if did && strings.Contains(said, "restart") {
		n.note("\n(the server is restarted)")
		n.server.Restart(nil)
	}
	return did
}

// A first user follows the commands alone: a server with default settings, doctor and its
// remedies, run. The first row is then delivered.
func TestAFirstUsersPath(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		n := &firstUser{t: t, server: servers.Start(t, version, map[string]string{
			"wal_level": "replica", "max_wal_senders": "10", "max_replication_slots": "10",
		})}
		defer func() { t.Logf("the path:\n%s", n.transcript.String()) }()
		to := sinktest.NewReceiver(t)
		n.file = configFile(t, n.example(to.URL()))
		servers.Exec(t, n.server.URL, shopTable, "CREATE ROLE relay LOGIN")

		said, code := n.sluicebox(nil, "doctor")
		if code != 78 {
			t.Fatalf("doctor on an empty database: exit code %d, want a fault\n%s", code, said)
		}
		for rounds := 1; n.followDoctor(said); rounds++ {
			if rounds == 5 {
				t.Fatalf("doctor still reports faults after its fixes were run:\n%s", said)
			}
			said, code = n.sluicebox(nil, "doctor")
		}
		if code != 0 {
			t.Fatalf("all of doctor's fixes were run, and its exit code is %d, want 0:\n%s", code, said)
		}

		n.note("\n$ sluicebox run -c sluicebox.yaml")
		r := launch(t, n.file, "")
		r.waitFor("source connected")
		n.sql(`INSERT INTO shop.outbox (customer, body) VALUES ('c-1', '{"order": 1}')`)
		arrive(t, to, 1)
		conn := connect(t, n.server.URL)
		within(t, testTimeout, func() string {
			return none(t, conn, "are not marked as sent", "SELECT count(*) FROM shop.outbox WHERE sent_at IS NULL")
		})
		expectStop(t, r)
		n.note("%s", r.said())
		if strings.Contains(r.said(), "polling") {
			t.Error("the relay did not read the log")
		}
		if taken := to.Accepted(); len(taken) != 1 || string(taken[0].Payload) != `{"order": 1}` {
			t.Errorf("%d rows arrived: %+v", len(taken), taken)
		}
	})
}
