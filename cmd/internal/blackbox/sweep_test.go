package blackbox

import (
	"fmt"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// Rows that were reset to PENDING by SQL are found, whatever their status was, and arrive before
// later rows of their group.
func TestRowsThatAreSetBackAreSentAgain(t *testing.T) {
	t.Parallel()
	aScene(t, "dispatch: {backoff: {initial: 20ms, max: 40ms}}\ncheckpoint: {sweep-interval: 500ms}\n", func(s *scene) {
		s.to.Script(func(req *sinktest.Request) sinktest.Answer {
			if req.Kind == "DISPATCH_JOB" {
				return sinktest.Answer{Status: 400}
			}
			return sinktest.Answer{}
		})
		r := s.run()
		s.load(30)
		within(s.t, testTimeout, func() string {
			return none(s.t, s.conn, "are unsettled", "SELECT (SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED') + (SELECT count(*) FROM outbox_dispatch_jobs WHERE status <> 'FAILED')")
		})
		events, jobs := count(s.t, s.conn, "SELECT count(*) FROM outbox_events"), count(s.t, s.conn, "SELECT count(*) FROM outbox_dispatch_jobs")
		s.to.Script(nil)
		before := len(s.to.Accepted())
		for _, sql := range []string{
			"UPDATE outbox_dispatch_jobs SET status = 'PENDING', retry_count = 0",
			"UPDATE outbox_events SET status = 'PENDING'",
		} {
			if _, err := s.conn.exec(sql); err != nil {
				s.t.Fatal(err)
			}
		}
		within(s.t, testTimeout, func() string {
			if n := len(s.to.Accepted()) - before; n < events+jobs {
				return fmt.Sprintf("%d of %d rows that were set back have arrived", n, events+jobs)
			}
			return ""
		})
		settle(s.t, s.conn)
		if n := len(s.to.Accepted()) - before; n != events+jobs {
			s.t.Errorf("%d arrivals of %d rows that were set back", n, events+jobs)
		}
		if n := r.metric("sluicebox_rows_swept_total"); int(n) != events+jobs {
			s.t.Errorf("%.0f rows were swept, %d were set back", n, events+jobs)
		}
		expectStop(s.t, r)
	})
}

// Continuous sweeps under load send no row twice.
func TestASweepSendsNoRowTwice(t *testing.T) {
	t.Parallel()
	aScene(t, "checkpoint: {sweep-interval: 20ms}\n", func(s *scene) {
		r := s.run()
		write(s.t, s.database, load{seconds: 10, clients: 8, rate: 150, scripts: seedScripts(50)})()
		rows := s.expectOnce()
		s.t.Logf("%d rows, each once", rows)
		expectStop(s.t, r)
	})
}
