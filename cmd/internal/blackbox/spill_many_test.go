package blackbox

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// Each row has a group of its own, and all are spilled behind a dead receiver. They take little
// memory, and a relay that starts with them soon reads. Once the receiver is back, a new
// group does not wait for all of them. For a million groups the limits are 64 MB of live
// memory and, if nothing else runs, 2 s. By hand:
//
//	SLUICEBOX_TEST_ROWS=1000000 go test -v -timeout 30m -run 'TestManySpilledGroups' ./cmd/internal/blackbox
func TestManySpilledGroups(t *testing.T) {
	t.Parallel()
	anOwnScene(t, servers.Spread(t, hosts()), nil, "dispatch: {global-buffer-size: 1000, backoff: {max: 1s}}\ncheckpoint: {max-hold: 1MiB}\n", func(s *scene, _ ownServer) {
		rows := many(s.t, 4000)
		testTimeout := testTimeout + time.Duration(rows)*time.Millisecond
		s.config = strings.Replace(s.config, "admin: {listen: "+adminKey+"}", "admin: {listen: "+adminKey+", profiling: true}", 1)
		s.to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Status: http.StatusServiceUnavailable} })
		r := s.run()
		for from := 1; from <= rows; from += 20_000 {
			s.numberIn("outbox_events", from, min(from+19_999, rows), "i", 400) // more log than max-hold on each server
		}
		began := time.Now()
		parked := func() {
			s.t.Helper()
			within(s.t, testTimeout, func() string {
				// About 10000 may be in memory.
				away, all := r.metric(`sluicebox_lanes{sink="flowcatalyst",state="spilled"}`), r.metric(`sluicebox_spilled_rows{sink="flowcatalyst"}`)
				if int(all) < rows-1000 || int(away) < rows-10_000 || away < 1000 {
					return fmt.Sprintf("%.0f groups of %d are spilled lanes, %.0f rows are spilled", away, rows, all)
				}
				return ""
			})
		}
		parked()
		s.t.Logf("%d groups were spilled %s after the last was written", rows, time.Since(began).Round(time.Millisecond))
		s.expectLittle(r, rows, "parked")
		r.kill()

		r = start(s.t, s.config)
		r.waitForWithin(`msg="source connected"`, testTimeout)
		took := r.when(`msg="source connected"`).Sub(r.when(`msg="leadership acquired"`))
		s.t.Logf("from leading to reading: %s", took.Round(time.Millisecond))
		if most := time.Second + 4*time.Duration(rows)*time.Microsecond; took > most {
			s.t.Errorf("it took %s from leading to reading, want %s at the most", took, most)
		}
		parked()
		s.expectLittle(r, rows, "restarted")

		s.to.Script(nil)
		began = time.Now()
		arrive(s.t, s.to, 100)
		first := time.Now()
		s.number(rows+1, rows+1, "i")
		fresh := fmt.Sprintf("%013d", rows+1)
		within(s.t, testTimeout, func() string {
			if n := count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE status = 'COMPLETED' AND id = '"+fresh+"'"); n == 0 {
				return "the fresh group waits"
			}
			return ""
		})
		s.t.Logf("a fresh group waited %s", time.Since(first).Round(time.Millisecond))
		within(s.t, testTimeout, func() string {
			if n := s.to.Counts().Distinct; n < rows+1 {
				return fmt.Sprintf("%d rows arrived of %d", n, rows+1)
			}
			return ""
		})
		all := time.Since(began)
		s.t.Logf("%d rows arrived in %s (%.0f/s)", rows, all.Round(time.Millisecond), float64(rows)/all.Seconds())
		s.expectLittle(r, 0, "delivered")
		expectStop(s.t, r)
	})
}

// expectLittle expects that this number of spilled groups takes little memory.
func (s *scene) expectLittle(r *relay, groups int, when string) {
	s.t.Helper()
	r.get("/debug/pprof/heap?gc=1")
	live, rss := r.metric("go_memstats_heap_alloc_bytes"), r.metric("process_resident_memory_bytes")
	s.t.Logf("%s: %.1f MB of live memory, %.1f MB resident", when, live/1e6, rss/1e6)
	if most := 24e6 + 40*float64(groups); live > most {
		s.t.Errorf("%s: %.1f MB of live memory, want %.1f at the most", when, live/1e6, most/1e6)
	}
}

// when returns the time of the relay's last log line with a text.
func (r *relay) when(text string) (at time.Time) {
	r.t.Helper()
	for line := range strings.Lines(r.said()) {
		stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		if t, err := time.Parse(time.RFC3339Nano, stamp); err == nil && strings.Contains(line, text) {
			at = t
		}
	}
	return at
}
