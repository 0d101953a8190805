package blackbox

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// orderReceiver is a receiver of rows that are numbered in their order, one group for each tenant.
type orderReceiver struct {
	row  *regexp.Regexp
	mu   sync.Mutex
	last map[string]int // the highest number
	gaps []string       // rows that came before an earlier one
}

// ServeHTTP takes a row.
func (n *orderReceiver) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, found := range n.row.FindAllSubmatch(body, -1) {
		name := string(found[1])
		at, _ := strconv.Atoi(string(found[2]))
		if at > n.last[name]+1 {
			n.gaps = append(n.gaps, fmt.Sprintf("%s: %d behind %d", name, at, n.last[name]))
		}
		n.last[name] = max(n.last[name], at)
	}
}

// leads counts the sources that a process leads.
func leads(r *relay) int {
	_, body := r.get("/readyz?verbose")
	return strings.Count(body, " ok: leading")
}

// awaitSpread waits until two processes lead all sources, and each of them some.
func (s *tenants) awaitSpread(a, b *relay) {
	s.t.Helper()
	within(s.t, testTimeout, func() string {
		if x, y := leads(a), leads(b); x+y != len(s.names) || min(x, y) < len(s.names)/4 {
			return fmt.Sprintf("the processes lead %d and %d of %d sources", x, y, len(s.names))
		}
		return ""
	})
}

// Sources spread over the processes, also over one that starts late or returns. No row is lost or out of
// order meanwhile.
func TestSourcesSpread(t *testing.T) {
	t.Parallel()
	s := newTenants(t, 6)
	to := &orderReceiver{last: map[string]int{}, row: regexp.MustCompile(`"of": ?"(\w+):(\d+)"`)}
	srv := httptest.NewServer(to)
	t.Cleanup(srv.Close)
	s.url = srv.URL

	writing, stop := context.WithCancel(t.Context())
	written, ended := 0, make(chan struct{})
	go func() {
		defer close(ended)
		for writing.Err() == nil {
			written++
			for _, name := range s.names {
				if _, err := s.conns[name].exec("INSERT INTO letters (id, type, message_group, payload) VALUES ($1, 'EVENT', 'g', $2)", fmt.Sprint("n", written), fmt.Sprintf(`{"of": "%s:%d"}`, name, written)); err != nil {
					t.Error(err)
					return
				}
			}
			select {
			case <-writing.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	defer func() { stop(); <-ended }()

	a := start(t, s.config("a", "spread-after: 1s\n"))
	a.waitFor("leadership acquired")
	within(t, testTimeout, func() string {
		if n := leads(a); n != len(s.names) {
			return fmt.Sprintf("the first process leads %d sources", n)
		}
		return ""
	})
	b := start(t, s.config("b", "spread-after: 1s\n"))
	b.waitFor("standing by")
	s.awaitSpread(a, b)
	b.kill()
	within(t, testTimeout, func() string {
		if n := leads(a); n != len(s.names) {
			return fmt.Sprintf("the process that is left leads %d sources", n)
		}
		return ""
	})
	b = start(t, s.config("b", "spread-after: 1s\n"))
	b.waitFor("standing by")
	s.awaitSpread(a, b)
	stop()
	<-ended
	awaitZero(t, "rows have not arrived", func() (left int) {
		to.mu.Lock()
		defer to.mu.Unlock()
		for _, name := range s.names {
			left += max(0, written-to.last[name])
		}
		return left
	})
	if len(to.gaps) > 0 {
		t.Errorf("%d rows came before an earlier one: %v", len(to.gaps), to.gaps[:min(10, len(to.gaps))])
	}
	expectStop(t, a)
	expectStop(t, b)
}
