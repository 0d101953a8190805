package blackbox

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// relayGroup is several relays of one name on one database.
type relayGroup struct {
	*scene
	*senders
	started int
}

// senders records which relay sends when, by each relay's token.
type senders struct {
	mu   sync.Mutex
	seen map[string][]time.Time // when requests of each relay were read
}

// noteSenders makes a receiver record the senders, and respond after a delay.
func noteSenders(to *sinktest.Receiver, delay time.Duration) *senders {
	n := &senders{seen: map[string][]time.Time{}}
	to.Script(func(req *sinktest.Request) sinktest.Answer {
		who := strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")
		n.mu.Lock()
		n.seen[who] = append(n.seen[who], time.Now())
		n.mu.Unlock()
		return sinktest.Answer{Delay: delay}
	})
	return n
}

// member is one relay of a relayGroup.
type member struct {
	*relay
	who  string
	wire *servers.Proxy
}

// newRelayGroup creates the relay's tables, with audits of writers and senders.
func newRelayGroup(s *scene, delay time.Duration) *relayGroup {
	s.t.Helper()
	file := s.t.TempDir() + "/init.yaml"
	if err := os.WriteFile(file, []byte(strings.Replace(s.config, adminKey, "''", 1)), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if _, stderr, code := command(s.t, nil, "init", "-c", file); code != 0 {
		s.t.Fatalf("init: %s", stderr)
	}
	s.exec(s.kind.audit)
	return &relayGroup{scene: s, senders: noteSenders(s.to, delay)}
}

// add starts a relay behind a proxy of its own.
func (tr *relayGroup) add() *member {
	tr.t.Helper()
	return tr.join(servers.NewProxy(tr.t, tr.database))
}

// join starts a relay behind a proxy.
func (tr *relayGroup) join(w *servers.Proxy) *member {
	tr.t.Helper()
	tr.started++
	m := &member{wire: w}
	url, who := tr.kind.as(tr.t, tr.database, fmt.Sprint("relay", tr.started))
	m.who = who
	config := strings.Replace(tr.config, tr.database, w.URL(url), 1)
	m.start(tr.t, config)
	return m
}

// start starts the relay with a token of its own, and waits for its admin API.
func (m *member) start(t testing.TB, config string) {
	t.Helper()
	m.relay = start(t, strings.Replace(config, "api-base-url", "api-token: "+m.who+", api-base-url", 1))
	within(t, testTimeout, func() string {
		c, err := net.Dial("tcp", strings.TrimPrefix(m.admin, "http://"))
		if err == nil {
			_ = c.Close()
		}
		return failure(err)
	})
}

// leads reports whether a relay is the leader, by its own status.
func (m *member) leads() bool {
	m.t.Helper()
	status, _ := m.get("/leader")
	return status == 200
}

// ready waits until a relay is ready.
func (m *member) ready() {
	m.t.Helper()
	within(m.t, testTimeout, func() string {
		if status, body := m.get("/readyz?verbose"); status != 200 {
			return m.who + " is not ready: " + body
		}
		return ""
	})
}

// leaderOf waits until one of two relays leads and the other stands by, and returns both.
func leaderOf(a, b *member) (leads, standsBy *member) {
	a.t.Helper()
	within(a.t, testTimeout, func() string {
		switch aLeads, bLeads := a.leads(), b.leads(); {
		case aLeads == bLeads:
			return fmt.Sprintf("%s leads: %v, %s leads: %v", a.who, aLeads, b.who, bLeads)
		case aLeads:
			leads, standsBy = a, b
		default:
			leads, standsBy = b, a
		}
		return ""
	})
	return leads, standsBy
}

// delivers waits for a relay's first request after a time and returns the delay.
func (n *senders) delivers(m *member, since time.Time) (after time.Duration) {
	m.t.Helper()
	within(m.t, testTimeout, func() string {
		n.mu.Lock()
		defer n.mu.Unlock()
		times := n.seen[m.who]
		i, _ := slices.BinarySearchFunc(times, since, time.Time.Compare)
		if i == len(times) {
			return m.who + " delivers nothing"
		}
		after = times[i].Sub(since)
		return ""
	})
	return after
}

// last returns the time of a relay's last request.
func (n *senders) last(m *member) time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.seen[m.who][len(n.seen[m.who])-1]
}

// check expects one writer in each epoch. It returns the number of rows that a leader took
// over from an earlier one.
func (tr *relayGroup) check() (takenOver int) {
	tr.t.Helper()
	if wrong := none(tr.t, tr.conn, "of the audit: two relays wrote in one epoch",
		"SELECT count(*) FROM (SELECT 1 FROM audit GROUP BY epoch HAVING count(DISTINCT who) > 1) twice"); wrong != "" {
		tr.t.Error(wrong)
	}
	if n := count(tr.t, tr.conn, "SELECT count(DISTINCT what) FROM audit"); n != 3 {
		tr.t.Errorf("the audit knows writes to %d tables, want 3", n)
	}
	return count(tr.t, tr.conn, `SELECT count(*) FROM (
		SELECT epoch, lag(epoch) OVER own AS earlier, lag(status) OVER own AS was FROM audit WHERE id IS NOT NULL
		WINDOW own AS (PARTITION BY what, id ORDER BY n)) w WHERE epoch <> earlier AND was = 'PROCESSING'`)
}

// frozen is the duration of a freeze, longer than any timeout.
const frozen = 10 * time.Second

// takeover is a fault of a leader, with the expected result.
type takeover struct {
	name string
	// within is the goal for the first delivery of the other relay, without other tests on
	// the machine.
	within time.Duration
	load   int // seconds
	// strike causes the fault. After the other relay delivers, back undoes the fault and returns
	// the new standby.
	strike func(m *member)
	back   func(tr *relayGroup, m *member) *member
}

