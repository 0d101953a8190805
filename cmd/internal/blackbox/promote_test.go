package blackbox

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// pair is a primary and its standby, with the relay's failover slot on both, and a relay with
// both in its URL.
type pair struct {
	*scene
	primary, standby *servers.Server
	relay            *relay
}

// eachPair runs a test on a pair of each version with failover slots. The tables have
// delivered rows.
func eachPair(t *testing.T, test func(p *pair)) {
	for _, version := range servers.Versions() {
		if version < 17 {
			continue // no failover slots before version 17
		}
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			p := &pair{primary: servers.Start(t, version, map[string]string{"fsync": "on"})}
			servers.Exec(t, p.primary.URL, pgTables(), pgTruth)
			p.standby = servers.Standby(t, p.primary, map[string]string{"sync_replication_slots": "on"})
			to := sinktest.NewReceiver(t)
			p.scene = &scene{t: t, kind: postgresKind(), database: p.primary.URL, conn: connect(t, p.primary.URL), to: to}
			both := strings.Replace(p.primary.URL, hostOf(t, p.primary.URL), hostOf(t, p.primary.URL)+","+hostOf(t, p.standby.URL), 1)
			p.config = strings.Replace(preset(p.primary.URL, to.URL(), ""), p.primary.URL, both, 1)
			p.relay = p.run()
			p.synced()
			p.expectOnce()
			test(p)
		})
	}
}

func hostOf(t *testing.T, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// synced waits until the relay's slot is synchronized on the standby. That needs the slot to
// move past the transactions that were open at the first attempt.
func (p *pair) synced() {
	p.t.Helper()
	replica := connect(p.t, p.standby.URL)
	within(p.t, 2*time.Minute, func() string {
		p.load(10)
		servers.Exec(p.t, p.database, "SELECT pg_log_standby_snapshot()")
		if count(p.t, replica, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND synced AND NOT temporary", nameFor(p.database)) == 0 {
			return "the standby does not have the slot"
		}
		return ""
	})
	_ = replica.Close()
}

// promoted replaces the primary with the standby.
func (p *pair) promoted() *scene {
	p.t.Helper()
	p.standby.Promote()
	return &scene{t: p.t, kind: postgresKind(), database: p.standby.URL, conn: connect(p.t, p.standby.URL), to: p.to}
}

// follows waits until the relay leads on the promoted server. It returns the reason for its
// snapshot, or "" if it resumed from its checkpoint.
func (p *pair) follows(s *scene) (why string) {
	p.t.Helper()
	within(p.t, time.Minute, func() string {
		locks := count(p.t, s.conn, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
		if status, body := p.relay.get("/readyz?verbose"); status != 200 || locks == 0 {
			return "the relay does not follow: " + body
		}
		return ""
	})
	said := p.relay.said()
	leading := said[strings.LastIndex(said, `msg="leadership acquired"`):]
	_, why, _ = strings.Cut(leading, "reason=")
	why, _, _ = strings.Cut(why, "\n")
	return strings.Trim(why, `"`)
}

// The primary crashes under load, and its standby is promoted. synchronized_standby_slots made
// the primary withhold rows that the standby did not have. The relay therefore resumes in
// commit order, and all delivered rows exist. Rows after a named checkpoint can be replayed,
// from the log if the standby has the slot for it.
func TestTheDatabaseIsPromoted(t *testing.T) {
	t.Parallel()
	eachPair(t, func(p *pair) {
		var slot string
		if err := p.conn.row("SELECT slot_name FROM pg_replication_slots WHERE slot_type = 'physical'").Scan(&slot); err != nil {
			p.t.Fatal(err)
		}
		servers.Exec(p.t, p.database, "ALTER SYSTEM SET synchronized_standby_slots = '"+slot+"'", "SELECT pg_reload_conf()")
		before := p.rows()
		p.relay.checkpoint("before", "--keep-log")
		wait := write(p.t, p.database, load{seconds: 60, clients: 8, rate: tempo(300), scripts: lateScripts(50), broken: true})
		arrive(p.t, p.to, before+300)
		p.primary.Stop("immediate")
		struck := time.Now()
		wait()
		s := p.promoted()
		if why := p.follows(s); why != "" {
			p.t.Errorf("the relay took a snapshot: %s", why)
		}
		took := time.Since(struck)
		write(p.t, s.database, load{transactions: 400, clients: 8, scripts: lateScripts(50)})()
		rows, again := s.expectAll()
		p.t.Logf("%d rows, first arrivals in order; %d arrived again; the relay led on the promoted server %s after the crash",
			rows, again, took.Round(10*time.Millisecond))
		job := p.relay.replay("--from=before")
		if job.code != 0 || job.Sent != rows-before || job.Skipped+job.Refused > 0 {
			p.t.Errorf("the replay is %+v, want %d rows", job, rows-before)
		}
		p.t.Logf("a replay goes on %s", job.Reason)
		expectStop(p.t, p.relay)
	})
}

// A lagging standby is promoted. The primary had sent rows that the standby did not have, so
// delivered rows are missing in the database. All rows that exist are delivered.
func TestAsynchronousFailoverLosesRows(t *testing.T) {
	t.Parallel()
	eachPair(t, func(p *pair) {
		const lost = 20
		replica := connect(p.t, p.standby.URL)
		receiver := count(p.t, replica, "SELECT pid FROM pg_stat_wal_receiver")
		_ = replica.Close()
		signal := func(what syscall.Signal) {
			if err := syscall.Kill(receiver, what); err != nil {
				p.t.Fatal(err)
			}
		}
		signal(syscall.SIGSTOP) // the standby receives nothing more
		before := p.to.Counts().Distinct
		servers.Exec(p.t, p.database, fmt.Sprintf(`INSERT INTO outbox_events (id, type, message_group, payload, status, created_at)
			SELECT 'LOST'||n, 'EVENT', 'lost', format('{"id": "LOST%%s"}', n), 'PENDING', now() FROM generate_series(1, %d) n`, lost))
		arrive(p.t, p.to, before+lost)
		p.primary.Stop("immediate")
		signal(syscall.SIGTERM) // before it receives the rest
		signal(syscall.SIGCONT)
		s := p.promoted()
		if n := count(p.t, s.conn, "SELECT count(*) FROM outbox_events WHERE id LIKE 'LOST%'"); n != 0 {
			p.t.Fatalf("%d of the rows are on the standby, want 0: the test is inconclusive", n)
		}
		p.t.Logf("cut: %q", p.follows(s))
		write(p.t, s.database, load{transactions: 400, clients: 8, scripts: seedScripts(50)})()
		arrive(p.t, p.to, s.rows()+lost)
		settle(p.t, s.conn)
		taken := slices.DeleteFunc(p.to.Accepted(), func(r sinktest.Received) bool { return strings.HasPrefix(r.ID, "LOST") })
		events, again := oracle{"EVENT", "events"}.checkOrder(p.t, s.conn, taken)
		jobs, _ := oracle{"DISPATCH_JOB", "jobs"}.checkOrder(p.t, s.conn, taken)
		p.t.Logf("%d rows of the promoted server, first arrivals in order, %d again; %d rows were delivered that it never had", events+jobs, again, lost)
		expectStop(p.t, p.relay)
	})
}
