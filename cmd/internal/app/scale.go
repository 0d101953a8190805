package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/shards"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// drainMargin is added to the longest request: the time in which a shard writes its last outcomes.
const drainMargin = 10 * time.Second

// maxTopicWait is how long records may wait for the topic until the capture is not ready.
const maxTopicWait = 10 * time.Second

// scaled is a process of several that share the outboxes of one database. Its sources are the shards
// that it has at the moment.
type scaled struct {
	*process
	capture *shards.Capture               // also checks the topic for a process without the role
	members *shards.Members               // nil without the role
	shared  *shards.Shared                // nil without the role
	latest  atomic.Pointer[config.Config] // as last reloaded
	waits   atomic.Pointer[string]        // why the topic cannot be used yet; nil if it can
}

// runScaled captures and dispatches, as the roles of the process say, until the context ends.
func runScaled(ctx context.Context, o Options) error {
	host, _ := os.Hostname() // "" without a name
	p := newProcess(o, "shard", cmp.Or(host, "unknown"))
	s, err := newScaled(p)
	if err != nil {
		return err
	}
	defer s.close()
	p.roles = s.roleStatus
	s.registerMetrics(p.metrics)
	return p.serve(ctx, o.Config.TotalBufferBytes(), s.working, s.run)
}

// newScaled returns a process. It opens no connection.
func newScaled(p *process) (*scaled, error) {
	cfg := p.options.Config
	options, err := cfg.Relay(userAgent(p.options.Version))
	if err != nil {
		return nil, err
	}
	options.Holder, options.IdleTimeout = p.holder, idleTimeout
	s := &scaled{process: p}
	s.latest.Store(cfg)
	client := userAgent(p.options.Version)
	if s.capture, err = shards.NewCapture(cfg.Settings.Scale, &options, client, p.options.Log.With("role", shards.RoleCapture)); err != nil {
		return nil, err
	}
	if !cfg.Settings.Scale.Has(shards.RoleDispatch) {
		return s, nil
	}
	if s.shared, err = shards.NewShared(cfg.Settings.Scale, &options, client); err != nil {
		return nil, err
	}
	drain := drainMargin
	for _, sink := range options.Sinks {
		drain = max(drain, sink.RequestTimeout+drainMargin)
	}
	s.members = &shards.Members{
		Config: cfg.Settings.Scale, Client: client, Drain: drain, Run: s.runShard, Log: p.options.Log.With("role", shards.RoleDispatch),
	}
	return s, nil
}

func (s *scaled) close() {
	if s.shared != nil {
		s.shared.Close()
	}
}

