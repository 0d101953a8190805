package blackbox

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// ask runs doctor on a configuration and checks its findings.
func (s *site) ask(name, config string, code int, want ...string) {
	s.t.Helper()
	d, text, got := doctor(s.t, config)
	if got != code || (code == 1) != (d.Faults == 0 && d.Unreachable > 0) {
		s.t.Errorf("%s: exit code %d, want %d:\n%s", name, got, code, text)
	}
	plain := strings.Join(strings.Fields(text), " ")
	for _, w := range want {
		if !strings.Contains(plain, w) {
			s.t.Errorf("%s: doctor output lacks %q:\n%s", name, w, text)
		}
	}
	if strings.Contains(text, canary) {
		s.t.Errorf("%s: the password is shown:\n%s", name, text)
	}
}

// canary is a password that no output may contain.
const canary = "canary-7d1"

// Doctor names the remedy of faults that no statement can fix.
func TestDoctorOfAConfigurationMySQL(t *testing.T) {
	t.Parallel()
	aFlavour(t, func(t *testing.T, f servers.Flavour) {
		s := newSite(t, f, f.Database(t), "")
		s.sql(seedTablesMySQL, "CREATE TABLE legacy (id INT)")
		user := nameFor(s.database)
		s.sql("CREATE USER " + user + " IDENTIFIED BY '" + canary + "'")
		t.Cleanup(func() { s.sql("DROP USER " + user) })
		if _, stderr, code := command(t, nil, "init", "-c", configFile(t, s.config)); code != 0 {
			t.Fatal(stderr)
		}
		s.ask("as it is", s.config, 0, "without TLS")
		instead := func(old, is string) string { return strings.Replace(s.config, old, is, 1) }
		as := func(password string) string { return instead("://root@", "://"+user+":"+password+"@") }
		events := func(name string) string { return instead("flowcatalyst: {", "flowcatalyst: {events-table: "+name+", ") }

		s.ask("a wrong password", as(canary+"x"), 78, "refused the login", "check the user and password")
		s.ask("no right at all", as(canary), 78, "is not accessible", "GRANT SELECT (`id`, ")
		s.ask("no such database", instead("/"+s.name, "/"+s.name+"x"), 78, "Unknown database", "check its name")
		s.ask("no such table", events("outbox_event"), 78, "no table `outbox_event`", "visible tables: outbox_events, outbox_dispatch_jobs, legacy")
		s.ask("no table", events("s"+s.name+".outbox"), 78, "no table")
		s.ask("an unknown parameter", instead("?tls", "?tsl=x&tls"), 78, `unknown parameter: "tsl"`)
		if f == servers.MariaDB { // needs a certificate before it has TLS
			s.ask("no TLS", instead("?tls=false", "?tls=true"), 78, "offers no TLS", "enable TLS on the server")
		}
		s.ask("nobody there", instead(at(t, s.database), freeAddress(t)), 1, "connection refused", "fix source.url")
		s.sql("GRANT ALL ON "+s.name+".* TO "+user, "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO "+user, "ALTER USER "+user+" ACCOUNT LOCK")
		s.ask("a locked account", as(canary), 78, "refused the login")
		s.sql("ALTER USER " + user + " WITH MAX_USER_CONNECTIONS 1 ACCOUNT UNLOCK")
		busy := servers.OpenMySQL(t, strings.Replace(s.database, "root@", user+":"+canary+"@", 1))
		if err := busy.PingContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.ask("no session left", as(canary), 1, "no session left for the relay", "max_user_connections")
	})
}

