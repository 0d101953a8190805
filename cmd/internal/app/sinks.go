package app

import (
	"errors"
	"fmt"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/flowcatalyst"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
	"github.com/sluicebox/sluicebox/store"
)

// destination is a sink with connections to give up.
type destination interface {
	sink.Sink
	sink.Prober
	Close()
}

// sinks opens every sink, by name: also those that no outbox routes to get what a replay
// sends them. One whose files are away is opened later; an error says that one can never
// be opened.
func (r *relay) sinks() (*files, error) {
	f := &files{relay: r, sinks: map[string]*reopener{}, refused: make(chan struct{}, 1), said: map[string]string{}}
	f.changed(r.cfg.Files())
	cfg, err := r.cfg.Reread() // a life may begin long after the start
	if err != nil {
		cfg = r.cfg
	}
	for _, name := range r.cfg.Sinks() {
		s := &reopener{
			name: name, limits: r.limits(name), refused: f.urge,
			open: func(cfg *config.Config) (destination, error) { return r.sink(cfg, name) },
		}
		f.sinks[name] = s
		_, err := s.reopen(cfg)
		var file *sink.FileError
		if err != nil && !errors.As(err, &file) {
			f.close()
			return nil, &store.SetupError{Problem: fmt.Sprintf("sink %s: %v", name, err)}
		}
		f.say(name, err)
	}
	return f, nil
}

// urge has the files looked at.
func (f *files) urge() {
	select {
	case f.refused <- struct{}{}:
	default:
	}
}

func (f *files) close() {
	for _, s := range f.sinks {
		s.Close()
	}
}

// limits returns the Limits of one sink.
func (r *relay) limits(name string) func(kind string) sink.Limits {
	if r.cfg.SinkType(name) == config.SinkWebhook {
		return r.cfg.Webhook(name).Limits
	}
	return r.cfg.FlowCatalyst(name).Limits
}

// sink opens one sink, of whatever type.
func (r *relay) sink(cfg *config.Config, name string) (destination, error) {
	if err := cfg.UnreadBy(name); err != nil {
		return nil, &sink.FileError{Err: err}
	}
	agent := "sluicebox/" + r.version
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

// dispatchers returns one per sink, by the sink's name, and the one that each
// outbox goes to, by the outbox's.
func (r *relay) dispatchers(sinks map[string]*reopener, epoch store.Epoch, lease dispatch.Lease) (bySink, byOutbox map[string]*dispatch.Dispatcher) {
	bySink, byOutbox = map[string]*dispatch.Dispatcher{}, map[string]*dispatch.Dispatcher{}
	for name, s := range sinks {
		watch := &sinkWatch{relay: r, sink: name, SinkMetrics: r.metrics.Sink(name)}
		watch.begin()
		bySink[name] = dispatch.New(r.cfg.Dispatch(name), r.db.store, s, epoch, watch, r.cfg.RequestTimeout(name)+drainTimeout)
		bySink[name].Lease, bySink[name].Replays = lease, r.db.store
		bySink[name].Replayed = watch.replayed
	}
	for outbox, name := range r.cfg.Routes() {
		byOutbox[outbox] = bySink[name]
	}
	return bySink, byOutbox
}

// restore makes lanes stand still that did so when the relay last ran.
func (r *relay) restore(byOutbox map[string]*dispatch.Dispatcher, holds []store.Hold) {
	routes := r.cfg.Routes()
	for _, h := range holds {
		if d := byOutbox[h.Lane.Outbox]; d != nil {
			d.Restore([]store.Hold{h})
			r.log.Warn("a message group stands still", "sink", routes[h.Lane.Outbox], "outbox", h.Lane.Outbox, "kind", h.Lane.Kind,
				"group", h.Lane.Group.String(), "state", h.Kind.String(), "row", h.ID, "reason", h.Reason)
		}
	}
}
