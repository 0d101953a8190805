// Package app is the program around a relay: metrics, the admin endpoints and the service
// manager. The doctor, the tap and the requests of commands that need no relay are here too.
package app

import (
	"cmp"
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/notices"
	"github.com/sluicebox/sluicebox/cmd/internal/notify"
)

// Options are the inputs of a program.
type Options struct {
	Config  *config.Config
	Log     *slog.Logger
	Version string

	// Reload reads the configuration again. It may be the zero value.
	Reload Reload
}

// mutexProfileFraction is the sampling rate of the mutex profile: one contention event in
// 100.
const mutexProfileFraction = 100

// relayState is the state of the relay that the program reports.
type relayState interface {
	Status() sluicebox.Status
	Leader() (leads bool, detail string)
	Checks() []sluicebox.Check
	Working() bool
	Ping()
}

// relayRoutes are the routes of the relay.
type relayRoutes interface {
	List() ([]sluicebox.RouteStatus, error)
	Pause(ctx context.Context, route sluicebox.RouteName, reason string) error
	Resume(ctx context.Context, route sluicebox.RouteName) error
	Skip(route sluicebox.RouteName, reason string) (rows int, err error)
}

// program is a running program.
type program struct {
	cfg         atomic.Pointer[config.Config] // in force
	setAccess   func(admin.Config)            // of the admin endpoints
	reloader    *reloader
	notifier    *notices.Notifier
	memory      memoryLimit
	log         *slog.Logger
	version     string
	startedAt   time.Time
	metrics     *Metrics
	relay       relayState
	lanes       admin.Lanes
	routes      relayRoutes
	rows        admin.Rows
	deadLetters admin.DeadLetters
	failedCount failedRows // as last counted
	figures     figures    // of the last hour
}

// Run relays until the context ends, then shuts down gracefully and returns nil. Any
// other end is an error. If its chain holds a *store.SetupError or *config.Error, a
// restart does not help.
func Run(ctx context.Context, o Options) error {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	metrics := NewMetrics(reg, Build{Version: o.Version, GoVersion: runtime.Version()})
	options, err := o.Config.Relay(userAgent(o.Version))
	if err != nil {
		return err
	}
	p := &program{log: o.Log, version: o.Version, startedAt: time.Now(), metrics: metrics, setAccess: func(admin.Config) {}}
	p.cfg.Store(o.Config)
	options.Holder = sluicebox.HolderName()
	p.notifier = p.newNotifier(reg, options.Name, options.Holder)
	if err := p.notifier.Configure(o.Config.Settings.Notices); err != nil {
		return err
	}
	tracer, err := p.startTracing(&options)
	if err != nil {
		return err
	}
	defer tracer.Close()
	options.Logger, options.Observer = o.Log, &observer{Metrics: metrics, notices: p.notifier, tracer: tracer}
	relay, err := sluicebox.New(options)
	if err != nil {
		return err
	}
	reg.MustRegister(newRouteMetrics(relay.Routes().List))
	p.relay, p.lanes, p.routes, p.rows, p.deadLetters = relay, relay.Lanes(), relay.Routes(), relay.Rows(), observedLetters{relay.DeadLetters(), metrics}
	p.reloader = newReloader(reg, p, o.Reload)
	p.reloader.relay = relay

	ingest, _ := o.Config.Ingest()
	memory, stop := context.WithCancel(ctx)
	defer stop()
	p.memory.start(o.Config.TotalBufferBytes(), ingest.MaxMemory)
	go p.memory.release(memory)
	stopAdmin, err := p.serveAdmin(ctx, reg, relay.Requests)
	if err != nil {
		return err
	}

	stopNotices := inBackground(context.WithoutCancel(ctx), p.notifier.Run) // the end of the relay causes notices too
	stopReloads := inBackground(ctx, p.reloader.run)
	err = p.relayRows(ctx, reg, relay.Run)
	stopReloads()
	stopNotices()
	if adminErr := stopAdmin(); err == nil && ctx.Err() == nil {
		err = adminErr
	}
	return err
}

// relayRows runs the relay, with ingest beside it and under the service manager, until the context
// or one of them ends.
func (p *program) relayRows(ctx context.Context, reg *prometheus.Registry, relay func(context.Context) error) error {
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	stopIngest, err := p.startIngest(running, reg, cancel)
	if err != nil {
		return err
	}
	end, err := supervise(ctx, p.log, notify.Service{Ready: p.relay.Working, Status: p.summary, Ping: p.relay.Ping})
	if err == nil {
		err = relay(running)
		end()
	}
	return cmp.Or(err, stopIngest())
}

