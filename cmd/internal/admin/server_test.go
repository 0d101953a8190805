package admin_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// checks is a Status that counts its calls.
type checks struct {
	list  atomic.Pointer[[]sluicebox.Check]
	asked atomic.Int32
}

func (c *checks) Checks() []sluicebox.Check {
	c.asked.Add(1)
	if list := c.list.Load(); list != nil {
		return *list
	}
	return nil
}

func (c *checks) set(list ...sluicebox.Check) { c.list.Store(&list) }

// serve runs a server for the test and returns its address.
func serve(t *testing.T, cfg admin.Config, status admin.Status) string {
	t.Helper()
	return "http://" + serveServer(t, cfg, status).Addr()
}

func serveServer(t *testing.T, cfg admin.Config, status admin.Status) *admin.Server {
	t.Helper()
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	s := admin.New(cfg, status)
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s
}

type answer struct {
	status int
	body   string
	header http.Header
}

func ask(t *testing.T, method, url string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return do(t, req, header...)
}

// do sends a request with additional headers.
func do(t *testing.T, req *http.Request, header ...string) answer {
	t.Helper()
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, string(body), res.Header}
}

func TestProbes(t *testing.T) {
	var status checks
	base := serve(t, admin.Config{}, &status)

	if got := ask(t, "GET", base+"/livez"); got.status != 200 || got.body != "ok\n" {
		t.Errorf("/livez answers %d %q", got.status, got.body)
	}
	if status.asked.Load() != 0 {
		t.Error("/livez asked the checks")
	}
	status.set(sluicebox.Check{Name: "database", OK: true}, sluicebox.Check{Name: "stream", Detail: "slot lost\n[+] forged ok"})
	if got := ask(t, "GET", base+"/readyz"); got.status != 503 || got.body != "not ready\n" {
		t.Errorf("/readyz answers %d %q", got.status, got.body)
	}
	got := ask(t, "GET", base+"/readyz?verbose")
	want := "[+] database ok\n[-] stream failed: slot lost [+] forged ok\nnot ready\n"
	if got.status != 503 || got.body != want {
		t.Errorf("/readyz?verbose answers %d %q, want %q", got.status, got.body, want)
	}
	if got := ask(t, "GET", base+"/livez"); got.status != 200 {
		t.Errorf("/livez answers %d while the relay is not ready", got.status)
	}
	status.set(sluicebox.Check{Name: "database", OK: true, Detail: "reached"})
	if got := ask(t, "GET", base+"/readyz"); got.status != 200 || got.body != "ok\n" {
		t.Errorf("/readyz answers %d %q", got.status, got.body)
	}
	if got := ask(t, "GET", base+"/readyz?verbose"); got.body != "[+] database ok: reached\nok\n" {
		t.Errorf("/readyz?verbose answers %q", got.body)
	}
	if got := ask(t, "HEAD", base+"/readyz"); got.status != 200 || got.body != "" {
		t.Errorf("HEAD /readyz answers %d %q", got.status, got.body)
	}
}

// TestForeignHost checks DNS rebinding: without a token no endpoint answers a foreign
// Host header; with the token any Host works.
func TestForeignHost(t *testing.T) {
	var status checks
	open := serve(t, admin.Config{Profiling: true, Leader: &place{}}, &status)
	locked := serve(t, admin.Config{Profiling: true, Leader: &place{}, Token: "right"}, &status)
	for _, path := range []string{
		"/", "/livez", "/readyz", "/readyz?verbose", "/leader", "/leader?verbose", "/metrics",
		"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/symbol", "/api/v1/status", "/nowhere",
	} {
		if got := ask(t, "GET", open+path, "Host", "evil.example"); got.status != http.StatusForbidden || !strings.Contains(got.body, "Host evil.example is refused") {
			t.Errorf("%s under a foreign Host answers %d %.80q", path, got.status, got.body)
		}
		if got := ask(t, "GET", locked+path, "Host", "relay.example", "Authorization", "Bearer right"); got.status == http.StatusForbidden {
			t.Errorf("%s with the token answers %d %.80q", path, got.status, got.body)
		}
	}
	for _, host := range []string{"localhost", "127.0.0.1:1", "[::1]:8090"} {
		if got := ask(t, "GET", open+"/metrics", "Host", host); got.status != http.StatusOK {
			t.Errorf("/metrics under %s answers %d", host, got.status)
		}
	}
}

