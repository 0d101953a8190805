package blackbox

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// mysqlHosts returns one of the servers with a binlog, or the selected ones.
func mysqlHosts(t *testing.T) []host {
	t.Helper()
	var all []host
	for _, f := range servers.Spread(t, servers.Flavours()) {
		all = append(all, mysqlHost(f))
	}
	return all
}

// purge removes the binlog written so far.
func (s *scene) purge() {
	s.t.Helper()
	within(s.t, testTimeout, func() string {
		s.exec("FLUSH BINARY LOGS")
		logs := s.logs()
		s.exec("PURGE BINARY LOGS TO '" + logs[len(logs)-1] + "'")
		// A stream that just ended keeps its file in use for a moment.
		if logs = s.logs(); len(logs) > 1 {
			return fmt.Sprintf("the binlog still has the files %q", logs)
		}
		return ""
	})
}

// logs lists the binlog files.
func (s *scene) logs() (names []string) {
	s.t.Helper()
	rows, err := s.conn.QueryContext(s.t.Context(), "SHOW BINARY LOGS")
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		s.t.Fatal(err)
	}
	into := make([]any, len(columns))
	for i := range into {
		into[i] = new(string)
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			s.t.Fatal(err)
		}
		names = append(names, *into[0].(*string))
	}
	return names
}

// forget resets the server's binlog and GTIDs.
func (s *scene) forget(h host) {
	s.t.Helper()
	if h.name == "mariadb" {
		s.exec("RESET MASTER")
	} else {
		s.exec("RESET BINARY LOGS AND GTIDS")
	}
}

// losesTheBinlog makes the relay lose its binlog position while it is stopped or frozen, under
// eight writers. The relay logs the loss, delivers every row, sends no settled row again, and
// streams again. again replays the rows behind an earlier checkpoint.
func losesTheBinlog(t *testing.T, spoil func(s *scene, h host, server ownServer), again func(s *scene, r *relay, before int)) {
	for _, how := range []string{"stopped", "frozen"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			onHosts(t, mysqlHosts(t), func(t *testing.T, h host) {
				database, server := h.start(t, nil)
				s := sceneIn(t, h, database, "")
				s.auto()
				r := s.run()
				s.load(40)
				before := s.expectOnce()
				if how == "stopped" {
					r.checkpoint("before")
					s.nextSecond()
					expectStop(t, r)
				} else {
					r.freeze()
					s.kind.end(t, s)
				}
				wait := write(t, s.database, load{transactions: 800, clients: 8, scripts: seedScripts(50)})
				wait()
				spoil(s, h, server)
				wait = write(t, s.database, load{transactions: 800, clients: 8, scripts: seedScripts(50)})
				if how == "stopped" {
					r = start(t, s.config)
				} else {
					r.thaw()
				}
				within(t, testTimeout, func() string {
					// A thawed relay may find the loss before it notices that it lost leadership.
					if last := lastLine(r.said(), "backlog="); last == "" || strings.HasSuffix(last, `reason=""`) || strings.Contains(last, "no checkpoint yet") {
						return "the relay does not say that it lost its place"
					}
					return ""
				})
				wait()
				expectMode(t, r, "stream")
				s.expectSet()
				s.load(30)
				s.expectSet()
				if c := s.to.Counts(); c.Duplicates > 0 {
					t.Errorf("%d rows arrived more than once, want 0", c.Duplicates)
				}
				if how == "stopped" {
					again(s, r, before)
				}
				expectStop(t, r)
			})
		})
	}
}

// lastLine returns the last line that contains a word.
func lastLine(text, word string) (last string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			last = strings.TrimSpace(line)
		}
	}
	return last
}

// The binlog is purged past the checkpoint.
func TestTheBinlogIsPurged(t *testing.T) {
	t.Parallel()
	losesTheBinlog(t, func(s *scene, _ host, _ ownServer) { s.purge() }, (*scene).replayPurged)
}

// The binlog is reset, as by RESET MASTER, and soon is as long as before.
func TestTheBinlogIsReset(t *testing.T) {
	t.Parallel()
	losesTheBinlog(t, func(s *scene, h host, _ ownServer) { s.forget(h) }, (*scene).replayAnother)
}

// The data is restored on a new machine, with a different server's binlog.
func TestTheBinlogOfAnotherServer(t *testing.T) {
	t.Parallel()
	losesTheBinlog(t, func(s *scene, h host, server ownServer) {
		s.forget(h)
		server.Stop("fast")
		if err := os.Remove(filepath.Join(server.(*servers.MySQLServer).Dir, "auto.cnf")); err != nil && !os.IsNotExist(err) {
			s.t.Fatal(err)
		}
		server.Restart(map[string]string{"server-id": "99"})
	}, (*scene).replayAnother)
}

