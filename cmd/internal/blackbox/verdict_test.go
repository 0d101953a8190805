package blackbox

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// A flaky receiver randomly responds with 502, 503 or 429, drops the connection or times out,
// and refuses each row with at most one 500. No row is FAILED, and every row arrives in order,
// however often other rows succeed. Only refusals may use up max-retries, and each row has one.
// By hand:
//
//	SLUICEBOX_TEST_ROWS=20000 go test -v -run 'TestFlakyReceiver' ./cmd/internal/blackbox
func TestFlakyReceiver(t *testing.T) {
	t.Parallel()
	aScene(t, "dispatch: {request-timeout: 2s, proof-wait: 1s, max-retries: 1, backoff: {initial: 20ms, max: 200ms}}\n", func(s *scene) {
		rows := many(s.t, 1000)
		var mu sync.Mutex
		random, refused := rand.New(rand.NewPCG(1, 2)), map[string]bool{}
		s.to.Script(func(r *sinktest.Request) sinktest.Answer {
			mu.Lock()
			defer mu.Unlock()
			ids := r.IDs()
			switch n := random.IntN(200); {
			case n == 0:
				return sinktest.Answer{Delay: time.Minute, Disconnect: true}
			case n < 100:
				status := []int{http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusTooManyRequests, 0}[n%4]
				return sinktest.Answer{Status: status, Disconnect: status == 0, Body: []byte("flaky")}
			case n < 120 && len(ids) == 1 && !refused[ids[0]]:
				refused[ids[0]] = true
				return sinktest.Answer{Status: http.StatusInternalServerError, Body: []byte("flaky")}
			}
			return sinktest.Answer{}
		})
		r := s.run()
		s.number(1, rows, "i % 100")
		arrive(s.t, s.to, rows)
		s.expectCompleted(rows)
		if left := none(s.t, s.conn, "have more retries than refusals", "SELECT count(*) FROM outbox_events WHERE retry_count > 1"); left != "" {
			s.t.Error(left)
		}
		expectStop(s.t, r)
	})
}

// All rows of one endpoint are FAILED, and no new row arrives for it. Its circuit breaker stays
// open, but no row waits, so the relay is ready, the metric is 0, and status reports it. With
// the next row the relay is not ready until a row is accepted. By hand:
//
//	go test -v -run 'TestOpenBreakerWithoutRows' ./cmd/internal/blackbox
func TestOpenBreakerWithoutRows(t *testing.T) {
	t.Parallel()
	eachKind(t, "dispatch: {proof-wait: 300ms, max-retries: 1, backoff: {initial: 50ms, max: 300ms}}\n", func(s *scene) {
		s.to.Script(func(*sinktest.Request) sinktest.Answer {
			return sinktest.Answer{Status: http.StatusInternalServerError, Body: []byte("no")}
		})
		r := s.run()
		s.number(1, 6, "i")
		within(s.t, testTimeout, func() string {
			if n := count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE status = 'FAILED'"); n != 6 {
				return fmt.Sprintf("%d of 6 rows are FAILED", n)
			}
			return ""
		})
		within(s.t, testTimeout, func() string {
			status, body := r.get("/readyz?verbose")
			if line := sinkLine(body); status != http.StatusOK || !strings.Contains(line, "no rows waiting") {
				return body
			}
			if r.metric(breakerMetric("refused")) != 0 {
				return breakerMetric("refused") + " is not 0"
			}
			return ""
		})
		if _, body := r.get("/api/v1/status"); !strings.Contains(body, `"idle":true`) {
			s.t.Errorf("status: %s", body)
		}
		s.number(7, 7, "i")
		s.expectAlarm(r, "refused")
		s.to.Script(nil)
		arrive(s.t, s.to, 1)
		within(s.t, testTimeout, func() string {
			if status, body := r.get("/readyz?verbose"); status != http.StatusOK || !strings.Contains(sinkLine(body), "delivers") {
				return body
			}
			return ""
		})
		expectStop(s.t, r)
	})
}

// On a quiet system one row gets 500. The FlowCatalyst API accepts an empty list, which proves
// that it works. The row is FAILED within seconds, where proof-wait alone takes nine minutes. Its
// group continues, and the relay stays ready. By hand:
//
//	go test -v -run 'TestLoneRefusedRow' ./cmd/internal/blackbox
func TestLoneRefusedRow(t *testing.T) {
	t.Parallel()
	eachKind(t, "", func(s *scene) {
		bad := numbered(1)
		var mu sync.Mutex
		pings := 0
		s.to.Script(func(r *sinktest.Request) sinktest.Answer {
			mu.Lock()
			defer mu.Unlock()
			if len(r.Items) == 0 {
				pings++
			}
			if slices.Contains(r.IDs(), bad) {
				return sinktest.Answer{Status: http.StatusInternalServerError, Body: []byte("cannot read it")}
			}
			return sinktest.Answer{}
		})
		r := s.run()
		s.number(1, 2, "1")
		began := time.Now()
		within(s.t, time.Minute, func() string {
			if status, body := r.get("/readyz?verbose"); status != http.StatusOK {
				s.t.Fatalf("not ready for one row: %s", body)
			}
			if f := s.rowState(bad); f.status != "FAILED" {
				return fmt.Sprintf("the row is %+v", f)
			}
			return ""
		})
		s.t.Logf("FAILED after %s and %d pings", time.Since(began), pings)
		s.expectNumbered(2, bad)
		if f := s.rowState(bad); f.retries != retries || !strings.Contains(f.reason, "500") {
			s.t.Errorf("the row is %+v", f)
		}
		mu.Lock()
		if pings == 0 || pings > retries+1 {
			s.t.Errorf("%d pings", pings)
		}
		mu.Unlock()
		expectStop(s.t, r)
	})
}
