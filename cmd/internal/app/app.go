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
	"github.com/sluicebox/sluicebox/cmd/internal/shards"
	"github.com/sluicebox/sluicebox/cmd/internal/tracing"
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
	memory      *memoryLimit
	log         *slog.Logger
	version     string
	startedAt   time.Time
	metrics     *Metrics
	registry    *prometheus.Registry
	tracer      *tracing.Tracer // may be nil
	adapt       func(*sluicebox.Options)
	requests    func() (sluicebox.RequestStore, error)
	runRelay    func(context.Context) error
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
	if o.Config.SourceNames() != nil {
		return runSources(ctx, o)
	}
	if o.Config.Settings.Scale != nil {
		return runScaled(ctx, o)
	}
	reg := newProcessRegistry()
	p, err := newProgram(o, reg, sluicebox.HolderName(), nil)
	if err != nil {
		return err
	}
	defer p.tracer.Close()
	ingest, _ := o.Config.Ingest()
	memory, stop := context.WithCancel(ctx)
	defer stop()
	p.memory.start(o.Config.TotalBufferBytes(), ingest.MaxMemory)
	go p.memory.release(memory)
	stopAdmin, err := p.serveAdmin(ctx)
	if err != nil {
		return err
	}
	stopReloads := inBackground(ctx, p.reloader.run)
	err = p.run(ctx, func(ctx context.Context) error { return p.relayRows(ctx, reg, p.runRelay) })
	stopReloads()
	if adminErr := stopAdmin(); err == nil && ctx.Err() == nil {
		err = adminErr
	}
	return err
}

// newProcessRegistry returns a registry with the metrics of the process.
func newProcessRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// newProgram returns the program around the relay of a configuration with one source. It starts
// nothing. adapt, if not nil, changes the options of the relay, also those of a reload. Close its
// tracer when done.
func newProgram(o Options, reg *prometheus.Registry, holder string, adapt func(*sluicebox.Options)) (*program, error) {
	metrics := NewMetrics(reg, Build{Version: o.Version, GoVersion: runtime.Version()})
	p := &program{
		log: o.Log, version: o.Version, startedAt: time.Now(), metrics: metrics, registry: reg, memory: new(memoryLimit),
		setAccess: func(admin.Config) {}, adapt: adapt,
	}
	p.cfg.Store(o.Config)
	options, err := p.relayOptions(o.Config)
	if err != nil {
		return nil, err
	}
	options.Holder = holder
	p.notifier = p.newNotifier(reg, options.Name, options.Holder)
	if err := p.notifier.Configure(o.Config.Settings.Notices); err != nil {
		return nil, err
	}
	tracer, err := p.startTracing(&options)
	if err != nil {
		return nil, err
	}
	p.tracer = tracer
	options.Logger, options.Observer = o.Log, &observer{Metrics: metrics, notices: p.notifier, tracer: tracer}
	relay, err := sluicebox.New(options)
	if err != nil {
		tracer.Close()
		return nil, err
	}
	reg.MustRegister(newRouteMetrics(relay.Routes().List))
	p.relay, p.lanes, p.routes, p.rows, p.deadLetters = relay, relay.Lanes(), relay.Routes(), relay.Rows(), observedLetters{relay.DeadLetters(), metrics}
	p.reloader = newReloader(reg, p, o.Reload)
	p.reloader.relay, p.requests, p.runRelay = relay, relay.Requests, relay.Run
	return p, nil
}

// relayOptions returns the options of the relay for a configuration.
func (p *program) relayOptions(cfg *config.Config) (sluicebox.Options, error) {
	options, err := cfg.Relay(userAgent(p.version))
	if err == nil && !cfg.Settings.Source.URL.SQLite() { // it has no shards
		options.Database = shards.Alone(options.Database)
	}
	if err == nil && p.adapt != nil {
		p.adapt(&options)
	}
	return options, err
}

// run runs the relay with its notices.
func (p *program) run(ctx context.Context, relay func(context.Context) error) error {
	stopNotices := inBackground(context.WithoutCancel(ctx), p.notifier.Run) // the end of the relay causes notices too
	defer stopNotices()
	return relay(ctx)
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
func (p *program) serveAdmin(ctx context.Context) (stop func() error, err error) {
	if p.cfg.Load().Settings.Admin.Listen == "" {
		return func() error { return nil }, nil
	}
	if p.cfg.Load().Settings.Admin.Profiling {
		runtime.SetMutexProfileFraction(mutexProfileFraction)
	}
	end, err := serve(ctx, p.adminServer(p.reloader))
	if err != nil {
		return nil, err
	}
	stopFigures := p.keepFigures(ctx)
	return func() error { stopFigures(); return end() }, nil
}

// serve binds the address of a server and serves it until stop is called, which waits for its end.
func serve(ctx context.Context, server *admin.Server) (stop func() error, err error) {
	if err := server.Listen(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	return func() error { cancel(); return <-done }, nil
}

// keepFigures keeps the figures of the last hour until stop is called.
func (p *program) keepFigures(ctx context.Context) (stop func()) {
	return inBackground(context.WithoutCancel(ctx), func(ctx context.Context) { p.figures.run(ctx, p.metrics) })
}

// adminServer returns the endpoints of the program, which reload as the reloader says.
func (p *program) adminServer(by admin.Reloader) *admin.Server {
	cfg := p.cfg.Load().Admin(p)
	cfg.Log, cfg.Leader, cfg.Lanes, cfg.DeadLetters, cfg.Report = p.log, p.relay, p.lanes, p.deadLetters, p
	cfg.OpenMetrics = p.tracingConfig() != nil
	asked := requests{p.cfg.Load(), p.requests}
	cfg.Requests, cfg.Actions, cfg.Routes, cfg.Reloader = asked, asked, routes{p}, by
	cfg.Figures, cfg.Settings, cfg.Rows = &p.figures, inForce{p}, p.rows
	server := admin.New(cfg, p.relay)
	p.setAccess = server.SetAccess
	return server
}

// Gather implements prometheus.Gatherer.
func (p *program) Gather() ([]*dto.MetricFamily, error) {
	p.updateGauges()
	return p.registry.Gather()
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
	if err := db.store.Check(ctx); err != nil {
		return err
	}
	return initScale(ctx, cfg, log)
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
