package flowcatalyst_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/flowcatalyst"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store"
)

const clientSecret = "secret-5b0e1f"

// tokenServer is a fake token endpoint with a server of its own.
type tokenServer struct {
	url   string
	life  time.Duration
	grace time.Duration // validity of a token beyond its stated lifetime

	mu       sync.Mutex
	requests int
	down     bool
	unknown  bool                 // the endpoint does not know the client
	good     map[string]time.Time // tokens and their expiry
	issued   chan struct{}        // one signal per token, if there is room
	refused  chan struct{}        // one signal per response while down, if there is room
}

func newTokenServer(t *testing.T, life time.Duration) *tokenServer {
	t.Helper()
	l := &tokenServer{life: life, good: map[string]time.Time{}, issued: make(chan struct{}, 100), refused: make(chan struct{}, 100)}
	srv := httptest.NewServer(l)
	t.Cleanup(srv.Close)
	l.url = srv.URL + "/oauth/token"
	return l
}

func (l *tokenServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.requests++
	id, secret, _ := r.BasicAuth()
	switch {
	case l.down:
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		signal(l.refused)
	case l.unknown || id != "relay" || secret != clientSecret || r.FormValue("grant_type") != "client_credentials" || r.URL.Path != "/oauth/token":
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprintf(w, `{"error":"invalid_client","error_description":"not %s"}`, secret)
	default:
		token := fmt.Sprint(canary, "-", l.requests)
		l.good[token] = time.Now().Add(l.life + l.grace)
		_, _ = fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":%d}`, token, l.life/time.Second)
		signal(l.issued)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// guard answers 401 with the token to a request whose token is invalid.
func (l *tokenServer) guard(r *sinktest.Request) sinktest.Answer {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	l.mu.Lock()
	defer l.mu.Unlock()

	if time.Now().Before(l.good[token]) {
		return sinktest.Answer{}
	}
	return sinktest.Answer{Status: http.StatusUnauthorized, Body: []byte("no such token: " + token)}
}

// set changes the behaviour of the endpoint.
func (l *tokenServer) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

func (l *tokenServer) fetches() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requests
}

// open returns a receiver that checks the tokens of the server, and a sink for it.
func (l *tokenServer) open(t *testing.T) (*sinktest.Receiver, *flowcatalyst.Sink) {
	t.Helper()
	recv := sinktest.NewReceiver(t)
	recv.Script(l.guard)
	return recv, newSink(t, flowcatalyst.Config{
		Wire: flowcatalyst.WireItems, BaseURL: recv.URL(), HTTP: flowcatalyst.HTTP{RequestTimeout: 5 * time.Second, MaxConnections: 16},
		OAuth: flowcatalyst.OAuth{TokenURL: l.url, ClientID: "relay", ClientSecret: clientSecret},
	})
}

// deliverUntil delivers from 8 senders until stop is closed and returns the number of
// rows. The ids start with the name.
func deliverUntil(t *testing.T, s *flowcatalyst.Sink, name string, stop <-chan struct{}) int {
	t.Helper()
	var wg sync.WaitGroup
	rows := make([]int, 8)
	for i := range rows {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				id := fmt.Sprintf("%s-%d-%d", name, i, rows[i])
				res := s.Deliver(t.Context(), []sink.Message{message("EVENT", id, `{"id":"`+id+`"}`)})
				if res.Class != sink.Delivered {
					t.Errorf("row %s is %s: %s", id, res.Class, res.Detail)
					return
				}
				rows[i]++
			}
		})
	}

	wg.Wait()
	n := 0
	for _, r := range rows {
		n += r
	}

	return n
}

// wantOnce fails the test unless n rows arrived, each accepted once.
func wantOnce(t *testing.T, recv *sinktest.Receiver, n int) {
	t.Helper()
	seen := map[string]bool{}
	for _, x := range recv.Accepted() {
		if seen[x.ID] {
			t.Errorf("row %s was accepted twice", x.ID)
		}
		seen[x.ID] = true
	}

	if len(seen) != n || n == 0 {
		t.Errorf("%d rows arrived of %d", len(seen), n)
	}
}

// closedAfter returns a channel that is closed after d.
func closedAfter(d time.Duration) <-chan struct{} {
	done := make(chan struct{})
	time.AfterFunc(d, func() { close(done) })
	return done
}

// TestOAuthDefaultAddress: the default endpoint is the platform's own.
func TestOAuthDefaultAddress(t *testing.T) {
	l := &tokenServer{life: time.Hour, good: map[string]time.Time{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/base/oauth/token", func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = strings.TrimPrefix(r.URL.Path, "/base")
		l.ServeHTTP(w, r)
	})

	carried := ""
	mux.HandleFunc("/base/api/events/batch", func(w http.ResponseWriter, r *http.Request) {
		carried = r.Header.Get("Authorization")
		_, _ = w.Write(sinktest.Results(1))
	})

	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	s := newSink(t, flowcatalyst.Config{
		BaseURL: srv.URL + "/base/", OAuth: flowcatalyst.OAuth{ClientID: "relay", ClientSecret: clientSecret},
	})
	if n := l.fetches(); n != 0 {
		t.Errorf("%d fetches before the first row", n)
	}
	if res := s.Deliver(t.Context(), events(1)); res.Class != sink.Delivered {
		t.Fatalf("got %s: %s", res.Class, res.Detail)
	}
	if carried != "Bearer "+canary+"-1" {
		t.Errorf("got Authorization %q", carried)
	}
}

