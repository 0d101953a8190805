package blackbox

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// shopTableMySQL is the table of the README's example, in a database of its own.
const shopTableMySQL = `
CREATE DATABASE shop;
CREATE TABLE shop.outbox (
    id         BIGINT AUTO_INCREMENT PRIMARY KEY,
    customer   VARCHAR(64),
    body       JSON NOT NULL,
    created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    sent_at    TIMESTAMP(6) NULL,
    failed_at  TIMESTAMP(6) NULL,
    error      TEXT
)`

// withoutBinlog starts a server with MariaDB's defaults, for example without a binlog.
func withoutBinlog(t *testing.T, f servers.Flavour) *servers.MySQLServer {
	t.Helper()
	settings := map[string]string{"skip-log-bin": "", "binlog-format": "MIXED", "gtid-strict-mode": "OFF", "sync-binlog": "0"}
	if f == servers.MySQL {
		settings = map[string]string{"skip-log-bin": "", "gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"}
	}
	return f.Start(t, settings)
}

// firstUserMySQL is a first user with a server with default settings, an outbox table, a receiver,
// the README and the program's output.
type firstUserMySQL struct {
	t          *testing.T
	server     *servers.MySQLServer
	file       string
	done       []string          // statements
	lines      map[string]string // of the server's configuration
	transcript strings.Builder
}

// note adds to the transcript.
func (n *firstUserMySQL) note(format string, args ...any) {
	fmt.Fprintf(&n.transcript, format+"\n", args...)
}

// exampleMySQL returns the README's configuration for any table, with the test's addresses.
func exampleMySQL(t *testing.T, database, receiver string) string {
	t.Helper()
	yaml, secret := readmeExample(t)
	return strings.NewReplacer("postgres://relay@db.example/shop", database, "https://receiver.example", receiver, "/run/secrets/webhook", secret).
		Replace(yaml) + "admin: {listen: ''}\n"
}

// sql runs a statement as the administrator.
func (n *firstUserMySQL) sql(statement string) {
	n.t.Helper()
	n.note("%s> %s", n.server.Flavour, statement)
	servers.ExecMySQL(n.t, n.server.URL, statement)
	n.done = append(n.done, statement)
}

// sluicebox runs a command and returns its output.
func (n *firstUserMySQL) sluicebox(env []string, args ...string) (said string, code int) {
	n.t.Helper()
	n.note("\n$ sluicebox %s -c sluicebox.yaml", strings.Join(args, " "))
	stdout, stderr, code := command(n.t, env, append(args, "-c", n.file)...)
	n.note("%s%s(exit code %d)", stdout, stderr, code)
	return stdout + stderr, code
}

// doctor returns doctor's findings.
func (n *firstUserMySQL) doctor() (d diagnosis, code int) {
	n.t.Helper()
	_, code = n.sluicebox(nil, "doctor")
	yaml, err := os.ReadFile(n.file)
	if err != nil {
		n.t.Fatal(err)
	}
	return diagnose(n.t, string(yaml)), code
}

// configurationLine matches a line for the server's configuration, as doctor prints it.
var configurationLine = regexp.MustCompile("`([a-z_]+)=([A-Za-z0-9_]*)`")

// persisted matches a SET PERSIST statement of MySQL.
var persisted = regexp.MustCompile("^SET PERSIST ([a-z_]+) = '?([A-Za-z0-9_]*)'?;$")

// followDoctor does everything that doctor printed: `sluicebox init`, the statements as the
// administrator, the server's configuration with a restart. It reports whether there was
// anything new to do.
func (n *firstUserMySQL) followDoctor(d *diagnosis) (did bool) {
	n.t.Helper()
	said := d.complaints()
	if strings.Contains(said, "run `sluicebox init`") {
		// The relay's account may create nothing; its keys are set by environment variables.
		url := "SLUICEBOX_SOURCE_URL=" + strings.Replace(n.server.URL, "/?", "/shop?", 1)
		if _, code := n.sluicebox([]string{url}, "init"); code != 0 {
			n.t.Fatalf("init did not work:\n%s", n.transcript.String())
		}
		did = true
	}
	for _, statement := range d.statements() {
		if slices.Contains(n.done, statement) {
			continue
		}
		n.sql(statement)
		did = true
		// The test servers run with --no-defaults and so do not load persisted variables.
		if set := persisted.FindStringSubmatch(statement); set != nil {
			n.lines[strings.ReplaceAll(set[1], "_", "-")] = set[2]
		}
	}
	lines := map[string]string{}
	for _, line := range configurationLine.FindAllStringSubmatch(said, -1) {
		lines[strings.ReplaceAll(line[1], "_", "-")] = line[2]
	}
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		n.note("my.cnf: %s=%s", name, lines[name])
	}
	maps.Copy(n.lines, lines)
	if strings.Contains(said, "restart it") {
		n.note("(the server is restarted)")
		maps.Copy(n.lines, map[string]string{"skip-log-bin": "-"})
		n.server.Restart(n.lines)
		did = true
	}
	return did
}

