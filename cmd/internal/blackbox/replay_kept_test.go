package blackbox

import (
	"fmt"
	"strings"
	"testing"
)

// The log retained for a checkpoint exceeds its limit and is released, with an alarm. A replay
// from that checkpoint then reads the table, and reports that. On another server with a copy
// of the data, a replay from a checkpoint reads the table or is refused.
func TestARetainedLogOverItsLimitIsReleased(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		s := newScene(t, postgresHost(version), "checkpoint: {max-kept: 1MiB}\n")
		s.exec(s.kind.business)
		r := s.run()
		// Beside tests with many writes it may be released at once.
		if out, why, code := r.sluicebox("checkpoint", "create", "early", "--keep-log"); code != 0 && !strings.Contains(why, "was created, but its log is no longer retained") {
			s.t.Fatalf("checkpoint create: exit code %d, want 0: %s%s", code, out, why)
		}
		s.number(1, 50, "i % 5")
		s.expectNumbered(50)
		s.business(4 << 20)
		// A request makes the relay check the retained log at once, else it checks each 10 s.
		r.checkpoint("plain")
		r.waitFor("named checkpoint lost its retained log")
		s.expectReleased(r, "early")
		jobs := r.replays([]string{"--from=early"}, []string{"--from=early", "--dry-run"}, []string{"--from=early", "--source=log"}, []string{"--from=plain", "--source=log"})
		expectTable(s.t, jobs[0], jobs[1], 50, "log lost: it was retained for checkpoint early: ")
		expectRefused(s.t, jobs[2], "cannot read the log as requested, because log lost: ", "checkpoint.max-kept")
		expectRefused(s.t, jobs[3], "cannot read the log as requested, because no log is retained from that time (PostgreSQL: `checkpoint create --keep-log`)")
		checkReplay(s.t, s.to.Accepted(), jobs[0].ID, numbers(1, 50))
		s.elsewhere(otherPostgres(version), "plain")
		if out, why, code := r.sluicebox("checkpoint", "delete", "early"); code != 0 {
			s.t.Errorf("checkpoint delete: exit code %d, want 0: %s%s", code, out, why)
		}
		expectStop(s.t, r)
	})
}

// expectReleased waits until no log is retained for a checkpoint.
func (s *scene) expectReleased(r *relay, checkpoint string) {
	s.t.Helper()
	slots := func() int {
		return count(s.t, s.conn, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", nameFor(s.database)+"_cp_"+checkpoint)
	}
	within(s.t, testTimeout, func() string {
		stdout, stderr, code := r.sluicebox("checkpoint", "list")
		if code != 0 || !strings.Contains(stdout, "lost") || !strings.Contains(stdout, "checkpoint.max-kept") || slots() > 0 {
			return fmt.Sprintf("exit code %d, %d slots: %s%s", code, slots(), stdout, stderr)
		}
		return ""
	})
	if n := r.metric("sluicebox_checkpoint_log_drops_total"); n != 1 {
		s.t.Errorf("%.0f retained logs were released, want 1", n)
	}
	within(s.t, testTimeout, func() string {
		if _, body := r.get("/metrics"); strings.Contains(body, fmt.Sprintf("sluicebox_checkpoint_retained_bytes{checkpoint=%q}", checkpoint)) {
			return "the metrics have log that is kept no more"
		}
		return ""
	})
}
