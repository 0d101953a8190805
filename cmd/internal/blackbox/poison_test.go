package blackbox

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// poisons are the responses that a row may always get. With the last the request times out.
func poisons(t *testing.T) map[string]sinktest.Answer {
	body := []byte(`{"error": "no such thing"}`)
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	return map[string]sinktest.Answer{
		"400":       {Status: http.StatusBadRequest, Body: body},
		"404":       {Status: http.StatusNotFound, Body: body},
		"500":       {Status: http.StatusInternalServerError, Body: body},
		"no answer": {Release: never, Disconnect: true},
	}
}

const (
	retries = 3 // dispatch.max-retries by default

	// searched limits the requests lost to one row that is always refused: the first, one for each
	// bisection, two more because halves are rounded up among groups and among rows of a group,
	// the one with the row alone, and its retries.
	searched = 1 + 7 + 2 + 1 + retries // dispatch.api-batch-size is 100, below 2^7
)

// One row among many is always refused, in any way. The others are delivered once and in
// order, with few requests lost to the bisection. A row that is refused for itself is FAILED
// with the reason. A failure that may be a partial outage stalls the row's group after
// proof-wait, until an operator skips the row. By hand:
//
//	SLUICEBOX_TEST_ROWS=100000 go test -v -run 'TestOnePoisonedRow' ./cmd/internal/blackbox
func TestOnePoisonedRow(t *testing.T) {
	t.Parallel()
	for shape, group := range map[string]string{"1000 groups": "i % 1000", "no groups": "NULL"} {
		for name, answer := range poisons(t) {
			t.Run(shape+", "+name, func(t *testing.T) {
				t.Parallel()
				aScene(t, fmt.Sprintf("dispatch: {ungrouped: parallel, request-timeout: %s, proof-wait: 2s}\n", answerWithin(name)), func(s *scene) {
					s.onePoisonedRow(group, name, answer)
				})
			})
		}
	}
}

// answerWithin returns the request-timeout. It is short only if a response is withheld,
// because other responses may be slow on a busy machine.
func answerWithin(poison string) string {
	if poison == "no answer" {
		return "2s"
	}
	return "1m"
}

func (s *scene) onePoisonedRow(group, name string, answer sinktest.Answer) {
	rows := many(s.t, 2000)
	at := rows / 2
	bad := numbered(at)
	poison(s.to, answer, bad)
	r := s.run()
	s.number(1, rows, group)
	want, reason := retries, name
	if name == "404" || name == "no answer" {
		rows = s.untilStalled(r, bad, rows, group)
		r.post("lanes/skip", skipOf(bad, at, group))
		want, reason = 0, "we know why"
	}
	rows = s.untilFailed(bad, rows, group)
	if f := s.rowState(bad); f.retries != want || !strings.Contains(f.reason, reason) {
		s.t.Errorf("row %s is FAILED after %d retries, want %d: %s", bad, f.retries, want, f.reason)
	}
	s.expectNumbered(rows, bad)
	lost := refused(s.to.Log())
	s.t.Logf("%d rows in %d requests, of which %d were lost to the row", rows, s.to.Counts().Requests, lost)
	if want == retries && lost > searched {
		s.t.Errorf("%d requests were lost, want at most %d", lost, searched)
	}
	if n := r.metric(`sluicebox_rows_settled_total{sink="flowcatalyst",status="FAILED"}`); n != 1 {
		s.t.Errorf("%.0f rows are FAILED, want 1", n)
	}
	expectStop(s.t, r)
}

// untilStalled waits until the row's lane is stalled, like untilFailed.
func (s *scene) untilStalled(r *relay, id string, rows int, group string) int {
	s.t.Helper()
	within(s.t, 2*time.Minute, func() string {
		status, body := r.get("/api/v1/lanes?state=stalled")
		if strings.Contains(body, `"head":"`+id+`"`) && strings.Contains(r.said(), "message group stalled") &&
			r.metric(`sluicebox_lanes{sink="flowcatalyst",state="stalled"}`) == 1 {
			return ""
		}
		rows++
		s.number(rows, rows, group)
		return fmt.Sprintf("lanes that are stalled: %d %s", status, body)
	})
	if f := s.rowState(id); f.status == "FAILED" || f.retries > 0 {
		s.t.Errorf("row %s is %s after %d retries", id, f.status, f.retries)
	}
	return rows
}

// skipOf returns the command that skips the n-th row, of 1000 groups or of none.
func skipOf(id string, n int, group string) map[string]any {
	request := map[string]any{"outbox": "outbox_events", "kind": "EVENT", "reason": "we know why"}
	if group == "NULL" {
		request["row_id"] = id
	} else {
		request["group"] = fmt.Sprint(n % 1000)
	}
	return request
}

// untilFailed waits until a row is FAILED. It keeps writing rows, because each accepted one
// proves that the receiver works, and returns the total number of rows.
func (s *scene) untilFailed(id string, rows int, group string) int {
	s.t.Helper()
	within(s.t, 2*time.Minute, func() string {
		f := s.rowState(id)
		if f.status == "FAILED" {
			return ""
		}
		rows++
		s.number(rows, rows, group)
		return fmt.Sprintf("row %s is %s after %d retries: %s", id, f.status, f.retries, f.reason)
	})
	return rows
}

