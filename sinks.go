package sluicebox

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// openSinks opens all sinks, by name, also those without an outbox, because a replay may
// use them. A sink whose files are missing is opened later. The error is about a sink
// that can never be opened.
func (r *Relay) openSinks() (*sinkFiles, error) {
	f := &sinkFiles{Relay: r, sinks: map[string]*reopeningSink{}, credentialsRefused: make(chan struct{}, 1), loggedErrors: map[string]string{}}
	f.filesChanged(r.opt.Reload.Files)
	now, err := r.opt.reload() // files may have changed since the start
	if f.retryNeeded = err != nil; f.retryNeeded {
		now = r.opt.Sinks
	}

	for _, name := range slices.Sorted(maps.Keys(r.opt.Sinks)) {
		s := &reopeningSink{limits: r.opt.Sinks[name].Limits, onRefusedCredentials: f.requestCheck}
		f.sinks[name] = s
		_, err := s.reopen(now[name])
		var file *sink.FileError
		if err != nil && !errors.As(err, &file) {
			f.close()
			return nil, &store.SetupError{Problem: fmt.Sprintf("sink %s: %v", name, err)}
		}
		f.logOpenError(name, err)
	}

	return f, nil
}

// reload returns the sinks with the present content of their files.
func (o *Options) reload() (map[string]Sink, error) {
	if o.Reload.Sinks == nil {
		return o.Sinks, nil
	}
	return o.Reload.Sinks()
}

// requestCheck requests a check of the files.
func (f *sinkFiles) requestCheck() {
	select {
	case f.credentialsRefused <- struct{}{}:
	default:
	}
}

func (f *sinkFiles) close() {
	for _, s := range f.sinks {
		s.Close()
	}
}

// newDispatchers returns the dispatchers by sink, and the same dispatchers by outbox.
// They signal freed when a buffer may have room again.
func (r *Relay) newDispatchers(sinks map[string]*reopeningSink, epoch store.Epoch, lease dispatch.Lease, freed chan<- struct{}) (bySink, byOutbox map[string]*dispatch.Dispatcher) {
	bySink, byOutbox = map[string]*dispatch.Dispatcher{}, map[string]*dispatch.Dispatcher{}
	for name, s := range sinks {
		watch := &sinkObserver{relay: r, sink: name, SinkObserver: r.observer.Sink(name)}
		watch.reset()
		opt := r.opt.Sinks[name]
		bySink[name] = dispatch.New(opt.Dispatch, dispatch.Options{
			Store: r.db.store, Sink: s, Observer: watch, Epoch: epoch, DrainTimeout: opt.RequestTimeout + drainTimeout,
			Lease: lease, Replays: r.db.store, Replayed: watch.countReplayed, Freed: freed,
			Spill: !r.isPolling.Load(), // a source that polls leaves out rows that do not move
		})
	}
	for outbox, name := range r.opt.routes() {
		byOutbox[outbox] = bySink[name]
	}
	return bySink, byOutbox
}

// restoreHolds restores the holds that operators or FAILED rows placed on lanes before
// the restart.
func (r *Relay) restoreHolds(byOutbox map[string]*dispatch.Dispatcher, holds []store.Hold) {
	routes := r.opt.routes()
	for _, h := range holds {
		if d := byOutbox[h.Lane.Outbox]; d != nil {
			d.Restore([]store.Hold{h})
			r.log.Warn("message group hold restored", "sink", routes[h.Lane.Outbox], "outbox", h.Lane.Outbox, "kind", h.Lane.Kind,
				"group", h.Lane.Group.String(), "state", h.Kind.String(), "row", h.ID, "reason", h.Reason)
		}
	}
}
