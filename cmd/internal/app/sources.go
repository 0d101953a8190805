package app

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/notify"
	"github.com/sluicebox/sluicebox/store/backoff"
)

const (
	// minSourceRestart and maxSourceRestart limit the wait before the relay of a source that ended
	// with an error starts again. Other sources are not affected.
	minSourceRestart = time.Second
	maxSourceRestart = time.Minute
	// maxPatience is long enough that processes which a deployment starts together share the sources.
	maxPatience = 3 * time.Second
	// idleTimeout is how long a source without rows keeps the sessions that only rows need. With rows more
	// often than that a source opens none again and again.
	idleTimeout = 30 * time.Second
	// parallelReloads is the number of sources that reload at a time.
	parallelReloads = 8
)

// process is a program with several sources: a relay for each, and one admin address.
type process struct {
	options Options
	name    string // by which processes share the sources
	holder  string
	label   string                      // of the metrics of a source
	metrics *prometheus.Registry        // of the process itself
	roles   func() []admin.SourceStatus // listed before the sources; may be nil
	shared  *sluicebox.Destinations
	moves   chan struct{} // of leads to other processes, in progress
	memory  memoryLimit
	server  *admin.Server                // of the process
	access  atomic.Pointer[admin.Config] // as last reloaded, of all addresses; nil before
	reloads sync.Mutex                   // reloads happen in the order in which they read the file

	mu      sync.Mutex
	sources []*source // see all
}

// all returns the sources.
func (p *process) all() []*source {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sources)
}

// source is one source of a process.
type source struct {
	process *process
	name    string
	log     *slog.Logger
	current atomic.Pointer[runningSource]
	failure atomic.Pointer[string] // how the relay ended; nil while it runs
	mu      sync.Mutex             // held by a reload, and by open, which ends failure
	mended  chan struct{}          // has a value if failure has another configuration

	adapt func(*sluicebox.Options)                                    // changes the options of each relay
	find  func(now *config.Config, err error) (*config.Config, error) // the source in a configuration of the process
}

// runningSource is the program of a source with its endpoints. A relay that ended with an error has
// another one.
type runningSource struct {
	*program
	server *admin.Server
}

// newProcess returns a process without sources. label is that of a source in metrics.
func newProcess(o Options, label, name string) *process {
	p := &process{options: o, metrics: newProcessRegistry(), shared: sluicebox.NewDestinations(), moves: make(chan struct{}, maxMoves), label: label, name: name}
	p.holder = fmt.Sprintf("%s%s%d", name, holderMark, os.Getpid())
	p.metrics.MustRegister(newDestinationMetrics(p.shared.Stats))
	return p
}

// runSources runs a relay for each source until the context ends. One that ends with an error starts
// again, and leaves the others alone. The error is about what they share.
func runSources(ctx context.Context, o Options) error {
	host, _ := os.Hostname() // "" without a name
	p := newProcess(o, "source", cmp.Or(o.Config.Settings.Process, host, "unknown"))
	for _, cfg := range o.Config.Sources() {
		s := &source{process: p, name: cfg.SourceName(), log: o.Log.With("source", cfg.SourceName()), mended: make(chan struct{}, 1)}
		s.adapt, s.find = func(of *sluicebox.Options) {
			of.Patience, of.HandOver = patience(p.name, s.name), p.handOver(s.name)
		}, s.findEntry
		if err := s.open(cfg); err != nil {
			return fmt.Errorf("source %s: %w", s.name, err)
		}
		p.sources = append(p.sources, s)
	}
	return p.serve(ctx, p.bufferBytes(), p.working, func(ctx context.Context) error {
		p.run(ctx)
		return nil
	})
}