// Several rows are always refused, some of them adjacent in one group. Each is found, and k
// of them cost at most k times the requests of one. By hand:
//
//	SLUICEBOX_TEST_ROWS=100000 go test -v -run 'TestSeveralPoisonedRows' ./cmd/internal/blackbox
func TestSeveralPoisonedRows(t *testing.T) {
	t.Parallel()
	for name, group := range map[string]string{"100 groups": "i % 100", "1 group": "1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			aScene(t, "dispatch: {backoff: {initial: 20ms}}\n", func(s *scene) {
				rows := many(s.t, 2000)
				bad := []string{numbered(1), numbered(rows / 2), numbered(rows/2 + 1), numbered(rows/2 + 100), numbered(rows/2 + 200), numbered(rows)}
				poison(s.to, sinktest.Answer{Status: http.StatusUnprocessableEntity}, bad...)
				r := s.run()
				s.number(1, rows, group)
				s.expectNumbered(rows, bad...)
				within(s.t, testTimeout, func() string {
					if n := count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE id IN ("+quoted(bad...)+") AND status = 'FAILED' AND retry_count = $1", retries); n != len(bad) {
						return fmt.Sprintf("%d of %d rows are FAILED", n, len(bad))
					}
					return ""
				})
				lost := refused(s.to.Log())
				s.t.Logf("%d rows in %d requests, of which %d were lost to %d rows", rows, s.to.Counts().Requests, lost, len(bad))
				if lost > len(bad)*searched {
					s.t.Errorf("%d requests were lost, want at most %d", lost, len(bad)*searched)
				}
				expectStop(s.t, r)
			})
		})
	}
}

// A receiver with per-item results refuses one item. That row is FAILED, and no request is
// lost for the others. By hand:
//
//	SLUICEBOX_TEST_ROWS=100000 go test -v -run 'TestOneRefusedItem' ./cmd/internal/blackbox
func TestOneRefusedItem(t *testing.T) {
	t.Parallel()
	aScene(t, "dispatch: {ungrouped: parallel, backoff: {initial: 50ms}}\n", func(s *scene) {
		s.config = strings.Replace(s.config, "flowcatalyst: {", "flowcatalyst: {wire: items, ", 1)
		rows := many(s.t, 2000)
		bad := numbered(rows / 2)
		s.to.Script(func(r *sinktest.Request) sinktest.Answer {
			at := slices.Index(r.IDs(), bad)
			if at < 0 {
				return sinktest.Answer{}
			}
			words := slices.Repeat([]string{"SUCCESS"}, at)
			return sinktest.Answer{ItemStatuses: append(words, "BAD_REQUEST")}
		})
		r := s.run()
		s.number(1, rows, "NULL")
		rows = s.untilFailed(bad, rows, "NULL")
		if f := s.rowState(bad); f.retries != retries || !strings.Contains(f.reason, "would not do") {
			s.t.Errorf("the row is %+v", f)
		}
		s.expectNumbered(rows, bad)
		expectStop(s.t, r)
	})
}

// One row of the only group is always refused. If the response blames the row, it is FAILED.
// If it may be an outage, the row holds its group, with an alarm, until an operator skips it.
// By hand:
//
//	go test -v -run 'TestAPoisonedRowInTheOnlyGroup' ./cmd/internal/blackbox
func TestAPoisonedRowInTheOnlyGroup(t *testing.T) {
	t.Parallel()
	const rows, bad = 300, 150
	holds := map[string]struct {
		class string
		skip  func(*relay)
	}{
		"404": {"misconfigured", func(r *relay) {
			r.post("lanes/skip", map[string]string{"outbox": "outbox_events", "kind": "EVENT", "group": "g", "reason": "we know why"})
		}},
		"no answer": {"unavailable", func(r *relay) { r.operate("lanes", "skip", "--group", "g", "--reason", "we know why") }},
	}
	for name, answer := range poisons(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			aScene(t, "dispatch: {request-timeout: "+answerWithin(name)+", proof-wait: 500ms, backoff: {initial: 50ms, max: 300ms}}\n", func(s *scene) {
				poison(s.to, answer, numbered(bad))
				r := s.run()
				s.number(1, rows, "'g'")
				reason := name
				if hold, ok := holds[name]; ok {
					s.expectHeld(r, numbered(bad), hold.class)
					hold.skip(r)
					reason = "we know why"
				}
				s.expectNumbered(rows, numbered(bad))
				if f := s.rowState(numbered(bad)); f.status != "FAILED" || !strings.Contains(f.reason, reason) {
					s.t.Errorf("the row is %+v", f)
				}
				within(s.t, testTimeout, func() string {
					if status, body := r.get("/readyz?verbose"); status != http.StatusOK {
						return body
					}
					return ""
				})
				expectStop(s.t, r)
			})
		})
	}
}

// expectHeld waits for the alarm while a row holds its group, and checks the lane in the API.
func (s *scene) expectHeld(r *relay, id, class string) {
	s.t.Helper()
	s.expectAlarm(r, class)
	within(s.t, testTimeout, func() string {
		if l := r.lane("g"); l.Head != id || l.Rows == 0 || l.Error == "" || l.RetryCount > 0 {
			return fmt.Sprintf("the lane is %+v", l)
		}
		return ""
	})
	if f := s.rowState(id); f.status == "FAILED" || f.retries > 0 {
		s.t.Errorf("row %s is %+v", id, f)
	}
	for _, got := range s.to.Accepted() {
		if got.ID >= id {
			s.t.Errorf("row %s was accepted, want none behind %s", got.ID, id)
		}
	}
}
