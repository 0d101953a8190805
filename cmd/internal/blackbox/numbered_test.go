package blackbox

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// numbered returns the id of the n-th row. The ids are in commit order.
func numbered(n int) string { return fmt.Sprintf("%013d", n) }

// number writes the rows from..to in one transaction. group is the message group
// as an SQL expression of the number i.
func (s *scene) number(from, to int, group string) {
	s.t.Helper()
	s.numberIn("outbox_events", from, to, group, 0)
}

// numberIn is number for any table, with that many bytes added to each payload.
func (s *scene) numberIn(table string, from, to int, group string, wide int) {
	s.t.Helper()
	if _, err := s.conn.exec(s.numbered(table, from, to, group, wide)); err != nil {
		s.t.Fatal(err)
	}
}

// numbered is the statement of numberIn.
func (s *scene) numbered(table string, from, to int, group string, wide int) string {
	these := fmt.Sprintf("SELECT lpad("+s.kind.asText+", 13, '0') id, "+s.kind.asText+" g FROM ", "i", group) + fmt.Sprintf(s.kind.numbers, from, to)
	return fmt.Sprintf(`INSERT INTO %s (id, type, message_group, payload, status, created_at)
		SELECT id, 'EVENT', g, '{"id": "' || id || '", "group": "' || coalesce(g, id) || '", "wide": "' || repeat('x', %d) || '"}', 'PENDING', now()
		FROM (%s) AS these ORDER BY id`, table, wide, these)
}

// expectNumbered waits until the rows 1..n have arrived, except some, and are COMPLETED. It
// expects each row once and every group in order. A row without a group has a group of its
// own in its payload.
func (s *scene) expectNumbered(n int, but ...string) {
	s.t.Helper()
	s.expectNumberedIn("outbox_events", s.to, n, but...)
}

// expectNumberedIn is expectNumbered for a table and its receiver.
func (s *scene) expectNumberedIn(table string, to *sinktest.Receiver, n int, but ...string) {
	s.t.Helper()
	arrive(s.t, to, n-len(but))
	awaitZero(s.t, "rows are not COMPLETED", func() int {
		return count(s.t, s.conn, "SELECT count(*) FROM "+table+" WHERE status <> 'COMPLETED' AND id NOT IN ("+quoted(but...)+")")
	})
	taken := to.Accepted()
	if again := checkNumbered(s.t, taken); again > 0 {
		s.t.Errorf("%d rows arrived more than once, want 0", again)
	}
	for _, got := range taken {
		if slices.Contains(but, got.ID) {
			s.t.Errorf("row %s was accepted, want it left out", got.ID)
		}
	}
}

// checkNumbered compares the first arrivals of each group with their numbers and returns the
// number of repeated arrivals.
func checkNumbered(t testing.TB, taken []sinktest.Received) (again int) {
	t.Helper()
	seen, last := make(map[string]bool, len(taken)), map[string]string{}
	for _, r := range taken {
		if seen[r.ID] {
			again++
			continue
		}
		seen[r.ID] = true
		var p struct{ Group string }
		if err := json.Unmarshal(r.Payload, &p); err != nil {
			t.Fatalf("payload %q: %v", r.Payload, err)
		}
		if r.ID <= last[p.Group] {
			t.Errorf("group %s: row %s arrived after row %s", p.Group, r.ID, last[p.Group])
		}
		last[p.Group] = r.ID
	}
	return again
}

// rowState is the state of a row in the table.
type rowState struct {
	status  string
	retries int
	reason  string
}

func (s *scene) rowState(id string) (f rowState) {
	s.t.Helper()
	err := s.conn.row("SELECT status, retry_count, coalesce(error_message, '') FROM outbox_events WHERE id = $1", id).
		Scan(&f.status, &f.retries, &f.reason)
	if err != nil {
		s.t.Fatalf("row %s: %v", id, err)
	}
	return f
}

// refused counts the requests that carried rows and had none accepted.
func refused(log []sinktest.Received) int {
	n, last := 0, 0
	for _, r := range log {
		if !r.Accepted && r.Request != last {
			n++
			last = r.Request
		}
	}
	return n
}

// poison makes the receiver give one answer to every request that contains one of these
// rows.
func poison(to *sinktest.Receiver, answer sinktest.Answer, ids ...string) {
	to.Script(func(r *sinktest.Request) sinktest.Answer {
		for i := range r.Items {
			if slices.Contains(ids, r.Items[i].ID) {
				return answer
			}
		}
		return sinktest.Answer{}
	})
}
