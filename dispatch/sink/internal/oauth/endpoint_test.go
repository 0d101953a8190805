package oauth

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// The secret needs encoding in a form and for Basic.
const (
	clientID = "relay:1"
	canary   = "canary-7f3d+2a/91 c4%"
)

func config(address string) Config {
	return Config{TokenURL: address, ClientID: clientID, ClientSecret: canary}
}

func newSource(tb testing.TB, cfg Config) *Source {
	tb.Helper()
	if err := cfg.Validate(); err != nil {
		tb.Fatal(err)
	}

	s, err := NewSource(cfg, "", "sluicebox/1.2.3")
	if err != nil {
		tb.Fatal(err)
	}

	tb.Cleanup(s.Close)
	return s
}

func serve(tb testing.TB, h http.HandlerFunc) string {
	tb.Helper()
	srv := httptest.NewServer(h)
	tb.Cleanup(srv.Close)
	return srv.URL
}

// TestForm: the request byte for byte.
func TestForm(t *testing.T) {
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("relay%3A1:canary-7f3d%2B2a%2F91+c4%25"))
	const inBody = "client_id=relay%3A1&client_secret=canary-7f3d%2B2a%2F91+c4%25&grant_type=client_credentials"
	for name, c := range map[string]struct {
		change func(*Config)
		head   string
		body   string
	}{
		"defaults": {func(*Config) {}, basic, "grant_type=client_credentials"},
		"basic":    {func(c *Config) { c.ClientAuth = AuthBasic }, basic, "grant_type=client_credentials"},
		"body":     {func(c *Config) { c.ClientAuth = AuthBody }, "", inBody},
		"all": {
			func(c *Config) { c.Scope, c.Audience = "events:write jobs:write", "https://platform.example/api?a=b" },
			basic,
			"audience=https%3A%2F%2Fplatform.example%2Fapi%3Fa%3Db&grant_type=client_credentials&scope=events%3Awrite+jobs%3Awrite",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got *http.Request
			var body []byte
			cfg := config(serve(t, func(w http.ResponseWriter, r *http.Request) {
				got = r
				body, _ = io.ReadAll(r.Body)
				if id, secret, ok := r.BasicAuth(); ok {
					id, _ = url.QueryUnescape(id)
					secret, _ = url.QueryUnescape(secret)
					if id != clientID || secret != canary {
						t.Errorf("Basic holds %q and %q", id, secret)
					}
				}
				_, _ = io.WriteString(w, `{"access_token":"t1","token_type":"Bearer","expires_in":3600}`)
			}) + "/oauth/token?tenant=7")
			c.change(&cfg)
			if token, err := newSource(t, cfg).Token(t.Context()); token != "t1" || err != nil {
				t.Fatalf("got token %q, %v", token, err)
			}
			if got.Method != "POST" || got.RequestURI != "/oauth/token?tenant=7" || string(body) != c.body {
				t.Errorf("%s %s with %s, want %s", got.Method, got.RequestURI, body, c.body)
			}
			for key, want := range map[string]string{
				"Authorization": c.head, "Content-Type": "application/x-www-form-urlencoded",
				"Accept": "application/json", "User-Agent": "sluicebox/1.2.3",
			} {
				if v := got.Header.Get(key); v != want {
					t.Errorf("header %s is %q, want %q", key, v, want)
				}
			}
		})
	}
}

