package blackbox

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// roleScene is a scene whose relay has the roles of the scripts in deploy/postgres, on a database
// where PUBLIC has no privileges. The scene's own database URL is the administrator's.
type roleScene struct {
	*scene
	owner, relay, stream string
}

// eachRoleScene creates the scripts' roles on each version of the server. rest is the rest of the
// configuration.
func eachRoleScene(t *testing.T, rest string, test func(c *roleScene)) {
	aVersion(t, func(t *testing.T, version int) {
		database := servers.Database(t, version)
		name := nameFor(database)
		c := &roleScene{
			scene: &scene{t: t, kind: postgresKind(), database: database, conn: connect(t, database), to: sinktest.NewReceiver(t)},
			owner: name + "_owner", relay: name + "_relay", stream: name + "_stream",
		}
		servers.Exec(t, database, "CREATE ROLE "+c.owner+" LOGIN",
			"DO $$ BEGIN EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC; GRANT CONNECT ON DATABASE %I TO "+c.owner+"', current_database(), current_database()); END $$",
			"REVOKE ALL ON SCHEMA public FROM PUBLIC", "GRANT CREATE, USAGE ON SCHEMA public TO "+c.owner)
		t.Cleanup(func() {
			for _, role := range []string{c.relay, c.stream, c.owner} {
				servers.Exec(t, database, "DROP OWNED BY "+role+" CASCADE", "DROP ROLE "+role)
			}
		})
		c.psql(database, "roles.sql", "relay="+c.relay, "stream="+c.stream, "owner="+c.owner)
		servers.Exec(t, roleURL(database, c.owner), pgTables(), pgTruth)
		c.config = preset(database, c.to.URL(), rest)
		if _, stderr, code := command(t, nil, "init", "-c", configFile(t, c.as(c.owner))); code != 0 {
			t.Fatalf("init as the owner: %s", stderr)
		}
		c.grant()
		c.config = strings.Replace(c.as(c.relay), "source: {", fmt.Sprintf("source: {stream-url: %q, ", roleURL(database, c.stream)), 1)
		test(c)
	})
}

// as returns the configuration with another role in the database URL.
func (c *roleScene) as(role string) string {
	return strings.Replace(c.config, c.database, roleURL(c.database, role), 1)
}

// grant runs the owner's scripts.
func (c *roleScene) grant(more ...string) {
	c.t.Helper()
	as := roleURL(c.database, c.owner)
	c.psql(as, "own.sql", "relay="+c.relay)
	for _, table := range []string{"outbox_events", "outbox_dispatch_jobs"} {
		c.psql(as, "outbox.sql", append([]string{"relay=" + c.relay, "table=" + table}, more...)...)
	}
}

// psql runs a script of deploy/postgres.
func (c *roleScene) psql(url, script string, variables ...string) {
	c.t.Helper()
	pgbench, env := servers.Pgbench(c.t)
	args := []string{"-X", "-q", "-d", url, "-f", filepath.Join("..", "..", "..", "deploy", "postgres", script)}
	for _, v := range variables {
		args = append(args, "-v", v)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(pgbench), "psql"), args...)
	cmd.Env = env
	// A GRANT without effect is only a warning.
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		c.t.Fatalf("psql %s %v: %v\n%s", script, variables, err, out)
	}
}

// The relay works with the roles of the scripts: it streams, claims, settles, holds, spills
// and reloads.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	eachRoleScene(t, "dispatch: {on-failed: block, max-retries: 1, backoff: {initial: 50ms}, global-buffer-size: 100}\ncheckpoint: {sweep-interval: 1s}\n", func(c *roleScene) {
		const bad = 50 // of group 0
		poison(c.to, sinktest.Answer{Status: http.StatusBadRequest, Body: []byte("no such thing")}, numbered(bad))
		r := c.run()
		c.number(1, 1000, "CASE WHEN i % 2 = 0 THEN 0 ELSE i % 9 END")
		c.expectSpilled(1)
		lane := []string{"--outbox", "outbox_events", "--kind", "EVENT", "--group", "3"}
		r.operate(append([]string{"lanes", "pause", "--reason", "to see whether it may"}, lane...)...)
		r.operate(append([]string{"lanes", "resume"}, lane...)...)
		c.to.Script(nil)
		r.operate("deadletters", "requeue", "--outbox", "outbox_events", "--yes", numbered(bad))
		c.expectNumbered(1000)
		c.expectNoneSpilled(r)
		servers.Exec(c.t, c.database, "UPDATE outbox_events SET status = 'PENDING', processed_at = NULL WHERE id = '"+numbered(1)+"'")
		r.waitFor("sweep found PENDING rows")
		settle(c.t, c.conn)
		expectStop(c.t, r)
		c.run()
		c.number(1001, 1100, "i % 9")
		arrive(c.t, c.to, 1100)
		settle(c.t, c.conn)
	})
}

