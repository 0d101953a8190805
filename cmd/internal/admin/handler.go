package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// indexText is the response of /.
const indexText = `Sluicebox
/livez               the process runs
/readyz              the relay works or stands by
/readyz?verbose      each check by name
/leader              200 while the relay leads, 503 while it stands by
/metrics             for Prometheus
/api/v1/status       the status; ?count=true also counts FAILED rows
/api/v1/lanes        the lanes; POST to …/retry-now, …/skip, …/pause, …/resume
/api/v1/deadletters  the FAILED rows, …/count; POST to …/requeue, …/discard
/api/v1/checkpoints  the named checkpoints; POST creates one, POST to …/delete
/api/v1/replays      the replays, …/errors?job=; POST starts one, POST to …/pause, …/resume, …/cancel
`

const apiPath = "/api/"

// The response to a request without the token.
const (
	authChallenge     = `Bearer realm="sluicebox"`
	tokenRequiredText = "admin token required: Authorization: Bearer TOKEN"
)

// handler serves the endpoints.
type handler struct {
	token  string
	status Status
}

// newHandler returns the endpoints with their access checks.
func newHandler(cfg Config, status Status) http.Handler {
	h := &handler{token: cfg.Token, status: status}
	gatherer := cfg.Metrics
	if gatherer == nil {
		gatherer = prometheus.NewRegistry()
	}

	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", h.livez)
	mux.HandleFunc("GET /readyz", h.readyz)
	mux.Handle("GET /metrics", h.requireToken(promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{})))
	mux.Handle("GET /{$}", h.requireToken(http.HandlerFunc(serveIndex)))
	if cfg.Leader != nil {
		mux.HandleFunc("GET /leader", h.leader(cfg.Leader))
	}

	if cfg.Report != nil {
		h.statusEndpoint(mux, cfg.Report)
	}
	if cfg.Profiling {
		h.profileEndpoints(mux)
	}

	if cfg.Lanes != nil {
		h.laneEndpoints(mux, cfg.Lanes)
	}
	if cfg.DeadLetters != nil {
		h.deadLetterEndpoints(mux, cfg.DeadLetters)
	}
	if cfg.Requests != nil {
		h.requestEndpoints(mux, cfg.Requests)
	}

	return http.NewCrossOriginProtection().Handler(withSecurityHeaders(h.requireKnownHost(mux)))
}

// requireKnownHost refuses requests with a foreign Host header if no token is set. It
// stops DNS rebinding: a page whose name was rebound to a loopback address could
// otherwise read everything a browser on this machine can.
func (h *handler) requireKnownHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case h.token != "" || isLoopbackHost(r.Host):
			next.ServeHTTP(w, r)
		case strings.HasPrefix(r.URL.Path, apiPath):
			writeJSON(w, http.StatusForbidden, wireError{foreignHostText(r.Host)})
		default:
			writeText(w, http.StatusForbidden, foreignHostText(r.Host)+"\n")
		}
	})
}

// foreignHostText returns the error for a foreign Host header.
func foreignHostText(host string) string {
	return fmt.Sprintf("Host %s is refused: without admin.token only 127.0.0.1, [::1] and localhost are served; use one of them, or set admin.token", host)
}

// withSecurityHeaders sets headers that stop content sniffing, embedding and caching.
func withSecurityHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		w.Header().Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

func writeText(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

func serveIndex(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, indexText) }

func (h *handler) livez(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") }

// readyz answers in one word, or with ?verbose and the token in a line per check.
func (h *handler) readyz(w http.ResponseWriter, r *http.Request) {
	verbose := r.URL.Query().Has("verbose")
	if verbose && !h.isAuthorized(r) {
		unauthorized(w)
		return
	}

	status, word := http.StatusOK, "ok"
	var lines strings.Builder
	for _, c := range h.status.Checks() {
		mark, state := "+", "ok"
		if c.Warning {
			mark, state = "!", "warning"
		}
		if !c.OK {
			mark, state = "-", "failed"
			status, word = http.StatusServiceUnavailable, "not ready"
		}
		fmt.Fprintf(&lines, "[%s] %s %s", mark, c.Name, state)
		if c.Detail != "" {
			lines.WriteString(": " + oneLine(c.Detail))
		}
		lines.WriteByte('\n')
	}

	if !verbose {
		lines.Reset()
	}
	writeText(w, status, lines.String()+word+"\n")
}

// leader answers in one word, or with ?verbose and the token in a line.
func (h *handler) leader(l Leader) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		verbose := r.URL.Query().Has("verbose")
		if verbose && !h.isAuthorized(r) {
			unauthorized(w)
			return
		}
		leads, detail := l.Leader()
		status, word := http.StatusOK, "leader"
		if !leads {
			status, word = http.StatusServiceUnavailable, "standby"
		}
		if verbose {
			word += ": " + oneLine(detail)
		}
		writeText(w, status, word+"\n")
	}
}

// oneLine keeps a line break in a detail from looking like another check.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// requireToken requires the token.
func (h *handler) requireToken(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !h.isAuthorized(r) {
			unauthorized(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func unauthorized(w http.ResponseWriter) {
	w.Header().Set("WWW-Authenticate", authChallenge)
	writeText(w, http.StatusUnauthorized, tokenRequiredText+"\n")
}

// isAuthorized compares hashes, so that the time does not depend on the token's length.
func (h *handler) isAuthorized(r *http.Request) bool {
	if h.token == "" {
		return true
	}
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(h.token))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// profileEndpoints serves the profiles of net/http/pprof except the command line, because
// that may hold secrets.
func (h *handler) profileEndpoints(mux *http.ServeMux) {
	for path, serve := range map[string]http.HandlerFunc{
		"GET /debug/pprof/":        pprof.Index, // also serves each profile by name
		"GET /debug/pprof/profile": pprof.Profile,
		"GET /debug/pprof/symbol":  pprof.Symbol,
		"GET /debug/pprof/trace":   pprof.Trace,
	} {
		mux.Handle(path, h.requireToken(serve))
	}
}