// A first user follows the commands alone: a server without a binlog, an account without
// privileges, doctor and its remedies, run. The first row is then delivered.
func TestAFirstUsersPathMySQL(t *testing.T) {
	t.Parallel()
	aFlavour(t, func(t *testing.T, f servers.Flavour) {
		n := &firstUserMySQL{t: t, server: withoutBinlog(t, f), lines: map[string]string{}}
		defer func() { t.Logf("the path:\n%s", n.transcript.String()) }()
		to := sinktest.NewReceiver(t)
		shop := strings.Replace(n.server.URL, "/?", "/shop?", 1)
		n.file = configFile(t, exampleMySQL(t, userURL(shop, "relay"), to.URL()))
		servers.ExecMySQL(t, n.server.URL, shopTableMySQL, "CREATE USER relay")

		d, code := n.doctor()
		if code != 78 {
			t.Fatalf("doctor on an empty server: exit code %d, want a fault", code)
		}
		for rounds := 1; n.followDoctor(&d); rounds++ {
			if rounds == 6 {
				t.Fatalf("doctor still reports faults after its fixes were run:\n%s", d.complaints())
			}
			d, code = n.doctor()
		}
		receiver := 1 // it accepts only POST, which doctor reports as advice
		if code != 0 || d.Advice > receiver {
			t.Fatalf("all of doctor's fixes were run, and its exit code is %d, want 0:\n%s", code, d.complaints())
		}

		n.note("\n$ sluicebox run -c sluicebox.yaml")
		r := launch(t, n.file, "")
		r.waitFor("source connected")
		n.sql(`INSERT INTO shop.outbox (customer, body) VALUES ('c-1', '{"order": 1}')`)
		arrive(t, to, 1)
		db := servers.OpenMySQL(t, shop)
		awaitZero(t, "rows are not marked as sent", func() (n int) {
			if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM outbox WHERE sent_at IS NULL").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
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

// Without a binlog the relay polls and logs the reason. It streams by itself after the server
// was restarted with a binlog.
func TestAutoWithoutABinlog(t *testing.T) {
	t.Parallel()
	aFlavour(t, func(t *testing.T, f servers.Flavour) {
		server := withoutBinlog(t, f)
		s := newSite(t, f, server.Database(), "")
		s.config = strings.Replace(s.config, "mode: stream", "mode: auto, poll-interval: 100ms", 1)
		s.sql(seedTablesMySQL)
		s.number(1, 100, nine)
		r := start(t, s.config)
		r.waitFor("log unreadable; polling")
		if said := r.said(); !strings.Contains(said, "log_bin is off") || !strings.Contains(said, "restart it") {
			t.Errorf("the log lacks the reason for polling:\n%s", said)
		}
		s.number(101, 200, nine)
		s.expectNumbered(200)
		if mode := r.metric(`sluicebox_source_mode{mode="poll"}`); mode != 1 {
			t.Errorf("polling: %v, want 1", mode)
		}
		streams := map[string]string{"skip-log-bin": "-", "binlog-format": "ROW"}
		if f == servers.MySQL {
			streams = map[string]string{"skip-log-bin": "-", "gtid-mode": "ON", "enforce-gtid-consistency": "ON"}
		}
		server.Restart(streams)
		s.number(201, 300, nine)
		within(t, testTimeout, func() string {
			if r.metric(`sluicebox_source_mode{mode="stream"}`) != 1 {
				return "the relay does not stream"
			}
			return ""
		})
		s.number(301, 400, nine)
		s.expectNumbered(400)
		expectStop(t, r)
	})
}