// at returns host and port of a URL.
func at(t *testing.T, text string) string {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// TLS: an untrusted certificate, a trusted one, and an account that requires TLS.
func TestDoctorOfTLSMySQL(t *testing.T) {
	t.Parallel()
	aFlavour(t, func(t *testing.T, f servers.Flavour) {
		server := f.Start(t, map[string]string{"binlog-row-metadata": "FULL"})
		ca := server.TLS()
		s := newSite(t, f, server.Database(), "")
		s.sql(seedTablesMySQL)
		if _, stderr, code := command(t, nil, "init", "-c", configFile(t, s.config)); code != 0 {
			t.Fatal(stderr)
		}
		with := func(parameter string) string { return strings.Replace(s.config, "?tls=false", parameter, 1) }
		s.ask("not trusted", with("?tls=true"), 78, "certificate is not trusted", "add tls-ca=FILE")
		s.ask("trusted", with("?tls-ca="+url.QueryEscape(ca)), 0, "with TLS")
		s.ask("not demanded on loopback", with(""), 0, "with TLS")
		s.ask("encrypted", with("?tls=skip-verify"), 0, "with TLS")
		s.ask("encrypted where it can", with("?tls=preferred"), 0, "with TLS")
		s.sql("SET GLOBAL require_secure_transport = ON")
		s.ask("TLS is needed", s.config, 78, "TLS")
		s.ask("and there", with("?tls-ca="+url.QueryEscape(ca)), 0)
	})
}

// Doctor runs beside a relay and its standby and disturbs neither.
func TestDoctorBesideRelaysMySQL(t *testing.T) {
	t.Parallel()
	aFlavour(t, func(t *testing.T, f servers.Flavour) {
		s := newSite(t, f, f.Database(t), "")
		s.sql(seedTablesMySQL)
		first := s.run()
		second := start(t, s.config)
		second.waitFor("standing by")
		epoch := first.metric("sluicebox_leader_epoch")
		rows := 0
		for _, address := range []string{first.admin, second.admin} {
			s.number(rows+1, rows+100, nine)
			rows += 100
			s.ask(address, strings.Replace(s.config, adminKey, strings.TrimPrefix(address, "http://"), 1), 0, "a relay already listens on")
		}
		s.expectNumbered(rows)
		for path, r := range map[string]*relay{"/leader": first, "/readyz": second} {
			if status, body := r.get(path); status != 200 {
				t.Errorf("%s is %d: %s", path, status, body)
			}
		}
		if now := first.metric("sluicebox_leader_epoch"); now != epoch {
			t.Errorf("epoch %[2]v, want %[1]v as before", epoch, now)
		}
		s.namesake()
		for _, r := range []*relay{second, first} {
			expectStop(t, r)
		}
	})
}

// namesake runs doctor on the configuration of another relay with the same server id, which
// MariaDB does not allow.
func (s *site) namesake() {
	s.t.Helper()
	code := 0
	if s.flavour == servers.MariaDB {
		code = 78
	}
	name := nameFor(s.database)
	id, other := "", ""
	within(s.t, testTimeout, func() string { // each stream of the relay has another id
		if id = s.replicaID("sluicebox " + name); id == "" {
			return fmt.Sprintf("relay %s is not among the replicas", name)
		}
		other = strings.Replace(s.config, "name: "+name, "name: "+name+"b", 1)
		other = strings.Replace(other, "source: {", "source: {server-id: "+id+", ", 1)
		if _, text, _ := doctor(s.t, other); !strings.Contains(text, "source.server-id") {
			return "doctor does not see the other relay:\n" + text
		}
		return ""
	})
	s.ask("a server id twice", other, code, fmt.Sprintf("reads the binlog with server id %s, which is this relay's", id), "source.server-id")
}

// replicaID returns the server id of the replica with a host name; "" if there is none.
func (s *site) replicaID(host string) (id string) {
	s.t.Helper()
	list := "SHOW REPLICAS"
	if s.flavour == servers.MariaDB {
		list = "SHOW SLAVE HOSTS"
	}
	rows, err := s.conn.QueryContext(s.t.Context(), list)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		s.t.Fatal(err)
	}
	for rows.Next() {
		values := make([]string, len(columns)) // the server id, the host, …
		into := make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			s.t.Fatal(err)
		}
		if values[1] == host {
			id = values[0]
		}
	}
	if err := rows.Err(); err != nil {
		s.t.Fatal(err)
	}
	return id
}

// doctor and run refuse a server that is one of several writable ones.
func TestAClusterIsRefused(t *testing.T) {
	t.Parallel()
	server := servers.MariaDB.Start(t, nil)
	s := newSite(t, servers.MariaDB, server.Database(), "")
	s.sql(seedTablesMySQL)
	server.Restart(map[string]string{"wsrep-on": "ON", "wsrep-provider": "none"})
	s.ask("a cluster", s.config, 78, "a Galera cluster (wsrep_on = ON): two relays could lead at the same time", "use a server with one primary")
	expectEnd(t, s.config, 78, "a Galera cluster", "use a server with one primary")
}

// Doctor reports a replica, and run waits for its promotion. The promoted server then
// delivers the rows that the old primary did not.
func TestAReplicaIsPromoted(t *testing.T) {
	t.Parallel()
	aFlavour(t, func(t *testing.T, f servers.Flavour) {
		logs := map[servers.Flavour]string{servers.MySQL: "log-replica-updates", servers.MariaDB: "log-slave-updates"}[f]
		old := f.Start(t, map[string]string{"server-id": "1", logs: ""})
		next := f.Start(t, map[string]string{"server-id": "2", logs: ""})
		u, err := url.Parse(old.URL)
		if err != nil {
			t.Fatal(err)
		}
		follow := []string{"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = " + u.Port() + ", SOURCE_USER = 'repl', SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1", "START REPLICA"}
		promote := []string{"STOP REPLICA", "RESET REPLICA ALL", "SET GLOBAL read_only = OFF"}
		if f == servers.MariaDB {
			follow = []string{"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = " + u.Port() + ", MASTER_USER = 'repl', MASTER_USE_GTID = slave_pos", "START SLAVE"}
			promote = []string{"STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = OFF"}
		}
		servers.ExecMySQL(t, old.URL, "CREATE USER repl", "GRANT REPLICATION SLAVE ON *.* TO repl")
		servers.ExecMySQL(t, next.URL, append(follow, "SET GLOBAL read_only = ON")...)

		s := newSite(t, f, old.Database(), "")
		s.sql(seedTablesMySQL)
		r := s.run()
		s.number(1, 100, nine)
		s.expectNumbered(100)
		expectStop(t, r)
		s.number(101, 150, nine)
		s.move(at(t, next.URL))
		within(t, testTimeout, func() string {
			var n int
			if err := s.conn.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM outbox_events").Scan(&n); err != nil || n < 150 {
				return fmt.Sprintf("the replica has %d rows: %v", n, err)
			}
			return ""
		})
		s.ask("a replica", s.config, 78, "server is read-only, as a replica is", "SET GLOBAL read_only = OFF;")
		r = start(t, s.config)
		r.waitFor("a replica accepts no writes before it is promoted")
		old.Stop("immediate")
		servers.ExecMySQL(t, next.URL, promote...)
		s.expectNumbered(150)
		s.number(151, 200, nine)
		s.expectNumbered(200)
		expectStop(t, r)
	})
}

// move points a site at another server.
func (s *site) move(address string) {
	s.t.Helper()
	database := strings.Replace(s.database, at(s.t, s.database), address, 1)
	s.config = strings.Replace(s.config, s.database, database, 1)
	s.database, s.conn = database, connect(s.t, database)
}