// serve serves the endpoints of the process while run runs, and tells the service manager about it. The
// relays may buffer bytes at first.
func (p *process) serve(ctx context.Context, bytes int64, ready func() bool, run func(context.Context) error) error {
	memory, stop := context.WithCancel(ctx)
	defer stop()
	p.memory.start(bytes, 0)
	go p.memory.release(memory)
	p.server = p.adminServer()
	stopAdmin, err := p.serveAdmin(ctx)
	if err != nil {
		return err
	}
	end, err := supervise(ctx, p.options.Log, notify.Service{Ready: ready, Status: p.summary, Ping: p.ping})
	if err == nil {
		err = run(ctx)
		end()
	}
	return cmp.Or(err, stopAdmin())
}

// bufferBytes returns the bytes that all relays of the process may buffer.
func (p *process) bufferBytes() int64 { return bufferBytes(p.all()) }

func bufferBytes(sources []*source) (sum int64) {
	for _, s := range sources {
		sum += s.current.Load().cfg.Load().TotalBufferBytes()
	}
	return sum
}

// run runs the relays and the reloads until the context ends and all relays have drained.
func (p *process) run(ctx context.Context) {
	stopReloads := inBackground(ctx, p.reloadOnSignals)
	defer stopReloads()
	var relays sync.WaitGroup
	for _, s := range p.all() {
		relays.Go(func() { s.run(ctx) })
	}
	relays.Wait()
}

// endedState is the state of the relay of a source. After an error it reports that, because the checks of a
// relay that ended say only that it has reached nothing.
type endedState struct {
	relayState
	failure *atomic.Pointer[string]
}

// Checks implements admin.Status.
func (s endedState) Checks() []sluicebox.Check {
	if text := s.failure.Load(); text != nil {
		return []sluicebox.Check{{Name: "relay", Detail: "ended: " + *text}}
	}
	return s.relayState.Checks()
}

// open makes a program for the source.
func (s *source) open(cfg *config.Config) error {
	o := s.process.options
	o.Config, o.Log = cfg, s.log
	program, err := newProgram(o, prometheus.NewRegistry(), s.process.holder, func(of *sluicebox.Options) {
		of.Destinations, of.IdleTimeout = s.process.shared, idleTimeout
		s.adapt(of)
	})
	if err != nil {
		return err
	}
	program.relay = endedState{program.relay, &s.failure}
	server := program.adminServer(s)
	program.setAccess = s.process.setAccess
	program.reloader.ended = func() bool { return s.failure.Load() != nil }
	s.current.Store(&runningSource{program: program, server: server})
	if access := s.process.access.Load(); access != nil { // which a reload of another source may have changed
		server.SetAccess(*access)
	}
	return nil
}

// setAccess puts the tokens and hosts of a reload into force for the process and for all sources.
func (p *process) setAccess(cfg admin.Config) {
	p.access.Store(&cfg)
	p.server.SetAccess(cfg)
	for _, s := range p.all() {
		s.current.Load().server.SetAccess(cfg)
	}
}

// patience returns how long a process waits before it first competes for a source. Of processes that
// start together, the one with the lowest hash of both names leads, which is another one for each
// source: rendezvous hashing, in which nobody needs to know the others.
func patience(process, source string) time.Duration {
	sum := sha256.Sum256([]byte(process + "\x00" + source))
	return time.Duration(float64(maxPatience) * float64(binary.BigEndian.Uint32(sum[:])) / (1 << 32))
}

// findEntry returns the configuration of the source in one of the whole file. No source may have come or
// gone, because a reload starts and ends no relay.
func (s *source) findEntry(now *config.Config, err error) (*config.Config, error) {
	if err != nil {
		return nil, err
	}
	if changed := changedNames(s.process.options.Config.SourceNames(), now.SourceNames()); changed != "" {
		return nil, refused("sources need a restart: %s; undo it, or restart the process", changed)
	}
	all := now.Sources()
	return all[slices.IndexFunc(all, func(c *config.Config) bool { return c.SourceName() == s.name })], nil
}

// changedNames says which names were added and which removed, empty if none.
func changedNames(was, is []string) string {
	var parts []string
	if added := without(is, was); len(added) > 0 {
		parts = append(parts, "added "+strings.Join(added, ", "))
	}
	if removed := without(was, is); len(removed) > 0 {
		parts = append(parts, "removed "+strings.Join(removed, ", "))
	}
	return strings.Join(parts, "; ")
}

