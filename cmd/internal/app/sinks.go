package app

import (
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
// sends them.
func (r *relay) sinks() (map[string]destination, error) {
	sinks := map[string]destination{}
	for _, name := range r.cfg.Sinks() {
		s, err := r.sink(name)
		if err != nil {
			for _, open := range sinks {
				open.Close()
			}
			return nil, &store.SetupError{Problem: fmt.Sprintf("sink %s: %v", name, err)}
		}
		sinks[name] = s
	}
	return sinks, nil
}

// sink opens one sink, of whatever type.
func (r *relay) sink(name string) (destination, error) {
	agent := "sluicebox/" + r.version
	if r.cfg.SinkType(name) == config.SinkWebhook {
		cfg := r.cfg.Webhook(name)
		if cfg.UserAgent == "" {
			cfg.UserAgent = agent
		}
		return webhook.New(cfg)
	}
	cfg := r.cfg.FlowCatalyst(name)
	cfg.UserAgent = agent
	return flowcatalyst.New(cfg)
}

// dispatchers returns one per sink, by the sink's name, and the one that each
// outbox goes to, by the outbox's.
func (r *relay) dispatchers(sinks map[string]destination, epoch store.Epoch, lease dispatch.Lease) (bySink, byOutbox map[string]*dispatch.Dispatcher) {
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
