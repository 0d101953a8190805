package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/notices"
)

// Reload is how a program reads its configuration again.
type Reload struct {
	// Load reads the file and the variables; nil if that is not possible.
	Load func() (*config.Config, error)

	// Level is the level of Options.Log.
	Level *slog.LevelVar

	// Signals ask for a reload.
	Signals <-chan os.Signal
}

// reloadTimeout limits the wait for the rows in flight, beyond the longest request.
const reloadTimeout = time.Minute

// reloader reads the configuration again while the relay runs.
type reloader struct {
	program *program
	options Reload
	relay   interface {
		Reload(ctx context.Context, o sluicebox.Options) (restarted bool, err error)
	}

	// ended, if not nil, reports whether the relay has ended and starts again with the configuration
	// in force. Then all keys may change.
	ended func() bool

	applied prometheus.Gauge

	mu sync.Mutex // one reload at a time
}

func newReloader(reg prometheus.Registerer, p *program, o Reload) *reloader {
	r := &reloader{program: p, options: o}
	r.applied = newRegistrar(reg).gauge("config_last_reload_successful", "Whether the last reload of the configuration was applied (1 = applied, or none was asked for; 0 = refused).")
	r.applied.Set(1)
	return r
}

// run reloads with each signal until the context ends.
func (r *reloader) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.options.Signals:
			_, _ = r.Reload(ctx) // logged
		}
	}
}

// Reload implements admin.Reloader. It applies all changes of the configuration or none.
func (r *reloader) Reload(ctx context.Context) (admin.Reloaded, error) {
	return r.reloadFrom(ctx, r.options.Load)
}

// reloadFrom is Reload with the configuration that load returns; load is nil if there is none.
func (r *reloader) reloadFrom(ctx context.Context, load func() (*config.Config, error)) (admin.Reloaded, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	began := time.Now()
	done, err := r.reload(ctx, load)
	done.Took = time.Since(began).Seconds()
	r.applied.Set(1)
	switch {
	case err != nil && !errors.As(err, new(*admin.ReloadError)):
		r.program.log.Warn("configuration reloaded; session not started yet", "keys", done.Changed, "error", err)
	case err != nil:
		r.applied.Set(0)
		r.program.log.Error("configuration not reloaded", "error", err, "remedy", "fix the file, and reload again; the relay runs as before")
	case len(done.Changed) == 0:
		r.program.log.Info("configuration unchanged")
	default:
		r.program.log.Info("configuration reloaded", "keys", done.Changed, "session_restarted", done.Restarted, "took", time.Since(began))
	}
	return done, err
}

func (r *reloader) reload(ctx context.Context, load func() (*config.Config, error)) (done admin.Reloaded, err error) {
	done.Changed = []string{}
	if load == nil {
		return done, refused("the configuration came from standard input; restart the relay")
	}
	p := r.program
	before := p.cfg.Load()
	now, err := load()
	if err == nil {
		err = now.ReferenceErrors()
	}
	if err != nil {
		return done, &admin.ReloadError{Err: err}
	}
	changes := before.Changes(now)
	var fixed []string
	for _, c := range changes {
		if c.Fixed {
			fixed = append(fixed, c.Where+": "+c.Key)
		}
		done.Changed = append(done.Changed, c.Key)
	}
	ended := r.ended != nil && r.ended()
	if len(fixed) > 0 && !ended {
		return done, refused("keys that need a restart changed: %s; undo them, or restart the relay", strings.Join(fixed, ", "))
	}
	options, err := p.relayOptions(now)
	if err != nil {
		return done, &admin.ReloadError{Err: err}
	}
	if err := notices.Check(now.Settings.Notices); err != nil {
		return done, &admin.ReloadError{Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	p.cfg.Store(now) // before the session that has it
	if ended {
		done.Restarted = true
	} else if done.Restarted, err = r.relay.Reload(ctx, options); err != nil && !done.Restarted {
		p.cfg.Store(before)
		return done, &admin.ReloadError{Err: err}
	}
	if e := p.notifier.Configure(now.Settings.Notices); e != nil && err == nil {
		err = e // the CA file went away since the check
	}
	ingest, _ := now.Ingest()
	p.memory.set(now.TotalBufferBytes(), ingest.MaxMemory)
	p.setAccess(now.Admin(nil))
	if r.options.Level != nil {
		r.options.Level.Set(now.Settings.Log.SlogLevel())
	}
	return done, err
}

// refused returns the error of a configuration that is not applied.
func refused(format string, args ...any) error {
	return &admin.ReloadError{Err: fmt.Errorf(format, args...)}
}
