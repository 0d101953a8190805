package blackbox

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// A session locks one outbox table with a backlog of 500 groups. Only that outbox is delayed, and few of its rows are sent
// before the relay notices: their outcomes wait.
// Rows of another outbox of the same sink arrive at once, except in the first seconds, and
// the locked rows soon after the lock ends. By hand:
//
//	SLUICEBOX_TEST_VERSIONS=pg15,mysql,mariadb SLUICEBOX_TEST_OUTAGE=40s go test -v -run 'TestALockedTable' ./cmd/internal/blackbox
func TestALockedTable(t *testing.T) {
	t.Parallel()
	const senders, batch = 4, 5
	eachKind(t, fmt.Sprintf("dispatch: {max-concurrent-groups: %d, api-batch-size: %d}\n", senders, batch), func(s *scene) {
		const backlog = 500
		r := s.run()
		r.freeze()
		s.numberIn("outbox_events", 1, backlog, "i", 0)
		unlock := s.lockTable("outbox_events")
		r.thaw()
		took := s.trickle(lasting(s.t, 6*time.Second), 250*time.Millisecond, func() (ids []string) {
			for _, rec := range s.to.Accepted() {
				ids = append(ids, rec.ID)
			}
			return ids
		})
		expectPrompt(s.t, "a row of the free table", took)
		// Those in flight, those whose outcomes wait, and those being written, twice.
		if n, most := s.to.Counts().Distinct-len(took), 4*senders*batch; n > most {
			s.t.Errorf("%d rows of the locked table were sent, want at most %d", n, most)
		}
		r.waitFor("outbox locked by another session")
		unlock()
		began := time.Now()
		arrive(s.t, s.to, backlog+len(took))
		if took := time.Since(began); took > 10*time.Second {
			s.t.Errorf("the rows of the locked table arrived %s after it was free", took)
		}
		settle(s.t, s.conn)
		if c := s.to.Counts(); c.Duplicates > 0 {
			s.t.Errorf("%+v", c)
		}
		expectStop(s.t, r)
	})
}

// Rows in flight that another session locks delay only their own outcomes. COMPLETED of
// other rows is written soon, and so is FAILED, which its group waits for. By hand:
//
//	SLUICEBOX_TEST_VERSIONS=pg15,mysql,mariadb SLUICEBOX_TEST_OUTAGE=60s go test -v -run 'TestLockedRowsInFlight' ./cmd/internal/blackbox
func TestLockedRowsInFlight(t *testing.T) {
	t.Parallel()
	eachKind(t, "", func(s *scene) {
		const locked = 140
		r := s.run()
		held := make(chan struct{})
		s.to.Script(func(req *sinktest.Request) sinktest.Answer {
			if slices.ContainsFunc(req.Items, func(it sinktest.Received) bool { return it.ID <= numbered(locked) }) {
				return sinktest.Answer{Release: held}
			}
			if req.Items[0].ID == "poisoned" {
				return sinktest.Answer{Status: http.StatusBadRequest}
			}
			return sinktest.Answer{}
		})
		s.numberIn("outbox_events", 1, locked, "i", 0)
		within(s.t, testTimeout, func() string {
			if n := count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE status = 'PROCESSING'"); n != locked {
				return fmt.Sprintf("%d of %d rows are in flight", n, locked)
			}
			return ""
		})
		unlock := s.lock("outbox_events WHERE status = 'PROCESSING'")
		close(held)
		began := time.Now()
		s.insertInto("outbox_dispatch_jobs", "poisoned", "poison")
		s.insertInto("outbox_dispatch_jobs", "behind it", "poison")
		took := s.trickle(lasting(s.t, 8*time.Second), 250*time.Millisecond, func() []string {
			ids, err := s.conn.texts("SELECT id FROM outbox_dispatch_jobs WHERE status = 'COMPLETED'")
			if err != nil {
				s.t.Fatal(err)
			}
			return ids
		})
		expectPrompt(s.t, "COMPLETED of an unlocked row", took)
		behind := slices.IndexFunc(s.to.Accepted(), func(rec sinktest.Received) bool { return rec.ID == "behind it" })
		if behind < 0 {
			s.t.Errorf("the row behind one that FAILED has not left")
		} else if after := s.to.Accepted()[behind].At.Sub(began); after > 8*time.Second {
			s.t.Errorf("the row behind one that FAILED left after %s", after)
		}
		if n := count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE status = 'PROCESSING'"); n != locked {
			s.t.Errorf("%d of %d locked rows are in flight", n, locked)
		}
		r.waitFor("outbox locked by another session")
		unlock()
		within(s.t, testTimeout, func() string {
			return none(s.t, s.conn, "are not COMPLETED though they are free", "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED'")
		})
		if c := s.to.Counts(); c.Duplicates > 0 {
			s.t.Errorf("%+v", c)
		}
		expectStop(s.t, r)
	})
}

