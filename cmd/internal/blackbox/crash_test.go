package blackbox

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// crashesVariable is how often a process is killed.
const crashesVariable = "SLUICEBOX_TEST_CRASHES"

// crashes is how often a process is killed.
func crashes(t testing.TB, usual int) int {
	t.Helper()
	text := os.Getenv(crashesVariable)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q, must be at least 1", crashesVariable, text)
	}
	return n
}

// betweenCrashes is the time that a relay lives on average before it is killed.
const betweenCrashes = 1500 * time.Millisecond

// The relay is killed at random moments under eight writers, whose transactions
// commit in another order than their created_at: everything arrives, the first
// arrivals of each group in the order of their commits, and no row again that was
// not in flight at a kill.
func TestKilledUnderLoad(t *testing.T) {
	t.Parallel()
	eachScene(t, "", func(s *scene) {
		kills := crashes(s.t, 5)
		r := s.run()
		seconds := int(time.Duration(kills+2) * betweenCrashes / time.Second)
		wait := write(s.t, s.database, load{seconds: seconds, clients: 8, rate: 300, scripts: seedScripts(50)})
		inFlight := 0
		for range kills {
			<-time.After(time.Duration(rand.Int64N(int64(2 * betweenCrashes)))) // at random
			r.kill()
			s.disconnected()
			inFlight += s.processing()
			r = s.run()
		}
		wait()
		rows, again := s.expectAll()
		if again > inFlight {
			s.t.Errorf("%d rows arrived again, %d were in flight at the kills", again, inFlight)
		}
		if reordered := s.reordered(); reordered == 0 {
			s.t.Error("created_at has the order of the commits: nothing was proven")
		}
		s.t.Logf("%d rows under %d kills, first arrivals in order; %d in flight, %d arrived again", rows, kills, inFlight, again)
		expectStop(s.t, r)
	})
}

// disconnected waits until the server has noticed that a relay is gone: what it
// had sent is done by then.
func (s *scene) disconnected() {
	s.t.Helper()
	within(s.t, 30*time.Second, func() string {
		return none(s.t, s.conn, "are sessions of the killed relay",
			"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'sluicebox %'")
	})
}

// processing counts the rows that a relay has claimed.
func (s *scene) processing() int {
	s.t.Helper()
	return count(s.t, s.conn, `SELECT (SELECT count(*) FROM outbox_events WHERE status = 'PROCESSING')
		+ (SELECT count(*) FROM outbox_dispatch_jobs WHERE status = 'PROCESSING')`)
}

// reordered counts the events that were created before one of their group that
// committed earlier.
func (s *scene) reordered() int {
	s.t.Helper()
	return count(s.t, s.conn, `SELECT count(*) FROM (SELECT created_at < lag(created_at) OVER
		(PARTITION BY message_group ORDER BY (payload::jsonb->>'n')::int) AS before FROM outbox_events) o WHERE before`)
}
