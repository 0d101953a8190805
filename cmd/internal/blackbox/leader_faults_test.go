package blackbox

import (
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// The first start finds rows, and the receiver is down. More rows are committed, and the
// leader is killed. Its successor delivers all of them in commit order, without a second
// snapshot.
func TestATakeoverBeforeTheFirstRowIsDelivered(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		s.load(5)
		tr := newRelayGroup(s, 0)
		var up atomic.Bool
		s.to.Script(func(*sinktest.Request) sinktest.Answer {
			if up.Load() {
				return sinktest.Answer{}
			}
			return sinktest.Answer{Status: 503}
		})
		leads := func(r *member) { // it is not ready while the breaker is open
			within(s.t, testTimeout, func() string {
				if !r.leads() {
					return "the relay does not lead"
				}
				return ""
			})
		}
		leader := tr.add()
		leads(leader)
		standby := tr.add()
		write(s.t, s.database, load{transactions: 400, clients: 8, scripts: lateScripts(20)})()
		within(s.t, testTimeout, func() string {
			if count(s.t, s.conn, "SELECT count(*) FROM "+s.kind.checkpoint+" WHERE position <> ''") == 0 {
				return "no checkpoint is saved while the first rows are under way"
			}
			return ""
		})
		leader.kill()
		leads(standby)
		up.Store(true)
		s.expectAll()
		if s.reordered() == 0 {
			s.t.Error("no row is out of created_at order: the test is inconclusive")
		}
		expectStop(s.t, standby.relay)
	})
}

// A draining relay loses its lock. It stops waiting for its requests, because its successor
// sends their rows.
func TestStopAfterALostLock(t *testing.T) {
	t.Parallel()
	aPostgres(t, "dispatch: {request-timeout: 10m, claims: on}\n", func(s *scene) {
		r := s.run()
		reached := make(chan struct{}, 10)
		s.to.Script(func(*sinktest.Request) sinktest.Answer {
			reached <- struct{}{}
			return sinktest.Answer{Release: make(chan struct{})}
		})
		s.load(1)
		<-reached
		_ = r.cmd.Process.Signal(syscall.SIGTERM)
		r.waitFor("shutdown started")
		servers.Exec(s.t, s.database, `SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid)
			WHERE locktype = 'advisory' AND datname = current_database() AND application_name LIKE 'sluicebox %'`)
		if code := r.exitCode(); code != 0 {
			s.t.Errorf("exit code %d, want 0", code)
		}
		if n := s.processing(); n != 1 {
			s.t.Errorf("%d rows are PROCESSING, want the one in flight", n)
		}
		s.to.Script(nil)
		next := s.run()
		s.expectAll()
		expectStop(s.t, next)
	})
}

// The first of two hosts in the URL accepts connections and never answers, like a frozen
// one. The relay becomes the leader through the second.
func TestTheFirstHostIsSilent(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(s *scene) {
		silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts the connections
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { _ = silent.Close() })
		u, err := url.Parse(s.database)
		if err != nil {
			s.t.Fatal(err)
		}
		two := strings.Replace(s.database, u.Host, silent.Addr().String()+","+u.Host, 1)
		s.config = strings.Replace(s.config, s.database, two, 1)
		r := start(s.t, s.config)
		r.waitForWithin("source connected", 2*time.Minute)
		s.load(20)
		s.expectOnce()
		expectStop(s.t, r)
	})
}
