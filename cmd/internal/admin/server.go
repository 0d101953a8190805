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

	"github.com/sluicebox/sluicebox/store"
)

// Config says where and to whom the endpoints are served.
type Config struct {
	// Listen is host:port; port 0 takes a free one. "" serves nothing.
	Listen string
	// Token is the bearer token, "" for none. It is needed for any address but
	// loopback.
	Token string
	// Metrics is what /metrics shows; nil is an empty page.
	Metrics prometheus.Gatherer
	// Leader is what /leader tells; without one it is not there.
	Leader Leader
	// Lanes, OpenDeadLetters, Checkpoints and Replays are what the API shows and acts on;
	// without one, its endpoints are not there.
	Lanes       Lanes
	DeadLetters DeadLetters
	Checkpoints Checkpoints
	Replays     Replays
	// Report is what the status tells; without one its endpoint is not there.
	Report Reporter
	// Profiling serves the process's profiles under /debug/pprof/.
	Profiling bool
	// Log is told of broken requests; nil tells nobody.
	Log *slog.Logger
}

// Check is one condition of readiness.
type Check struct {
	Name string `json:"name"` // a word for the probe's output
	OK   bool   `json:"ok"`
	// Warning: there is something to mend, also where OK.
	Warning bool   `json:"warning,omitempty"`
	Detail  string `json:"detail"` // the reason, without secrets; may be empty where OK
}

// Status tells whether the relay is ready. Checks returns at once, from what is
// known already; it may be called from several goroutines.
type Status interface {
	Checks() []Check
}

// Leader tells whether this relay leads. It returns at once and may be called
// from several goroutines.
type Leader interface {
	// Leader reports whether this relay leads, and no other can; detail says it in
	// words, or who leads instead.
	Leader() (leads bool, detail string)
}

// Bounds of a request. A probe or a scrape is short; what is slower holds a
// connection for nothing.
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

// Listen takes the address, so that a taken one is known before anything else
// starts. The error is a *store.SetupError. Whoever has called Listen calls Run
// or Close.
func (s *Server) Listen() error {
	if s.cfg.Listen == "" || s.listener != nil {
		return nil
	}
	host, _, err := net.SplitHostPort(s.cfg.Listen)
	if err != nil {
		return &store.SetupError{
			Problem: fmt.Sprintf("admin.listen is %q, which is no host:port", s.cfg.Listen),
			Remedy:  "write an address such as 127.0.0.1:8090",
		}
	}
	if s.cfg.Token == "" && !Loopback(host) {
		return &store.SetupError{
			Problem: fmt.Sprintf("admin.listen is %s, which others can reach, and there is no admin.token", s.cfg.Listen),
			Remedy:  "set admin.token, or listen on 127.0.0.1",
		}
	}
	listener, err := net.Listen("tcp", s.cfg.Listen)
	if err != nil {
		return &store.SetupError{
			Problem: fmt.Sprintf("admin.listen: %s cannot be listened on: %s", s.cfg.Listen, networkReason(err)),
			Remedy:  "set admin.listen (SLUICEBOX_ADMIN_LISTEN) to a free address of this machine, or to '' for no endpoints",
		}
	}
	s.listener = listener
	return nil
}

// networkReason is the system's part of a network error; the address is named already.
func networkReason(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// Addr returns the address that Listen took, "" before.
func (s *Server) Addr() string {
	if s.listener == nil {
		return ""
	}
	return s.listener.Addr().String()
}

// Close gives the address back where Run is not called after all.
func (s *Server) Close() {
	if s.listener != nil {
		_ = s.listener.Close()
	}
}

// Run serves until the context ends, then returns nil. It listens first if
// Listen was not called. It may be called once.
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
		_ = srv.Close() // a scrape that hangs does not hold up the end
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin endpoints on %s: %w", s.Addr(), err)
	}
	return nil
}

// Loopback reports whether only this machine reaches a host.
func Loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
