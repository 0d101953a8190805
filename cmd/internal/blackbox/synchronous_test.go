package blackbox

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// withClaims claims every row before it is sent.
const withClaims = "dispatch: {claims: on}\n"

// expectClaims waits until a claims mode is in force, and expects the reason in the status, in
// the metric, and in doctor's output.
func (s *scene) expectClaims(r *relay, mode, reason string) {
	s.t.Helper()
	got := r.expectStatus(func(s *relayStatus) string {
		if s.Claims.Mode != mode {
			return "the claims mode is " + s.Claims.Mode + ", want " + mode
		}
		return ""
	})
	if got.Claims.Reason != reason {
		s.t.Errorf("claims are %s for %q, want %q", mode, got.Claims.Reason, reason)
	}
	for _, one := range []string{"on", "late", "off"} {
		if active := r.metric(fmt.Sprintf("sluicebox_claims_mode{mode=%q}", one)) == 1; active != (one == mode) {
			s.t.Errorf("the metric of mode %s says that it is active: %v", one, active)
		}
	}
	if text, _, _ := command(s.t, nil, "status", "--admin", r.admin); !strings.Contains(text, "\nclaims      "+mode+", "+reason+"\n") {
		s.t.Errorf("the status lacks claims %s, %s:\n%s", mode, reason, text)
	}
	d, text, _ := doctor(s.t, s.config)
	if !slices.ContainsFunc(d.Findings, func(f finding) bool {
		return f.Part == "log" && f.Grade == "ok" && f.Subject == "claims" && f.Text == mode+", "+reason
	}) {
		s.t.Errorf("doctor lacks claims %s, %s:\n%s", mode, reason, text)
	}
}

// expectWithheld commits transactions that wait for a standby. Their rows are in the log, and the
// relay sends none, although it has tried to claim them for a while: heldUp reports that, for a
// number of rows. It returns a function that waits for the commits.
func (s *scene) expectWithheld(r *relay, heldUp func(rows float64) bool) (wait func()) {
	s.t.Helper()
	const clients = 8
	captured := func() (rows float64) {
		_, body := r.get("/metrics")
		for line := range strings.Lines(body) { // absent for an outbox without rows yet
			if strings.HasPrefix(line, "sluicebox_rows_captured_total{") {
				n, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:len(line)-1], 64)
				if rows += n; err != nil {
					s.t.Fatal(err)
				}
			}
		}
		return rows
	}
	before, sent := captured(), len(s.to.Log())
	wait = write(s.t, s.database, load{transactions: clients, clients: clients, scripts: seedScripts(200)})
	within(s.t, testTimeout, func() string {
		rows := captured() - before
		switch n := len(s.to.Log()) - sent; {
		case n > 0:
			s.t.Fatalf("%d rows were sent while their commits waited for a standby", n)
		case rows == 0 || !heldUp(rows):
			return fmt.Sprintf("%v rows captured", rows)
		}
		return ""
	})
	return wait
}

// invisible returns a function for expectWithheld. It reports whether each row was found to be
// not visible yet many times.
func invisible(r *relay) func(rows float64) bool {
	claims := func() float64 { return r.metric(`sluicebox_claim_rows_total{result="not_yet_visible"}`) }
	before := claims()
	const times = 12 // the wait between two claims doubles from 1 ms to 1 s
	return func(rows float64) bool { return claims()-before >= times*rows }
}

