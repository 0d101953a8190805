package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin/console"
	"github.com/sluicebox/sluicebox/store"
)

// Config says where the endpoints listen, who may use them and what they serve.
type Config struct {
	// Listen is host:port. Port 0 picks a free port; "" serves nothing.
	Listen string
	// Token is the bearer token, or "" for none. It is required for every address except
	// loopback.
	Token string
	// ViewerToken is the bearer token that only reads, or "" for none. It needs Token.
	ViewerToken string
	// Tokens are further bearer tokens, whose names the log of actions has. They need Token.
	Tokens []Token
	// Hosts are further names of the relay in URLs, without a port. The relay refuses names that
	// it does not know.
	Hosts []string
	// Metrics are served at /metrics; nil serves an empty page.
	Metrics prometheus.Gatherer
	// OpenMetrics serves the metrics in the format of OpenMetrics too, which has exemplars.
	OpenMetrics bool
	// Leader is served at /leader. Without it the endpoint does not exist.
	Leader Leader
	// Lanes, Routes, DeadLetters and Requests are served by the API. Without one, its endpoints do
	// not exist.
	Lanes       Lanes
	Routes      Routes
	DeadLetters DeadLetters
	Requests    Requests
	// Actions logs the actions of operators. Without it they are not logged.
	Actions store.ActionLog
	// Figures and Settings are served to the page. Without one, its endpoint does not exist.
	Figures  Figures
	Settings Settings
	// Rows explains single rows. Without it the endpoint does not exist.
	Rows Rows
	// Reloader reads the configuration again. Without it the endpoint does not exist.
	Reloader Reloader
	// Report is served as the status. Without it the endpoint does not exist.
	Report Reporter
	// Profiling serves the process's profiles under /debug/pprof/.
	Profiling bool
	// Log receives the errors of HTTP connections; nil discards them.
	Log *slog.Logger
}

// Status reports readiness. Checks returns cached results at once and is safe for
// concurrent use.
type Status interface {
	Checks() []sluicebox.Check
}

// Leader reports leadership. It returns at once and is safe for concurrent use.
type Leader interface {
	// Leader reports whether this relay is the only leader. detail describes its role, or
	// names the leader.
	Leader() (leads bool, detail string)
}

// Limits of a request. Probes and scrapes are short; a slower request only occupies a
// connection.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 30 * time.Second // a scrape may wait for its collectors
	idleTimeout   = 2 * time.Minute
	drainTimeout  = time.Second
	maxHeader     = 16 << 10
)

// Server serves the endpoints.
type Server struct {
	cfg      Config
	handler  *handler
	served   http.Handler
	listener net.Listener
}

// New returns a server. It starts nothing.
func New(cfg Config, status Status) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	h := &handler{status: status, actions: cfg.Actions, log: cfg.Log}
	h.access.Store(accessOf(&cfg))
	return &Server{cfg: cfg, handler: h, served: h.endpoints(cfg)}
}

// SetAccess takes the tokens and hosts of a configuration for requests from now on. The caller
// does not remove the token from an address that other machines reach.
func (s *Server) SetAccess(cfg Config) {
	cfg.Listen = s.cfg.Listen
	s.handler.access.Store(accessOf(&cfg))
}

// Listen binds the address, so that a conflict is reported before anything else starts.
// The error is a *store.SetupError. Call Run or Close afterwards.
func (s *Server) Listen() error {
	if s.cfg.Listen == "" || s.listener != nil {
		return nil
	}
	host, _, err := net.SplitHostPort(s.cfg.Listen)
	if err != nil {
		return &store.SetupError{
			Problem: fmt.Sprintf("admin.listen: %q is not host:port", s.cfg.Listen),
			Remedy:  "write an address such as 127.0.0.1:8090",
		}
	}

	if s.cfg.Token == "" && !store.Loopback(host) {
		return &store.SetupError{
			Problem: fmt.Sprintf("admin.listen: other machines can reach %s, and admin.token is not set", s.cfg.Listen),
			Remedy:  "set admin.token, or listen on 127.0.0.1",
		}
	}

	listener, err := net.Listen("tcp", s.cfg.Listen)
	if err != nil {
		return &store.SetupError{
			Problem: fmt.Sprintf("admin.listen: cannot listen on %s: %s", s.cfg.Listen, networkReason(err)),
			Remedy:  "set admin.listen (SLUICEBOX_ADMIN_LISTEN) to a free address of this machine, or to '' for no endpoints",
		}
	}

	s.listener = listener
	return nil
}

