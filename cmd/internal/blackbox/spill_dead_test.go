package blackbox

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// steady writes numbered rows and business data for a while, in a transaction each 50 ms, and
// calls look in between. It returns the last number.
func (s *scene) steady(from, rate int, group string, lasts time.Duration, look func()) (last int) {
	s.t.Helper()
	const every = 50 * time.Millisecond
	each := rate * int(every) / int(time.Second)
	tick := time.NewTicker(every)
	defer tick.Stop()
	last = from - 1
	for end := time.Now().Add(lasts); time.Now().Before(end); <-tick.C {
		s.number(last+1, last+each, group)
		last += each
		s.business(200_000) // 4 MB/s, or the rate of a small shop
		look()
	}
	return last
}

// A receiver is dead for long while rows arrive. The relay spills rows at the retained log
// limit, and both log and memory stay within their limits. Then the receiver accepts all
// rows in commit order, and no row was charged. By hand:
//
//	SLUICEBOX_TEST_OUTAGE=10m go test -v -run 'TestAReceiverDeadForLong' ./cmd/internal/blackbox
func TestAReceiverDeadForLong(t *testing.T) {
	t.Parallel()
	const maxHold = 4 << 20
	for name, group := range map[string]string{"50 groups": "i % 50", "10000 groups": "i % 10000"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			anOwnPostgres(t, nil, "dispatch: {backoff: {max: 1s}}\ncheckpoint: {max-hold: 4MiB}\n", func(s *scene, _ *servers.Server) {
				s.exec(s.kind.business)
				log := &logWatch{s: s}
				r := s.run()
				last := s.steady(1, 1000, group, time.Second, log.look)
				arrive(s.t, s.to, last)
				s.to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Status: http.StatusServiceUnavailable} })
				last = s.steady(last+1, 1000, group, lasting(s.t, 8*time.Second), log.look)
				s.expectUncounted(r)
				s.expectSpilled(1)
				s.t.Logf("%d rows, of which %d are spilled", last, s.spilled())

				s.to.Script(nil)
				began := time.Now()
				last = s.steady(last+1, 1000, group, time.Second, log.look)
				s.expectNumbered(last)
				s.t.Logf("all were delivered in %s", time.Since(began).Round(time.Millisecond))
				s.expectUncounted(r)
				s.expectNoneSpilled(r)
				log.look()
				log.expectWithin(maxHold, 48<<20) // for status reads, spilling, and a second of a drain at full speed
				r.expectSmall()
				expectStop(s.t, r)
			})
		})
	}
}

// A dead receiver's buffer holds fewer rows than its first requests had claimed. Those rows
// are spilled, too, and later rows are read and spilled. By hand:
//
//	go test -v -run 'TestADeadReceiverWithASmallBuffer' ./cmd/internal/blackbox
func TestADeadReceiverWithASmallBuffer(t *testing.T) {
	t.Parallel()
	const buffer, rows = 200, 3000
	aScene(t, "dispatch: {global-buffer-size: 200, backoff: {max: 1s}}\ncheckpoint: {max-hold: 1MiB}\n", func(s *scene) {
		s.exec(s.kind.business)
		s.to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Status: http.StatusServiceUnavailable} })
		r := s.run()
		for from := 1; from <= rows; from += 500 {
			s.number(from, from+499, "i % 50")
			s.business(1 << 20)
		}
		s.expectSpilled(rows - 2*buffer)
		s.expectUncounted(r)
		s.to.Script(nil)
		s.expectNumbered(rows)
		s.expectNoneSpilled(r)
		expectStop(s.t, r)
	})
}

// The relay is killed while the first rows of each group are in a request and the others are
// spilled. After the restart the spilled rows do not overtake the first. By hand:
//
//	go test -v -run 'TestKilledWithRowsInFlightBeforeSpilledOnes' ./cmd/internal/blackbox
func TestKilledWithRowsInFlightBeforeSpilledOnes(t *testing.T) {
	t.Parallel()
	const rows, groups = 2000, 10
	aScene(t, "dispatch: {global-buffer-size: 200, api-batch-size: 5}\ncheckpoint: {max-hold: 1MiB}\n", func(s *scene) {
		s.exec(s.kind.business)
		r := s.run()
		s.number(1, groups, "i % 10")
		s.expectNumbered(groups)
		hold := make(chan struct{})
		defer close(hold)
		s.to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Release: hold, Disconnect: true} })
		for from := groups + 1; from <= rows; from += groups {
			s.number(from, min(from+groups-1, rows), "i % 10")
		}
		s.business(2 << 20)
		s.expectSpilled(rows / 2)
		r.kill()
		s.disconnected()
		inFlight := s.processing()
		if inFlight == 0 {
			s.t.Error("no row was in flight: the test is inconclusive")
		}
		s.to.Script(nil)
		r = s.run()
		s.expectNumbered(rows)
		s.expectNoneSpilled(r)
		s.t.Logf("%d rows were in flight", inFlight)
		expectStop(s.t, r)
	})
}

// Rows without a group, each in its own lane, wait for a dead receiver. There are more of them
// than the buffer holds. All are delivered once, and memory stays small. By hand:
//
//	SLUICEBOX_TEST_ROWS=200000 go test -v -run 'TestDeadReceiverUngroupedParallel' ./cmd/internal/blackbox
func TestDeadReceiverUngroupedParallel(t *testing.T) {
	t.Parallel()
	const buffer = 500
	aScene(t, "dispatch: {ungrouped: parallel, global-buffer-size: 500, backoff: {max: 1s}}\ncheckpoint: {max-hold: 1MiB}\n", func(s *scene) {
		s.exec(s.kind.business)
		rows := many(s.t, 5000)
		s.to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Status: http.StatusServiceUnavailable} })
		r := s.run()
		for from := 1; from <= rows; from += 1000 {
			s.number(from, min(from+999, rows), "NULL")
			s.business(1 << 20)
		}
		s.expectSpilled(rows - buffer)
		within(s.t, testTimeout, func() string {
			if memory := r.metric(`sluicebox_pending_rows{sink="flowcatalyst"}`); memory > 2*buffer {
				return fmt.Sprintf("%.0f rows are in memory, the buffer is %d", memory, buffer)
			}
			return ""
		})
		s.expectUncounted(r)
		s.to.Script(nil)
		s.expectNumbered(rows)
		s.expectNoneSpilled(r)
		s.expectUncounted(r)
		r.expectSmall()
		expectStop(s.t, r)
	})
}
