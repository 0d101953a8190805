package blackbox

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// accountScene is a site whose relay uses the accounts of the scripts in deploy/mysql.
type accountScene struct {
	*site
	relay, stream string
}

// eachAccountScene creates the scripts' accounts on each flavour. The relay creates its tables.
// rest is the rest of the configuration; deletes is the variable delete of outbox.sql.
func eachAccountScene(t *testing.T, rest, deletes string, test func(c *accountScene)) {
	aFlavour(t, func(t *testing.T, f servers.Flavour) {
		s := newSite(t, f, f.Database(t), rest)
		name := nameFor(s.database)
		c := &accountScene{site: s, relay: name + "_r", stream: name + "_s"}
		c.sql(seedTablesMySQL)
		t.Cleanup(func() { c.sql("DROP USER "+c.relay, "DROP USER "+c.stream) })
		c.script("roles.sql", "relay", c.relay, "stream", c.stream)
		c.sql("ALTER USER "+c.relay+" ACCOUNT UNLOCK", "ALTER USER "+c.stream+" ACCOUNT UNLOCK")
		c.script("own.sql", "relay", c.relay, "create", "yes")
		for _, table := range []string{"outbox_events", "outbox_dispatch_jobs"} {
			c.script("outbox.sql", "relay", c.relay, "table", table, "delete", deletes)
		}
		c.config = strings.Replace(c.config, "://root@", "://"+c.relay+"@", 1)
		c.config = strings.Replace(c.config, "source: {", fmt.Sprintf("source: {stream-url: %q, ", userURL(c.database, c.stream)), 1)
		test(c)
	})
}

// script runs a script of deploy/mysql with the client, as the administrator.
func (c *accountScene) script(name string, variables ...string) {
	c.t.Helper()
	text, err := os.Open(filepath.Join("..", "..", "..", "deploy", "mysql", name))
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = text.Close() }()
	var set []string
	for i := 0; i < len(variables); i += 2 {
		set = append(set, fmt.Sprintf("@%s = '%s'", variables[i], variables[i+1]))
	}
	cmd := servers.ClientMySQL(c.t, c.database)
	cmd.Args = append(cmd.Args, "--init-command=SET "+strings.Join(set, ", "))
	cmd.Stdin = text
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		c.t.Fatalf("%s with %v: %v\n%s", name, variables, err, out)
	}
}

// The relay works with the accounts of the scripts. It creates its tables, streams, claims,
// settles, holds, spills, reloads, sweeps and prunes, and a second relay takes over.
func TestLeastPrivilegeMySQL(t *testing.T) {
	t.Parallel()
	const rest = "dispatch: {on-failed: block, max-retries: 1, backoff: {initial: 50ms}, global-buffer-size: 100}\ncheckpoint: {sweep-interval: 1s}\n"
	eachAccountScene(t, rest, "yes", func(c *accountScene) {
		const bad = 50 // of group 0
		poison(c.to, sinktest.Answer{Status: http.StatusBadRequest, Body: []byte("no such thing")}, numbered(bad))
		r := c.run()
		if strings.Contains(r.said(), "polling") {
			t.Error("the relay does not stream")
		}
		c.number(1, 1000, func(i int) int { return (i % 2) * (i % 9) })
		within(c.t, testTimeout, func() string {
			if c.count("SELECT COUNT(*) FROM sluicebox_spilled") == 0 {
				return "no row is spilled"
			}
			return ""
		})
		lane := []string{"--outbox", "outbox_events", "--kind", "EVENT", "--group", "3"}
		r.operate(append([]string{"lanes", "pause", "--reason", "to see whether it may"}, lane...)...)
		r.operate(append([]string{"lanes", "resume"}, lane...)...)
		c.to.Script(nil)
		r.operate("deadletters", "requeue", "--outbox", "outbox_events", "--yes", numbered(bad))
		c.expectNumbered(1000)
		within(c.t, testTimeout, func() string {
			if n := c.count("SELECT COUNT(*) FROM sluicebox_spilled"); n > 0 {
				return fmt.Sprintf("%d rows are spilled", n)
			}
			return ""
		})
		c.sql("UPDATE outbox_events SET status = 'PENDING', processed_at = NULL WHERE id = '" + numbered(1) + "'")
		r.waitFor("sweep found PENDING rows")
		settle(c.t, c.conn)
		c.takeOver(r)
		c.keep()
	})
}

