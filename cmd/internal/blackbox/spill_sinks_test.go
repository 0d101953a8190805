package blackbox

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// threeSinks routes three tables of one database to a receiver each.
const threeSinks = `
name: %s
source: {mode: stream, url: %q}
outboxes:
  - {table: outbox_events, layout: flowcatalyst, kind: EVENT, sink: dead}
  - {table: outbox_slow, layout: flowcatalyst, kind: EVENT, sink: slow}
  - {table: outbox_dispatch_jobs, layout: flowcatalyst, kind: DISPATCH_JOB, sink: well}
sinks:
  dead: {type: flowcatalyst, api-base-url: %q, global-buffer-size: 500, backoff: {max: 1s}}
  slow: {type: flowcatalyst, api-base-url: %q, global-buffer-size: 500, max-concurrent-groups: 2, api-batch-size: 2}
  well: {type: flowcatalyst, api-base-url: %q}
admin: {listen: %s}
`

// Of three receivers one is dead and one is slow, each with more rows than its buffer holds.
// The third gets all of its rows meanwhile, and the slow one makes progress. In the end each
// has its own rows in order. By hand:
//
//	SLUICEBOX_TEST_ROWS=50000 SLUICEBOX_TEST_OUTAGE=30s go test -v -run 'TestThreeSinksOneDeadOneSlow' ./cmd/internal/blackbox
func TestThreeSinksOneDeadOneSlow(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		s.exec(fmt.Sprintf(s.kind.like, "outbox_slow", "outbox_events"))
		slow, well := sinktest.NewReceiver(s.t), sinktest.NewReceiver(s.t)
		r := start(s.t, fmt.Sprintf(threeSinks, nameFor(s.database), s.database, s.to.URL(), slow.URL(), well.URL(), adminKey))
		r.waitFor("source connected")
		rows, phase := many(s.t, 3000), lasting(s.t, 3*time.Second)
		jobs := pace{conn: connect(s.t, s.database), to: well, table: "outbox_dispatch_jobs", groups: 50}
		before50, before99 := jobs.run(s.t, phase)

		s.to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Status: http.StatusServiceUnavailable} })
		slow.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Delay: 100 * time.Millisecond} })
		for from := 1; from <= rows; from += 1000 {
			s.number(from, min(from+999, rows), "i % 50")
			s.numberIn("outbox_slow", from, min(from+999, rows), "i % 50", 0)
		}
		wrote := time.Now()
		arrive(s.t, slow, 10)
		within(s.t, time.Minute, func() string {
			if n := r.metric(`sluicebox_rows_captured_total{outbox="outbox_slow"}`); n < float64(rows) {
				return fmt.Sprintf("%.0f rows of the slow one were read of %d", n, rows)
			}
			return ""
		})
		s.t.Logf("%d rows of each were read %s after the last was written", rows, time.Since(wrote).Round(time.Millisecond))
		had, began := slow.Counts().Distinct, time.Now()
		with50, with99 := jobs.run(s.t, phase)
		took, moved := time.Since(began), slow.Counts().Distinct-had
		s.t.Logf("p50 %s, beside a dead and a slow one %s; p99 %s and %s; %d rows in %s (%.0f/s), of the slow one %d",
			before50, with50, before99, with99, jobs.written/2, took.Round(time.Millisecond), float64(jobs.written/2)/took.Seconds(), moved)
		if n := s.to.Counts().Distinct; n > 0 {
			s.t.Errorf("the dead receiver accepted %d rows, want 0", n)
		}
		if n := slow.Counts().Distinct; moved == 0 || n > rows/2 {
			s.t.Errorf("the slow one took %d of %d rows meanwhile, %d in all, want some and not most", moved, rows, n)
		}
		if parked := r.metric(`sluicebox_spilled_rows{sink="dead"}`); parked < float64(rows-1000) {
			s.t.Errorf("%.0f rows of the dead receiver are spilled, of %d", parked, rows)
		}

		s.to.Script(nil)
		slow.Script(nil)
		s.expectNumbered(rows)
		s.expectNumberedIn("outbox_slow", slow, rows)
		s.expectNumberedIn("outbox_dispatch_jobs", well, jobs.written)
		within(s.t, testTimeout, func() string {
			return none(s.t, s.conn, "are still parked", "SELECT count(*) FROM "+s.kind.spilled)
		})
		r.expectSmall()
		expectStop(s.t, r)
	})
}
