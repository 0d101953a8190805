package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/store"
)

// Config says where the endpoints listen, who may use them and what they serve.
type Config struct {
	// Listen is host:port. Port 0 picks a free port; "" serves nothing.
	Listen string
	// Token is the bearer token, or "" for none. It is required for every address except
	// loopback.
	Token string
	// Metrics are served at /metrics; nil serves an empty page.
	Metrics prometheus.Gatherer
	// Leader is served at /leader. Without it the endpoint does not exist.
	Leader Leader
	// Lanes, DeadLetters and Requests are served by the API. Without one, its endpoints do
	// not exist.
	Lanes       Lanes
	DeadLetters DeadLetters
	Requests    Requests
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
	handler  http.Handler
	listener net.Listener
}

// New returns a server. It starts nothing.
func New(cfg Config, status Status) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{cfg: cfg, handler: newHandler(cfg, status)}
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
		Handler:           s.handler,
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