// A second relay with the same roles takes over from a killed one and from a frozen one.
func TestLeastPrivilegeTakeover(t *testing.T) {
	t.Parallel()
	eachRoleScene(t, "", func(c *roleScene) {
		leader, rows := c.run(), 0
		for how, end := range map[string]func(*relay){"killed": (*relay).kill, "frozen": (*relay).freeze} {
			next := start(c.t, c.config)
			next.waitFor("standing by")
			rows += 100
			c.number(rows-99, rows, "i % 9")
			arrive(c.t, c.to, rows)
			began := time.Now()
			end(leader)
			next.waitFor("source connected")
			c.t.Logf("%s: another relay reads after %s", how, time.Since(began).Round(time.Millisecond))
			rows += 100
			c.number(rows-99, rows, "i % 9")
			arrive(c.t, c.to, rows)
			leader.kill()
			leader = next
		}
		settle(c.t, c.conn)
	})
}

// A session of the stream's role holds the slot and never ends. A new leader ends it, although
// the relay's own role may not.
func TestTheStreamsRoleEndsItsOwnSession(t *testing.T) {
	t.Parallel()
	eachRoleScene(t, "", func(c *roleScene) {
		r := c.run()
		c.number(1, 10, "i % 9")
		c.expectNumbered(10)
		expectStop(c.t, r)
		pid := c.holdSlot()
		_, err := connect(c.t, roleURL(c.database, c.relay)).exec("SELECT pg_terminate_backend($1)", pid)
		if failure(err) == "" {
			c.t.Fatal("the relay's role may end the stream's session: nothing would be proven")
		}
		c.run()
		if n := count(c.t, c.conn, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid); n > 0 {
			c.t.Error("the session that held the slot is still open")
		}
		c.number(11, 20, "i % 9")
		c.expectNumbered(20)
	})
}

// holdSlot reads the relay's slot on a session that the server never ends, and returns its
// pid.
func (c *roleScene) holdSlot() (pid uint32) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgconn.Connect(ctx, roleURL(c.database, c.stream)+"&replication=database&wal_sender_timeout=0")
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx) // the server has ended it
	})
	name := nameFor(c.database)
	within(c.t, 30*time.Second, func() string {
		return none(c.t, c.conn, "are slots in use", "SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name = '"+name+"'")
	})
	err = pglogrepl.StartReplication(ctx, conn, name, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names '" + name + "'"},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return conn.PID()
}

// Without any one grant, run and doctor both name its statement. Both accept the configuration once
// all were run.
func TestEachGrantIsNamed(t *testing.T) {
	t.Parallel()
	eachRoleScene(t, "", func(c *roleScene) {
		// Without USAGE on its schema a table is found only by its qualified name.
		c.config = strings.Replace(c.config, "flowcatalyst: {", "flowcatalyst: {retention: 1h, events-table: public.outbox_events, ", 1)
		c.grant("delete=yes")
		servers.Exec(c.t, c.database, fmt.Sprintf(`REVOKE CONNECT ON DATABASE %s FROM PUBLIC`, c.name()),
			fmt.Sprintf(`GRANT CONNECT ON DATABASE %s TO "%s", "%s"`, c.name(), c.relay, c.stream))
		for _, g := range c.grants() {
			servers.Exec(c.t, c.database, g.revoke)
			for of, said := range c.refusal() {
				if !strings.Contains(said, g.grant) {
					c.t.Errorf("after %s: %s does not name %s:\n%s", g.revoke, of, g.grant, said)
				}
			}
			servers.Exec(c.t, c.database, g.grant)
		}
		if stdout, _, code := command(c.t, nil, "doctor", "-c", configFile(c.t, c.config)); code != 0 {
			c.t.Errorf("with all grants: exit code %d, want 0\n%s", code, stdout)
		}
		c.run()
		c.number(1, 10, "i % 9")
		c.expectNumbered(10)
	})
}

// grant is a privilege of the relay, with its REVOKE.
type grant struct{ revoke, grant string }

