package blackbox

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// Both relays are replaced one after the other under load, like in a rolling deployment. No row
// is lost or arrives twice, and deliveries pause only briefly.
func TestARollingRestart(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		tr := newRelayGroup(s, 5*time.Millisecond)
		pair := []*member{tr.add(), tr.add()}
		for _, m := range pair {
			m.ready()
		}
		rounds := crashes(s.t, 2)
		wait := write(s.t, s.database, load{seconds: 8 + 2*rounds, clients: 8, rate: tempo(300), scripts: lateScripts(50)})
		arrive(s.t, s.to, 50)
		for range rounds {
			for i, m := range pair {
				expectStop(s.t, m.relay)
				pair[i] = tr.join(m.wire)
				pair[i].ready()
			}
		}
		wait()
		rows := s.expectOnce()
		tr.check()
		pause, replaced := longestPause(s.to.Log()), 2*rounds
		s.t.Logf("%d rows while %d relays were replaced; deliveries paused for %s at the most", rows, replaced, pause)
		if pause > time.Second+slack() {
			s.t.Errorf("deliveries paused for %s", pause)
		}
		for _, m := range pair {
			expectStop(s.t, m.relay)
		}
	})
}

// longestPause returns the longest time between two requests.
func longestPause(log []sinktest.Received) (longest time.Duration) {
	for i := 1; i < len(log); i++ {
		longest = max(longest, log[i].At.Sub(log[i-1].At))
	}
	return longest
}

// A standby is ready, names the leader, and refuses the leader's actions. A leader that has lost
// its lock to another session does the same at once.
func TestAStandbyNamesItsLeader(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(s *scene) {
		first := s.run()
		second := start(s.t, s.config)
		second.waitFor("standing by")
		expectFace(s.t, first, 200, "leading, epoch 1", 1)
		expectFace(s.t, second, 503, "leads", 0)
		if _, body := second.get("/leader?verbose"); !strings.Contains(body, fmt.Sprintf("process %d", first.cmd.Process.Pid)) {
			s.t.Errorf("the standby does not say which process leads: %s", body)
		}
		if status, body := second.get("/api/v1/lanes"); status != 503 || !strings.Contains(body, "not the leader") {
			s.t.Errorf("lanes of a standby: status %d, want 503: %s", status, body)
		}
		count(s.t, s.conn, `SELECT count(pg_terminate_backend(pid)) FROM pg_locks JOIN pg_stat_activity USING (pid)
			WHERE locktype = 'advisory' AND datname = current_database() AND application_name LIKE 'sluicebox %'`)
		first.waitFor("leadership lost")
		write(s.t, s.database, load{transactions: 80, clients: 8, scripts: seedScripts(5)})()
		s.expectOnce()
		for _, r := range []*relay{first, second} {
			within(s.t, testTimeout, func() string {
				if status, body := r.get("/readyz?verbose"); status != 200 {
					return body
				}
				return ""
			})
			expectStop(s.t, r)
		}
	})
}

// The server ends the leader's session. The relay becomes the leader again, and its log names
// no successor, because there is none.
func TestALostSessionNamesNoOtherRelay(t *testing.T) {
	t.Parallel()
	eachKind(t, "", func(s *scene) {
		r := s.run()
		s.kind.end(s.t, s)
		r.waitFor("leadership lost")
		within(s.t, testTimeout, func() string {
			if _, body := r.get("/leader?verbose"); !strings.Contains(body, "leading, epoch") || strings.Contains(body, "epoch 1") {
				return body
			}
			return ""
		})
		for line := range strings.Lines(r.said()) {
			if strings.Contains(line, "taken over") || strings.Contains(line, "successor") || strings.Contains(line, "another relay") {
				s.t.Errorf("the log names another relay: %s", line)
			}
			if strings.Contains(line, "leadership lost") && !strings.Contains(line, "relay lock lost: ") {
				s.t.Errorf("the log lacks the reason: %s", line)
			}
		}
		expectStop(s.t, r)
	})
}

func expectFace(t *testing.T, r *relay, leader int, says string, metric float64) {
	t.Helper()
	within(t, testTimeout, func() string {
		if status, body := r.get("/readyz?verbose"); status != 200 || !strings.Contains(body, says) {
			return fmt.Sprintf("/readyz is %d: %s", status, body)
		}
		if status, body := r.get("/leader?verbose"); status != leader || !strings.Contains(body, says) {
			return fmt.Sprintf("/leader is %d: %s", status, body)
		}
		return ""
	})
	if got := r.metric("sluicebox_leader"); got != metric {
		t.Errorf("sluicebox_leader is %v, want %v", got, metric)
	}
	if got := r.metric("sluicebox_leader_epoch"); got != metric { // the first epoch is 1
		t.Errorf("sluicebox_leader_epoch is %v, want %v", got, metric)
	}
}

// Two relays on one SQLite file: the second stands by, and takes over when the first is killed
// or stopped.
func TestTwoRelaysOnSQLite(t *testing.T) {
	t.Parallel()
	source, db := seedFile(t)
	to := sinktest.NewReceiver(t)
	config := preset(source, to.URL(), "")
	leader, rows := start(t, config), 0
	leader.waitFor("source connected")
	for _, end := range []func(*relay){(*relay).kill, func(r *relay) { expectStop(t, r) }} {
		next := start(t, config)
		next.waitFor("standing by")
		expectFace(t, next, 503, fmt.Sprintf("process %d", leader.cmd.Process.Pid), 0)
		rows += 100
		insertNumbered(t, db, rows-99, rows)
		arrive(t, to, rows)
		end(leader)
		next.waitFor("source connected")
		leader = next
	}
	insertNumbered(t, db, rows+1, rows+100)
	arrive(t, to, rows+100)
	expectStop(t, leader)
	if again := checkNumbered(t, to.Accepted()); again > 100 {
		t.Errorf("%d rows arrived more than once, want at most 100", again)
	}
}

// The relay detects a transaction pooler in front of its database, whether the pooler rejects
// session settings or ignores them.
func TestAPooler(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(s *scene) {
		for name, ignore := range map[string][]string{"refuses": nil, "passes over": ignored()} {
			s.t.Run(name, func(t *testing.T) {
				through := servers.Pooler(t, s.database, "transaction", ignore...)
				expectEnd(t, strings.Replace(s.config, s.database, through, 1), 78, "pooler", "the database itself")
			})
		}
	})
}

// ignored are the settings of the relay's sessions.
func ignored() []string {
	return []string{
		"bytea_output", "client_connection_check_interval", "default_transaction_isolation", "enable_bitmapscan", "enable_hashjoin",
		"enable_mergejoin", "enable_seqscan", "extra_float_digits", "hash_mem_multiplier", "idle_in_transaction_session_timeout",
		"idle_session_timeout", "intervalstyle", "jit", "lock_timeout", "max_parallel_workers_per_gather", "plan_cache_mode", "row_security",
		"synchronous_commit", "tcp_keepalives_count", "tcp_keepalives_idle", "tcp_keepalives_interval", "wal_sender_timeout",
	}
}