// takeOver kills a relay and freezes the next. A third delivers the rows written afterwards.
func (c *accountScene) takeOver(leader *relay) {
	c.t.Helper()
	rows := 1000
	for _, end := range []func(*relay){(*relay).kill, (*relay).freeze} {
		next := start(c.t, c.config)
		next.waitFor("standing by")
		end(leader)
		next.waitFor("source connected")
		rows += 100
		c.number(rows-99, rows, nine)
		arrive(c.t, c.to, rows)
		leader.kill()
		leader = next
	}
	settle(c.t, c.conn)
	expectStop(c.t, leader)
}

// keep runs a relay that prunes rows delivered two days ago.
func (c *accountScene) keep() {
	c.t.Helper()
	c.sql("UPDATE outbox_events SET processed_at = NOW() - INTERVAL 2 DAY WHERE id < '" + numbered(1001) + "'")
	c.config = strings.Replace(c.config, "flowcatalyst: {", "flowcatalyst: {retention: 1d, ", 1)
	r := c.run()
	awaitZero(c.t, "rows are kept for too long", func() int { return c.count("SELECT COUNT(*) FROM outbox_events WHERE id < $1", numbered(1001)) })
	expectStop(c.t, r)
}

// rights lists all grants of the scripts, each with its REVOKE.
func (c *accountScene) rights() (list []grant) {
	who := "'" + c.relay + "'@'%'"
	own := map[string]string{
		"meta": "SELECT", "leader": "SELECT INSERT UPDATE", "marker": "SELECT INSERT UPDATE",
		"record": "SELECT INSERT UPDATE DELETE", "queue": "SELECT INSERT DELETE", "replay": "SELECT INSERT DELETE",
	}
	both := func(what, on, who string) {
		list = append(list, grant{"REVOKE " + what + " ON " + on + " FROM " + who, "GRANT " + what + " ON " + on + " TO " + who + ";"})
	}
	for table, rights := range own {
		for _, right := range strings.Fields(rights) {
			both(right, "`"+c.name+"`.`sluicebox_"+table+"`", who)
		}
	}
	events := "`" + c.name + "`.`outbox_events`"
	for _, column := range []string{"status", "retry_count", "processed_at", "error_message"} {
		both("UPDATE (`"+column+"`)", events, who)
	}
	both("DELETE", "`"+c.name+"`.`outbox_dispatch_jobs`", who)
	client := "REPLICATION CLIENT"
	if c.flavour == servers.MariaDB {
		client = "BINLOG MONITOR"
	}
	both(client, "*.*", who)
	both("REPLICATION SLAVE", "*.*", "'"+c.stream+"'@'%'")
	columns := "SELECT (`id`, `message_group`, `payload`, `created_at`, `status`, `retry_count`, `processed_at`, `error_message`)"
	return append(list, grant{"REVOKE SELECT ON " + events + " FROM " + who, "GRANT " + columns + " ON " + events + " TO " + who + ";"})
}

// Without any one grant, run and doctor both name its statement. Both accept the configuration once
// all were run, so every grant of the scripts is needed.
func TestEachGrantIsNamedMySQL(t *testing.T) {
	t.Parallel()
	eachAccountScene(t, "", "yes", func(c *accountScene) {
		c.config = strings.Replace(c.config, "flowcatalyst: {", "flowcatalyst: {retention: 1h, ", 1)
		d, text, code := doctor(c.t, c.config)
		if code != 0 || !strings.Contains(text, "start `sluicebox run`") {
			c.t.Errorf("before init: exit code %d, want 0, %d faults\n%s", code, d.Faults, text)
		}
		if _, stderr, code := command(c.t, nil, "init", "-c", configFile(c.t, c.config)); code != 0 {
			c.t.Fatalf("init as the relay: %s", stderr)
		}
		c.sql("REVOKE INSERT, UPDATE ON sluicebox_meta FROM " + c.relay)
		for _, table := range ownMySQL() {
			c.sql("REVOKE CREATE ON " + table + " FROM " + c.relay)
		}
		for _, g := range c.rights() {
			c.sql(g.revoke)
			for of, said := range c.refusal() {
				if !strings.Contains(said, g.grant) {
					c.t.Errorf("after %s: %s does not name %s:\n%s", g.revoke, of, g.grant, said)
				}
			}
			c.sql(g.grant)
		}
		if stdout, _, code := command(c.t, nil, "doctor", "-c", configFile(c.t, c.config)); code != 0 {
			c.t.Errorf("with all grants: exit code %d, want 0\n%s", code, stdout)
		}
		c.run()
		c.number(1, 10, nine)
		c.expectNumbered(10)
	})
}