// grants lists all grants of the scripts.
func (c *roleScene) grants() (list []grant) {
	who := `"` + c.relay + `"`
	own := map[string]string{
		"meta": "SELECT", "leader": "SELECT INSERT UPDATE", "record": "SELECT INSERT UPDATE DELETE", "queue": "SELECT INSERT DELETE",
	}
	both := func(what, on string) {
		list = append(list, grant{"REVOKE " + what + " ON " + on + " FROM " + who, "GRANT " + what + " ON " + on + " TO " + who + ";"})
	}
	for table, rights := range own {
		for _, right := range strings.Fields(rights) {
			both(right, "sluicebox."+table)
		}
	}
	for _, column := range []string{"status", "retry_count", "processed_at", "error_message"} {
		both(`UPDATE ("`+column+`")`, `"public"."outbox_events"`)
	}
	both("DELETE", `"outbox_dispatch_jobs"`)
	both("CONNECT", "DATABASE "+c.name())
	both("USAGE", "SCHEMA sluicebox")
	both("USAGE", `SCHEMA "public"`)
	list = append(list,
		grant{"REVOKE SELECT ON outbox_events FROM " + who,
			`GRANT SELECT ("id", "message_group", "payload", "created_at", "status", "retry_count", "processed_at", "error_message") ON "public"."outbox_events" TO ` + who + ";"},
		grant{"REVOKE CONNECT ON DATABASE " + c.name() + ` FROM "` + c.stream + `"`, "GRANT CONNECT ON DATABASE " + c.name() + ` TO "` + c.stream + `";`},
		grant{"ALTER ROLE " + c.stream + " NOREPLICATION", `ALTER ROLE "` + c.stream + `" REPLICATION;`})
	return list
}

// name returns the database's name, quoted.
func (c *roleScene) name() string {
	c.t.Helper()
	var name string
	if err := c.conn.row("SELECT quote_ident(current_database())").Scan(&name); err != nil {
		c.t.Fatal(err)
	}
	return `"` + strings.Trim(name, `"`) + `"`
}

// refusal returns the output of run and of doctor for a configuration that both reject.
func (c *roleScene) refusal() map[string]string {
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

// Discarding rows needs a privilege of its own, which the error names.
func TestDiscardNeedsDelete(t *testing.T) {
	t.Parallel()
	eachRoleScene(t, "dispatch: {max-retries: 0}\n", func(c *roleScene) {
		poison(c.to, sinktest.Answer{Status: http.StatusBadRequest, Body: []byte("no such thing")}, numbered(1))
		r := c.run()
		c.number(1, 10, "i % 9")
		c.expectNumbered(10, numbered(1))
		within(c.t, 30*time.Second, func() string {
			if f := c.rowState(numbered(1)); f.status != "FAILED" {
				return fmt.Sprintf("the row is %+v", f)
			}
			return ""
		})
		discard := []string{"deadletters", "discard", "--outbox", "outbox_events", "--yes", numbered(1)}
		_, stderr, code := command(c.t, nil, append(discard, "--admin", r.admin)...)
		if code == 0 || !strings.Contains(stderr, `GRANT DELETE ON "outbox_events" TO`) {
			c.t.Errorf("exit code %d: %s", code, stderr)
		}
		c.grant("delete=yes")
		r.operate(discard...)
		if n := count(c.t, c.conn, "SELECT count(*) FROM outbox_events WHERE id = $1", numbered(1)); n > 0 {
			c.t.Error("the row still exists, want it deleted")
		}
		c.expectReader()
		expectStop(c.t, r)
	})
}

// expectReader lists FAILED rows as the read-only role.
func (c *roleScene) expectReader() {
	c.t.Helper()
	reader := nameFor(c.database) + "_reader"
	for _, table := range []string{"outbox_events", "outbox_dispatch_jobs"} {
		c.psql(c.database, "reader.sql", "reader="+reader, "table="+table)
	}
	c.t.Cleanup(func() { servers.Exec(c.t, c.database, "DROP OWNED BY "+reader, "DROP ROLE "+reader) })
	file := configFile(c.t, strings.Replace(c.config, roleURL(c.database, c.relay), roleURL(c.database, reader), 1))
	servers.Exec(c.t, c.database, "UPDATE outbox_events SET status = 'FAILED', error_message = 'known' WHERE id = '"+numbered(2)+"'")
	for _, args := range [][]string{{"list"}, {"show", numbered(2), "--outbox", "outbox_events"}} {
		stdout, stderr, code := command(c.t, nil, append(append([]string{"deadletters"}, args...), "-c", file)...)
		if code != 0 || !strings.Contains(stdout, numbered(2)) {
			c.t.Errorf("%v as the reader: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}
}
