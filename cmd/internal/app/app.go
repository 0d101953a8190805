// Package app wires a relay from the module's packages and runs it. Only this package
// depends on all of them; a program that embeds a relay does not need it.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// Options are the inputs of a relay.
type Options struct {
	Config  *config.Config
	Log     *slog.Logger
	Version string
}

// firstConnectTimeout is how long the first start waits for an unreachable database.
// After the first connection the relay retries indefinitely.
const firstConnectTimeout = 30 * time.Second

// mutexProfileFraction is the sampling rate of the mutex profile: one contention event in
// 100.
const mutexProfileFraction = 100

// Run relays until the context ends, then shuts down gracefully and returns nil. Any
// other end is an error. If its chain holds a *store.SetupError or *config.Error, a
// restart does not help.
func Run(ctx context.Context, o Options) error {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	r := &relay{
		cfg: o.Config, log: o.Log, version: o.Version,
		metrics:   NewMetrics(reg, Build{Version: o.Version, GoVersion: runtime.Version()}),
		health:    newHealth(),
		startedAt: time.Now(),
	}

	memory, stop := context.WithCancel(ctx)
	defer stop()
	go releaseMemory(memory, setMemoryLimit(o.Config.TotalBufferBytes()))
	stopAdmin, err := r.serveAdmin(ctx, reg)
	if err != nil {
		return err
	}

	end, err := r.supervise(ctx)
	if err == nil {
		err = r.run(ctx)
		end()
	}

	if adminErr := stopAdmin(); err == nil {
		err = adminErr
	}
	switch {
	case ctx.Err() == nil:
		return err
	case errors.Is(err, store.ErrNotLeader): // the new leader sends the rows in flight
		o.Log.Warn("shutdown without drain", "reason", err)
	case err != nil && !errors.Is(err, context.Canceled):
		return err
	default:
		o.Log.Info("shutdown complete")
	}

	return nil
}

// serveAdmin binds the admin address and serves it until stop is called. stop waits for
// the server to end.
func (r *relay) serveAdmin(ctx context.Context, reg *prometheus.Registry) (stop func() error, err error) {
	if r.cfg.Settings.Admin.Listen == "" {
		return func() error { return nil }, nil
	}
	gather := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		r.updateGauges()
		return reg.Gather()
	})
	cfg := r.cfg.Admin(gather)
	if cfg.Profiling {
		runtime.SetMutexProfileFraction(mutexProfileFraction)
	}

	cfg.Log, cfg.Leader, cfg.Lanes, cfg.DeadLetters, cfg.Report = r.log, r, laneController{r}, deadLetterController{r}, r
	cfg.Checkpoints, cfg.Replays = checkpointController{r.cfg, r.leaderRequestStore}, replayController{r.cfg, r.leaderRequestStore}
	server := admin.New(cfg, r)
	if err := server.Listen(); err != nil {
		return nil, err
	}

	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	return func() error { cancel(); return <-done }, nil
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
		return fmt.Errorf("install relay tables: %w", err)
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
