package blackbox

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// shared returns the configuration of one process in which the destination takes n rows at a time.
func (s *tenants) shared(n int, more string) string {
	return strings.Replace(s.config("one", ""), "sinks: {all: {", fmt.Sprintf("sinks: {all: {api-batch-size: 1, max-concurrent-groups: %d, %s", n, more), 1)
}

// fill adds n rows of a tenant, each with a group of its own.
func (s *tenants) fill(name string, n int) {
	s.t.Helper()
	rows := make([]string, n)
	for i := range rows {
		rows[i] = fmt.Sprintf("('fill%d', 'EVENT', 'g%d', '{\"of\":\"%s\"}')", i, i, name)
	}
	if _, err := s.conns[name].exec("INSERT INTO letters (id, type, message_group, payload) VALUES " + strings.Join(rows, ", ")); err != nil {
		s.t.Fatal(err)
	}
}

// gate counts the requests of each tenant that are at the receiver, and holds them until it opens.
type gate struct {
	mu       sync.Mutex
	inFlight int
	most     int
	got      map[string]int // answered
	open     chan struct{}
}

// answer is the answer to a request.
func (g *gate) answer(name string) int {
	g.mu.Lock()
	g.inFlight++
	g.most = max(g.most, g.inFlight)
	g.mu.Unlock()
	<-g.open
	time.Sleep(5 * time.Millisecond) // a receiver that takes longer than a claim
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight--
	g.got[name]++
	return http.StatusOK
}

// The sources of a process share max-concurrent-groups and the connections of a sink. A source with a
// backlog takes turns with the others, request by request.
func TestSourcesShareADestination(t *testing.T) {
	t.Parallel()
	const limit, backlog, few = 3, 400, 15
	s := newTenants(t, 4)
	g := &gate{got: map[string]int{}, open: make(chan struct{})}
	s.answer = g.answer
	r := start(t, s.shared(limit, "request-timeout: 10m, "))
	s.fill(s.names[0], backlog)
	within(t, testTimeout, func() string {
		if g.mu.Lock(); g.inFlight < limit {
			defer g.mu.Unlock()
			return fmt.Sprintf("%d requests of one source at the receiver, want %d", g.inFlight, limit)
		}
		g.mu.Unlock()
		return ""
	})
	for _, name := range s.names[1:] {
		s.fill(name, few)
	}
	within(t, testTimeout, func() string {
		if n := r.metric(`sluicebox_destination_sources_waiting{sink="all"}`); int(n) != len(s.names)-1 {
			return fmt.Sprintf("%v sources wait for the destination, want %d", n, len(s.names)-1)
		}
		return ""
	})
	if n := r.metric(`sluicebox_destination_requests_in_flight{sink="all"}`); int(n) != limit {
		t.Errorf("the metrics have %v requests in flight, want %d", n, limit)
	}
	close(g.open)
	within(t, testTimeout, func() string {
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, name := range s.names[1:] {
			if g.got[name] < few {
				return fmt.Sprintf("%s has sent %d of %d rows: %v", name, g.got[name], few, g.got)
			}
		}
		if n := g.got[s.names[0]]; n > backlog/2 {
			t.Errorf("the source with a backlog sent %d rows while the others sent %d each", n, few)
		}
		return ""
	})
	s.received[s.names[1]] += backlog // await wants as many of each
	s.received[s.names[2]] += backlog
	s.received[s.names[3]] += backlog
	s.await(backlog)
	if g.most != limit {
		t.Errorf("%d requests in flight at the most, want %d", g.most, limit)
	}
	if s.dials > limit {
		t.Errorf("the process opened %d connections to the receiver, want %d at most", s.dials, limit)
	}
	expectStop(t, r)
}

// The circuit breaker that the failures of one source opened holds the others back. One accepted row
// closes it for all. A reload of one source leaves the others what they share.
func TestSourcesShareACircuitBreaker(t *testing.T) {
	t.Parallel()
	const limit, rows = 4, 20
	const maxRequests = 5 + limit + 16 // until the breaker opens, in flight then, and eager probes
	s := newTenants(t, 3)
	var mu sync.Mutex
	status := http.StatusServiceUnavailable
	s.answer = func(string) int { mu.Lock(); defer mu.Unlock(); return status }
	r := configure(t, s.shared(limit, "backoff: {initial: 1h, max: 1h}, "))
	first, others := s.names[0], s.names[1:]
	total := func() (n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, got := range s.received {
			n += got
		}
		return n
	}
	r.waitFor(`msg="leadership acquired" source=` + first)
	s.fill(first, rows)
	within(t, testTimeout, func() string {
		_, body := r.get("/metrics") // without a destination until the first session has one
		if open := strings.Contains(body, "sluicebox_destination_breakers_open{sink=\"all\"} 1\n"); !open || total() < rows {
			return fmt.Sprintf("one circuit breaker is open: %t, after %d requests", open, total())
		}
		return ""
	})
	for _, name := range others {
		s.fill(name, rows)
	}
	for _, name := range others {
		within(t, testTimeout, func() string {
			labels := fmt.Sprintf(`{sink="all",source=%q}`, name)
			_, body := r.get("/metrics")
			open := strings.Contains(body, fmt.Sprintf("sluicebox_sink_breaker_open{class=\"unavailable\",sink=\"all\",source=%q} 1\n", name))
			if has := strings.Contains(body, fmt.Sprint("sluicebox_pending_rows", labels, " ", rows, "\n")); !has || !open {
				return fmt.Sprintf("%s has %d rows: %t, its circuit breaker is open: %t", name, rows, has, open)
			}
			return ""
		})
	}
	if n := total(); n > maxRequests {
		t.Errorf("the process sent %d requests to a dead receiver, want %d at most", n, maxRequests)
	}
	if code, body := r.ask(http.MethodPost, "/sources/"+others[0]+"/api/v1/reload", "{}"); code != http.StatusOK {
		t.Fatalf("reload: %d %s", code, body)
	}
	mu.Lock()
	status = http.StatusOK
	mu.Unlock()
	s.mu.Lock()
	clear(s.received)
	s.mu.Unlock()
	if out, errs, code := r.sluicebox("lanes", "retry-now", "--source-name", first, "--group", "g0"); code != 0 {
		t.Fatalf("retry-now: %d %s%s", code, out, errs)
	}
	s.mu.Lock()
	s.received[first] += rows // some wait for a backoff of their own
	s.mu.Unlock()
	s.await(rows)
	expectStop(t, r.relay)
}
