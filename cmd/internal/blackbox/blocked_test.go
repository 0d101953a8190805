package blackbox

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// With on-failed: block, a poisoned row blocks its group, even across a kill, and the other
// groups are delivered. Once an operator skips or requeues the row, the group continues in
// order. By hand:
//
//	go test -v -run 'TestABlockedGroup' ./cmd/internal/blackbox
func TestABlockedGroup(t *testing.T) {
	t.Parallel()
	const bad = 50 // of group 0
	for name, way := range map[string]struct {
		letGo   func(*relay)
		becomes string
	}{
		"skipped by the API": {func(r *relay) {
			r.post("lanes/skip", map[string]string{"outbox": "outbox_events", "kind": "EVENT", "group": "0", "reason": "we know why"})
		}, "FAILED"},
		"skipped by the command": {func(r *relay) {
			r.operate("lanes", "skip", "--group", "0", "--reason", "we know why")
		}, "FAILED"},
		"requeued by the API": {func(r *relay) {
			r.post("deadletters/requeue", map[string]any{"outbox": "outbox_events", "ids": []string{numbered(bad)}})
		}, "COMPLETED"},
		"requeued by the command": {func(r *relay) {
			r.operate("deadletters", "requeue", "--outbox", "outbox_events", "--yes", numbered(bad))
		}, "COMPLETED"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			aScene(t, "dispatch: {on-failed: block, max-retries: 1, backoff: {initial: 50ms}}\n", func(s *scene) {
				poison(s.to, sinktest.Answer{Status: http.StatusBadRequest, Body: []byte("no such thing")}, numbered(bad))
				r := s.run()
				s.number(1, 200, "i % 10")
				s.expectBlocked(r, bad, 200)
				r.kill()
				r = s.run()
				s.number(201, 400, "i % 10")
				s.expectBlocked(r, bad, 400)

				s.to.Script(nil)
				way.letGo(r)
				if way.becomes == "FAILED" {
					s.expectNumbered(400, numbered(bad))
				} else {
					s.expectNumbered(400)
				}
				if f := s.rowState(numbered(bad)); f.status != way.becomes {
					s.t.Errorf("the row is %+v", f)
				}
				within(s.t, testTimeout, func() string {
					if l := r.lane("0"); l.State == "blocked" {
						return fmt.Sprintf("the lane is %+v", l)
					}
					return ""
				})
				expectStop(s.t, r)
			})
		})
	}
}

// In a blocked group only the rows behind the FAILED one are undelivered. The group does not
// make the server retain its log, even after a kill that came before the checkpoint was
// saved. By hand:
//
//	go test -v -run 'TestABlockedGroupKeepsNoLog' ./cmd/internal/blackbox
func TestABlockedGroupKeepsNoLog(t *testing.T) {
	t.Parallel()
	aPostgres(t, "dispatch: {on-failed: block, max-retries: 0}\n", func(s *scene) {
		const bad = 100 // the last row of group 0
		poison(s.to, sinktest.Answer{Status: http.StatusBadRequest, Body: []byte("no such thing")}, numbered(bad))
		r := s.run()
		s.number(1, 10, "i % 10")
		within(s.t, testTimeout, func() string {
			if n := count(s.t, s.conn, "SELECT count(*) FROM "+s.kind.checkpoint); n == 0 {
				return "there is no checkpoint"
			}
			return ""
		})
		unlock := s.lock(s.kind.checkpoints)
		s.number(11, 100, "i % 10")
		s.expectCompleted(99)
		within(s.t, testTimeout, func() string {
			if l := r.lane("0"); l.State != "blocked" {
				return fmt.Sprintf("the lane is %+v", l)
			}
			return ""
		})
		r.kill()
		s.endSessions() // else a write of the killed relay may still succeed
		unlock()
		r = s.run()
		s.number(101, 200, "100 + i % 10")
		arrive(s.t, s.to, 199)
		if l := r.lane("0"); l.State != "blocked" {
			s.t.Errorf("the lane is %+v", l)
		}
		s.expectLogReleased()
		expectStop(s.t, r)
	})
}

