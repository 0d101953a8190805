package admin

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Role is what a token allows.
type Role string

// Roles of a token. A viewer reads everything except payloads and profiles.
const (
	Viewer   Role = "viewer"
	Operator Role = "operator"
)

// Token is a bearer token with a name.
type Token struct {
	// Name is in the log of actions, and in the cookie of a login: letters, digits and . _ @ -.
	Name string
	Role Role
	// Token is the secret. It is not empty.
	Token string
}

// Session is the response of GET and POST /api/v1/session.
type Session struct {
	// Name is the name of the token: that of Config.Tokens, operator or viewer, or local if no token
	// is set.
	Name string `json:"name"`
	Role Role   `json:"role"`
	// Expires is the end of a login. It is zero for a bearer token.
	Expires time.Time `json:"expires,omitzero"`
}

// LoginRequest is the request of POST /api/v1/session.
type LoginRequest struct {
	Token string `json:"token"`
}

const (
	sessionPath = "/api/v1/session"
	// sessionAge is how long a login lasts: a working day.
	sessionAge = 12 * time.Hour
)

// access says who may use the endpoints, and under which names.
type access struct {
	tokens []Token // of different names
	hosts  []string
	// anyAddress: the relay listens on all addresses, so that every IP address may name it.
	anyAddress bool
}

// accessOf returns the access rules of a configuration.
func accessOf(cfg *Config) *access {
	a := &access{hosts: slices.Clone(cfg.Hosts)}
	if cfg.Token != "" {
		a.tokens = append(a.tokens, Token{string(Operator), Operator, cfg.Token})
		if cfg.ViewerToken != "" {
			a.tokens = append(a.tokens, Token{string(Viewer), Viewer, cfg.ViewerToken})
		}
		a.tokens = append(a.tokens, cfg.Tokens...)
	}
	if host, _, err := net.SplitHostPort(cfg.Listen); err == nil {
		ip := net.ParseIP(host)
		a.anyAddress = host == "" || ip != nil && ip.IsUnspecified()
		a.hosts = append(a.hosts, host)
	}
	return a
}

// sessionOf returns who has a token. It compares hashes, so that the time does not depend on the
// token's length.
func (a *access) sessionOf(token string) (s Session, ok bool) {
	given := sha256.Sum256([]byte(token))
	for _, t := range a.tokens {
		sum := sha256.Sum256([]byte(t.Token))
		if subtle.ConstantTimeCompare(given[:], sum[:]) == 1 {
			return Session{Name: t.Name, Role: t.Role}, true
		}
	}
	return Session{}, false
}

// named returns the token of a name, nil without one.
func (a *access) named(name string) *Token {
	if i := slices.IndexFunc(a.tokens, func(t Token) bool { return t.Name == name }); i >= 0 {
		return &a.tokens[i]
	}
	return nil
}

// caller returns who sends a request; ok is false without a valid token or login.
func (a *access) caller(r *http.Request) (s Session, ok bool) {
	if len(a.tokens) == 0 {
		return Session{Name: "local", Role: Operator}, true
	}
	if header := r.Header.Get("Authorization"); header != "" {
		scheme, given, _ := strings.Cut(header, " ")
		s, ok := a.sessionOf(given)
		return s, ok && strings.EqualFold(scheme, "Bearer")
	}
	cookie, err := r.Cookie(cookieName(r))
	if err != nil {
		return Session{}, false
	}
	return a.login(cookie.Value, time.Now())
}

// login returns the session of a cookie: the name of its token, its end, and their signature. A cookie
// is invalid once that token has changed.
func (a *access) login(cookie string, now time.Time) (s Session, ok bool) {
	claim, signature, _ := strings.Cut(cookie, "~")
	dash := max(strings.LastIndexByte(claim, '-'), 0)
	of := a.named(claim[:dash])
	seconds, err := strconv.ParseInt(strings.TrimPrefix(claim[dash:], "-"), 10, 64)
	if of == nil || err != nil || !hmac.Equal([]byte(signature), []byte(sign(of.Token, claim))) {
		return Session{}, false
	}
	s = Session{Name: of.Name, Role: of.Role, Expires: time.Unix(seconds, 0).UTC()}
	return s, now.Before(s.Expires)
}

// cookieOf returns the cookie of a login with a token.
func cookieOf(s Session, token string) string {
	claim := fmt.Sprintf("%s-%d", s.Name, s.Expires.Unix())
	return claim + "~" + sign(token, claim)
}

