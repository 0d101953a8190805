package app

import (
	"os"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/tracing"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// tracingConfig returns the configuration of traces, nil for none.
func (p *program) tracingConfig() *tracing.Config { return tracingConfig(p.cfg.Load()) }

func tracingConfig(cfg *config.Config) *tracing.Config {
	if os.Getenv("OTEL_SDK_DISABLED") == "true" {
		return nil
	}
	if c := cfg.Settings.Tracing; c != nil {
		return c
	}
	return tracing.FromEnvironment(os.Getenv)
}

// startTracing makes the relay of the options trace its rows. It returns nil if nothing is traced.
func (p *program) startTracing(o *sluicebox.Options) (*tracing.Tracer, error) {
	c := p.tracingConfig()
	if c == nil {
		return nil, nil
	}
	tracer, err := tracing.New(tracing.Options{
		Config: *c, Relay: o.Name, Holder: o.Holder, Version: p.version, Log: p.log, Variable: os.Getenv,
	})
	if err != nil {
		return nil, &store.SetupError{Problem: "tracing: " + err.Error()}
	}
	o.WrapSink = func(name string, to sink.Sink) sink.Sink {
		s, configured := p.cfg.Load().Settings.Sinks[name]
		if !configured {
			return to // the relay's own
		}
		return tracer.Wrap(name, s.Type, to)
	}
	return tracer, nil
}
