package blackbox

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// The relay obeys Retry-After up to the cap, and no row is charged for the wait. By
// hand:
//
//	go test -v -run 'TestRetryAfterIsObeyed' ./cmd/internal/blackbox
func TestRetryAfterIsObeyed(t *testing.T) {
	t.Parallel()
	const most = 3 * time.Second // dispatch.retry-after-max
	for name, asked := range map[string]struct {
		status int
		header string
		obeyed time.Duration
	}{
		"429 for 2 s":   {http.StatusTooManyRequests, "2", 2 * time.Second},
		"429 for a day": {http.StatusTooManyRequests, "86400", most},
		"503 for 2 s":   {http.StatusServiceUnavailable, "2", 2 * time.Second},
		"503 as it is":  {http.StatusServiceUnavailable, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			aScene(t, "dispatch: {retry-after-max: "+most.String()+"}\n", func(s *scene) {
				answer := sinktest.Answer{Status: asked.status, Header: http.Header{}}
				if asked.header != "" {
					answer.Header.Set("Retry-After", asked.header)
				}
				busy := max(asked.obeyed, time.Second)
				var began atomic.Pointer[time.Time]
				s.to.Script(func(*sinktest.Request) sinktest.Answer {
					now := time.Now()
					began.CompareAndSwap(nil, &now)
					if now.Sub(*began.Load()) < busy {
						return answer
					}
					return sinktest.Answer{}
				})
				const rows = 300
				r := s.run()
				s.number(1, rows, "i % 100")
				s.expectNumbered(rows)
				s.expectUncounted(r)
				s.expectLeftAlone(asked.obeyed)
				if took := s.lastTaken().Sub(*began.Load()); took > busy+5*time.Second {
					s.t.Errorf("the last row arrived after %s", took)
				}
				lost := refused(s.to.Log())
				s.t.Logf("%d requests in the %s in which the receiver took none", lost, busy)
				if bound := fewRequests(busy, 1); lost > bound {
					s.t.Errorf("%d requests were not accepted, want at most %d", lost, bound)
				}
				expectStop(s.t, r)
			})
		})
	}
}

// A receiver answers one group with Retry-After and accepts the others. It is alive, but
// the group's rows are not charged for the wait. By hand:
//
//	SLUICEBOX_TEST_OUTAGE=20s go test -v -run 'TestRetryAfterForOneGroup' ./cmd/internal/blackbox
func TestRetryAfterForOneGroup(t *testing.T) {
	t.Parallel()
	aScene(t, "dispatch: {backoff: {initial: 50ms}}\n", func(s *scene) {
		busy := lasting(s.t, 5*time.Second)
		var over atomic.Bool
		s.to.Script(func(r *sinktest.Request) sinktest.Answer {
			for i := range r.Items {
				if strings.Contains(string(r.Items[i].Payload), `"group": "7"`) && !over.Load() {
					return sinktest.Answer{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}}
				}
			}
			return sinktest.Answer{}
		})
		r := s.run()
		rows := 0
		pace := time.NewTicker(time.Second / 30) // 10 rows each
		defer pace.Stop()
		for range int(busy.Seconds() * 30) {
			<-pace.C
			s.number(rows+1, rows+10, "i % 10")
			rows += 10
		}
		arrive(s.t, s.to, rows*9/10)
		over.Store(true)
		s.expectNumbered(rows)
		s.expectUncounted(r)
		s.expectLeftAlone(time.Second)
		s.t.Logf("%d rows; the busy group cost %d requests in %s", rows, refused(s.to.Log()), busy)
		expectStop(s.t, r)
	})
}

// expectLeftAlone expects that no row was sent again before the wait was over.
func (s *scene) expectLeftAlone(wait time.Duration) {
	s.t.Helper()
	sent := map[string]time.Time{}
	for _, got := range s.to.Log() {
		// At is the time the request was read, slightly before the relay got its response.
		if before, again := sent[got.ID]; again && got.At.Sub(before) < wait {
			s.t.Errorf("row %s was sent again after %s", got.ID, got.At.Sub(before))
		}
		sent[got.ID] = got.At
	}
}

// lastTaken returns the time the last row was accepted.
func (s *scene) lastTaken() (at time.Time) {
	for _, got := range s.to.Accepted() {
		if got.At.After(at) {
			at = got.At
		}
	}
	return at
}

