package blackbox

import (
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/deploy/inbox"
)

// chained relays rows with chains to a receiver.
const chained = `
name: %s
source: {url: %q, mode: stream}
outboxes: [{table: outbox_events, layout: flowcatalyst, kind: EVENT, sink: out}]
sinks: {out: {type: webhook, url: %q, format: cloudevents-structured, cloudevents-source: /shop, chain: true, max-retries: 1, request-timeout: 2s, backoff: {initial: 20ms}}}
admin: {listen: %s}
`

// faultyReceiver accepts messages, and has faults by the id of a row: it refuses some for good, fails
// once on others, and loses some answers.
type faultyReceiver struct {
	mu      sync.Mutex
	tries   map[string]int
	taken   map[string]bool
	bodies  map[string]string
	differs []string // the ids of repeats with another body
}

func (f *faultyReceiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	id := r.Header.Get("webhook-id")
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(id))
	f.mu.Lock()
	f.tries[id]++
	if f.tries[id] == 1 {
		f.bodies[id] = string(body)
	} else if f.bodies[id] != string(body) {
		f.differs = append(f.differs, id)
	}
	first, fault := f.tries[id] == 1, sum.Sum32()%8
	f.taken[id] = f.taken[id] || fault != 0
	f.mu.Unlock()
	switch {
	case fault == 0:
		w.WriteHeader(http.StatusUnprocessableEntity) // FAILED
	case fault == 1 && first:
		w.WriteHeader(http.StatusServiceUnavailable)
	case fault == 2 && first:
		w.WriteHeader(http.StatusNoContent) // the answer is lost behind the middleware
		panic(http.ErrAbortHandler)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// A receiver that checks chains notices no gap while the relay is killed and the receiver fails, and
// the one row that a proxy swallowed: it answers 200 and passes nothing on.
func TestChain(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(s *scene) {
		var mu sync.Mutex
		var gaps []string
		swallowed := ""
		to := &faultyReceiver{tries: map[string]int{}, taken: map[string]bool{}, bodies: map[string]string{}}
		checked := inbox.Gaps(func(r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			gaps = append(gaps, r.Header.Get("webhook-id"))
		}, to)
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			swallows := r.Header.Get("webhook-id") == swallowed
			mu.Unlock()
			if !swallows {
				checked.ServeHTTP(w, r)
			}
		}))
		defer proxy.Close()
		s.config = fmt.Sprintf(chained, nameFor(s.database), s.database, proxy.URL, adminKey)

		const step = 60
		last := 0
		add := func() {
			s.add(last+1, last+step, "PENDING")
			last += step
		}
		r := s.run()
		for range crashes(s.t, 3) {
			add()
			<-time.After(time.Duration(last%7) * 10 * time.Millisecond) // a kill at any moment
			r.kill()
			s.disconnected()
			add()
			r = s.run()
		}
		settled := func() {
			s.t.Helper()
			awaitZero(s.t, "rows are not settled", func() int {
				return count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE status NOT IN ('COMPLETED', 'FAILED')")
			})
		}
		settled()
		mu.Lock()
		if len(gaps) > 0 {
			s.t.Errorf("gaps before %q, and no message was lost", gaps)
		}
		swallowed = fmt.Sprintf("%013d", last+3)
		mu.Unlock()
		add()
		settled()
		expectStop(s.t, r)
		mu.Lock()
		defer mu.Unlock()
		if to.taken[swallowed] || len(gaps) != 1 || gaps[0] <= swallowed {
			s.t.Errorf("gaps before %q, want one behind %s, which was swallowed", gaps, swallowed)
		}
		if len(to.differs) > 0 {
			s.t.Errorf("repeats of %q have another body", to.differs)
		}
		if failed := count(s.t, s.conn, "SELECT count(*) FROM outbox_events WHERE status = 'FAILED'"); failed == 0 {
			s.t.Error("no row is FAILED: the test is inconclusive")
		}
		s.t.Logf("%d rows under %d kills", last, crashes(s.t, 3))
	})
}
