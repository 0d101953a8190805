package blackbox

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/raced"
)

// crashesVariable sets the number of kills.
const crashesVariable = "SLUICEBOX_TEST_CRASHES"

// crashes returns the number of kills.
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

// slack is the time added to a goal. It is 0 if the number of kills is set, because then
// no other test runs. Among others a goal only detects hangs.
func slack() time.Duration {
	if os.Getenv(crashesVariable) != "" && !raced.Enabled {
		return 0
	}
	return 20 * time.Second
}

// tempo returns the number of transactions per second around a kill. It is halved
// unless the number of kills is set, because other tests then run beside.
func tempo(most int) int {
	if os.Getenv(crashesVariable) != "" {
		return most
	}
	return most / 2
}

// round is the time that the writers write around one kill of the relay.
const round = 3 * time.Second

// lateScripts are the FlowCatalyst transactions with a delay between BEGIN and the first
// lock. created_at is the time of BEGIN, so in a group it differs from the commit order.
func lateScripts(groups int) []script {
	scripts := seedScripts(groups)
	for i := range scripts {
		scripts[i].late = true
	}
	return scripts
}

// The relay is killed at random moments, including its start, under eight writers. Their
// commit order differs from the created_at order. All rows arrive, first arrivals in the
// commit order of each group. Only rows that were in flight at a kill arrive again: sent, and
// not COMPLETED.
func TestKilledUnderLoad(t *testing.T) {
	t.Parallel()
	eachKind(t, "", func(s *scene) {
		r := killedUnderLoad(s, unsettledArrivals(s.t, s.to, s.open))
		s.expectUnclaimed(r)
		expectStop(t, r)
	})
}

// The same if every row is claimed before it is sent. Rows in flight are PROCESSING.
func TestKilledUnderLoadWithClaims(t *testing.T) {
	t.Parallel()
	eachKind(t, withClaims, func(s *scene) { expectStop(t, killedUnderLoad(s, s.processing)) })
}

// killedUnderLoad kills relays under load and returns the last one. inFlight counts the rows in
// flight after a kill.
func killedUnderLoad(s *scene, inFlight func() int) (r *relay) {
	s.t.Helper()
	s.to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Delay: 10 * time.Millisecond} })
	kills, inFlightAtKills := crashes(s.t, 3), 0
	r = s.run()
	for range kills {
		wait := write(s.t, s.database, load{seconds: int(round / time.Second), clients: 8, rate: tempo(300), scripts: lateScripts(50)})
		<-time.After(time.Duration(rand.Int64N(int64(round * 2 / 3)))) // at random
		r.kill()
		s.disconnected()
		inFlightAtKills += inFlight()
		r = start(s.t, s.config)
		wait()
	}
	rows, again := s.expectAll()
	if again > inFlightAtKills {
		s.t.Errorf("%d rows arrived again, %d were in flight at the kills", again, inFlightAtKills)
	}
	reordered := s.reordered()
	if reordered == 0 {
		s.t.Error("no row is out of created_at order: the test is inconclusive")
	}
	s.t.Logf("%d rows under %d kills, first arrivals in order; %d were created before one that committed earlier; %d in flight at the kills, %d arrived again",
		rows, kills, reordered, inFlightAtKills, again)
	return r
}

// expectUnclaimed writes rows, few at a time, until the relay has settled some without a claim.
func (s *scene) expectUnclaimed(r *relay) {
	s.t.Helper()
	unclaimed := func() float64 {
		return r.metric(`sluicebox_rows_settled_total{sink="flowcatalyst",status="COMPLETED"}`) - r.metric(`sluicebox_claim_rows_total{result="claimed"}`)
	}
	before := unclaimed()
	within(s.t, testTimeout, func() string {
		write(s.t, s.database, load{seconds: 1, clients: 1, rate: 5, scripts: lateScripts(50)})()
		s.expectAll()
		if unclaimed() <= before {
			return "no row was sent before it was claimed"
		}
		return ""
	})
}

// unsettledArrivals returns a function that counts rows that have arrived since its last call, from a relay that
// was killed then, and that are open: the next relay sends each of them once more. The receiver may still
// have to read some of them.
func unsettledArrivals(t testing.TB, to *sinktest.Receiver, open func() map[string]bool) func() int {
	counted := 0 // arrivals
	return func() int {
		t.Helper()
		within(t, testTimeout, func() string {
			if n := to.Clients(); n > 0 {
				return fmt.Sprintf("%d connections of the killed relay are open", n)
			}
			return ""
		})
		all, now, unsettled := to.Log(), open(), map[string]bool{}
		for _, it := range all[counted:] {
			if now[it.ID] {
				unsettled[it.ID] = true
			}
		}
		counted = len(all)
		return len(unsettled)
	}
}

// disconnected waits until the server has noticed that a killed relay is gone. Its last
// statements are done by then.
func (s *scene) disconnected() {
	s.t.Helper()
	within(s.t, testTimeout, func() string {
		return none(s.t, s.conn, "are sessions of the killed relay", s.kind.sessions(s.database))
	})
}

// processing counts the rows in PROCESSING.
func (s *scene) processing() int {
	s.t.Helper()
	return count(s.t, s.conn, `SELECT (SELECT count(*) FROM outbox_events WHERE status = 'PROCESSING')
		+ (SELECT count(*) FROM outbox_dispatch_jobs WHERE status = 'PROCESSING')`)
}

// reordered counts the events that have an earlier created_at than an event of their group
// that committed before them.
func (s *scene) reordered() int {
	s.t.Helper()
	return count(s.t, s.conn, `SELECT count(*) FROM (SELECT created_at < lag(created_at) OVER
		(PARTITION BY message_group ORDER BY `+s.kind.n+`) AS late FROM outbox_events) o WHERE late`)
}