// A receiver limits the body size. Requests of several rows are split until each fits.
// A row that is too large by itself is FAILED. By hand:
//
//	go test -v -run 'TestBodyTooLarge' ./cmd/internal/blackbox
func TestBodyTooLarge(t *testing.T) {
	t.Parallel()
	for name, group := range map[string]string{"5 groups": "i % 5", "1 group": "1", "no groups": "NULL"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			aScene(t, "dispatch: {ungrouped: parallel, backoff: {initial: 50ms}}\n", func(s *scene) {
				const rows, most = 400, 4 << 10
				s.to.Script(func(r *sinktest.Request) sinktest.Answer {
					if len(r.Body) > most {
						return sinktest.Answer{Status: http.StatusRequestEntityTooLarge, Body: []byte("too large")}
					}
					return sinktest.Answer{}
				})
				r := s.run()
				s.numberIn("outbox_events", 1, rows/2-1, group, 200)
				s.numberIn("outbox_events", rows/2, rows/2, group, 8000)
				s.numberIn("outbox_events", rows/2+1, rows, group, 200)
				s.expectNumbered(rows, numbered(rows/2))
				within(s.t, testTimeout, func() string {
					if f := s.rowState(numbered(rows / 2)); f.status != "FAILED" || !strings.Contains(f.reason, "413") {
						return fmt.Sprintf("the row that is too large is %+v", f)
					}
					return ""
				})
				lost, all := refused(s.to.Log()), s.to.Counts().Requests
				s.t.Logf("%d rows in %d requests, of which %d were too large", rows, all, lost)
				if all > 2*rows { // a busy machine sends rows one by one
					s.t.Errorf("%d requests for %d rows", all, rows)
				}
				expectStop(s.t, r)
			})
		})
	}
}

// The receiver accepts requests, but the connection breaks before its response. The rows
// arrive again, in order, and none is FAILED. By hand:
//
//	go test -v -run 'TestConnectionLostAfterAcceptance' ./cmd/internal/blackbox
func TestConnectionLostAfterAcceptance(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		var cut, lost atomic.Int64
		s.to.Script(func(r *sinktest.Request) sinktest.Answer {
			if cut.Add(1) <= 8 {
				lost.Add(int64(len(r.Items)))
				return sinktest.Answer{Status: http.StatusCreated, Disconnect: true}
			}
			return sinktest.Answer{}
		})
		const rows = 1000
		r := s.run()
		s.number(1, rows, "i % 50")
		arrive(s.t, s.to, rows)
		settle(s.t, s.conn)
		again := checkNumbered(s.t, s.to.Accepted())
		s.t.Logf("%d rows, %d of them twice or more", rows, again)
		if int64(again) != lost.Load() {
			s.t.Errorf("%d rows arrived again, want at most %d, whose responses were lost", again, lost.Load())
		}
		s.expectUncounted(r)
		expectStop(s.t, r)
	})
}

// Responses never end or have 100 MB. The relay judges them by their status where that is
// enough, its memory stays flat, and in the end all rows are delivered. By hand, where the
// memory limit is that of the program without the race detector:
//
//	go test -v -run 'TestEndlessResponses' ./cmd/internal/blackbox
func TestEndlessResponses(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct {
		status int
		rest   func(context.Context, io.Writer)
		class  string
	}{
		"201 and 100 MB": {http.StatusCreated, hundredMegabytes, "misconfigured"},
		"500 and 100 MB": {http.StatusInternalServerError, hundredMegabytes, "refused"},
		"201 for ever":   {http.StatusCreated, forEver, "unavailable"},
		"500 for ever":   {http.StatusInternalServerError, forEver, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			aScene(t, "dispatch: {request-timeout: 2s, backoff: {max: 1s}}\n", func(s *scene) {
				s.to.Script(func(*sinktest.Request) sinktest.Answer {
					return sinktest.Answer{Status: fault.status, Body: []byte("["), WriteRest: fault.rest, Astray: true}
				})
				const rows = 400
				r := s.run()
				s.number(1, rows, "i % 100")
				s.expectAlarm(r, fault.class)
				arrived := s.to.Counts()
				s.t.Logf("%d requests until the alarm", arrived.Requests)
				s.expectUncounted(r)
				s.to.Script(nil)
				s.expectNumbered(rows)
				s.expectUncounted(r)
				r.expectSmall()
				expectStop(s.t, r)
			})
		})
	}
}

// hundredMegabytes writes a response for as long as the client reads.
func hundredMegabytes(_ context.Context, body io.Writer) {
	chunk := []byte(strings.Repeat("[ ", 1<<19))
	for range 100 {
		if _, err := body.Write(chunk); err != nil {
			return
		}
	}
}

// forEver writes a response in small steps until the client has disconnected.
func forEver(client context.Context, body io.Writer) {
	flush, _ := body.(http.Flusher)
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		select {
		case <-client.Done():
			tick.Stop()
			return
		case <-tick.C:
			if _, err := body.Write([]byte(" ")); err != nil {
				return
			}
			flush.Flush()
		}
	}
}