// serveAdmin binds the admin address and serves it until stop is called. stop waits for
// the server to end.
func (p *program) serveAdmin(ctx context.Context, reg *prometheus.Registry, open func() (sluicebox.RequestStore, error)) (stop func() error, err error) {
	if p.cfg.Load().Settings.Admin.Listen == "" {
		return func() error { return nil }, nil
	}
	gather := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		p.updateGauges()
		return reg.Gather()
	})
	cfg := p.cfg.Load().Admin(gather)
	if cfg.Profiling {
		runtime.SetMutexProfileFraction(mutexProfileFraction)
	}

	cfg.Log, cfg.Leader, cfg.Lanes, cfg.DeadLetters, cfg.Report = p.log, p.relay, p.lanes, p.deadLetters, p
	cfg.OpenMetrics = p.tracingConfig() != nil
	asked := requests{p.cfg.Load(), open}
	cfg.Requests, cfg.Actions, cfg.Routes, cfg.Reloader = asked, asked, routes{p}, p.reloader
	cfg.Figures, cfg.Settings, cfg.Rows = &p.figures, inForce{p}, p.rows
	server := admin.New(cfg, p.relay)
	p.setAccess = server.SetAccess
	if err := server.Listen(); err != nil {
		return nil, err
	}

	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	stopFigures := inBackground(ctx, func(ctx context.Context) { p.figures.run(ctx, p.metrics) })
	return func() error { cancel(); stopFigures(); return <-done }, nil
}

// inBackground runs a function until the context ends or stop is called, which waits for it.
func inBackground(ctx context.Context, run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx)
	}()
	return func() { cancel(); <-done }
}

// updateGauges updates the gauges of the dispatchers and the source. It runs for every
// scrape.
func (p *program) updateGauges() {
	s := p.relay.Status()
	p.metrics.SetLastReceived(s.Source.LastReceivedAt)
	for name, of := range s.Sinks {
		p.metrics.sink(name).SetStats(of.Stats)
	}
	if s.Sinks == nil {
		return
	}
	for outbox, sink := range p.cfg.Load().Routes() {
		p.metrics.sink(sink).SetRefused(outbox, s.Sinks[sink].Refused[outbox])
	}
}

// Init creates the relay's tables and the prerequisites for streaming the outbox
// tables, for example a publication.
func Init(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	db, err := openDatabase(cfg)
	if err != nil {
		return err
	}
	defer db.store.Close()
	if err := db.store.Install(ctx); err != nil {
		return err
	}

	log.Info("relay tables installed")
	src, err := db.newStream()
	if err != nil {
		return err
	}
	defer src.Close()
	if err := src.Publish(ctx); err != nil {
		return err
	}

	if src.Script() != "" {
		log.Info("outbox tables published", "name", cfg.Settings.Name)
	}
	return db.store.Check(ctx)
}

// InitScript returns the statements that Init would run on an empty database.
func InitScript(cfg *config.Config) (string, error) {
	db, err := openDatabase(cfg)
	if err != nil {
		return "", err
	}
	defer db.store.Close()
	src, err := db.newStream()
	if err != nil {
		return "", err
	}
	defer src.Close()
	if script := src.Script(); script != "" {
		return db.store.Script() + "\n" + script, nil
	}

	return db.store.Script(), nil
}

// supervise reports the state of a service to the service manager, if any, until end is
// called.
func supervise(ctx context.Context, log *slog.Logger, of notify.Service) (end func(), err error) {
	manager, err := notify.New()
	if err != nil {
		return nil, err
	}
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		of.OnError = func(err error) { log.Warn("sd_notify failed", "error", err) }
		manager.Run(ctx, ended, of)
	}()
	return func() { close(ended); <-done }, nil
}

// summary returns the relay's state in one line.
func (p *program) summary() string {
	_, line := p.relay.Leader()
	for _, c := range p.relay.Checks() {
		if !c.OK {
			line += "; " + c.Name + ": " + c.Detail
		} else if c.Name == "source" {
			line += "; " + c.Detail
		}
	}
	return line
}
