package blackbox

import (
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// expectNothingSpilled expects that no row was spilled since the relay's start.
func expectNothingSpilled(t *testing.T, r *relay) {
	t.Helper()
	if n := r.metric(`sluicebox_rows_spilled_total{sink="flowcatalyst"}`); n > 0 {
		t.Errorf("%.0f rows were spilled, want 0", n)
	}
}

// Rows were written while the relay was stopped, more than the buffer holds. The relay catches
// up without spilling any. By hand:
//
//	SLUICEBOX_TEST_ROWS=200000 go test -v -run 'TestACatchUpSpillsNothing' ./cmd/internal/blackbox
func TestACatchUpSpillsNothing(t *testing.T) {
	t.Parallel()
	aScene(t, "dispatch: {global-buffer-size: 1000}\n", func(s *scene) {
		rows := many(s.t, 5000)
		r := s.run()
		s.number(1, 10, "i % 10")
		s.expectNumbered(10)
		expectStop(s.t, r)
		for from := 11; from <= rows; from += 1000 {
			s.number(from, min(from+999, rows), "i % 100")
		}
		r = s.run()
		began := time.Now()
		s.expectNumbered(rows)
		s.t.Logf("%d rows in %s", rows, time.Since(began).Round(time.Millisecond))
		expectNothingSpilled(s.t, r)
		r.expectSmall()
		expectStop(s.t, r)
	})
}

// A receiver hangs for a while and is slow then. Capture pauses while the buffer is full, the
// source's connection survives the pause, no row is spilled, and all arrive in order. Requests have
// less than half of the buffer, or their lanes would be spilled so that others get room. By hand:
//
//	SLUICEBOX_TEST_OUTAGE=3m go test -v -run 'TestASlowReceiverPausesCapture' ./cmd/internal/blackbox
func TestASlowReceiverPausesCapture(t *testing.T) {
	t.Parallel()
	aScene(t, "dispatch: {global-buffer-size: 500, api-batch-size: 20, request-timeout: 10m}\n", func(s *scene) {
		pause := lasting(s.t, 10*time.Second)
		hold := make(chan struct{})
		s.to.Script(func(*sinktest.Request) sinktest.Answer {
			return sinktest.Answer{Release: hold, Delay: 20 * time.Millisecond}
		})
		r := s.run()
		const rows, each, wide = 10_000, 500, 2000 // more bytes than the socket buffers hold
		for from := 1; from <= rows; from += each {
			s.numberIn("outbox_events", from, from+each-1, "i % 50", wide)
		}
		within(s.t, testTimeout, func() string {
			if r.metric("sluicebox_source_paused") != 1 {
				return "the source is not paused"
			}
			return ""
		})
		for end := time.Now().Add(pause); time.Now().Before(end); <-time.After(time.Second) {
			if r.metric("sluicebox_source_paused") != 1 {
				s.t.Error("the source is not paused any more")
			}
		}
		if memory := r.metric(`sluicebox_pending_rows{sink="flowcatalyst"}`); memory > 2000 {
			s.t.Errorf("%.0f rows are in memory, the buffer is 500, want at most 2000", memory)
		}
		close(hold)
		s.expectNumbered(rows)
		if n := r.metric("sluicebox_source_disconnects_total"); n > 0 {
			s.t.Errorf("the source lost its connection %.0f times, want 0", n)
		}
		expectNothingSpilled(s.t, r)
		r.expectSmall()
		expectStop(s.t, r)
	})
}
