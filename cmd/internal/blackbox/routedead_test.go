package blackbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// orderWatch is a receiver of batches that keeps no rows, only what it needs to judge their order.
type orderWatch struct {
	*httptest.Server
	dead atomic.Bool // it answers 503

	mu                 sync.Mutex
	last               map[string]string // id of the last row of each group
	taken, again, back int               // rows, of which repeated, and before an earlier row of their group
}

func newOrderWatch(t *testing.T) *orderWatch {
	w := &orderWatch{last: map[string]string{}}
	w.Server = httptest.NewServer(w)
	t.Cleanup(w.Close)
	return w
}

// ServeHTTP takes a batch of the rows of scene.number.
func (w *orderWatch) ServeHTTP(answer http.ResponseWriter, req *http.Request) {
	var rows []struct{ ID, Group string }
	err := json.NewDecoder(req.Body).Decode(&rows)
	switch {
	case w.dead.Load():
		answer.WriteHeader(http.StatusServiceUnavailable)
		return
	case err != nil:
		http.Error(answer, err.Error(), http.StatusBadRequest)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range rows {
		switch last := w.last[r.Group]; {
		case r.ID == last:
			w.again++
			continue
		case r.ID < last:
			w.back++
			continue
		}
		w.last[r.Group] = r.ID
		w.taken++
	}
	answer.WriteHeader(http.StatusCreated)
}

// counts returns the number of rows, and how many arrived again or out of order.
func (w *orderWatch) counts() (taken, wrong int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.taken, w.again + w.back
}

// deadRouteConfig relays the events to two receivers.
const deadRouteConfig = `
name: %s
source: {mode: stream, url: %q}
outboxes:
  - {table: outbox_events, layout: flowcatalyst, kind: EVENT, routes: [{name: bus, sink: bus}, {name: hooks, sink: hooks}]}
sinks:
  bus: {type: flowcatalyst, api-base-url: %q}
  hooks: {type: flowcatalyst, api-base-url: %q, backoff: {max: 1s}}
checkpoint: {max-hold: %d}
admin: {listen: %s}
`

// One of two routes is dead while many rows come. They are spilled, so that they hold neither memory
// nor log. The other route delivers them, and none of them is COMPLETED. Once the dead one is back
// it gets them in order, each once. The full run:
//
//	SLUICEBOX_TEST_ROWS=1000000 SLUICEBOX_TEST_VERSIONS=pg15 go test -v -timeout 2h -run TestARouteDeadForManyRows ./cmd/internal/blackbox
func TestARouteDeadForManyRows(t *testing.T) {
	t.Parallel()
	anOwnPostgres(t, nil, "", func(s *scene, _ *servers.Server) {
		const ahead, step = 20_000, 1000
		rows, maxHold := many(s.t, 8000), 4<<20
		if rows >= 100_000 { // their log is several GiB
			maxHold = 256 << 20
		}
		bus, hooks := newOrderWatch(s.t), newOrderWatch(s.t)
		hooks.dead.Store(true)
		s.config = fmt.Sprintf(deadRouteConfig, nameFor(s.database), s.database, bus.URL, hooks.URL, maxHold, adminKey)
		log := &logWatch{s: s}
		r := s.run()
		began := time.Now()
		for from := 1; from <= rows; from += step {
			s.numberIn("outbox_events", from, min(from+step-1, rows), "i % 200", 400)
			log.look()
			s.awaitTaken(bus, from-ahead)
		}
		s.awaitTaken(bus, rows)
		s.t.Logf("route bus has %d rows after %s, while route hooks is dead", rows, time.Since(began).Round(time.Second))
		within(s.t, testTimeout, func() string {
			log.look()
			if n := r.metric(`sluicebox_spilled_rows{sink="hooks"}`); int(n) < rows-20_000 || n < 1000 {
				return fmt.Sprintf("%.0f rows of the dead route are spilled", n)
			}
			return ""
		})
		if n := s.completed(); n > 0 {
			s.t.Errorf("%d rows are COMPLETED before a required route had them", n)
		}

		hooks.dead.Store(false)
		began = time.Now()
		s.awaitTaken(hooks, rows)
		s.t.Logf("route hooks has caught up after %s", time.Since(began).Round(time.Second))
		awaitZero(s.t, "rows are not COMPLETED", func() int { return rows - s.completed() })
		log.look()
		for name, w := range map[string]*orderWatch{"bus": bus, "hooks": hooks} {
			if n, wrong := w.counts(); n != rows || wrong > 0 {
				s.t.Errorf("route %s: %d rows of %d arrived, %d of them again or out of order", name, n, rows, wrong)
			}
		}
		log.expectWithin(maxHold, 32<<20) // two segments of the log, which one look may miss
		r.expectSmall()
		expectStop(s.t, r)
	})
}

// awaitTaken waits until a receiver has that many rows.
func (s *scene) awaitTaken(w *orderWatch, rows int) {
	s.t.Helper()
	awaitZero(s.t, "rows have not arrived", func() int {
		taken, _ := w.counts()
		return max(0, rows-taken)
	})
}