// place is a Leader.
type place struct {
	leads  atomic.Bool
	detail string
}

func (p *place) Leader() (bool, string) { return p.leads.Load(), p.detail }

func TestLeader(t *testing.T) {
	p := &place{detail: "standing by;\nhost leads"}
	base := serve(t, admin.Config{Leader: p, Token: "right"}, &checks{})
	for _, want := range []struct {
		leads         bool
		status        int
		word, verbose string
	}{
		{false, 503, "standby\n", "standby: standing by; host leads\n"},
		{true, 200, "leader\n", "leader: standing by; host leads\n"},
	} {
		p.leads.Store(want.leads)
		if got := ask(t, "GET", base+"/leader"); got.status != want.status || got.body != want.word {
			t.Errorf("/leader answers %d %q", got.status, got.body)
		}
		if got := ask(t, "GET", base+"/leader?verbose"); got.status != 401 || strings.Contains(got.body, "host") {
			t.Errorf("/leader?verbose answers %d %q without the token", got.status, got.body)
		}
		if got := ask(t, "GET", base+"/leader?verbose", "Authorization", "Bearer right"); got.status != want.status || got.body != want.verbose {
			t.Errorf("/leader?verbose answers %d %q", got.status, got.body)
		}
	}
}

func TestMetricsAndListing(t *testing.T) {
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "rows_total", Help: "Rows."})
	reg.MustRegister(c)
	c.Add(3)
	base := serve(t, admin.Config{Metrics: reg}, &checks{})
	if got := ask(t, "GET", base+"/metrics"); got.status != 200 || !strings.Contains(got.body, "rows_total 3") {
		t.Errorf("/metrics answers %d %q", got.status, got.body)
	}
	got := ask(t, "GET", base+"/")
	for _, path := range []string{"/livez", "/readyz", "/metrics"} {
		if !strings.Contains(got.body, path) {
			t.Errorf("/ does not list %s: %q", path, got.body)
		}
	}
	for name, want := range map[string]string{
		"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Content-Type": "text/plain; charset=utf-8",
	} {
		if got.header.Get(name) != want {
			t.Errorf("%s is %q, want %q", name, got.header.Get(name), want)
		}
	}
	if got := ask(t, "GET", base+"/none"); got.status != 404 {
		t.Errorf("an unknown path answers %d", got.status)
	}
}

func TestMethods(t *testing.T) {
	base := serve(t, admin.Config{}, &checks{})
	for _, path := range []string{"/", "/livez", "/readyz", "/metrics"} {
		for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS"} {
			got := ask(t, method, base+path)
			if got.status != 405 || got.header.Get("Allow") != "GET, HEAD" {
				t.Errorf("%s %s answers %d, allows %q", method, path, got.status, got.header.Get("Allow"))
			}
		}
	}
	if got := ask(t, "POST", base+"/livez", "Origin", "https://elsewhere.example", "Sec-Fetch-Site", "cross-site"); got.status != 403 {
		t.Errorf("a POST from another site answers %d, want 403", got.status)
	}
}

func TestToken(t *testing.T) {
	var status checks
	base := serve(t, admin.Config{Token: "right"}, &status)
	for _, path := range []string{"/livez", "/readyz"} {
		if got := ask(t, "GET", base+path); got.status != 200 {
			t.Errorf("%s answers %d without a token", path, got.status)
		}
	}
	for _, path := range []string{"/", "/metrics", "/readyz?verbose", "/readyz?verbose=1"} {
		for _, header := range []string{"", "Bearer wrong", "Bearer", "Bearer ", "Basic right", "right", "Bearer rightx", "Bearer  right"} {
			got := ask(t, "GET", base+path, "Authorization", header)
			if got.status != 401 || !strings.HasPrefix(got.header.Get("WWW-Authenticate"), "Bearer") || strings.Contains(got.body, "right") {
				t.Errorf("%s with %q answers %d %q", path, header, got.status, got.body)
			}
		}
		for _, header := range []string{"Bearer right", "bearer right"} {
			if got := ask(t, "GET", base+path, "Authorization", header); got.status != 200 {
				t.Errorf("%s with %q answers %d", path, header, got.status)
			}
		}
	}
}

func TestListenErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for _, tt := range []struct {
		cfg  admin.Config
		want string
	}{
		{admin.Config{Listen: taken.Addr().String()}, "admin.listen: cannot listen on " + taken.Addr().String() + ": bind: address already in use"},
		{admin.Config{Listen: "0.0.0.0:0"}, "admin.listen: other machines can reach 0.0.0.0:0, and admin.token is not set"},
		{admin.Config{Listen: ":0"}, "admin.listen: other machines can reach :0"},
		{admin.Config{Listen: "[::]:0"}, "admin.listen: other machines can reach [::]:0"},
		{admin.Config{Listen: "db.example:1"}, "admin.listen: other machines can reach db.example:1"},
		{admin.Config{Listen: "8090"}, `admin.listen: "8090" is not host:port`},
		{admin.Config{Listen: "127.0.0.1:99999"}, "admin.listen: cannot listen on 127.0.0.1:99999"},
	} {
		for _, call := range []func(*admin.Server) error{
			(*admin.Server).Listen,
			func(s *admin.Server) error { return s.Run(t.Context()) },
		} {
			err := call(admin.New(tt.cfg, &checks{}))
			var setup *store.SetupError
			if !errors.As(err, &setup) || !strings.HasPrefix(setup.Problem, tt.want) || setup.Remedy == "" {
				t.Errorf("%s: got %v, want a *store.SetupError %q", tt.cfg.Listen, err, tt.want)
			}
		}
	}
}

func TestAddresses(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "127.9.9.9:0", "localhost:0"} {
		s := admin.New(admin.Config{Listen: address}, &checks{})
		if err := s.Listen(); err != nil {
			t.Errorf("%s: %v", address, err)
		}
		if s.Addr() == "" {
			t.Errorf("%s: no address after Listen", address)
		}
		s.Close()
		s.Close()
	}
	serve(t, admin.Config{Listen: "0.0.0.0:0", Token: "t"}, &checks{}) // allowed, because it has a token
}

func TestNoAddressServesNothing(t *testing.T) {
	s := admin.New(admin.Config{}, &checks{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil || s.Addr() != "" {
		t.Errorf("Run is %v, address %q", err, s.Addr())
	}
}

// TestRunEnds checks that a hanging scrape does not delay shutdown.
func TestRunEnds(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	s := admin.New(admin.Config{Listen: "127.0.0.1:0"}, statusFunc(func() []sluicebox.Check {
		close(asked)
		<-release
		return nil
	}))
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	client := make(chan struct{})
	go func() {
		defer close(client)
		transport := &http.Transport{DisableKeepAlives: true}
		res, err := (&http.Client{Transport: transport}).Get("http://" + s.Addr() + "/readyz")
		if err == nil {
			_ = res.Body.Close()
		}
	}()
	<-asked
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("Run does not end while a request hangs")
	}
	close(release)
	<-client
	if _, err := net.DialTimeout("tcp", s.Addr(), time.Second); err == nil {
		t.Error("the address is still listened on")
	}
}

// TestPanicIsLogged checks that a panic in a check fails only its request, and is logged.
func TestPanicIsLogged(t *testing.T) {
	var logged lockedBuffer
	base := serve(t, admin.Config{Log: slog.New(slog.NewTextHandler(&logged, nil))}, statusFunc(func() []sluicebox.Check { panic("broken check") }))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if res, err := client.Get(base + "/readyz"); err == nil {
		_ = res.Body.Close()
		t.Errorf("/readyz answers %d", res.StatusCode)
	}
	if got := ask(t, "GET", base+"/livez"); got.status != 200 {
		t.Errorf("/livez answers %d afterwards", got.status)
	}
	if !strings.Contains(logged.String(), "broken check") {
		t.Errorf("logged %q", logged.String())
	}
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

type statusFunc func() []sluicebox.Check

func (f statusFunc) Checks() []sluicebox.Check { return f() }