// sign signs a claim with a key that only this use has.
func sign(token, claim string) string {
	mac := hmac.New(sha256.New, []byte("sluicebox session\n"+token))
	mac.Write([]byte(claim))
	return hex.EncodeToString(mac.Sum(nil))
}

// cookieName has the port, because cookies of a host are those of all its ports.
func cookieName(r *http.Request) string {
	_, port, _ := net.SplitHostPort(r.Host)
	return "sluicebox_" + port
}

// allowsHost reports whether the relay answers to a Host header. It answers to no rebound name.
func (a *access) allowsHost(header string) bool {
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = strings.Trim(header, "[]")
	}
	isNamed := func(of string) bool { return strings.EqualFold(of, host) }
	return isLoopbackHost(header) || slices.ContainsFunc(a.hosts, isNamed) ||
		a.anyAddress && len(a.tokens) > 0 && net.ParseIP(host) != nil
}

// requireKnownHost refuses requests with a foreign Host header. It stops DNS rebinding: a page
// whose name was rebound to the relay's address could otherwise use what a browser on this machine
// can. Programs with a token in the header may use any name, because no page knows the token; and
// the plain probes, because they tell nothing.
func (h *handler) requireKnownHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		of := h.access.Load()
		_, _, withToken := strings.Cut(r.Header.Get("Authorization"), " ")
		switch {
		case of.allowsHost(r.Host), len(of.tokens) > 0 && (withToken || isPlainProbe(r)):
			next.ServeHTTP(w, r)
		case strings.HasPrefix(r.URL.Path, apiPath):
			writeJSON(w, http.StatusForbidden, wireError{foreignHostText(r.Host)})
		default:
			writeText(w, http.StatusForbidden, foreignHostText(r.Host)+"\n")
		}
	})
}

// isPlainProbe reports whether a request gets one word, and needs no token.
func isPlainProbe(r *http.Request) bool {
	return slices.Contains([]string{"/livez", "/readyz", "/leader"}, r.URL.Path)
}

// foreignHostText returns the error for a foreign Host header.
func foreignHostText(host string) string {
	return fmt.Sprintf("Host %s is refused: only 127.0.0.1, [::1], localhost, the address of admin.listen and admin.hosts are served; use one of them, or add the name to admin.hosts", host)
}

// isAuthorized reports whether the caller may read.
func (h *handler) isAuthorized(r *http.Request) bool {
	_, ok := h.access.Load().caller(r)
	return ok
}

// forbidden returns why a caller may not do what a request asks, or "".
func forbidden(s Session, r *http.Request) string {
	switch {
	case s.Role == Operator:
		return ""
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		return "a viewer may not act: its token only reads; use the token of an operator, such as admin.token"
	case r.URL.Query().Has("payload"):
		return "a viewer may not read payloads; use the token of an operator, such as admin.token"
	}
	return ""
}

// sessionEndpoints serves the login of the page. The cookie is of no use to scripts or other sites.
func (h *handler) sessionEndpoints(mux *http.ServeMux) {
	mux.HandleFunc("GET "+sessionPath, func(w http.ResponseWriter, r *http.Request) {
		s, ok := h.access.Load().caller(r)
		if !ok {
			writeJSON(w, http.StatusUnauthorized, wireError{tokenRequiredText})
			return
		}
		writeJSON(w, http.StatusOK, s)
	})
	mux.HandleFunc("POST "+sessionPath, func(w http.ResponseWriter, r *http.Request) {
		var req LoginRequest
		if _, err := decodeRequest(w, r, &req); err != nil {
			writeJSON(w, errorStatus(err), wireError{errorText(err)})
			return
		}
		s, ok := h.access.Load().sessionOf(req.Token)
		if !ok {
			writeJSON(w, http.StatusUnauthorized, wireError{"this is none of admin.token, admin.viewer-token and admin.tokens of the relay"})
			return
		}
		s.Expires = time.Now().Add(sessionAge).UTC().Truncate(time.Second)
		setCookie(w, r, cookieOf(s, req.Token), int(sessionAge.Seconds()))
		writeJSON(w, http.StatusOK, s)
	})
	mux.HandleFunc("POST "+sessionPath+"/end", func(w http.ResponseWriter, r *http.Request) {
		setCookie(w, r, "", -1)
		writeJSON(w, http.StatusOK, struct{}{})
	})
}

func setCookie(w http.ResponseWriter, r *http.Request, value string, age int) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName(r), Value: value, Path: "/", MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https"), // the relay itself speaks plain HTTP
	})
}
