package blackbox

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

const withoutClaims = "dispatch: {claims: off}\n"

// expectWrites expects that each row was updated once, to COMPLETED.
func (s *scene) expectWrites(rows int) {
	s.t.Helper()
	if wrong := none(s.t, s.conn, "were written as something else than COMPLETED", "SELECT count(*) FROM writes WHERE status <> 'COMPLETED'"); wrong != "" {
		s.t.Error(wrong)
	}
	if n := count(s.t, s.conn, "SELECT count(*) FROM writes"); n != rows {
		s.t.Errorf("%d writes into %d rows", n, rows)
	}
}

// open returns the ids of the rows that are not COMPLETED.
func (s *scene) open() map[string]bool {
	s.t.Helper()
	ids, err := s.conn.texts("SELECT id FROM outbox_events WHERE status <> 'COMPLETED' UNION ALL SELECT id FROM outbox_dispatch_jobs WHERE status <> 'COMPLETED'")
	if err != nil {
		s.t.Fatal(err)
	}
	set := map[string]bool{}
	for _, id := range ids {
		set[id] = true
	}
	return set
}

// With claims: off the relay updates a row once, with its outcome, and the row arrives once.
// This includes rows from before the relay's start and rows of a clean restart.
func TestWithoutClaims(t *testing.T) {
	t.Parallel()
	aScene(t, withoutClaims, func(s *scene) {
		s.exec(s.kind.writes)
		s.load(60)
		r := s.run()
		wait := write(s.t, s.database, load{seconds: 2, clients: 8, rate: 400, scripts: lateScripts(20)})
		<-time.After(time.Second)
		expectStop(s.t, r)
		r = s.run()
		wait()
		s.expectWrites(s.expectOnce())
		expectStop(s.t, r)
	})
}

// With claims: off a row that the log has just brought is sent without a statement before.
func TestWithoutClaimsNothingIsAsked(t *testing.T) {
	t.Parallel()
	aScene(t, withoutClaims, func(s *scene) {
		r, n := s.run(), 0
		asked := func(rows int) int {
			before := r.metric(`sluicebox_claim_rows_total{result="claimed"}`)
			for range rows {
				n++
				s.number(n, n, "'g'")
				arrive(t, s.to, n)
			}
			return int(r.metric(`sluicebox_claim_rows_total{result="claimed"}`) - before)
		}
		within(t, testTimeout, func() string {
			if asked(1) > 0 {
				return "the relay asks the database about each row"
			}
			return ""
		})
		// A busy machine delays some rows by a second, or some outcomes by 100 ms.
		if k := asked(200); k > 100 {
			t.Errorf("the relay asked about %d of 200 rows, want few", k)
		}
		expectStop(t, r)
	})
}

// A kill under load loses no row and keeps the order. Only rows in flight, without a written
// outcome, arrive again.
func TestKilledWithoutClaims(t *testing.T) {
	t.Parallel()
	aScene(t, withoutClaims, func(s *scene) {
		s.exec(s.kind.writes)
		s.to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Delay: 10 * time.Millisecond} })
		r := s.run()
		wait := write(s.t, s.database, load{seconds: 3, clients: 8, rate: 400, scripts: lateScripts(20)})
		<-time.After(1500 * time.Millisecond)
		r.kill()
		s.disconnected()
		open := s.open()
		r = s.run()
		wait()
		rows, again := s.expectAll()
		s.expectWrites(rows)
		seen := map[string]bool{}
		for _, it := range s.to.Accepted() {
			// Rows committed after the kill are in neither set and may arrive once.
			if seen[it.ID] && !open[it.ID] {
				s.t.Errorf("row %s was COMPLETED before the kill, or came after it, and arrived again", it.ID)
			}
			seen[it.ID] = true
		}
		s.t.Logf("%d rows; %d arrived again", rows, again)
		expectStop(s.t, r)
	})
}

// A polling relay with claims: off sends no row twice, although a row that it has read may
// be delivered in the meantime.
func TestPollingWithoutClaims(t *testing.T) {
	t.Parallel()
	aScene(t, withoutClaims, func(s *scene) {
		s.exec(s.kind.writes)
		s.config = strings.Replace(s.config, "mode: stream", "mode: poll, poll-interval: 1ms, poll-batch-size: 100", 1)
		r := s.run()
		write(s.t, s.database, load{seconds: 3, clients: 8, rate: 400, scripts: scriptsOfOwnGroups()})()
		s.expectWrites(s.expectOnce())
		expectStop(s.t, r)
	})
}

// SQLite with claims: off.
func TestWithoutClaimsOnSQLite(t *testing.T) {
	t.Parallel()
	const rows = 1000
	source, db := seedFile(t)
	run(t, db, `CREATE TABLE writes (id, status)`)
	run(t, db, `CREATE TRIGGER note AFTER UPDATE ON outbox_events BEGIN INSERT INTO writes VALUES (NEW.id, NEW.status); END`)
	to := sinktest.NewReceiver(t)
	insertNumbered(t, db, 1, 100)
	r := start(t, preset(source, to.URL(), withoutClaims))
	r.waitFor("source connected")
	for i := 101; i <= rows; i += 10 {
		insertNumbered(t, db, i, i+9)
	}
	arrive(t, to, rows)
	expectStop(t, r)
	if again := checkNumbered(t, to.Accepted()); again > 0 {
		t.Errorf("%d rows arrived more than once, want 0", again)
	}
	var all, completed int
	err := db.QueryRowContext(context.Background(), "SELECT count(*), count(*) FILTER (WHERE status = 'COMPLETED') FROM writes").Scan(&all, &completed)
	if err != nil || all != rows || completed != rows {
		t.Errorf("%d writes into %d rows, %d of them COMPLETED: %v", all, rows, completed, err)
	}
}
