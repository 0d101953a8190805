package blackbox

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// spilled returns the number of spilled rows.
func (s *scene) spilled() int {
	s.t.Helper()
	return count(s.t, s.conn, "SELECT count(*) FROM "+s.kind.spilled)
}

// expectSpilled waits until at least that many rows are spilled.
func (s *scene) expectSpilled(least int) {
	s.t.Helper()
	within(s.t, 30*time.Second+time.Duration(least)*time.Millisecond, func() string {
		if n := s.spilled(); n < least {
			return fmt.Sprintf("%d rows are spilled, want at least %d", n, least)
		}
		return ""
	})
}

// expectNoneSpilled waits until the relay has deleted all spilled rows.
func (s *scene) expectNoneSpilled(r *relay) {
	s.t.Helper()
	within(s.t, testTimeout, func() string {
		if n := s.spilled(); n > 0 {
			return fmt.Sprintf("%d rows are still spilled", n)
		}
		if n := r.metric(`sluicebox_spilled_rows{sink="flowcatalyst"}`); n != 0 {
			return fmt.Sprintf("%.0f rows are spilled by the metrics", n)
		}
		return ""
	})
}

// After an outage the database holds more log than max-hold. The receiver is fast, so hardly a row is spilled: none, unless
// the machine stands still. By hand:
//
//	go test -v -run 'TestTheBacklogOfAnOutage' ./cmd/internal/blackbox
func TestTheBacklogOfAnOutage(t *testing.T) {
	t.Parallel()
	const rows = 200_000
	eachKind(t, "checkpoint: {max-hold: 16MiB}\n", func(s *scene) {
		s.exec(s.kind.business)
		expectStop(s.t, s.run())
		s.number(1, rows, "i % 100")
		r := s.run()
		s.expectNumbered(rows)
		if n := r.metric(`sluicebox_rows_spilled_total{sink="flowcatalyst"}`); n > rows/10 {
			s.t.Errorf("%.0f rows were spilled", n)
		}
		expectStop(s.t, r)
	})
}

// business writes log that is unrelated to the outbox.
func (s *scene) business(bytes int) {
	s.t.Helper()
	if _, err := s.conn.exec(fmt.Sprintf("INSERT INTO business SELECT repeat('x', 1000) FROM "+s.kind.numbers, 1, bytes/1000)); err != nil {
		s.t.Fatal(err)
	}
}

// logWatch records the peak of the log that the server retained for the relay.
type logWatch struct {
	s    *scene
	most int
}

// look samples the retained log.
func (w *logWatch) look() {
	w.s.t.Helper()
	w.most = max(w.most, w.kept())
}

// kept returns the bytes of WAL behind the acknowledged position. It applies to PostgreSQL
// only, because the other servers retain their log by time.
func (w *logWatch) kept() int {
	w.s.t.Helper()
	if !w.s.kind.postgres {
		return 0
	}
	return count(w.s.t, w.s.conn, "SELECT coalesce(max(pg_current_wal_lsn() - confirmed_flush_lsn), 0)::bigint FROM pg_replication_slots WHERE slot_name = $1", nameFor(w.s.database))
}

// expectWithin expects that the peak never exceeded max-hold plus a margin. The margin is the
// log written until the relay has checked twice and spilled the oldest rows.
func (w *logWatch) expectWithin(maxHold, slack int) {
	w.s.t.Helper()
	w.s.t.Logf("the most log that was kept: %d KiB, max-hold is %d KiB", w.most>>10, maxHold>>10)
	if w.most > maxHold+slack {
		w.s.t.Errorf("%d KiB of log were kept, want at most %d", w.most>>10, (maxHold+slack)>>10)
	}
}

// blockedGroup is a relay with a blocked group.
type blockedGroup struct {
	*scene
	server   ownServer
	r        *relay
	inFlight int // rows that were claimed at the kill
	crashed  bool
}