// expectCompleted waits until that many rows have arrived and are COMPLETED.
func (s *scene) expectCompleted(n int) {
	s.t.Helper()
	arrive(s.t, s.to, n)
	within(s.t, testTimeout, func() string {
		if done := s.completed(); done != n {
			return fmt.Sprintf("%d rows are COMPLETED, want %d", done, n)
		}
		return ""
	})
}

// lock locks the rows of a table until the caller calls the returned function.
func (s *scene) lock(table string) (unlock func()) {
	s.t.Helper()
	ctx := context.Background()
	tx, err := s.conn.BeginTx(ctx, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	statement, _ := s.conn.text("SELECT 1 FROM "+table+" FOR UPDATE", nil)
	if _, err := tx.ExecContext(ctx, statement); err != nil {
		s.t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(); err != nil {
			s.t.Fatal(err)
		}
	}
}

// endSessions ends the sessions of a killed relay on the server.
func (s *scene) endSessions() {
	s.t.Helper()
	within(s.t, testTimeout, func() string {
		s.kind.end(s.t, s)
		return none(s.t, s.conn, "are sessions of the killed relay", s.kind.sessions(s.database))
	})
}

// expectLogReleased waits until the server may discard its log up to the current position.
func (s *scene) expectLogReleased() {
	s.t.Helper()
	var here string
	if err := s.conn.row("SELECT pg_current_wal_insert_lsn()::text").Scan(&here); err != nil {
		s.t.Fatal(err)
	}
	// The relay moves past the position only when it reads something later in the log.
	within(s.t, testTimeout, func() string {
		if n := count(s.t, s.conn, "SELECT count(*) FROM (SELECT pg_logical_emit_message(true, 'test', '')) m, pg_replication_slots WHERE database = current_database() AND confirmed_flush_lsn >= $1::text::pg_lsn", here); n == 0 {
			return "the slot stays in front of " + here
		}
		return ""
	})
}

// expectBlocked waits until rows 1..n have arrived, except those of group 0 from the FAILED
// row on, and expects the lane to be blocked.
func (s *scene) expectBlocked(r *relay, bad, n int) {
	s.t.Helper()
	held := 0
	for i := bad; i <= n; i += 10 {
		held++
	}
	s.expectCompleted(n - held)
	within(s.t, testTimeout, func() string {
		l := r.lane("0")
		if l.State != "blocked" || l.Head != numbered(bad) || !strings.Contains(l.Error, "no such thing") || l.Rows < held-1 {
			return fmt.Sprintf("the lane is %+v, want %d rows behind the blocked one", l, held-1)
		}
		return ""
	})
	if f := s.rowState(numbered(bad)); f.status != "FAILED" || f.retries != 1 {
		s.t.Errorf("the row is %+v", f)
	}
	if c := s.to.Counts(); c.Distinct != n-held {
		s.t.Errorf("%d rows were accepted, want %d", c.Distinct, n-held)
	}
	if n := r.metric(`sluicebox_lanes{sink="flowcatalyst",state="blocked"}`); n != 1 {
		s.t.Errorf("%.0f lanes are blocked by the metrics, want 1", n)
	}
}

// A group is paused while others are delivered, even across a kill. It continues in order
// when it is resumed. By hand:
//
//	go test -v -run 'TestAPausedGroup' ./cmd/internal/blackbox
func TestAPausedGroup(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		r := s.run()
		s.number(1, 100, "i % 10")
		s.expectNumbered(100)
		r.operate("lanes", "pause", "--outbox", "outbox_events", "--kind", "EVENT", "--group", "0", "--reason", "a look at it")
		s.number(101, 200, "i % 10")
		s.expectCompleted(190)
		r.kill()
		r = s.run()
		s.number(201, 300, "i % 10")
		arrive(s.t, s.to, 280)
		within(s.t, testTimeout, func() string {
			if l := r.lane("0"); l.State != "paused" || l.Rows < 20 {
				return fmt.Sprintf("the lane is %+v", l)
			}
			return ""
		})
		if c := s.to.Counts(); c.Distinct != 280 {
			s.t.Errorf("%d rows were accepted, want 280", c.Distinct)
		}
		r.post("lanes/resume", map[string]string{"outbox": "outbox_events", "kind": "EVENT", "group": "0"})
		s.expectNumbered(300)
		expectStop(s.t, r)
	})
}
