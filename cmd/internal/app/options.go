package app

import (
	"os"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/flowcatalyst"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
	"github.com/sluicebox/sluicebox/store"
)

// relayOptions returns the options of a relay with this configuration, without a logger and
// an observer.
func relayOptions(cfg *config.Config, version string) (sluicebox.Options, error) {
	o, err := cfg.Relay()
	if err != nil {
		return o, err
	}
	o.Sinks = sinksOf(cfg, version)
	o.Reload = sluicebox.Reload{Files: cfg.Files(), Sinks: func() (map[string]sluicebox.Sink, error) {
		now, err := cfg.Reread()
		if err != nil {
			return nil, err
		}
		return sinksOf(now, version), nil
	}}
	return o, nil
}

// sinkInputs are the settings and file contents that a sink is opened with.
type sinkInputs struct {
	settings config.Sink
	ca       string
}

// sinksOf returns the sinks of a configuration by name.
func sinksOf(cfg *config.Config, version string) map[string]sluicebox.Sink {
	sinks := map[string]sluicebox.Sink{}
	for _, name := range cfg.Sinks() {
		inputs := sinkInputs{settings: cfg.Settings.Sinks[name]}
		if file := inputs.settings.CAFile; file != "" {
			ca, _ := os.ReadFile(file) // opening the sink reports a read error
			inputs.ca = string(ca)
		}
		sinks[name] = sluicebox.Sink{
			Open:   func() (sink.Sink, error) { return openSink(cfg, name, version) },
			Limits: sinkLimits(cfg, name), Inputs: inputs,
			Dispatch: cfg.Dispatch(name), RequestTimeout: cfg.RequestTimeout(name),
		}
	}
	return sinks
}

// closableSink is a sink that holds connections.
type closableSink interface {
	sink.Sink
	sink.Prober
	Close()
}

// sinkLimits returns the Limits function of a sink.
func sinkLimits(cfg *config.Config, name string) func(kind string) sink.Limits {
	if cfg.SinkType(name) == config.SinkWebhook {
		return cfg.Webhook(name).Limits
	}
	return cfg.FlowCatalyst(name).Limits
}

// openSink opens a sink of any type.
func openSink(cfg *config.Config, name, version string) (closableSink, error) {
	if err := cfg.SinkReferenceErrors(name); err != nil {
		return nil, &sink.FileError{Err: err}
	}
	agent := "sluicebox/" + version
	if cfg.SinkType(name) == config.SinkWebhook {
		c := cfg.Webhook(name)
		if c.UserAgent == "" {
			c.UserAgent = agent
		}
		return webhook.New(c)
	}

	c := cfg.FlowCatalyst(name)
	c.UserAgent = agent
	return flowcatalyst.New(c)
}

// database is the configured database for a command that runs no relay.
type database struct {
	store     store.Store
	newStream func() (capture.Stream, error)
}

// openDatabase returns the database of a configuration, without a connection. Close its
// store when done.
func openDatabase(cfg *config.Config) (*database, error) {
	o, err := cfg.Relay()
	if err != nil {
		return nil, err
	}
	st, err := o.Database.Store(store.Settings{Name: o.Name, Outboxes: cfg.Outboxes(), TakeoverTimeout: o.TakeoverTimeout})
	if err != nil {
		return nil, err
	}
	return &database{store: st, newStream: func() (capture.Stream, error) {
		return o.Database.Stream(capture.Settings{Name: o.Name, Outboxes: cfg.Outboxes()})
	}}, nil
}
