package blackbox

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// maxIdleSessions is the most sessions of a source that has nothing to do, with its walsender.
const maxIdleSessions = 10

// tenants are databases with an outbox each, whose rows go to one receiver.
type tenants struct {
	t         *testing.T
	names     []string
	databases map[string]string
	conns     map[string]*conn
	url       string // of the receiver

	mu       sync.Mutex
	received map[string]int        // by the payload's tenant
	answer   func(name string) int // the status of an answer; nil: 200
	dials    int                   // connections to the receiver
}

// newTenants creates n databases, some of them on MySQL if there is such a server.
func newTenants(t *testing.T, n int) *tenants {
	t.Helper()
	s := &tenants{t: t, databases: map[string]string{}, conns: map[string]*conn{}, received: map[string]int{}}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(s.receive))
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.dials++
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	s.url = srv.URL
	all := kinds(t)
	for i := range n {
		h := all[0]
		if i == n-1 {
			h = all[len(all)-1]
		}
		name := fmt.Sprintf("tenant%d_%s", i, strings.ToLower(strings.ReplaceAll(t.Name(), "Test", "")))
		url := h.database(t)
		if out, errs, code := command(t, nil, "init", "--outbox", "outbox-messages", "--table", "letters", "--source", url, "--apply"); code != 0 {
			t.Fatalf("init: %s%s", out, errs)
		}
		s.names, s.databases[name], s.conns[name] = append(s.names, name), url, connect(t, url)
	}
	return s
}

// receive is the receiver.
func (s *tenants) receive(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	answer, status := s.answer, http.StatusOK
	s.mu.Unlock()
	for _, name := range s.names {
		n := strings.Count(string(body), `"`+name+`"`)
		if n == 0 {
			continue
		}
		if answer != nil {
			status = answer(name)
		}
		s.mu.Lock()
		s.received[name] += n
		s.mu.Unlock()
	}
	w.WriteHeader(status)
}

// config returns the configuration of a process.
func (s *tenants) config(process, more string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "process: %s\nadmin: {listen: %s}\nsources:\n", process, adminKey)
	for _, name := range s.names {
		fmt.Fprintf(&b, "  - {name: %s, url: %q}\n", name, s.databases[name])
	}
	fmt.Fprintf(&b, "%soutboxes: [{table: letters, layout: outbox-messages, sink: all}]\nsinks: {all: {type: webhook, url: %q}}\n", more, s.url)
	return b.String()
}

// write adds a row to each tenant's outbox.
func (s *tenants) write(id string) {
	s.t.Helper()
	for _, name := range s.names {
		if _, err := s.conns[name].exec("INSERT INTO letters (id, type, payload) VALUES ($1, 'EVENT', $2)", id, `{"of":"`+name+`"}`); err != nil {
			s.t.Fatal(err)
		}
	}
}

// await waits until the receiver has n rows or more of each tenant.
func (s *tenants) await(n int) {
	s.t.Helper()
	within(s.t, testTimeout, func() string {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, name := range s.names {
			if s.received[name] < n {
				return fmt.Sprintf("%s has sent %d rows of %d", name, s.received[name], n)
			}
		}
		return ""
	})
}

