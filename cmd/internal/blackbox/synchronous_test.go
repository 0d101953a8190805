package blackbox

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const withLateClaims = "dispatch: {claims: late}\n"

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
// relay claims them again and again, but sends none. It returns a function that waits for the
// commits.
func (s *scene) expectWithheld(r *relay) (wait func()) {
	s.t.Helper()
	const clients = 8
	captured := func() float64 {
		return r.metric(`sluicebox_rows_captured_total{outbox="outbox_events"}`) + r.metric(`sluicebox_rows_captured_total{outbox="outbox_dispatch_jobs"}`)
	}
	invisible := func() float64 { return r.metric(`sluicebox_claim_rows_total{result="not_yet_visible"}`) }
	before, sent, claims := captured(), len(s.to.Log()), invisible()
	wait = write(s.t, s.database, load{transactions: clients, clients: clients, scripts: seedScripts(200)})
	within(s.t, testTimeout, func() string {
		const lookups = 12 // the wait between two doubles from 1 ms to 1 s
		if rows, n := captured()-before, invisible()-claims; rows == 0 || n < lookups*rows {
			return fmt.Sprintf("%v rows captured, %v claims found one not visible yet", rows, n)
		}
		return ""
	})
	if n := len(s.to.Log()) - sent; n > 0 {
		s.t.Errorf("%d rows were sent while their commits waited for a standby", n)
	}
	return wait
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

// With claims: late, rows are claimed first while commits wait for a synchronous standby. The
// standby has each row that arrives. While the standby is down, the log has the rows of waiting
// commits and none is sent. A change of the setting needs no restart of the relay.
func TestLateClaimsBehindAStandby(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		// The standby shows a row before the commit ends, so that a query there finds it.
		primary := servers.Start(t, version, map[string]string{"synchronous_commit": "remote_apply"})
		s := sceneIn(t, postgresHost(version), primary.URL, withLateClaims)
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
		wait := s.expectWithheld(r)
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
