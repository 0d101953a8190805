package blackbox

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// sourcesVariable replaces the number of sources of TestManySources. 200 is a full run:
//
//	SLUICEBOX_TEST_SOURCES=200 go test -v -run TestManySources ./cmd/internal/blackbox
const sourcesVariable = "SLUICEBOX_TEST_SOURCES"

// idleSessions is how many sessions a source keeps that has had nothing to do for a while.
const idleSessions = 6

// manySources are databases on a server of their own, all with the same outbox.
type manySources struct {
	t     *testing.T
	admin *conn
	urls  map[string]string
	names []string

	mu  sync.Mutex
	got map[string]bool // names whose row has arrived
}

// newManySources creates n databases.
func newManySources(t *testing.T, version, n int) *manySources {
	t.Helper()
	settings := map[string]string{
		"max_connections": strconv.Itoa(60 + 14*n), "max_wal_senders": strconv.Itoa(n + 20), "max_replication_slots": strconv.Itoa(n + 20),
	}
	server := servers.Start(t, version, settings)
	s := &manySources{t: t, admin: connect(t, server.URL), urls: map[string]string{}, got: map[string]bool{}}
	base, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		name, template := fmt.Sprintf("ten%d", i), "template0"
		if i > 0 {
			template = "ten0"
		}
		if _, err := s.admin.exec("CREATE DATABASE " + name + " TEMPLATE " + template); err != nil {
			t.Fatal(err)
		}
		of := *base
		of.Path = "/" + name
		s.names, s.urls[name] = append(s.names, name), of.String()
		if i > 0 {
			continue
		}
		if out, errs, code := command(t, nil, "init", "--outbox", "outbox-messages", "--table", "letters", "--source", of.String(), "--apply"); code != 0 {
			t.Fatalf("init: %s%s", out, errs)
		}
	}
	return s
}

// ServeHTTP is the receiver.
func (s *manySources) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	var row struct{ Of string }
	err := json.NewDecoder(r.Body).Decode(&row)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.got[row.Of] = true
	}
}

// config returns the configuration of a process.
func (s *manySources) config(process, receiver string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "process: %s\nspread-after: 1s\nadmin: {listen: %s}\nsources:\n", process, adminKey)
	for _, name := range s.names {
		fmt.Fprintf(&b, "  - {name: %s, url: %q}\n", name, s.urls[name])
	}
	fmt.Fprintf(&b, "outboxes: [{table: letters, layout: outbox-messages, sink: all}]\nsinks: {all: {type: webhook, url: %q}}\n", receiver)
	return b.String()
}

// awaitLed waits until the processes lead all sources, the last of them at least some.
func (s *manySources) awaitLed(some int, all ...*relay) time.Duration {
	s.t.Helper()
	began := time.Now()
	within(s.t, testTimeout, func() string {
		counts, sum, last := []int{}, 0, 0
		for _, r := range all {
			last = leads(r)
			counts, sum = append(counts, last), sum+last
		}
		if sum != len(s.names) || last < some {
			return fmt.Sprintf("the processes lead %v of %d sources after %s", counts, len(s.names), time.Since(began).Round(time.Second))
		}
		return ""
	})
	return time.Since(began).Round(100 * time.Millisecond)
}

// sessionsByPurpose counts the sessions of relays by their purpose.
func sessionsByPurpose(t *testing.T, on *conn) (sum int, text string) {
	t.Helper()
	rows, err := on.QueryContext(t.Context(), `
SELECT regexp_replace(application_name, '^sluicebox \S+ ?', '') || CASE WHEN backend_type = 'walsender' THEN ' (walsender)' ELSE '' END, count(*)
FROM pg_stat_activity WHERE datname IS NOT NULL AND application_name LIKE 'sluicebox %' GROUP BY 1 ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var purpose string
		var n int
		if err := rows.Scan(&purpose, &n); err != nil {
			t.Fatal(err)
		}
		sum += n
		text += fmt.Sprintf(", %s %d", purpose, n)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return sum, fmt.Sprintf("%d sessions%s", sum, text)
}

// busy returns the seconds of a processor that the process has used.
func (r *relay) busy() float64 {
	r.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.cmd.Process.Pid))
	if err != nil {
		r.t.Skipf("the time of a process cannot be read here: %v", err)
	}
	fields := strings.Fields(string(text)[strings.LastIndexByte(string(text), ')')+1:])
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return float64(user+system) / 100 // USER_HZ
}

// Many databases of one server in one process: each of them is led, idle ones keep few sessions, and
// another process takes over all that a killed one has led.
func TestManySources(t *testing.T) {
	t.Parallel()
	n := 12
	if text := os.Getenv(sourcesVariable); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 2 || n > 1000 {
			t.Fatalf("%s is %q, must be 2 to 1000", sourcesVariable, text)
		}
	}
	aVersion(t, func(t *testing.T, version int) {
		s := newManySources(t, version, n)
		to := httptest.NewServer(s)
		t.Cleanup(to.Close)
		a := start(t, s.config("a", to.URL))
		a.waitFor("leadership acquired")
		t.Logf("a process leads %d sources after %s", n, s.awaitLed(n, a))
		s.writeEach()

		const look = 5 * time.Second
		within(t, testTimeout, func() string { // those of the start end
			if sum, text := sessionsByPurpose(t, s.admin); sum > n*idleSessions {
				return fmt.Sprintf("of %d idle sources: %s, want %d at most", n, text, n*idleSessions)
			}
			return ""
		})
		_, text := sessionsByPurpose(t, s.admin)
		busy := a.busy()
		time.Sleep(look) // the time over which the processor's use is measured
		t.Logf("%d sources: %s; %d MiB; %.1f %% of a processor", n, text, a.resident()>>20, (a.busy()-busy)/look.Seconds()*100)

		b := start(t, s.config("b", to.URL))
		b.waitFor("leadership acquired")
		t.Logf("another process leads a quarter or more after %s", s.awaitLed(n/4, a, b))
		led := leads(b)
		_, text = sessionsByPurpose(t, s.admin)
		t.Logf("two processes, the second leads %d: %s; %d and %d MiB", led, text, a.resident()>>20, b.resident()>>20)
		b.kill()
		t.Logf("it was killed, and the first leads all after %s", s.awaitLed(n, a))
		s.mu.Lock()
		clear(s.got)
		s.mu.Unlock()
		s.writeEach()
		expectStop(t, a)
	})
}

// writeEach writes a row into each outbox and waits for its arrival.
func (s *manySources) writeEach() {
	s.t.Helper()
	for _, name := range s.names {
		db := s.admin.kind.pool(s.t, s.urls[name])
		_, err := db.ExecContext(context.Background(), "INSERT INTO letters (id, type, payload) VALUES (left(gen_random_uuid()::text, 18), 'EVENT', $1)", `{"of": "`+name+`"}`)
		_ = db.Close()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	within(s.t, testTimeout, func() string {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.got) < len(s.names) {
			return fmt.Sprintf("the rows of %d sources of %d have arrived", len(s.got), len(s.names))
		}
		return ""
	})
}
