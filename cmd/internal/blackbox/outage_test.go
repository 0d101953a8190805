package blackbox

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// ungroupedScripts is a load without message groups. One counter numbers all its rows.
func ungroupedScripts() []script {
	scripts := seedScripts(1)
	for i := range scripts {
		scripts[i].ungrouped = true
	}
	return scripts
}

// The receiver is down and recovers. No row is charged or FAILED, and first arrivals are in
// commit order. By hand:
//
//	SLUICEBOX_TEST_OUTAGE=30s go test -v -run 'TestReceiverDown' ./cmd/internal/blackbox
func TestReceiverDown(t *testing.T) {
	t.Parallel()
	for name, scripts := range map[string][]script{
		"50 groups": seedScripts(50), "1 group": seedScripts(1), "no groups": ungroupedScripts(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			aScene(t, "", func(s *scene) {
				outage := lasting(s.t, 3*time.Second)
				way := newSwitchProxy(s.t, s.to.URL())
				way.open()
				s.config = strings.Replace(s.config, s.to.URL(), way.url(), 1)
				r := s.run()
				wait := write(s.t, s.database, load{seconds: seconds(outage) + 1, clients: 8, rate: 300, scripts: scripts})
				arrive(s.t, s.to, 100)
				began := time.Now()
				way.shut()
				arrived := s.to.Counts().Requests
				wait()
				s.expectUncounted(r)
				// The requests in flight had arrived before the outage.
				if n := s.to.Counts().Requests - arrived; n > 10 {
					s.t.Errorf("%d requests arrived while the receiver was down, want at most 10", n)
				}
				s.expectFew(r, "unavailable", began)
				way.open()
				write(s.t, s.database, load{transactions: 160, clients: 8, scripts: scripts})()
				s.expectRecovered(r)
			})
		})
	}
}

// Every request fails for a while for a reason that is not the rows' fault. No row is FAILED
// or counted as delivered, and the alarm names the reason. Afterwards all rows are delivered,
// once and in order. By hand:
//
//	SLUICEBOX_TEST_OUTAGE=20s go test -v -run 'TestReceiverAnswersWrong' ./cmd/internal/blackbox
func TestReceiverAnswersWrong(t *testing.T) {
	t.Parallel()
	page := sinktest.Answer{
		Status: http.StatusOK, Body: []byte("<!doctype html><title>Welcome</title>"), Astray: true,
		Header: http.Header{"Content-Type": {"text/html; charset=utf-8"}},
	}
	for name, fault := range map[string]struct {
		answer sinktest.Answer
		class  string
	}{
		"401":  {sinktest.Answer{Status: http.StatusUnauthorized}, "misconfigured"},
		"500":  {sinktest.Answer{Status: http.StatusInternalServerError}, "refused"},
		"page": {page, "misconfigured"},
		"200 that says 503": {sinktest.Answer{
			Status: http.StatusOK, Body: []byte(`{"error": "the queue is down", "status": 503}`), Astray: true,
		}, "unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			aScene(t, "", func(s *scene) {
				outage := lasting(s.t, 2*time.Second)
				r := s.run()
				wait := write(s.t, s.database, load{seconds: seconds(outage) + 1, clients: 8, rate: 300, scripts: seedScripts(50)})
				arrive(s.t, s.to, 100)
				began := time.Now()
				s.to.Script(func(*sinktest.Request) sinktest.Answer { return fault.answer })
				before := s.to.Counts()
				s.expectAlarm(r, fault.class)
				wait()
				s.expectUncounted(r)
				s.expectAlarm(r, fault.class)
				if done, taken := s.completed(), s.to.Counts().Distinct; done > taken {
					s.t.Errorf("%d rows are COMPLETED, and the receiver accepted %d", done, taken)
				}
				sent := s.to.Counts().Requests - before.Requests
				if most := s.expectFew(r, fault.class, began); sent > most {
					s.t.Errorf("%d requests reached the receiver in %s, want at most %d", sent, time.Since(began), most)
				}
				s.to.Script(nil)
				s.expectRecovered(r)
				if c := s.to.Counts(); c.Duplicates > 0 {
					s.t.Errorf("%d rows were accepted more than once, want 0", c.Duplicates)
				}
			})
		})
	}
}