func without(names, others []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(others, n) })
}

// run runs the relay of the source until the context ends.
func (s *source) run(ctx context.Context) {
	retry := backoff.Doubling{Min: minSourceRestart, Max: maxSourceRestart}
	for {
		began, p := time.Now(), s.current.Load()
		stopFigures := p.keepFigures(ctx)
		err := p.run(ctx, p.runRelay)
		stopFigures()
		p.tracer.Close()
		if ctx.Err() != nil {
			if err != nil {
				s.log.Error("source failed during shutdown", "error", err)
			}
			return
		}
		if time.Since(began) > maxSourceRestart {
			retry.Reset()
		}
		for err != nil {
			text, wait := err.Error(), retry.Next()
			s.failure.Store(&text)
			s.log.Error("source failed; restarting its relay", "error", text, "wait", wait)
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			case <-s.mended:
			}
			err = s.reopen()
		}
	}
}

// reopen makes another program for a relay that ended, with the configuration as last reloaded.
func (s *source) reopen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.mended: // in force from here on
	default:
	}
	err := s.open(s.current.Load().cfg.Load())
	if err == nil {
		s.failure.Store(nil)
	}
	return err
}

// Reload implements admin.Reloader.
func (s *source) Reload(ctx context.Context) (admin.Reloaded, error) {
	s.process.reloads.Lock()
	defer s.process.reloads.Unlock()
	load := s.process.options.Reload.Load
	if load == nil {
		return s.reload(ctx, nil)
	}
	return s.reload(ctx, func() (*config.Config, error) { return s.find(load()) })
}

// reload applies the configuration that load returns. A relay that ended starts again with it at once.
func (s *source) reload(ctx context.Context, load func() (*config.Config, error)) (admin.Reloaded, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	done, err := s.current.Load().reloader.reloadFrom(ctx, load)
	if err == nil && s.failure.Load() != nil {
		select {
		case s.mended <- struct{}{}:
		default:
		}
	}
	return done, err
}

// reloadOnSignals reloads all sources with each signal until the context ends.
func (p *process) reloadOnSignals(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.options.Reload.Signals:
		}
		if p.options.Reload.Load == nil {
			continue
		}
		p.reload(ctx)
	}
}

// reload reloads all sources with one reading of the file.
func (p *process) reload(ctx context.Context) {
	p.reloads.Lock()
	defer p.reloads.Unlock()
	now, err := p.options.Reload.Load()
	var reloads errgroup.Group
	reloads.SetLimit(parallelReloads)
	for _, s := range p.all() {
		reloads.Go(func() error {
			_, _ = s.reload(ctx, func() (*config.Config, error) { return s.find(now, err) }) // logged
			return nil
		})
	}
	_ = reloads.Wait()
}

// adminServer returns the endpoints of the process.
func (p *process) adminServer() *admin.Server {
	cfg := p.options.Config.Admin(p)
	cfg.Log, cfg.OpenMetrics = p.options.Log, tracingConfig(p.options.Config) != nil
	return admin.NewSources(cfg, p)
}

// serveAdmin serves the endpoints of the process until stop is called.
func (p *process) serveAdmin(ctx context.Context) (stop func() error, err error) {
	of := p.options.Config.Settings.Admin
	if of.Listen == "" {
		return func() error { return nil }, nil
	}
	if of.Profiling {
		runtime.SetMutexProfileFraction(mutexProfileFraction)
	}
	return serve(ctx, p.server)
}

// Handler implements admin.Sources.
func (p *process) Handler(name string) http.Handler {
	all := p.all()
	if i := slices.IndexFunc(all, func(s *source) bool { return s.name == name }); i >= 0 {
		return all[i].current.Load().server.Handler()
	}
	return nil
}