// refusal returns the output of run and of doctor for a configuration that both reject.
func (c *accountScene) refusal() map[string]string {
	c.t.Helper()
	r := start(c.t, c.config)
	if code := r.exitCode(); code != 78 {
		c.t.Errorf("exit code %d of run, want 78", code)
	}
	stdout, stderr, code := command(c.t, nil, "doctor", "-c", configFile(c.t, c.config))
	if code != 78 {
		c.t.Errorf("exit code %d of doctor, want 78\n%s", code, stdout)
	}
	return map[string]string{"run": r.said(), "doctor": stdout + stderr}
}

// Another account creates the relay's tables from the output of `init --print`, because the
// relay lacks the privilege. After own.sql doctor reports no fault.
func TestRelayTablesOfAnotherAccountMySQL(t *testing.T) {
	t.Parallel()
	eachAccountScene(t, "", "", func(c *accountScene) {
		for _, table := range ownMySQL() {
			c.sql("REVOKE ALL ON " + table + " FROM " + c.relay)
		}
		d, text, code := doctor(c.t, c.config)
		if code != 78 || !strings.Contains(d.complaints(), "run `sluicebox init` as an account that has CREATE") {
			t.Errorf("exit code %d, want 78:\n%s", code, text)
		}
		if _, stderr, code := command(c.t, nil, "init", "-c", configFile(c.t, c.config)); code != 78 || !strings.Contains(stderr, "may not create them") {
			t.Errorf("init without CREATE: exit code %d, want 78: %s", code, stderr)
		}
		script, stderr, code := command(c.t, nil, "init", "--print", "-c", configFile(c.t, c.config))
		if code != 0 {
			t.Fatal(stderr)
		}
		c.client(c.database, script)
		d, _, _ = doctor(c.t, c.config)
		if !slices.Contains(d.statements(), "GRANT SELECT ON `"+c.name+"`.`sluicebox_meta` TO '"+c.relay+"'@'%';") {
			t.Errorf("doctor does not name the grants: %q", d.statements())
		}
		c.script("own.sql", "relay", c.relay)
		if d, text, code := doctor(c.t, c.config); code != 0 || d.Faults > 0 {
			t.Errorf("exit code %d, want 0:\n%s", code, text)
		}
		c.run()
	})
}

// Discarding rows needs a privilege of its own, which the error names. The reader's account
// lists FAILED rows and may change nothing.
func TestDiscardNeedsDeleteMySQL(t *testing.T) {
	t.Parallel()
	eachAccountScene(t, "dispatch: {max-retries: 0}\n", "", func(c *accountScene) {
		poison(c.to, sinktest.Answer{Status: http.StatusBadRequest, Body: []byte("no such thing")}, numbered(1))
		r := c.run()
		c.number(1, 10, nine)
		c.expectNumbered(10, numbered(1))
		within(c.t, 30*time.Second, func() string {
			if c.count("SELECT COUNT(*) FROM outbox_events WHERE status = 'FAILED'") == 0 {
				return "the row is not FAILED"
			}
			return ""
		})
		c.expectReader()
		discard := []string{"deadletters", "discard", "--outbox", "outbox_events", "--yes", numbered(1)}
		_, stderr, code := command(c.t, nil, append(discard, "--admin", r.admin)...)
		if code == 0 || !strings.Contains(stderr, "GRANT DELETE ON ") || !strings.Contains(stderr, "`outbox_events` TO '"+c.relay+"'") {
			c.t.Errorf("exit code %d: %s", code, stderr)
		}
		c.script("outbox.sql", "relay", c.relay, "table", "outbox_events", "delete", "yes")
		r.operate(discard...)
		if n := c.count("SELECT COUNT(*) FROM outbox_events WHERE id = $1", numbered(1)); n > 0 {
			c.t.Error("the row still exists, want it deleted")
		}
		expectStop(c.t, r)
	})
}

// expectReader lists FAILED rows as the read-only account.
func (c *accountScene) expectReader() {
	c.t.Helper()
	reader := nameFor(c.database) + "_l"
	for _, table := range []string{"outbox_events", "outbox_dispatch_jobs"} {
		c.script("reader.sql", "reader", reader, "table", table)
	}
	c.sql("ALTER USER " + reader + " ACCOUNT UNLOCK")
	c.t.Cleanup(func() { c.sql("DROP USER " + reader) })
	file := configFile(c.t, strings.Replace(c.config, "://"+c.relay+"@", "://"+reader+"@", 1))
	for _, args := range [][]string{{"list"}, {"show", numbered(1), "--outbox", "outbox_events"}} {
		stdout, stderr, code := command(c.t, nil, append(append([]string{"deadletters"}, args...), "-c", file)...)
		if code != 0 || !strings.Contains(stdout, numbered(1)) {
			c.t.Errorf("%v as the reader: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}
}