// Two relays read one binlog with the same server id. MariaDB ends the older stream each
// time. The relays report that, and both proceed in turns. MySQL tells the streams apart by
// other means.
func TestTwoRelaysOfOneServerID(t *testing.T) {
	t.Parallel()
	scenes(t, mysqlHosts(t), "", func(s *scene) {
		s.auto()
		s.config = strings.Replace(s.config, "source: {", "source: {server-id: 4711, poll-interval: 50ms, ", 1)
		other := sinktest.NewReceiver(s.t)
		second := strings.Replace(s.config, "name: t", "name: other_", 1)
		second = strings.Replace(second, s.to.URL(), other.URL(), 1)
		second = strings.Replace(second, "flowcatalyst: {", "flowcatalyst: {events-table: '', ", 1)
		s.config = strings.Replace(s.config, "flowcatalyst: {", "flowcatalyst: {dispatch-jobs-table: '', ", 1)
		a, b := s.run(), start(s.t, second)
		wait := write(s.t, s.database, load{seconds: 6, clients: 8, rate: 150, scripts: seedScripts(20)})
		if s.t.Name() == "TestTwoRelaysOfOneServerID/mariadb" {
			within(s.t, testTimeout, func() string {
				for _, r := range []*relay{a, b} {
					if said := r.said(); strings.Contains(said, "uses server id 4711") && strings.Contains(said, "log became unreadable") {
						return ""
					}
				}
				return "neither relay says that its server id is another's"
			})
		}
		wait()
		arrive(s.t, s.to, count(s.t, s.conn, "SELECT count(*) FROM outbox_events"))
		arrive(s.t, other, count(s.t, s.conn, "SELECT count(*) FROM outbox_dispatch_jobs"))
		settle(s.t, s.conn)
		expectStop(s.t, a)
		expectStop(s.t, b)
	})
}

// A trigger fills the outbox from a session with statement-based logging, so the rows are not
// in the binlog. One snapshot finds all of that session's rows, in front of later rows of their
// groups. Statements on other tables cause no snapshot.
func TestMySQLRowsOfATriggerUnderStatements(t *testing.T) {
	t.Parallel()
	onHosts(t, mysqlHosts(t), func(t *testing.T, h host) {
		s := sceneIn(t, h, h.database(t), "checkpoint: {sweep-interval: 1h}\n")
		const row = "INSERT INTO outbox_events (id, type, message_group, payload, status, created_at) VALUES (%[1]s, 'EVENT', 'g', CONCAT('{\"id\": \"', %[1]s, '\"}'), 'PENDING', '2026-01-02 03:04:%[2]s')"
		s.exec("CREATE TABLE orders (id VARCHAR(13))", "CREATE TABLE notes (n INT)", "CREATE TRIGGER places AFTER INSERT ON orders FOR EACH ROW "+fmt.Sprintf(row, "NEW.id", "01"))
		r := s.run()
		s.exec("SET SESSION binlog_format = STATEMENT; " + strings.Repeat("INSERT INTO notes VALUES (1); ", 200))
		s.exec(fmt.Sprintf(row, "'a1'", "00"))
		arrive(t, s.to, 1)
		if n := r.metric("sluicebox_source_log_losses_total"); n != 0 {
			t.Errorf("the log was lost %v times for statements about other tables, want 0", n)
		}
		var orders []string
		for i := range 50 {
			orders = append(orders, fmt.Sprintf("INSERT INTO orders VALUES ('b%02d')", i))
		}
		s.exec("SET SESSION binlog_format = STATEMENT; " + strings.Join(orders, "; ") + "; SET SESSION binlog_format = ROW; " + fmt.Sprintf(row, "'c1'", "02"))
		arrive(t, s.to, 52)
		last := ""
		for _, got := range s.to.Accepted() {
			if got.ID[0] < 'c' && last == "c1" {
				t.Errorf("row %s arrived behind the younger c1", got.ID)
			}
			last = got.ID
		}
		if c := s.to.Counts(); c.Duplicates > 0 {
			t.Errorf("%d rows arrived more than once, want 0", c.Duplicates)
		}
		// The burst may end behind the position of the first snapshot.
		if n := r.metric("sluicebox_source_log_losses_total"); n < 1 || n > 3 {
			t.Errorf("the log was lost %v times for one burst, want 1 to 3", n)
		}
		r.waitFor("(INSERT INTO orders VALUES …)")
		expectStop(t, r)
	})
}
