package ingest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/outbox"
)

// Limits of a connection.
const (
	headerTimeout = 5 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10

	// maxWait is the longest time from the last byte of a request to its answer: of the write in
	// flight, and of the one for the request.
	maxWait = 2*writeTimeout + time.Second
)

// Writer writes rows durably; see outbox.Writer.
type Writer interface {
	Write(ctx context.Context, o *store.Outbox, rows []outbox.Row) ([]outbox.Written, error)
}

// Observer measures a server. Its methods are called concurrently.
type Observer interface {
	// IngestAnswered is called for each request, with the status of its answer.
	IngestAnswered(status int, took time.Duration)
	// IngestBatch is called for each write that the database answered, with the results by row.
	IngestBatch(outbox string, rows []outbox.Row, written []outbox.Written, took time.Duration)
}

// Options are what a server works with.
type Options struct {
	Config
	Writer   Writer
	Statuses store.StatusReader
	Observer Observer
	Log      *slog.Logger
}

// Server takes rows over HTTP.
type Server struct {
	cfg      Config
	writer   Writer
	observer Observer
	log      *slog.Logger

	tls      *tls.Config // nil: plain HTTP
	listener net.Listener
	memory   *semaphore.Weighted
	targets  map[string]*target
	closing  context.Context // ends when the server begins to shut down
	close    context.CancelFunc
	writes   atomic.Bool // the last write was answered; see write
}

// target is an outbox that clients write.
type target struct {
	*store.Outbox
	batcher  *batcher
	progress *progress // nil if the table does not show what is delivered
}

// New returns a server. It reads the TLS files, and starts nothing. The error names the
// configuration key.
func New(o Options) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	settings, err := o.TLS.load(o.Clients)
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: o.Config, writer: o.Writer, observer: o.Observer, log: o.Log,
		tls: settings, memory: semaphore.NewWeighted(o.MaxMemory), targets: map[string]*target{},
	}
	s.closing, s.close = context.WithCancel(context.Background())
	s.writes.Store(true)
	for i := range o.Clients {
		for _, name := range o.Clients[i].Outboxes {
			if s.targets[name] == nil {
				s.targets[name] = s.newTarget(s.cfg.outbox(name), o.Statuses)
			}
		}
	}
	return s, nil
}

func (s *Server) newTarget(o *store.Outbox, statuses store.StatusReader) *target {
	t := &target{Outbox: o}
	if o.Layout.ShowsUnsettled() {
		t.progress = &progress{outbox: o.Name, maxLag: s.cfg.MaxLag, reader: statuses, now: time.Now}
	}
	t.batcher = newBatcher(func(ctx context.Context, rows []outbox.Row) ([]outbox.Written, error) { return s.write(ctx, t, rows) })
	return t
}

// Listen binds the address, so that a conflict is reported before anything else starts. The
// error is a *store.SetupError. Call Run or Close afterwards.
func (s *Server) Listen() error {
	if s.listener != nil {
		return nil
	}
	listener, err := net.Listen("tcp", s.cfg.Listen)
	if err != nil {
		reason := err
		if op := (*net.OpError)(nil); errors.As(err, &op) {
			reason = op.Err
		}
		return &store.SetupError{
			Problem: fmt.Sprintf("ingest.listen: cannot listen on %s: %s", s.cfg.Listen, reason),
			Remedy:  "set ingest.listen to a free address of this machine",
		}
	}
	s.listener = newLimitedListener(listener, s.cfg.MaxConnections)
	return nil
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
	s.close()
	if s.listener != nil {
		_ = s.listener.Close()
	}
}

// Run serves until the context ends. Then it accepts no more, writes the rows that wait, answers
// them, and returns nil. It calls Listen if necessary. Call it at most once.
func (s *Server) Run(ctx context.Context) error {
	if err := s.Listen(); err != nil {
		return err
	}
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	var batchers sync.WaitGroup
	for _, t := range s.targets {
		batchers.Go(func() { t.batcher.run(work) })
	}
	defer batchers.Wait()
	defer stop()

	var protocols http.Protocols
	protocols.SetHTTP1(true) // with HTTP/2 a connection has many requests, and MaxConnections bounds none
	srv := &http.Server{
		Handler: s.routes(), TLSConfig: s.tls, Protocols: &protocols,
		ReadHeaderTimeout: min(headerTimeout, s.cfg.ReadTimeout), ReadTimeout: s.cfg.ReadTimeout, WriteTimeout: s.cfg.ReadTimeout + maxWait,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), // of connections, which anybody can make
	}
	s.log.Info("ingest listening", "address", s.Addr(), "tls", s.tls != nil)
	served := make(chan error, 1)
	go func() { served <- s.serve(srv) }()
	select {
	case err := <-served:
		return fmt.Errorf("ingest on %s: %w", s.Addr(), err)
	case <-ctx.Done():
	}
	return s.drain(ctx, srv, served)
}

func (s *Server) serve(srv *http.Server) error {
	if s.tls == nil {
		return srv.Serve(s.listener)
	}
	return srv.ServeTLS(s.listener, "", "")
}

// drain ends the server once all requests are answered. A request whose body is not complete gets
// 503.
func (s *Server) drain(ctx context.Context, srv *http.Server, served <-chan error) error {
	s.close()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxWait)
	defer cancel()
	if err := srv.Shutdown(end); err != nil {
		s.log.Warn("ingest closed with requests in flight", "error", err)
		_ = srv.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("ingest on %s: %w", s.Addr(), err)
	}
	s.log.Info("ingest drained")
	return nil
}