// TestClientAuth: an endpoint need not read both methods of authentication. One more
// request finds the method that it reads, and the method is kept. For example,
// FlowCatalyst's endpoint reads the form only.
func TestClientAuth(t *testing.T) {
	const (
		noClient  = `{"error":"invalid_client","error_description":"unknown client"}`
		noRequest = `{"error":"invalid_request","error_description":"Missing client_id"}`
	)
	reads := func(way ClientAuth, secret string, status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, password, basic := r.BasicAuth()
			given, _ := url.QueryUnescape(password)
			if way == AuthBody {
				basic, given = !basic, r.PostFormValue("client_secret")
			}
			switch {
			case !basic:
				w.WriteHeader(status)
				_, _ = io.WriteString(w, body)
			case given != secret:
				w.WriteHeader(http.StatusUnauthorized)
				_, _ = io.WriteString(w, noClient)
			default:
				_, _ = io.WriteString(w, `{"access_token":"t1","expires_in":3600}`)
			}
		}
	}

	for name, c := range map[string]struct {
		auth     ClientAuth
		endpoint http.HandlerFunc
		requests int // of the first fetch; the second takes one if there was a token
		want     string
	}{
		"form alone":             {"", reads(AuthBody, canary, 400, noRequest), 2, ""},
		"form alone, by 401":     {AuthAuto, reads(AuthBody, canary, 401, noClient), 2, ""},
		"form alone, no reason":  {AuthAuto, reads(AuthBody, canary, 400, ""), 2, ""},
		"Basic alone":            {AuthAuto, reads(AuthBasic, canary, 401, noClient), 1, ""},
		"form, other secret":     {AuthAuto, reads(AuthBody, "other", 400, noRequest), 2, "401 Unauthorized"},
		"Basic, other secret":    {AuthAuto, reads(AuthBasic, "other", 400, noRequest), 2, "401 Unauthorized"},
		"form, told to be Basic": {AuthBasic, reads(AuthBody, canary, 400, noRequest), 1, "oauth.client-secret and oauth.client-auth: invalid_request (Missing client_id)"},
		"no such scope":          {AuthAuto, reads(AuthBody, canary, 400, `{"error":"invalid_scope"}`), 1, "invalid_scope"},
		"down":                   {AuthAuto, reads(AuthBody, canary, 503, ""), 1, "503"},
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int32
			cfg := config(serve(t, func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				c.endpoint(w, r)
			}))
			cfg.ClientAuth = c.auth
			s := newSource(t, cfg)
			token, err := s.Token(t.Context())
			if got := int(requests.Load()); got != c.requests {
				t.Errorf("%d requests, want %d", got, c.requests)
			}
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("%q, %v, want %q", token, err, c.want)
				}
				wantHidden(t, err.Error())
				return
			}
			if _, again := s.fetch(t.Context()); err != nil || again != nil || int(requests.Load()) != c.requests+1 {
				t.Errorf("%v, then %v after %d requests", err, again, requests.Load())
			}
		})
	}
}