// One process relays several databases of several servers. A source whose database is missing is named,
// and delays none of the others.
func TestSeveralSources(t *testing.T) {
	t.Parallel()
	s := newTenants(t, 4)
	missing, err := url.Parse(s.databases[s.names[0]])
	if err != nil {
		t.Fatal(err)
	}
	missing.Path += "_missing"
	r := start(t, s.config("one", fmt.Sprintf("  - {name: missing, url: %q}\n", missing)))
	s.write("1")
	s.await(1)
	within(t, testTimeout, func() string {
		_, body := r.get("/readyz?verbose")
		for _, name := range s.names {
			if !strings.Contains(body, "[+] "+name+" ok: leading") {
				return name + " is not ready:\n" + body
			}
		}
		if !strings.Contains(body, "[-] missing failed: ") {
			return "the missing database is not named:\n" + body
		}
		return ""
	})
	within(t, testTimeout, func() string { // a row is settled after its receiver has it
		for _, name := range s.names {
			if n := r.metric(`sluicebox_rows_settled_total{sink="all",source="` + name + `",status="COMPLETED"}`); n != 1 {
				return fmt.Sprintf("%s: %v rows in the metrics, want 1", name, n)
			}
		}
		return ""
	})
	if out, _, code := r.sluicebox("status"); code != 1 || strings.Count(out, "leader") < 4 || !strings.Contains(out, "missing") {
		t.Errorf("status exits with %d:\n%s", code, out)
	}
	if out, _, code := r.sluicebox("doctor"); code != 78 || !strings.Contains(out, "\n5 sources: 1 with faults, 0 unreachable, ") || !strings.Contains(out, "\nmissing  fault") || strings.Count(out, "\nsinks\n") != 1 {
		t.Errorf("doctor exits with %d:\n%s", code, out)
	}
	first := s.names[0]
	if _, errs, code := r.sluicebox("lanes", "list"); code != 64 || !strings.Contains(errs, "--source-name NAME, one of "+first) {
		t.Errorf("lanes without a source exits with %d: %s", code, errs)
	}
	if out, errs, code := r.sluicebox("status", "--source-name", first); code != 0 || !strings.Contains(out, first) {
		t.Errorf("status of one source exits with %d: %s%s", code, out, errs)
	}
	if status, body := r.get("/api/v1/lanes"); status != http.StatusBadRequest || !strings.Contains(body, "/sources/NAME/api/v1/lanes") {
		t.Errorf("lanes of no source: %d %s", status, body)
	}
	if status, body := r.get("/sources/" + first + "/api/v1/lanes"); status != http.StatusOK {
		t.Errorf("lanes of a source: %d %s", status, body)
	}
	within(t, testTimeout, func() string { // those of the start end
		if n := count(t, s.conns[first], s.conns[first].kind.sessions(s.databases[first])); n > maxIdleSessions {
			return fmt.Sprintf("%d sessions of an idle source, want %d at most", n, maxIdleSessions)
		}
		return ""
	})
	expectStop(t, r)
}

// askAs sends a request with a token.
func (r *relay) askAs(token, method, path string) (status int) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.admin+path, strings.NewReader("{}"))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// A reload of one source puts new tokens into force at all addresses. It repairs a source that has
// failed, whatever key was wrong.
func TestReloadOfSources(t *testing.T) {
	t.Parallel()
	s := newTenants(t, 2)
	first, second := s.names[0], s.names[1]
	const before, after = "token-before-0123456789", "token-after-0123456789"
	right := s.databases[second]
	wrong, err := url.Parse(right)
	if err != nil {
		t.Fatal(err)
	}
	wrong.Path += "_missing"
	text := strings.Replace(s.config("one", ""), adminKey+"}", adminKey+", token: "+before+"}", 1)
	r := configure(t, strings.Replace(text, fmt.Sprintf("%q", right), fmt.Sprintf("%q", wrong), 1))
	r.waitFor(`"source failed; restarting its relay" source=` + second)
	r.set(t, strings.Replace(r.text, before, after, 1))
	if status := r.askAs(before, http.MethodPost, "/sources/"+first+"/api/v1/reload"); status != http.StatusOK {
		t.Fatalf("the reload of a source: %d", status)
	}
	for _, path := range []string{"/metrics", "/api/v1/sources", "/sources/" + first + "/api/v1/status", "/sources/" + second + "/api/v1/status"} {
		if was, is := r.askAs(before, http.MethodGet, path), r.askAs(after, http.MethodGet, path); was != http.StatusUnauthorized || is != http.StatusOK {
			t.Errorf("%s answers the old token with %d, the new one with %d", path, was, is)
		}
	}
	r.set(t, strings.Replace(r.text, fmt.Sprintf("%q", wrong), fmt.Sprintf("%q", right), 1))
	if status := r.askAs(after, http.MethodPost, "/sources/"+second+"/api/v1/reload"); status != http.StatusOK {
		t.Fatalf("the reload of a source that has failed: %d", status)
	}
	s.write("1")
	s.await(1)
	if status := r.askAs(before, http.MethodGet, "/sources/"+second+"/api/v1/status"); status != http.StatusUnauthorized {
		t.Errorf("the repaired source answers the old token with %d", status)
	}
	r.set(t, strings.Replace(r.text, fmt.Sprintf("%q", right), fmt.Sprintf("%q", wrong), 1))
	if status := r.askAs(after, http.MethodPost, "/sources/"+second+"/api/v1/reload"); status == http.StatusOK {
		t.Error("a source that works takes another database")
	}
	r.set(t, strings.Replace(r.text, "{name: "+second+",", "{name: another,", 1))
	if status := r.askAs(after, http.MethodPost, "/sources/"+first+"/api/v1/reload"); status == http.StatusOK {
		t.Error("a reload takes other sources")
	}
	r.waitFor("sources need a restart: added another; removed " + second)
	expectStop(t, r.relay)
}
