package blackbox

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// A clean stop during a checkpoint write: the write ends, and all rows settled until the end are
// in the saved checkpoint. By hand:
//
//	go test -v -run 'TestCleanStopWhileACheckpointIsWritten' ./cmd/internal/blackbox
func TestCleanStopWhileACheckpointIsWritten(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		r := s.run()
		s.number(1, 100, "'g'")
		s.expectNumbered(100)
		unlock := s.lock(s.kind.checkpoints)
		s.number(101, 200, "'g'")
		s.expectNumbered(200)
		within(s.t, testTimeout, func() string {
			return waits(s, "INSERT INTO "+s.kind.checkpoints)
		})
		_ = r.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-r.ended:
			s.t.Error("the relay did not wait for the write")
		case <-time.After(500 * time.Millisecond): // how long the row stays locked
		}
		unlock()
		if code := r.exitCode(); code != 0 {
			s.t.Errorf("exit code %d after SIGTERM, want 0", code)
		}
		if strings.Contains(r.said(), "checkpoint save failed") {
			s.t.Error("the checkpoint was not saved at the end")
		}
	})
}

// waits returns "" if a session waits for a lock with a statement.
func waits(s *scene, statement string) string {
	statement, _ = s.conn.text(statement, nil)
	if n := count(s.t, s.conn, s.kind.waiting, statement); n == 0 {
		return fmt.Sprintf("no %q waits for a lock", statement)
	}
	return ""
}

// A clean stop while the receiver hangs: it takes at most the request-timeout, charges no row
// and leaves none PROCESSING. The next start delivers in order. By hand:
//
//	go test -v -run 'TestCleanStopWhileTheReceiverHangs' ./cmd/internal/blackbox
func TestCleanStopWhileTheReceiverHangs(t *testing.T) {
	t.Parallel()
	aScene(t, "dispatch: {request-timeout: 2s}\n", func(s *scene) {
		never := make(chan struct{})
		defer close(never)
		s.to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Release: never, Disconnect: true} })
		r := s.run()
		const rows = 1000
		s.number(1, rows, "i % 50")
		within(s.t, testTimeout, func() string {
			if s.to.Counts().Requests < 10 {
				return "not every sender is at work"
			}
			return ""
		})
		began := time.Now()
		expectStop(s.t, r)
		if took := time.Since(began); took > 2*time.Second+10*time.Second { // with time for a busy machine
			s.t.Errorf("the stop took %s", took)
		}
		if left := none(s.t, s.conn, "are not as they were", "SELECT count(*) FROM outbox_events WHERE status <> 'PENDING' OR retry_count > 0"); left != "" {
			s.t.Error(left)
		}
		s.to.Script(nil)
		r = s.run()
		s.expectNumbered(rows)
		s.expectUncounted(r)
		expectStop(s.t, r)
	})
}