// List implements admin.Sources.
func (p *process) List() admin.SourceList {
	list := admin.SourceList{Process: p.holder, Version: p.options.Version, Sources: []admin.SourceStatus{}}
	if p.roles != nil {
		list.Sources = append(list.Sources, p.roles()...)
	}
	for _, s := range p.all() {
		list.Sources = append(list.Sources, s.status())
	}
	return list
}

// status returns the state of the source in short.
func (s *source) status() admin.SourceStatus {
	p := s.current.Load()
	of := p.Report(context.Background(), false)
	short := admin.SourceStatus{
		Name: s.name, Ready: true, IsLeader: of.IsLeader, Leader: of.Leader, Mode: of.Mode, Lag: of.Lag, Captured: of.Captured,
	}
	_, short.Detail = p.relay.Leader()
	var failed []string
	for _, c := range p.relay.Checks() {
		if !c.OK {
			failed = append(failed, c.Name+": "+c.Detail)
		}
	}
	if text := s.failure.Load(); text != nil {
		failed = []string{"relay ended: " + *text}
	}
	if len(failed) > 0 {
		short.Ready, short.Detail = false, strings.Join(failed, "; ")
	}
	return short
}

// Gather implements prometheus.Gatherer: the metrics of the process, and those of each source with
// its name in the label source.
func (p *process) Gather() ([]*dto.MetricFamily, error) {
	all := prometheus.Gatherers{p.metrics}
	for _, s := range p.all() {
		all = append(all, prometheus.GathererFunc(s.gather))
	}
	return all.Gather()
}

// gather returns the metrics of the source with its label.
func (s *source) gather() ([]*dto.MetricFamily, error) {
	families, err := s.current.Load().Gather()
	label, name := s.process.label, s.name
	for _, f := range families {
		for _, m := range f.GetMetric() {
			m.Label = append(slices.Clone(m.GetLabel()), &dto.LabelPair{Name: &label, Value: &name}) // the slice belongs to the metric
			slices.SortFunc(m.Label, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
		}
	}
	return families, err
}

// working reports whether every relay works or stands by.
func (p *process) working() bool {
	return !slices.ContainsFunc(p.all(), func(s *source) bool {
		return s.failure.Load() != nil || !s.current.Load().relay.Working()
	})
}

// ping tells the relays that the service manager asks for a sign of life.
func (p *process) ping() {
	for _, s := range p.all() {
		s.current.Load().relay.Ping()
	}
}

// summary returns the state of the process in one line.
func (p *process) summary() string {
	leads, failed, all := 0, []string{}, p.List().Sources
	for _, of := range all {
		if of.IsLeader {
			leads++
		}
		if !of.Ready {
			failed = append(failed, of.Name)
		}
	}
	line := fmt.Sprintf("leads %d of %d sources", leads, len(all))
	if len(failed) > 0 {
		line += fmt.Sprintf("; %d not ready: %s", len(failed), strings.Join(failed, ", "))
	}
	return line
}

// maxMoves is how many sources a process hands over at a time.
const maxMoves = 4

// spreadAfter is the default of the key: long enough for a deployment that restarts processes one by one.
const spreadAfter = 30 * time.Second

// handOver returns how the leads of sources move to the processes that are to have them: the one with
// the lowest hash of the names of process and source. Any two processes agree on that without a list of
// all.
func (p *process) handOver(source string) *sluicebox.HandOver {
	return &sluicebox.HandOver{
		After: cmp.Or(p.options.Config.Settings.SpreadAfter, spreadAfter), Slots: p.moves,
		Prefers: func(process, than string) bool { return prefers(nameOf(process), nameOf(than), source) },
	}
}

// prefers reports whether a process is to lead a source rather than another.
func prefers(process, than, source string) bool {
	return patience(process, source) < patience(than, source)
}

// holderMark is between the name of a process and its id in a holder.
const holderMark = " process "

// nameOf returns the name of the process of a holder. A store adds digits behind it.
func nameOf(holder string) string {
	name, _, _ := strings.Cut(holder, holderMark)
	return name
}