func takeovers() []takeover {
	return []takeover{
		{name: "killed", within: time.Second, load: 4, strike: func(m *member) { m.kill() },
			back: func(tr *relayGroup, m *member) *member { return tr.join(m.wire) }},
		{name: "stopped", within: time.Second, load: 4, strike: func(m *member) { expectStop(m.t.(*testing.T), m.relay) },
			back: func(tr *relayGroup, m *member) *member { return tr.join(m.wire) }},
		{name: "frozen", within: 5 * time.Second, load: 9, strike: (*member).freeze, back: func(tr *relayGroup, m *member) *member {
			<-time.After(frozen - 5*time.Second) // the elapsed time matters
			woken := count(tr.t, tr.conn, "SELECT coalesce(max(n), 0) FROM audit")
			m.thaw()
			m.waitFor("leadership lost")
			m.waitFor(" successor=")
			m.ready()
			if wrong := none(tr.t, tr.conn, "of the audit are by a relay that was woken", fmt.Sprintf(
				"SELECT count(*) FROM audit WHERE n > %d AND who = '%s'", woken, m.who)); wrong != "" {
				tr.t.Error(wrong)
			}
			return m
		}},
		{name: "cut off", within: 5 * time.Second, load: 9, strike: func(m *member) { m.wire.Disconnect() }, back: func(_ *relayGroup, m *member) *member {
			m.waitFor("leadership lost")
			m.wire.Reconnect()
			m.ready()
			return m
		}},
	}
}

// The leader of two relays fails in several ways under load, and the other takes over. No row
// is lost, first arrivals are in order, and one relay writes in each epoch. An audit of all writes
// shows that no row was written again after its outcome: rows that arrive again were not COMPLETED
// when another relay took over.
func TestTwoRelays(t *testing.T) {
	t.Parallel()
	eachKind(t, "", func(s *scene) {
		twoRelays(s, func(tr *relayGroup, takeovers, again int) {
			if most := maxAgain * takeovers; again > most {
				s.t.Errorf("%d rows arrived again in %d takeovers, want at most %d", again, takeovers, most)
			}
			if wrong := none(s.t, s.conn, "rows were written after they were COMPLETED", `SELECT count(*) FROM (
				SELECT lag(status) OVER (PARTITION BY what, id ORDER BY n) AS was FROM audit WHERE id IS NOT NULL) w WHERE was = 'COMPLETED'`); wrong != "" {
				s.t.Error(wrong)
			}
			once := count(s.t, s.conn, "SELECT count(*) FROM (SELECT 1 FROM audit WHERE id IS NOT NULL GROUP BY what, id HAVING count(*) = 1) w")
			if once == 0 {
				s.t.Error("no row was written once: the test is inconclusive")
			}
			tr.check()
			s.t.Logf("%d rows were written once", once)
		})
	})
}

// maxAgain is how many rows may arrive again at a takeover: ten senders, with few rows in each
// request.
const maxAgain = 40

// The same if every row is claimed before it is sent. Only rows in PROCESSING arrive again.
func TestTwoRelaysWithClaims(t *testing.T) {
	t.Parallel()
	aScene(t, withClaims, func(s *scene) {
		twoRelays(s, func(tr *relayGroup, _, again int) {
			takenOver := tr.check()
			if again > takenOver {
				s.t.Errorf("%d rows arrived again, %d were in flight when another relay took over", again, takenOver)
			}
			s.t.Logf("%d rows were in flight at a takeover", takenOver)
		})
	})
}

// twoRelays lets the leader of two relays fail several times under load. check gets the numbers of
// takeovers and of repeated arrivals.
func twoRelays(s *scene, check func(tr *relayGroup, takeovers, again int)) {
	s.t.Helper()
	tr := newRelayGroup(s, 10*time.Millisecond)
	took := map[string][]time.Duration{}
	standby := tr.add()
	leader := tr.add()
	all := takeovers()
	faults := crashes(s.t, len(all))
	for i := range faults {
		leader, standby = leaderOf(leader, standby)
		standby.ready()
		what := all[i%len(all)]
		wait := write(s.t, s.database, load{seconds: what.load, clients: 8, rate: tempo(300), scripts: lateScripts(50)})
		tr.delivers(leader, time.Now())
		<-time.After(time.Duration(rand.Int64N(int64(time.Second)))) // at random
		struck := time.Now()
		what.strike(leader)
		if what.name == "stopped" {
			struck = tr.last(leader)
		}
		s.load(1) // so that there are rows to deliver even if the load ends before the takeover
		took[what.name] = append(took[what.name], tr.delivers(standby, struck))
		old := leader
		leader, standby = standby, what.back(tr, old)
		wait()
	}
	rows, again := s.expectAll()
	check(tr, faults, again)
	s.t.Logf("%d rows, %d arrived again", rows, again)
	for _, what := range all {
		tell(s.t, what, took[what.name])
	}
	for _, m := range []*member{leader, standby} {
		expectStop(s.t, m.relay)
	}
}

// tell logs the durations of the takeovers and compares them with the goal.
func tell(t *testing.T, what takeover, took []time.Duration) {
	t.Helper()
	if len(took) == 0 {
		return
	}
	slices.Sort(took)
	at := func(q float64) time.Duration { return took[int(q*float64(len(took)-1)+0.5)].Round(time.Millisecond) }
	t.Logf("%-8s %d times: delivered again after p50 %s, p95 %s, at most %s", what.name, len(took), at(.5), at(.95), at(1))
	if at(.95) > what.within+slack() {
		t.Errorf("%s: p95 %s is more than %s", what.name, at(.95), what.within)
	}
}