// networkReason returns the system's part of a network error, because the caller names
// the address.
func networkReason(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// Addr returns the bound address, or "" before Listen.
func (s *Server) Addr() string {
	if s.listener == nil {
		return ""
	}
	return s.listener.Addr().String()
}

// Close releases the address if Run is not called.
func (s *Server) Close() {
	if s.listener != nil {
		_ = s.listener.Close()
	}
}

// Run serves until the context ends, then returns nil. It calls Listen if necessary. Call
// it at most once.
func (s *Server) Run(ctx context.Context) error {
	if err := s.Listen(); err != nil {
		return err
	}
	if s.listener == nil {
		<-ctx.Done()
		return nil
	}

	srv := &http.Server{
		Handler:           s.served,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelWarn),
	}

	served := make(chan error, 1)
	go func() { served <- srv.Serve(s.listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("admin endpoints on %s: %w", s.Addr(), err)
	case <-ctx.Done():
	}

	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := srv.Shutdown(end); err != nil {
		_ = srv.Close() // a hanging scrape must not delay shutdown
	}

	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin endpoints on %s: %w", s.Addr(), err)
	}
	return nil
}

// indexText is the response of /.
const indexText = `Sluicebox
/livez               the process runs
/readyz              the relay works or stands by
/readyz?verbose      each check by name
/leader              200 while the relay leads, 503 while it stands by
/metrics             for Prometheus
/api/v1/status       the status; ?count=true also counts FAILED rows
/api/v1/lanes        the lanes; POST to …/retry-now, …/skip, …/pause, …/resume
/api/v1/routes       the routes of each outbox; POST to …/OUTBOX/ROUTE/pause, …/resume
/api/v1/rows         …/OUTBOX/ID: why a row is not delivered, and its attempts
/api/v1/deadletters  the FAILED rows, …/count; POST to …/requeue, …/discard
/api/v1/checkpoints  the named checkpoints; POST creates one, POST to …/delete
/api/v1/actions      the log of operator actions
/api/v1/figures      throughput and latency of the last hour
/api/v1/config       the configuration in force
/api/v1/session      who calls; POST logs in
/api/v1/reload       POST reads the configuration again
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
	access  atomic.Pointer[access]
	status  Status
	actions store.ActionLog // may be nil
	log     *slog.Logger
}

// endpoints returns the endpoints with their access checks.
func (h *handler) endpoints(cfg Config) http.Handler {
	mux := http.NewServeMux()
	h.processEndpoints(mux, cfg, console.Handler(), indexText)
	h.pageEndpoints(mux, cfg)
	if cfg.Leader != nil {
		mux.HandleFunc("GET /leader", h.leader(cfg.Leader))
	}

	if cfg.Report != nil {
		h.statusEndpoint(mux, cfg.Report)
	}
	if cfg.Lanes != nil {
		h.laneEndpoints(mux, cfg.Lanes)
	}
	if cfg.Routes != nil {
		h.routeEndpoints(mux, cfg.Routes)
		h.crabletEndpoints(mux, cfg.Routes, cfg.Report)
	}
	if cfg.DeadLetters != nil {
		h.deadLetterEndpoints(mux, cfg.DeadLetters)
	}
	if cfg.Requests != nil {
		h.requestEndpoints(mux, cfg.Requests)
	}
	if cfg.Rows != nil {
		h.rowEndpoint(mux, cfg.Rows)
	}
	if cfg.Reloader != nil {
		h.reloadEndpoint(mux, cfg.Reloader)
	}

	return h.protect(mux)
}

// processEndpoints adds what every process has: probes, metrics, login, profiles, and at / the page for a
// browser and the index for others.
func (h *handler) processEndpoints(mux *http.ServeMux, cfg Config, page http.Handler, index string) {
	gatherer := cfg.Metrics
	if gatherer == nil {
		gatherer = prometheus.NewRegistry()
	}
	mux.HandleFunc("GET /livez", h.livez)
	mux.HandleFunc("GET /readyz", h.readyz)
	mux.Handle("GET /metrics", h.requireToken(promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{EnableOpenMetrics: cfg.OpenMetrics})))
	text := h.requireToken(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, index) }))
	mux.Handle("GET "+console.Path, page)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Header.Get("Accept"), "text/html") {
			page.ServeHTTP(w, r)
			return
		}
		text.ServeHTTP(w, r)
	})
	h.sessionEndpoints(mux)
	if cfg.Profiling {
		h.profileEndpoints(mux)
	}
}

// protect refuses requests of other sites and for other hosts.
func (h *handler) protect(next http.Handler) http.Handler {
	return http.NewCrossOriginProtection().Handler(withSecurityHeaders(h.requireKnownHost(next)))
}

// withSecurityHeaders sets headers that stop content sniffing, embedding and caching.
func withSecurityHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Frame-Options", "DENY")
		w.Header().Set("Referrer-Policy", "no-referrer")
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

// requireOperator requires the token of an operator.
func (h *handler) requireOperator(next http.Handler) http.Handler {
	return h.requireToken(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s, _ := h.access.Load().caller(r); s.Role != Operator {
			writeText(w, http.StatusForbidden, "profiles need the operator token (admin.token)\n")
			return
		}
		next.ServeHTTP(w, r)
	}))
}

func unauthorized(w http.ResponseWriter) {
	w.Header().Set("WWW-Authenticate", authChallenge)
	writeText(w, http.StatusUnauthorized, tokenRequiredText+"\n")
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
		mux.Handle(path, h.requireOperator(serve))
	}
}