// A group is blocked with more rows behind it than the buffer holds. These are spilled, so they
// hold neither memory nor log, and the other groups keep their speed. Once the group is
// released its rows arrive once, in commit order. This also holds if the relay is killed, or
// the server crashes, while rows are spilled or reloaded.
func TestABlockedGroupIsSpilled(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(b *blockedGroup){
		"undisturbed": func(*blockedGroup) {},
		"the relay is killed": func(b *blockedGroup) {
			b.r.kill()
			b.disconnected()
			b.inFlight += b.processing()
			b.r = b.run()
		},
		"the server crashes": func(b *blockedGroup) {
			b.crashed = true
			b.server.Stop("immediate")
			b.server.Restart(nil)
			within(b.t, 30*time.Second, func() string {
				if status, body := b.r.get("/leader?verbose"); status != http.StatusOK {
					return "the relay does not lead again: " + body
				}
				return ""
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const rest = "dispatch: {on-failed: block, max-retries: 0}\ncheckpoint: {max-hold: 16MiB}\n"
			settings := map[string]string{"fsync": "on", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}
			anOwnScene(t, servers.Spread(t, hosts()), settings, rest, func(s *scene, server ownServer) {
				s.exec(s.kind.business)
				(&blockedGroup{scene: s, server: server}).test(fault)
			})
		})
	}
}

func (b *blockedGroup) test(fault func(*blockedGroup)) {
	rows := many(b.t, 15_000)
	log := &logWatch{s: b.scene}
	b.r = b.run()
	live := &pace{to: b.to, table: "outbox_events", first: 1_000_000_000, groups: 1}
	before50, before99 := b.paced(live, log)
	poison(b.to, sinktest.Answer{Status: http.StatusBadRequest, Body: []byte("no such thing")}, numbered(1))
	b.number(1, 1, "'blocked'")
	b.expectLane("blocked")
	const each, small = 5000, 100
	most := rows * 4 / 5
	for from := 2; from <= most; from += each {
		b.number(from, min(from+each-1, most), "'blocked'")
	}
	b.expectSpilled(1)
	for from := most + 1; from <= rows; from += small {
		b.number(from, min(from+small-1, rows), "'blocked'")
		if (from-most)/small == (rows-most)/small/2 {
			fault(b)
		}
	}
	b.expectLane("blocked")
	b.expectSpilled(rows - 1)
	b.expectEvicted(rows)
	within(b.t, 30*time.Second, func() string { // all later writes: no row in the log is undelivered
		if kept := log.kept(); kept > 1<<20 {
			return fmt.Sprintf("%d KiB of log are retained with all waiting rows spilled", kept>>10)
		}
		return ""
	})
	log.most = 0
	with50, with99 := b.paced(live, log)
	b.t.Logf("p50 %s, with %d rows behind a blocked group %s: %.2f times; p99 %s and %s: %.2f times",
		before50, rows, with50, float64(with50)/float64(before50), before99, with99, float64(with99)/float64(before99))

	log.expectWithin(16<<20, 0)
	b.r.operate("lanes", "skip", "--group", "blocked", "--reason", "a test")
	began := time.Now()
	arrive(b.t, b.to, live.written+rows/3)
	fault(b)
	arrive(b.t, b.to, live.written+rows-1)
	b.t.Logf("the blocked rows were delivered in %s", time.Since(began).Round(time.Millisecond))
	within(b.t, time.Minute, func() string {
		return none(b.t, b.conn, "are not COMPLETED", "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED' AND id <> '"+numbered(1)+"'")
	})
	if again := checkNumbered(b.t, b.to.Accepted()); !b.crashed && again > b.inFlight {
		b.t.Errorf("%d rows arrived again, %d were in flight", again, b.inFlight)
	}
	if n := b.to.Counts().Distinct; n != live.written+rows-1 {
		b.t.Errorf("%d rows were accepted, want %d", n, live.written+rows-1)
	}
	b.expectNoneSpilled(b.r)
	b.r.expectSmall()
	expectStop(b.t, b.r)
}

// paced writes rows of the other group beside business data, and returns the medians of the
// rounds' medians and 99th percentiles.
func (b *blockedGroup) paced(live *pace, log *logWatch) (p50, p99 time.Duration) {
	b.t.Helper()
	phase, phases := 2*time.Second, 1
	if os.Getenv(rowsVariable) != "" {
		phase, phases = 10*time.Second, 5
	}
	live.conn = connect(b.t, b.database)
	var all50, all99 []time.Duration
	for range phases {
		b.business(4 << 20)
		p50, p99 := live.run(b.t, phase)
		all50, all99 = append(all50, p50), append(all99, p99)
		log.look()
	}
	slices.Sort(all50)
	slices.Sort(all99)
	return all50[phases/2], all99[phases/2]
}

// expectLane waits until the blocked lane is in a state.
func (b *blockedGroup) expectLane(state string) {
	b.t.Helper()
	within(b.t, time.Minute, func() string {
		if l := b.r.lane("blocked"); l.State != state {
			return fmt.Sprintf("the lane is %+v", l)
		}
		return ""
	})
}

// expectEvicted waits until few of the rows are in memory.
func (b *blockedGroup) expectEvicted(rows int) {
	b.t.Helper()
	within(b.t, time.Minute, func() string {
		memory, spilled := b.r.metric(`sluicebox_pending_rows{sink="flowcatalyst"}`), b.r.metric(`sluicebox_spilled_rows{sink="flowcatalyst"}`)
		if memory > 100 || spilled < float64(rows-1) {
			return fmt.Sprintf("%.0f rows are in memory and %.0f spilled of %d", memory, spilled, rows)
		}
		return ""
	})
}