// expectPrompt checks the delays of rows beside a lock of 6 s or longer. Rows that waited for the lock would
// take half of that in the median, and the first one all of it. A single row may be slow: MySQL counts lock
// timeouts in whole seconds, and a busy machine adds a second or two.
func expectPrompt(t *testing.T, what string, took []time.Duration) {
	t.Helper()
	const maxMedian, maxSlowest = 1500 * time.Millisecond, 5 * time.Second
	if median, slowest := took[len(took)/2], took[len(took)-1]; median > maxMedian || slowest > maxSlowest {
		t.Errorf("%s took %s in the median and %s at most, want %s and %s", what, median, slowest, maxMedian, maxSlowest)
	}
}

// trickle inserts rows into the second table for a while, one each interval. It returns the
// sorted delays of the rows that arrived.
func (s *scene) trickle(lasts, interval time.Duration, through func() []string) []time.Duration {
	s.t.Helper()
	var took []time.Duration
	committed := map[string]time.Time{}
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	n, began := int(lasts/interval), time.Now()
	for written := 0; written < n || len(committed) > 0; <-tick.C {
		if time.Since(began) >= time.Duration(written)*interval && written < n {
			written++
			id := fmt.Sprint("free ", written)
			s.insertInto("outbox_dispatch_jobs", id, id)
			committed[id] = time.Now()
		}
		for _, id := range through() {
			if at, waits := committed[id]; waits {
				took = append(took, time.Since(at).Round(time.Millisecond))
				delete(committed, id)
			}
		}
		if time.Since(began) > lasts+testTimeout {
			s.t.Fatalf("%d of %d rows are not through %s after the last was written", len(committed), n, testTimeout)
		}
	}
	slices.Sort(took)
	s.t.Logf("%d rows: p50 %s, p99 %s, slowest %s", n, took[n/2], took[n*99/100], took[n-1])
	return took
}

func (s *scene) insertInto(table, id, group string) {
	s.t.Helper()
	_, err := s.conn.exec("INSERT INTO "+table+" (id, type, message_group, payload, status, created_at) VALUES ($1, 'EVENT', $2, $3, 'PENDING', now())",
		id, group, fmt.Sprintf(`{"id": %q}`, id))
	if err != nil {
		s.t.Fatal(err)
	}
}

// lockTable locks a table against writers.
func (s *scene) lockTable(table string) (unlock func()) {
	s.t.Helper()
	ctx := context.Background()
	conn, err := s.conn.Conn(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	take, give := []string{"BEGIN", "LOCK TABLE " + table + " IN SHARE MODE"}, "ROLLBACK"
	if !s.kind.postgres {
		take, give = []string{"LOCK TABLES " + table + " READ"}, "UNLOCK TABLES"
	}
	s.execOn(conn, take...)
	return func() {
		s.execOn(conn, give)
		_ = conn.Close()
	}
}

func (s *scene) execOn(conn *sql.Conn, statements ...string) {
	s.t.Helper()
	for _, text := range statements {
		if _, err := conn.ExecContext(context.Background(), text); err != nil {
			s.t.Fatal(err)
		}
	}
}