// TestLifetime: the values of expires_in that endpoints send.
func TestLifetime(t *testing.T) {
	for member, want := range map[string]time.Duration{
		"":                         assumedLifetime,
		`,"expires_in":3600`:       time.Hour,
		`,"expires_in":"3600"`:     time.Hour,
		`,"expires_in":3600.0`:     time.Hour,
		`,"expires_in":0.5`:        500 * time.Millisecond,
		`,"expires_in":1`:          time.Second,
		`,"expires_in":0`:          assumedLifetime,
		`,"expires_in":-5`:         assumedLifetime,
		`,"expires_in":null`:       assumedLifetime,
		`,"expires_in":""`:         assumedLifetime,
		`,"expires_in":"soon"`:     assumedLifetime,
		`,"expires_in":{}`:         assumedLifetime,
		`,"expires_in":[3600]`:     assumedLifetime,
		`,"expires_in":1e300`:      maxLifetime,
		`,"expires_in":1e999`:      assumedLifetime,
		`,"expires_in":9999999999`: maxLifetime,
	} {
		s := newSource(t, config(serve(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"access_token":"t1"`+member+`}`)
		})))
		before := time.Now()
		if _, err := s.Token(t.Context()); err != nil {
			t.Errorf("%s: %v", member, err)
			continue
		}
		life := s.current.expires.Sub(before)
		if life < want || life > want+time.Since(before) {
			t.Errorf("%s: the token lives %s, want %s", member, life, want)
		}
	}
}

// TestAnswers: each failed response has its class and names its cause without a
// secret.
func TestAnswers(t *testing.T) {
	const u, m = sink.Unavailable, sink.Misconfigured
	for name, c := range map[string]struct {
		status int
		head   string
		body   string
		class  sink.Class // 0 for a token
		want   string     // part of the text
	}{
		"other case":      {200, "", `{"access_token":"t1","token_type":"bearer"}`, 0, ""},
		"created":         {201, "", `{"access_token":"t1","token_type":"BEARER","scope":"x"}`, 0, ""},
		"invalid client":  {401, "", `{"error":"invalid_client","error_description":"no such client"}`, m, "401 Unauthorized from POST %s; check oauth.client-id and oauth.client-secret (oauth.client-auth: auto tries basic and body): invalid_client (no such client)"},
		"invalid, 400":    {400, "", `{"error":"invalid_client"}`, m, "; check oauth.client-id"},
		"grant":           {400, "", `{"error":"unsupported_grant_type"}`, m, "400 Bad Request from POST %s: unsupported_grant_type"},
		"scope":           {400, "", `{"error":"invalid_scope","error_description":"line\r\nbreak"}`, m, "invalid_scope (line break)"},
		"forbidden":       {403, "", `<p>WAF</p>`, m, "403 Forbidden from POST %s: <p>WAF</p>"},
		"not found":       {404, "", "", m, "404 Not Found from POST %s"},
		"redirect":        {302, "https://login.example/x?k=" + url.QueryEscape(canary), "", m, "redirect to https://login.example/x"},
		"echo":            {400, "", `{"error":"bad ` + canary + `","error_description":"` + url.QueryEscape(canary) + `"}`, m, "bad [redacted] ([redacted])"},
		"echo of Basic":   {400, "", base64.StdEncoding.EncodeToString([]byte(url.QueryEscape(clientID) + ":" + url.QueryEscape(canary))), m, ": [redacted]"},
		"too many":        {429, "", "", u, "429 Too Many Requests"},
		"internal":        {500, "", `{"error":"boom"}`, u, "500 Internal Server Error from POST %s: boom"},
		"not implemented": {501, "", "", u, "501"},
		"gateway":         {502, "", "<html>", u, "502 Bad Gateway"},
		"down":            {503, "", "", u, "503 Service Unavailable"},
		"passing":         {400, "", `{"error":"temporarily_unavailable"}`, u, "temporarily_unavailable"},
		"slow down":       {400, "", `{"error":"slow_down"}`, u, "slow_down"},
		"error with 200":  {200, "", `{"error":"invalid_client"}`, m, "invalid_client"},
		"page":            {200, "", "<html>" + canary, m, "not a token (response is not a JSON object of strings), content type"},
		"number":          {200, "", `{"access_token":7}`, m, "not a token"},
		"empty":           {200, "", "", m, "not a token"},
		"no token":        {200, "", `{"token":"x"}`, m, "no access_token in the response"},
		"bad token":       {200, "", `{"access_token":"a\nb"}`, m, "not a valid header value"},
		"other type":      {200, "", `{"access_token":"x","token_type":"mac"}`, m, `token_type is "mac", must be Bearer`},
		"too long":        {200, "", `{"access_token":"` + strings.Repeat("x", maxAnswer) + `"}`, m, "response too long"},
		"long failure":    {503, "", strings.Repeat("x", 2*maxAnswer), u, "503 Service Unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			address := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "7")
				if c.head != "" {
					w.Header().Set("Location", c.head)
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			}) + "/token"
			token, err := newSource(t, config(address+"?key="+url.QueryEscape(canary))).Token(t.Context())
			if c.class == 0 {
				if token != "t1" || err != nil {
					t.Errorf("got token %q, %v", token, err)
				}
				return
			}
			e := (*Error)(nil)
			if !errors.As(err, &e) {
				t.Fatalf("got token %q, %v", token, err)
			}
			want := strings.ReplaceAll(c.want, "%s", address)
			if e.Class != c.class || !strings.Contains(e.Error(), want) || !strings.HasPrefix(e.Error(), "no token: ") {
				t.Errorf("%s: %s, want %s: %s", e.Class, e, c.class, want)
			}
			if e.RetryAfter != map[sink.Class]time.Duration{u: 7 * time.Second}[c.class] {
				t.Errorf("got RetryAfter %s", e.RetryAfter)
			}
			wantHidden(t, e.Error())
		})
	}
}

func wantHidden(t *testing.T, text string) {
	t.Helper()
	for _, secret := range []string{canary, url.QueryEscape(canary), "canary", base64.StdEncoding.EncodeToString([]byte(url.QueryEscape(clientID) + ":"))[:12]} {
		if strings.Contains(text, secret) {
			t.Errorf("the text shows a secret: %s", text)
		}
	}
}

// TestNoAnswer: an endpoint that is unreachable or is not a token endpoint.
func TestNoAnswer(t *testing.T) {
	tls := httptest.NewTLSServer(http.NotFoundHandler())
	tls.Config.ErrorLog = nil
	t.Cleanup(tls.Close)
	cut := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	half := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"access_token":"t1"`)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})

	for name, c := range map[string]struct {
		address string
		class   sink.Class
		want    string
	}{
		"dead port":     {"http://127.0.0.1:1", sink.Unavailable, "connection refused"},
		"no host":       {"http://nowhere.invalid", sink.Unavailable, "nowhere.invalid"},
		"untrusted":     {tls.URL, sink.Misconfigured, "certificate"},
		"plain for TLS": {strings.Replace(cut, "http:", "https:", 1), sink.Misconfigured, "HTTP"},
		"cut":           {cut, sink.Unavailable, "receiver closed the connection"},
		"half":          {half, sink.Unavailable, "incomplete response"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newSource(t, config(c.address+"?key="+url.QueryEscape(canary))).Token(t.Context())
			e := (*Error)(nil)
			if !errors.As(err, &e) || e.Class != c.class || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want %s: %s", err, c.class, c.want)
			}
			wantHidden(t, err.Error())
		})
	}
}