// TestOAuthExpiry: tokens live for a second, at a platform that checks the time.
// Every token is fetched once, and no row fails.
func TestOAuthExpiry(t *testing.T) {
	t.Parallel()
	l := newTokenServer(t, time.Second)
	l.grace = time.Second / 2 // for a busy machine
	recv, s := l.open(t)
	wantOnce(t, recv, deliverUntil(t, s, "row", closedAfter(2500*time.Millisecond)))
	if n := l.fetches(); n < 3 || n > 5 {
		t.Errorf("%d fetches in 2.5 s", n)
	}
}

// TestOAuthRotation: the platform revokes all tokens long before they expire. One new
// token serves all senders, and no row fails.
func TestOAuthRotation(t *testing.T) {
	t.Parallel()
	l := newTokenServer(t, time.Hour)
	recv, s := l.open(t)
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		<-l.issued
		<-closedAfter(5100 * time.Millisecond) // a younger token would not be renewed
		l.set(func() { clear(l.good) })
		<-l.issued
		<-closedAfter(200 * time.Millisecond) // with the new one
	}()

	wantOnce(t, recv, deliverUntil(t, s, "row", stop))
	if n := l.fetches(); n != 2 {
		t.Errorf("%d fetches, want 2", n)
	}
}

// TestOAuthEndpointDown: rows are delivered while the old token is valid. Then they
// are Unavailable until the endpoint is back.
func TestOAuthEndpointDown(t *testing.T) {
	t.Parallel()
	l := newTokenServer(t, 5*time.Second)
	l.grace = time.Second / 2
	recv, s := l.open(t)
	n := deliverUntil(t, s, "up", closedAfter(100*time.Millisecond))
	l.set(func() { l.down = true })
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		<-l.refused                           // a second before the old token expires
		<-closedAfter(100 * time.Millisecond) // with the old one
	}()

	n += deliverUntil(t, s, "down", stop)
	if got := l.fetches(); got != 2 {
		t.Errorf("%d fetches, want 2", got)
	}

	<-closedAfter(time.Second) // the old token expires
	res := s.Deliver(t.Context(), events(1))
	if res.Class != sink.Unavailable || res.Reason != store.ReasonGateway || res.RetryAfter > time.Second {
		t.Errorf("got %+v", res)
	}

	want := "POST /api/events/batch: no token: 503 Service Unavailable from POST " + l.url
	if res.Detail != want {
		t.Errorf("got detail %q, want %q", res.Detail, want)
	}

	l.set(func() { l.down = false })
	for began := time.Now(); res.Class != sink.Delivered && time.Since(began) < 10*time.Second; {
		<-closedAfter(50 * time.Millisecond)
		res = s.Deliver(t.Context(), events(1))
	}

	if res.Class != sink.Delivered {
		t.Errorf("after the outage: %s %s", res.Class, res.Detail)
	}

	wantOnce(t, recv, n+1)
}

// TestOAuthAlwaysRefused: the platform accepts no token. The detail says so without
// the token, and the endpoint gets few requests.
func TestOAuthAlwaysRefused(t *testing.T) {
	t.Parallel()
	l := newTokenServer(t, time.Hour)
	recv, s := l.open(t)
	recv.Script(func(r *sinktest.Request) sinktest.Answer {
		return sinktest.Answer{Status: http.StatusUnauthorized, Body: []byte("no such token: " + r.Header.Get("Authorization"))}
	})

	var wg sync.WaitGroup
	requests := make([]int, 8)
	began := time.Now()
	for i := range requests {
		wg.Go(func() {
			for time.Since(began) < 5500*time.Millisecond {
				requests[i]++
				res := s.Deliver(t.Context(), events(3))
				if res.Class != sink.Misconfigured || res.Reason != store.ReasonUnauthorized || res.Items != nil {
					t.Errorf("got %+v", res)
					return
				}
				if want := "401 Unauthorized from POST /api/events/batch: no such token: Bearer [redacted]"; res.Detail != want {
					t.Errorf("got detail %q, want %q", res.Detail, want)
					return
				}
				<-closedAfter(10 * time.Millisecond)
			}
		})
	}

	wg.Wait()
	if n := l.fetches(); n != 2 {
		t.Errorf("%d fetches in 5.5 s, want 2", n)
	}

	total := 0
	for _, n := range requests {
		total += n
	}

	// Only the requests that met the renewal were repeated.
	if c := recv.Counts(); c.Requests < total || c.Requests > total+2*len(requests) {
		t.Errorf("%d deliveries made %d requests", total, c.Requests)
	}
}

