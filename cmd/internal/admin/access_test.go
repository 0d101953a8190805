package admin_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/store"
)

// actionLog is a store.ActionLog in memory.
type actionLog struct {
	mu  sync.Mutex
	all []store.Action
}

func (l *actionLog) RecordAction(_ context.Context, a store.Action) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append([]store.Action{a}, l.all...)
	return nil
}

func (l *actionLog) Actions(_ context.Context, limit int) ([]store.Action, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[:min(limit, len(l.all))], nil
}

// reloads is a Reloader.
type reloads struct{}

func (reloads) Reload(context.Context) (admin.Reloaded, error) { return admin.Reloaded{}, nil }

// send sends a request and returns its status, its body and the cookie that it sets.
func send(t *testing.T, method, url, body string, change func(*http.Request)) (int, string, *http.Cookie) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(req)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var text strings.Builder
	if err := resp.Write(&text); err != nil {
		t.Fatal(err)
	}
	if cookies := resp.Cookies(); len(cookies) > 0 {
		return resp.StatusCode, text.String(), cookies[0]
	}
	return resp.StatusCode, text.String(), nil
}

func bearer(token string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
}

func withCookie(c *http.Cookie) func(*http.Request) {
	return func(r *http.Request) { r.AddCookie(&http.Cookie{Name: c.Name, Value: c.Value}) }
}

// TestViewersReadOnly: a viewer reads and may not act, with its token and after a login.
func TestViewersReadOnly(t *testing.T) {
	log := &actionLog{}
	base := serve(t, admin.Config{Token: "op", ViewerToken: "view", Actions: log, Reloader: reloads{}, Profiling: true}, &checks{})
	for _, token := range []string{"op", "view"} {
		status, text, cookie := send(t, http.MethodPost, base+"/api/v1/session", `{"token": "`+token+`"}`, nil)
		if status != http.StatusOK || cookie == nil || !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || cookie.MaxAge <= 0 {
			t.Fatalf("login: %d %s, cookie %+v", status, text, cookie)
		}
		want := map[string]int{"op": http.StatusOK, "view": http.StatusForbidden}[token]
		for name, by := range map[string]func(*http.Request){"token": bearer(token), "cookie": withCookie(cookie)} {
			if status, text, _ := send(t, http.MethodGet, base+"/api/v1/actions", "", by); status != http.StatusOK {
				t.Errorf("%s by %s reads: %d %s", token, name, status, text)
			}
			status, text, _ := send(t, http.MethodPost, base+"/api/v1/reload", "{}", by)
			if status != want || want == http.StatusForbidden && !strings.Contains(text, "a viewer may not act") {
				t.Errorf("%s by %s acts: %d %s, want %d", token, name, status, text, want)
			}
			if status, _, _ := send(t, http.MethodGet, base+"/api/v1/actions?payload=true", "", by); (status == http.StatusForbidden) != (token == "view") {
				t.Errorf("%s by %s asks for payloads: %d", token, name, status)
			}
			if status, _, _ := send(t, http.MethodGet, base+"/debug/pprof/symbol", "", by); status != want {
				t.Errorf("%s by %s reads a profile: %d, want %d", token, name, status, want)
			}
		}
		forged := *cookie
		forged.Value = strings.Replace(forged.Value, "viewer-", "operator-", 1) + "0"
		if status, _, _ := send(t, http.MethodGet, base+"/api/v1/actions", "", withCookie(&forged)); status != http.StatusUnauthorized {
			t.Errorf("a forged cookie gets %d", status)
		}
	}
	if status, _, cookie := send(t, http.MethodPost, base+"/api/v1/session", `{"token": "guess"}`, nil); status != http.StatusUnauthorized || cookie != nil {
		t.Errorf("a wrong token logs in: %d", status)
	}
	if all, _ := log.Actions(t.Context(), 10); len(all) != 2 || all[0].Who != "operator" || all[0].What != "reload" || all[0].Result != "ok" || all[0].From == "" {
		t.Errorf("the log has %+v, want two reloads by the operator", all)
	}
}

// TestActionsHaveTheNameOfTheirToken: each action has the name of the token that its caller sent or signed
// in with. A token that is changed, or that becomes a viewer's, loses its rights at once.
func TestActionsHaveTheNameOfTheirToken(t *testing.T) {
	log := &actionLog{}
	cfg := admin.Config{Token: "op", Actions: log, Reloader: reloads{}, Tokens: []admin.Token{
		{Name: "ada-l", Role: admin.Operator, Token: "hers"}, {Name: "bob@example.com", Role: admin.Operator, Token: "his"}, {Name: "eve", Role: admin.Viewer, Token: "reads"},
	}}
	server := serveServer(t, cfg, &checks{})
	base := "http://" + server.Addr()
	cookies := map[string]*http.Cookie{}
	for _, token := range []string{"op", "hers", "his", "reads"} {
		_, _, cookies[token] = send(t, http.MethodPost, base+"/api/v1/session", `{"token": "`+token+`"}`, nil)
	}
	reload := func(by func(*http.Request)) int {
		status, _, _ := send(t, http.MethodPost, base+"/api/v1/reload", "{}", by)
		return status
	}
	for _, by := range []func(*http.Request){bearer("hers"), withCookie(cookies["his"]), bearer("op"), withCookie(cookies["hers"]), bearer("his")} {
		if status := reload(by); status != http.StatusOK {
			t.Errorf("an operator gets %d", status)
		}
	}
	for _, by := range []func(*http.Request){bearer("reads"), withCookie(cookies["reads"])} {
		if status := reload(by); status != http.StatusForbidden {
			t.Errorf("a named viewer gets %d", status)
		}
	}
	var who []string
	for _, a := range log.all {
		who = append(who, a.Who)
	}
	if want := []string{"bob@example.com", "ada-l", "operator", "bob@example.com", "ada-l"}; !slices.Equal(who, want) {
		t.Errorf("the log has %q, want %q", who, want)
	}

	cfg.Tokens = []admin.Token{{Name: "ada-l", Role: admin.Operator, Token: "new"}, {Name: "bob@example.com", Role: admin.Viewer, Token: "his"}}
	server.SetAccess(cfg)
	for what, tt := range map[string]struct {
		by   func(*http.Request)
		want int
	}{
		"the old token": {bearer("hers"), 401}, "a login with the old token": {withCookie(cookies["hers"]), 401}, "the new token": {bearer("new"), 200},
		"the token of a new viewer": {bearer("his"), 403}, "the login of a new viewer": {withCookie(cookies["his"]), 403},
		"the login of a removed name": {withCookie(cookies["reads"]), 401}, "the login of another token": {withCookie(cookies["op"]), 200},
	} {
		if status := reload(tt.by); status != tt.want {
			t.Errorf("%s gets %d, want %d", what, status, tt.want)
		}
	}
}