// unsafeRows makes the receiver look for each row in another database. It returns a function
// that returns the ids of the rows that were not there when they arrived.
func (s *scene) unsafeRows(database string) func() []string {
	pool := connect(s.t, database)
	var mu sync.Mutex
	var missing []string
	s.to.Script(func(req *sinktest.Request) sinktest.Answer {
		ids := req.IDs()
		there, err := pool.texts("SELECT id FROM outbox_events WHERE id IN (" + quoted(ids...) + ") UNION ALL SELECT id FROM outbox_dispatch_jobs WHERE id IN (" + quoted(ids...) + ")")
		mu.Lock()
		defer mu.Unlock()
		for _, id := range ids {
			if err != nil || !slices.Contains(there, id) {
				missing = append(missing, id)
			}
		}
		return sinktest.Answer{}
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return missing
	}
}

// Rows are claimed first while commits wait for a synchronous standby. The
// standby has each row that arrives. While the standby is down, the log has the rows of waiting
// commits and none is sent. A change of the setting needs no restart of the relay.
func TestLateClaimsBehindAStandby(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		// The standby shows a row before the commit ends, so that a query there finds it.
		primary := servers.Start(t, version, map[string]string{"synchronous_commit": "remote_apply"})
		s := sceneIn(t, postgresHost(version), primary.URL, "")
		standby := servers.Standby(t, primary, nil)
		set := func(names string) {
			servers.Exec(t, primary.URL, "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'", "SELECT pg_reload_conf()")
		}
		r := s.run()
		s.expectClaims(r, "late", "configured")
		s.load(10)
		s.expectOnce()

		set("walreceiver") // the standby's name
		const on = "not late: commits wait for a standby (synchronous_standby_names = 'walreceiver')"
		s.expectClaims(r, "on", on)
		unsafe := s.unsafeRows(standby.URL)
		write(t, s.database, load{seconds: 3, clients: 8, rate: tempo(300), scripts: seedScripts(50)})()
		rows := s.expectOnce()
		if missing := unsafe(); len(missing) > 0 {
			t.Errorf("%d of %d rows arrived before the standby had them, for example %s", len(missing), rows, missing[0])
		}

		standby.Stop("fast")
		wait := s.expectWithheld(r, invisible(r))
		s.expectClaims(r, "on", on)
		standby.Restart(nil)
		wait()
		s.expectOnce()
		if missing := unsafe(); len(missing) > 0 {
			t.Errorf("%d rows arrived before the standby had them", len(missing))
		}

		set("")
		s.expectClaims(r, "late", "configured")
		standby.Stop("fast")
		s.to.Script(nil)
		s.load(10)
		s.expectOnce()
		if n := strings.Count(r.said(), `msg="claims mode changed"`); n != 2 {
			t.Errorf("the log has %d changes of the claims mode, want 2", n)
		}
		expectStop(t, r)
	})
}

// The same where commits wait for a semisynchronous replica that is missing. With AFTER_SYNC the
// rows are not visible meanwhile. With AFTER_COMMIT they are, and the commit of their claim waits
// too.
func TestLateClaimsBehindAReplica(t *testing.T) {
	t.Parallel()
	onHosts(t, mysqlHosts(t), func(t *testing.T, h host) {
		for _, point := range []string{"AFTER_SYNC", "AFTER_COMMIT"} {
			t.Run(point, func(t *testing.T) {
				t.Parallel()
				database, _ := h.start(t, nil)
				s := sceneIn(t, h, database, "")
				name := "rpl_semi_sync_master_"
				if h.name == "mysql" {
					name = "rpl_semi_sync_source_"
					s.exec("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
				}
				s.exec("SET GLOBAL "+name+"timeout = 600000", "SET GLOBAL "+name+"wait_point = "+point)
				r := s.run()
				s.expectClaims(r, "late", "configured")
				s.load(10)
				s.expectOnce()
				end := func() { s.exec("SET GLOBAL " + name + "enabled = OFF") }
				t.Cleanup(end) // otherwise other cleanups wait for the replica
				s.exec("SET GLOBAL " + name + "enabled = ON")
				s.expectClaims(r, "on", "not late: commits wait for a standby ("+name+"enabled = ON)")
				unseen := invisible(r)
				// The first commit of a group waits for the replica, the others for the first.
				const waits = " AND (state LIKE '%semi-sync ACK%' OR state LIKE '%commit%') AND time > 3"
				wait := s.expectWithheld(r, func(rows float64) bool {
					return unseen(rows) || count(t, s.conn, "SELECT count(*)"+relaySessions(s.database)+waits) > 0
				})
				end()
				wait()
				s.expectOnce()
				s.expectClaims(r, "late", "configured")
				expectStop(t, r)
			})
		}
	})
}