// run runs the roles until the context ends.
func (s *scaled) run(ctx context.Context) error {
	if err := s.awaitTopic(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	stopReloads := inBackground(ctx, s.reloadOnSignals)
	defer stopReloads()
	var roles sync.WaitGroup
	if s.options.Config.Settings.Scale.Has(shards.RoleCapture) {
		roles.Go(func() { s.capture.Run(ctx) })
	}
	var err error
	if s.members != nil {
		err = s.members.Serve(ctx)
	}
	roles.Wait()
	return err
}

// awaitTopic waits until the topic can be used. The error is a *store.SetupError if it is another one.
func (s *scaled) awaitTopic(ctx context.Context) error {
	retry := backoff.Doubling{Min: minSourceRestart, Max: maxSourceRestart}
	for {
		err := s.capture.CheckTopic(ctx)
		if err == nil {
			s.waits.Store(nil)
		}
		if err == nil || errors.As(err, new(*store.SetupError)) || ctx.Err() != nil {
			return err
		}
		text, wait := err.Error(), retry.Next()
		s.waits.Store(&text)
		s.options.Log.Warn("topic unavailable; retrying", "error", err, "wait", wait)
		if backoff.Sleep(ctx, wait) != nil {
			return nil
		}
	}
}

// runShard runs the relay of a partition until the context ends.
func (s *scaled) runShard(ctx context.Context, partition int) {
	name := strconv.Itoa(partition)
	one := &source{process: s.process, name: name, log: s.options.Log.With("shard", name), mended: make(chan struct{}, 1)}
	one.adapt = func(of *sluicebox.Options) { of.Database = s.shared.Database(partition) }
	one.find = func(now *config.Config, err error) (*config.Config, error) { return s.find(now, err, partition) }
	retry := backoff.Doubling{Min: minSourceRestart, Max: maxSourceRestart}
	for {
		err := one.open(s.latest.Load().Shard(partition))
		if err == nil {
			break
		}
		wait := retry.Next()
		one.log.Error("source failed; restarting its relay", "error", err, "wait", wait)
		if backoff.Sleep(ctx, wait) != nil {
			return
		}
	}
	s.add(one)
	defer s.remove(one)
	one.run(ctx)
}

// find returns the configuration of a shard in one that was reloaded. Later shards have it too, unless it
// will be refused.
func (s *scaled) find(now *config.Config, err error, partition int) (*config.Config, error) {
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(s.options.Config.Changes(now), func(c config.Change) bool { return c.Fixed }) {
		s.latest.Store(now)
	}
	return now.Shard(partition), nil
}

// add adds a source of the process, in the order of their numbers.
func (p *process) add(one *source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sources = append(p.sources, one)
	slices.SortFunc(p.sources, func(a, b *source) int {
		return cmp.Or(cmp.Compare(len(a.name), len(b.name)), cmp.Compare(a.name, b.name))
	})
	p.memory.set(bufferBytes(p.sources), 0)
}

// remove removes a source of the process.
func (p *process) remove(one *source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sources = slices.DeleteFunc(p.sources, func(s *source) bool { return s == one })
	p.memory.set(bufferBytes(p.sources), 0)
}

// working reports whether the roles and all shards work or stand by.
func (s *scaled) working() bool {
	return s.process.working() && !slices.ContainsFunc(s.roleStatus(), func(of admin.SourceStatus) bool { return !of.Ready })
}

// roleStatus returns the state of the roles in short.
func (s *scaled) roleStatus() (list []admin.SourceStatus) {
	if s.options.Config.Settings.Scale.Has(shards.RoleCapture) {
		of := s.capture.State()
		if late := s.capture.Feed(); of.Leads && !late.WaitingSince.IsZero() && time.Since(late.WaitingSince) > maxTopicWait {
			of.Failed, of.Detail = true, cmp.Or(late.Problem, errors.New("the topic does not acknowledge records")).Error()
		}
		list = append(list, admin.SourceStatus{Name: shards.RoleCapture, Role: true, Ready: !of.Failed, IsLeader: of.Leads, Leader: of.Leader, Mode: sluicebox.ModeStream, Detail: of.Detail})
	}
	if s.members != nil {
		of := admin.SourceStatus{Name: shards.RoleDispatch, Role: true, Ready: true, Detail: "has " + strconv.Itoa(len(s.all())) + " of " + strconv.Itoa(s.options.Config.Settings.Scale.Partitions) + " shards"}
		if n := s.members.Unused(); n > 0 {
			of.Detail += fmt.Sprintf(", and %d partitions of the topic that scale.partitions does not use", n)
		}
		if err := s.members.Problem(); err != nil {
			of.Ready, of.Detail = false, "not in the consumer group: "+err.Error()
		}
		list = append(list, of)
	}
	if text := s.waits.Load(); text != nil {
		for i := range list {
			list[i].Ready, list[i].Detail = false, "topic unavailable: "+*text
		}
	}
	return list
}

// registerMetrics registers the metrics of the roles.
func (s *scaled) registerMetrics(reg *prometheus.Registry) {
	gauge := func(name, help string, value func() float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "sluicebox", Name: name, Help: help}, value))
	}
	gauge("scale_captures", "Whether this process reads the database's log for all (1 = it does).", func() float64 {
		if s.capture.State().Leads {
			return 1
		}
		return 0
	})
	gauge("scale_shards", "Shards that run in this process.", func() float64 { return float64(len(s.all())) })
	gauge("scale_buffered_records", "Records that wait for the topic.", func() float64 { return float64(s.capture.Feed().Buffered) })
	reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "sluicebox", Name: "scale_records_total", Help: "Records that the topic has acknowledged.",
	}, func() float64 { return float64(s.capture.Feed().Records) }))
}

// initScale creates the topic of a configuration with scale.
func initScale(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	scale := cfg.Settings.Scale
	if scale == nil {
		return nil
	}
	options, err := cfg.Relay("")
	if err != nil {
		return err
	}
	capture, err := shards.NewCapture(scale, &options, "sluicebox init", log)
	if err != nil {
		return err
	}
	created, err := capture.CreateTopic(ctx)
	if created {
		log.Info("topic created", "topic", scale.Topic, "partitions", scale.Partitions)
	}
	return err
}