// TestForeignHostsAndOriginsAreRefused: a rebound name gets nothing, and another site changes nothing.
func TestForeignHostsAndOriginsAreRefused(t *testing.T) {
	base := serve(t, admin.Config{Token: "op", Hosts: []string{"relay.example"}, Reloader: reloads{}}, &checks{})
	_, _, cookie := send(t, http.MethodPost, base+"/api/v1/session", `{"token": "op"}`, nil)
	for _, tt := range []struct {
		what, method, path string
		change             func(*http.Request)
		want               int
	}{
		{"the page by a known name", http.MethodGet, "/console/app.js", func(r *http.Request) { r.Host = "relay.example:8090" }, 200},
		{"the page by a foreign name", http.MethodGet, "/console/app.js", func(r *http.Request) { r.Host = "evil.example" }, 403},
		{"a probe by a foreign name", http.MethodGet, "/livez", func(r *http.Request) { r.Host = "evil.example" }, 200},
		{"a program by a foreign name", http.MethodGet, "/metrics", func(r *http.Request) { bearer("op")(r); r.Host = "pod.example" }, 200},
		{"another site", http.MethodPost, "/api/v1/reload", func(r *http.Request) { withCookie(cookie)(r); r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403},
		{"another port of the host", http.MethodPost, "/api/v1/reload", func(r *http.Request) { withCookie(cookie)(r); r.Header.Set("Sec-Fetch-Site", "same-site") }, 403},
		{"another origin", http.MethodPost, "/api/v1/reload", func(r *http.Request) { withCookie(cookie)(r); r.Header.Set("Origin", "http://evil.example") }, 403},
		{"the page itself", http.MethodPost, "/api/v1/reload", func(r *http.Request) { withCookie(cookie)(r); r.Header.Set("Sec-Fetch-Site", "same-origin") }, 200},
	} {
		if status, text, _ := send(t, tt.method, base+tt.path, "{}", tt.change); status != tt.want {
			t.Errorf("%s: %d %s, want %d", tt.what, status, text, tt.want)
		}
	}
}

// TestPageAllowsNothingInline: the page runs its own files only, and no site embeds it.
func TestPageAllowsNothingInline(t *testing.T) {
	base := serve(t, admin.Config{Token: "op"}, &checks{})
	_, text, _ := send(t, http.MethodGet, base+"/", "", func(r *http.Request) { r.Header.Set("Accept", "text/html") })
	for _, want := range []string{"script-src 'self';", "frame-ancestors 'none'", "X-Frame-Options: DENY", "X-Content-Type-Options: nosniff", "Cache-Control: no-store", "<title>Sluicebox</title>"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if strings.Contains(text, "unsafe-inline") || strings.Contains(text, "http://") || strings.Contains(text, "https://") {
		t.Errorf("the page has something inline or external:\n%s", text)
	}
	if status, _, _ := send(t, http.MethodGet, base+"/console/../console.go", "", nil); status == http.StatusOK {
		t.Error("the page serves a file that is none of its own")
	}
}

// TestUnchangedAnswersAreNotSentAgain: a poll with the ETag of an answer gets 304 and no body.
func TestUnchangedAnswersAreNotSentAgain(t *testing.T) {
	log := &actionLog{}
	base := serve(t, admin.Config{Actions: log}, &checks{})
	_, text, _ := send(t, http.MethodGet, base+"/api/v1/actions", "", nil)
	_, rest, _ := strings.Cut(text, "Etag: ")
	tag, _, _ := strings.Cut(rest, "\r")
	again := func(r *http.Request) { r.Header.Set("If-None-Match", tag) }
	if status, text, _ := send(t, http.MethodGet, base+"/api/v1/actions", "", again); status != http.StatusNotModified {
		t.Errorf("unchanged: %d %s", status, text)
	}
	_ = log.RecordAction(t.Context(), store.Action{Who: "operator"})
	if status, _, _ := send(t, http.MethodGet, base+"/api/v1/actions", "", again); status != http.StatusOK {
		t.Errorf("changed: %d", status)
	}
}