// TestOAuthUnknownClient: nothing is sent, and the detail names the keys to check.
func TestOAuthUnknownClient(t *testing.T) {
	l := newTokenServer(t, time.Hour)
	l.unknown = true
	recv, s := l.open(t)
	for range 5 {
		res := s.Deliver(t.Context(), events(2))
		if res.Class != sink.Misconfigured || res.Reason != store.ReasonUnauthorized {
			t.Errorf("got %+v", res)
		}
		for _, want := range []string{l.url, "invalid_client", "oauth.client-secret", "not [redacted]"} {
			if !strings.Contains(res.Detail, want) {
				t.Errorf("got detail %q, want %q in it", res.Detail, want)
			}
		}
	}

	if n, got := l.fetches(), recv.Log(); n != 2 || // one fetch, with each method of authentication
		len(got) != 0 {
		t.Errorf("%d fetches, %d rows arrived", n, len(got))
	}
}

// TestOAuthBounds: the wait for a token counts toward the request timeout, and Close
// cancels a fetch without waiting senders.
func TestOAuthBounds(t *testing.T) {
	ended := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm() // the server detects the end of a connection only after the body
		<-r.Context().Done()
		close(ended)
	}))
	t.Cleanup(srv.Close)
	s := newSink(t, flowcatalyst.Config{
		BaseURL: srv.URL, HTTP: flowcatalyst.HTTP{RequestTimeout: 200 * time.Millisecond},
		OAuth: flowcatalyst.OAuth{ClientID: "relay", ClientSecret: clientSecret},
	})

	began := time.Now()
	res := s.Deliver(t.Context(), events(1))
	if d := time.Since(began); d > 3*time.Second || res.Class != sink.Unavailable || !strings.Contains(res.Detail, "request-timeout (200ms)") {
		t.Errorf("after %s: %+v", d, res)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if res := s.Deliver(ctx, events(1)); res.Class != sink.Unavailable || !strings.Contains(res.Detail, "context canceled") {
		t.Errorf("cancelled: %+v", res)
	}

	s.Close()
	select {
	case <-ended:
	case <-closedAfter(5 * time.Second):
		t.Error("fetch still in flight after Close")
	}
}

// TestOAuthSuite: a sink with OAuth passes the suite.
func TestOAuthSuite(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{
		Kind: flowcatalyst.KindEvent, Success: results(http.StatusCreated), Secret: canary,
		New: func(tb testing.TB, baseURL string, timeout time.Duration) sink.Sink {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = fmt.Fprintf(w, `{"access_token":%q,"expires_in":3600}`, canary)
			}))
			tb.Cleanup(srv.Close)
			return newSink(tb, flowcatalyst.Config{
				Wire: flowcatalyst.WireItems, BaseURL: baseURL, HTTP: flowcatalyst.HTTP{RequestTimeout: timeout, MaxConnections: 16},
				OAuth: flowcatalyst.OAuth{TokenURL: srv.URL, ClientID: "relay", ClientSecret: clientSecret},
			})
		},
	})
}

// TestOAuthConfig: the checks that the sink's Validate adds to those of the client.
func TestOAuthConfig(t *testing.T) {
	full := flowcatalyst.OAuth{ClientID: "relay", ClientSecret: clientSecret}
	for name, c := range map[string]struct {
		token sink.Secret
		oauth flowcatalyst.OAuth
		want  string
	}{
		"neither":    {"", flowcatalyst.OAuth{}, ""},
		"token":      {canary, flowcatalyst.OAuth{}, ""},
		"client":     {"", full, ""},
		"both":       {canary, full, "api-token and oauth are both set; keep one"},
		"incomplete": {"", flowcatalyst.OAuth{ClientAuth: flowcatalyst.AuthBody}, "oauth.client-id is not set\noauth.client-secret is not set"},
		"password":   {"", flowcatalyst.OAuth{TokenURL: "https://relay:" + clientSecret + "@h", ClientID: "relay", ClientSecret: clientSecret}, "oauth.token-url contains a user or password; put them in oauth.client-id and oauth.client-secret"},
	} {
		cfg := flowcatalyst.DefaultConfig()
		cfg.BaseURL, cfg.Token, cfg.OAuth = "https://platform.example", c.token, c.oauth
		got := ""
		if err := cfg.Validate(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}

	cfg := flowcatalyst.Config{BaseURL: "https://platform.example", OAuth: full}
	s := newSink(t, cfg)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		for _, v := range []any{cfg, &cfg, s} {
			text := fmt.Sprintf(verb, v)
			if strings.Contains(text, clientSecret) || strings.Contains(text, fmt.Sprintf("%x", clientSecret)) {
				t.Errorf("%s shows the secret: %s", verb, text)
			}
		}
	}
}