// The receiver is down while more rows arrive than the buffer holds, and the relay is killed.
// Once both are back, all rows are delivered in order, and no row was charged. By hand:
//
//	SLUICEBOX_TEST_ROWS=50000 go test -v -run 'TestReceiverDownPastTheBuffer' ./cmd/internal/blackbox
func TestReceiverDownPastTheBuffer(t *testing.T) {
	t.Parallel()
	aScene(t, "dispatch: {global-buffer-size: 100, backoff: {max: 500ms}}\n", func(s *scene) {
		rows := many(s.t, 2000)
		way := newSwitchProxy(s.t, s.to.URL())
		s.config = strings.Replace(s.config, s.to.URL(), way.url(), 1)
		r := s.run()
		for part := range 10 {
			s.number(part*rows/10+1, (part+1)*rows/10, "i % 50")
		}
		s.expectAlarm(r, "unavailable")
		s.expectUncounted(r)
		r.kill()
		r = s.run()
		s.expectAlarm(r, "unavailable")
		s.expectUncounted(r)
		way.open()
		s.expectNumbered(rows)
		s.expectUncounted(r)
		expectStop(s.t, r)
	})
}

// The receiver hangs and recovers while requests are still in flight. These time out while
// others are accepted. They began during the hang, so they do not prove their rows at fault.
// By hand:
//
//	go test -v -run 'TestReceiverBackWhileRequestsHang' ./cmd/internal/blackbox
func TestReceiverBackWhileRequestsHang(t *testing.T) {
	t.Parallel()
	aScene(t, "dispatch: {request-timeout: 2s, max-retries: 0, backoff: {initial: 50ms, max: 500ms}}\n", func(s *scene) {
		never := make(chan struct{})
		defer close(never)
		var probes atomic.Int64
		s.to.Script(func(r *sinktest.Request) sinktest.Answer {
			if len(r.Items) > 1 && probes.Load() < 14 || len(r.Items) == 1 && probes.Add(1) < 14 {
				return sinktest.Answer{Release: never, Disconnect: true}
			}
			return sinktest.Answer{}
		})
		r := s.run()
		const rows = 400
		s.number(1, rows, "i % 100")

		s.expectNumbered(rows)
		s.expectUncounted(r)
		expectStop(s.t, r)
	})
}

// The receiver expects another wire format, rejects every row and has never accepted one. A few
// rows are FAILED, not the whole outbox, and there is an alarm. By hand:
//
//	SLUICEBOX_TEST_OUTAGE=30s go test -v -run 'TestReceiverRejectsEverything' ./cmd/internal/blackbox
func TestReceiverRejectsEverything(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		outage := lasting(s.t, 3*time.Second)
		s.to.Script(func(*sinktest.Request) sinktest.Answer {
			return sinktest.Answer{Status: http.StatusBadRequest, Body: []byte("items is missing")}
		})
		r := s.run()
		const rows = 5000
		s.number(1, rows, "i % 200")
		s.expectAlarm(r, "rejected")
		select {
		case <-r.ended:
		case <-time.After(outage):
		}
		requests := s.to.Counts().Requests
		s.to.Script(nil)
		within(s.t, time.Minute, func() string {
			return none(s.t, s.conn, "are not settled", "SELECT count(*) FROM outbox_events WHERE status NOT IN ('COMPLETED', 'FAILED')")
		})
		failed := rows - s.completed()
		s.t.Logf("%d of %d rows are FAILED after %s and %d requests", failed, rows, outage, requests)
		if failed > 100 {
			s.t.Errorf("%d rows are FAILED, want at most 100", failed)
		}
		if again := checkNumbered(s.t, s.to.Accepted()); again > 0 || s.to.Counts().Distinct != rows-failed {
			s.t.Errorf("%d rows are FAILED: %+v", failed, s.to.Counts())
		}
		expectStop(s.t, r)
	})
}

// An operator knows that the receiver is back, but the next probe is far away. Retrying one
// lane ends the wait of all. By hand:
//
//	go test -v -run 'TestRetryNowEndsAnOutage' ./cmd/internal/blackbox
func TestRetryNowEndsAnOutage(t *testing.T) {
	t.Parallel()
	aScene(t, "dispatch: {backoff: {initial: 10m, max: 10m}}\n", func(s *scene) {
		s.to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Status: http.StatusUnauthorized} })
		r := s.run()
		s.number(1, 300, "i % 100")
		s.expectAlarm(r, "misconfigured")
		within(s.t, testTimeout, func() string { // the alarm comes with the first rows
			if got := r.metric(`sluicebox_rows_captured_total{outbox="outbox_events"}`); got < 300 {
				return fmt.Sprintf("%.0f events captured, want 300", got)
			}
			return ""
		})
		s.to.Script(nil)
		r.operate("lanes", "retry-now", "--outbox", "outbox_events", "--kind", "EVENT", "--group", "99")
		s.expectNumbered(300)
		s.expectUncounted(r)
		expectStop(s.t, r)
	})
}