// TestSilentEndpoint: Close does not wait for a silent endpoint.
func TestSilentEndpoint(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	address := serve(t, func(http.ResponseWriter, *http.Request) {
		close(asked)
		<-release
	})

	s := newSource(t, config(address))
	failed := make(chan error, 1)
	go func() {
		_, err := s.Token(t.Context())
		failed <- err
	}()

	<-asked
	began := time.Now()
	s.Close()
	close(release)
	if d := time.Since(began); d > 3*time.Second {
		t.Errorf("Close took %s", d)
	}
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "sink is closed") {
		t.Errorf("the sender got %v", err)
	}
}

// TestFetchIsBounded: the context of a fetch ends it, and the error names the cause.
func TestFetchIsBounded(t *testing.T) {
	release := make(chan struct{})
	address := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "{")
		_ = http.NewResponseController(w).Flush()
		<-release
	})

	defer close(release)
	s := newSource(t, config(address))
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errSlow)
	defer cancel()
	_, err := s.fetch(ctx)
	if err == nil || err.Class != sink.Unavailable || !strings.HasSuffix(err.Error(), "no response within 10s") {
		t.Errorf("got error %v", err)
	}
}

// TestSenders: many senders use a platform over a real socket. Its tokens expire
// within a second, and its keys change meanwhile. No request fails, and every token
// is fetched once.
func TestSenders(t *testing.T) {
	const life = time.Second
	var mu sync.Mutex
	issued := map[string]time.Time{}
	var inFlight, most atomic.Int32
	address := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		n := inFlight.Add(1)
		defer inFlight.Add(-1)
		if n > most.Load() {
			most.Store(n)
		}
		mu.Lock()
		token := fmt.Sprint("t", len(issued)+1)
		issued[token] = time.Now()
		mu.Unlock()
		_, _ = fmt.Fprintf(w, `{"access_token":%q,"expires_in":%d}`, token, life/time.Second)
	})

	s := newSource(t, config(address))
	request := func(token string) sink.Result {
		mu.Lock()
		at, ok := issued[token]
		mu.Unlock()
		if !ok || time.Since(at) > life {
			return sink.Result{Outcome: sink.Outcome{Class: sink.Misconfigured, Reason: store.ReasonUnauthorized, Detail: token}}
		}
		return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
	}

	const senders, run = 32, 2 * time.Second
	var requests atomic.Int64
	var wg sync.WaitGroup
	for range senders {
		wg.Go(func() {
			for began := time.Now(); time.Since(began) < run; requests.Add(1) {
				if res := s.Attempt(t.Context(), "POST /x", request); res.Class != sink.Delivered {
					t.Errorf("got %s: %s", res.Class, res.Detail)
					return
				}
			}
		})
	}

	wg.Wait()
	if got, want := len(issued), int(run/(life*4/5))+2; got > want || most.Load() != 1 {
		t.Errorf("%d fetches, want at most %d; %d at once", got, want, most.Load())
	}

	t.Logf("%d requests, %d fetches", requests.Load(), len(issued))
}