// seconds rounds up to whole seconds.
func seconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }

// fewRequests returns the maximum number of requests to a dead receiver in a time, with the
// dispatcher's defaults. Nine may be in flight when five failures open the circuit breaker,
// and sixteen lanes are probed at once. Further probes back off from 200 ms to 1 s while
// there are lanes not yet tried, each wait shortened by up to a fifth.
func fewRequests(in time.Duration, endpoints int) int {
	const first, most = 160 * time.Millisecond, 800 * time.Millisecond
	probes := math.Ceil(math.Log2(in.Seconds()/first.Seconds()+1)) + in.Seconds()/most.Seconds()
	return 9 + endpoints*(5+16+int(probes)+1)
}

// expectFew expects at most fewRequests failed requests of a class to both endpoints since a time,
// and returns that limit. A busy machine makes an outage longer than planned.
func (s *scene) expectFew(r *relay, class string, since time.Time) (most int) {
	s.t.Helper()
	failed := r.metric(`sluicebox_requests_total{class="` + class + `",sink="flowcatalyst"}`)
	probes := r.metric(`sluicebox_probes_total{sink="flowcatalyst"}`)
	most = fewRequests(time.Since(since), 2)
	if failed > float64(most) || probes > float64(most-5) {
		s.t.Errorf("%.0f requests failed, %.0f of them probes, want at most %d", failed, probes, most)
	}
	s.t.Logf("while nothing was accepted: %.0f requests, of which %.0f probes", failed, probes)
	return most
}

// completed returns the number of COMPLETED rows.
func (s *scene) completed() int {
	s.t.Helper()
	return count(s.t, s.conn, `SELECT (SELECT count(*) FROM outbox_events WHERE status = 'COMPLETED')
		+ (SELECT count(*) FROM outbox_dispatch_jobs WHERE status = 'COMPLETED')`)
}

// expectUncounted expects that no failure was counted against any row.
func (s *scene) expectUncounted(r *relay) {
	s.t.Helper()
	for _, table := range []string{"outbox_events", "outbox_dispatch_jobs"} {
		if left := none(s.t, s.conn, "of "+table+" paid for the outage", "SELECT count(*) FROM "+table+
			" WHERE status = 'FAILED' OR retry_count > 0 OR error_message IS NOT NULL"); left != "" {
			s.t.Error(left)
		}
	}
	if n := r.metric(`sluicebox_retries_total{sink="flowcatalyst"}`) + r.metric(`sluicebox_rows_settled_total{sink="flowcatalyst",status="FAILED"}`); n > 0 {
		s.t.Errorf("%.0f failures were counted, want 0", n)
	}
}

// breakerMetric is the metric of the open circuit breaker of the scene's sink.
func breakerMetric(class string) string {
	return `sluicebox_sink_breaker_open{class="` + class + `",sink="flowcatalyst"}`
}

// expectAlarm waits until the sink's circuit breaker is open with a class.
func (s *scene) expectAlarm(r *relay, class string) {
	s.t.Helper()
	within(s.t, testTimeout, func() string {
		status, body := r.get("/readyz?verbose")
		line := sinkLine(body)
		if status != http.StatusServiceUnavailable || !strings.HasPrefix(line, "[-]") || !strings.Contains(line, class) {
			return "/readyz says: " + body
		}
		if r.metric(breakerMetric(class)) != 1 {
			return breakerMetric(class) + " is not 1"
		}
		return ""
	})
}

// sinkLine returns the status line of the scene's sink.
func sinkLine(readyz string) string {
	for line := range strings.Lines(readyz) {
		if strings.Contains(line, "] sink flowcatalyst ") {
			return line
		}
	}
	return ""
}

// expectRecovered waits until all rows are delivered in order, and expects no counted failure
// and no alarm.
func (s *scene) expectRecovered(r *relay) {
	s.t.Helper()
	began := time.Now()
	rows, again := s.expectAll()
	s.t.Logf("%d rows; the last arrived and was written %s after the receiver was back; %d arrived again", rows, time.Since(began).Round(time.Millisecond), again)
	s.expectUncounted(r)
	within(s.t, testTimeout, func() string {
		status, body := r.get("/readyz?verbose")
		if status != http.StatusOK || !strings.HasPrefix(sinkLine(body), "[+]") {
			return "/readyz says: " + body
		}
		for _, class := range []string{"refused", "unavailable", "misconfigured"} {
			if r.metric(breakerMetric(class)) != 0 {
				return breakerMetric(class) + " is not 0"
			}
		}
		return ""
	})
	expectStop(s.t, r)
}
