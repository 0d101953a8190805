package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/flowcatalyst"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
	"github.com/sluicebox/sluicebox/store"
)

// closableSink is a sink that holds connections.
type closableSink interface {
	sink.Sink
	sink.Prober
	Close()
}

// openSinks opens all sinks, by name, also those without a route, because a replay may
// use them. A sink whose files are missing is opened later. The error is about a sink
// that can never be opened.
func (r *relay) openSinks() (*sinkFiles, error) {
	f := &sinkFiles{relay: r, sinks: map[string]*reopeningSink{}, credentialsRefused: make(chan struct{}, 1), loggedErrors: map[string]string{}}
	f.filesChanged(r.cfg.Files())
	cfg, err := r.cfg.Reread() // files may have changed since the start
	if f.retryNeeded = err != nil; f.retryNeeded {
		cfg = r.cfg
	}

	for _, name := range r.cfg.Sinks() {
		s := &reopeningSink{
			name: name, limits: r.sinkLimits(name), onRefusedCredentials: f.requestCheck,
			open: func(cfg *config.Config) (closableSink, error) { return r.openSink(cfg, name) },
		}
		f.sinks[name] = s
		_, err := s.reopen(cfg)
		var file *sink.FileError
		if err != nil && !errors.As(err, &file) {
			f.close()
			return nil, &store.SetupError{Problem: fmt.Sprintf("sink %s: %v", name, err)}
		}
		f.logOpenError(name, err)
	}

	return f, nil
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

// sinkLimits returns the Limits function of a sink.
func (r *relay) sinkLimits(name string) func(kind string) sink.Limits {
	if r.cfg.SinkType(name) == config.SinkWebhook {
		return r.cfg.Webhook(name).Limits
	}
	return r.cfg.FlowCatalyst(name).Limits
}

// openSink opens a sink of any type.
func (r *relay) openSink(cfg *config.Config, name string) (closableSink, error) {
	if err := cfg.SinkReferenceErrors(name); err != nil {
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

// newDispatchers returns the dispatchers by sink, and the same dispatchers by outbox.
func (r *relay) newDispatchers(sinks map[string]*reopeningSink, epoch store.Epoch, lease dispatch.Lease) (bySink, byOutbox map[string]*dispatch.Dispatcher) {
	bySink, byOutbox = map[string]*dispatch.Dispatcher{}, map[string]*dispatch.Dispatcher{}
	for name, s := range sinks {
		watch := &sinkObserver{relay: r, sink: name, SinkMetrics: r.metrics.Sink(name)}
		watch.reset()
		bySink[name] = dispatch.New(r.cfg.Dispatch(name), r.db.store, s, epoch, watch, r.cfg.RequestTimeout(name)+drainTimeout)
		bySink[name].Lease, bySink[name].Replays = lease, r.db.store
		bySink[name].Replayed = watch.countReplayed
	}
	for outbox, name := range r.cfg.Routes() {
		byOutbox[outbox] = bySink[name]
	}
	return bySink, byOutbox
}

// restoreHolds restores the holds that operators or FAILED rows placed on lanes before
// the restart.
func (r *relay) restoreHolds(byOutbox map[string]*dispatch.Dispatcher, holds []store.Hold) {
	routes := r.cfg.Routes()
	for _, h := range holds {
		if d := byOutbox[h.Lane.Outbox]; d != nil {
			d.Restore([]store.Hold{h})
			r.log.Warn("message group hold restored", "sink", routes[h.Lane.Outbox], "outbox", h.Lane.Outbox, "kind", h.Lane.Kind,
				"group", h.Lane.Group.String(), "state", h.Kind.String(), "row", h.ID, "reason", h.Reason)
		}
	}
}

// adoptBlocks records a hold for each message group that has rows behind a row that
// FAILED before the relay's first start. It does so only with on-failed: block.
//
// Nothing is saved or sent before, so an interrupted start is followed by another first
// start. Afterwards a checkpoint without a position marks the holds as recorded.
// Otherwise a group that an operator has resumed would be blocked again if the relay
// ended before its backlog was saved.
func (r *relay) adoptBlocks(ctx context.Context, begin *checkpoint.StartPoint, byOutbox map[string]*dispatch.Dispatcher) error {
	if !begin.IsFirst() {
		return nil
	}
	routes := r.cfg.Routes()
	var outboxes []string
	for _, o := range r.cfg.Outboxes() {
		if o.Layout.State != store.StateNone && r.cfg.Dispatch(routes[o.Name]).OnFailed == dispatch.Block {
			outboxes = append(outboxes, o.Name)
		}
	}

	if len(outboxes) == 0 {
		return nil
	}
	var holds []store.Hold
	err := r.retryUnreachable(ctx, time.Time{}, func(ctx context.Context) (err error) {
		holds, err = checkpoint.FindBlocks(ctx, r.db.store, outboxes, begin.Backlog)
		return err
	})
	if err != nil {
		return err
	}

	holds = slices.DeleteFunc(holds, func(h store.Hold) bool { // ungrouped rows with their own lanes block no group
		return !h.Lane.Group.Valid && r.cfg.Dispatch(routes[h.Lane.Outbox]).Ungrouped == dispatch.Parallel
	})
	for i := range holds {
		err := r.retryUnreachable(ctx, time.Time{}, func(ctx context.Context) error { return r.db.store.Hold(ctx, begin.Epoch, holds[i]) })
		if err != nil {
			return fmt.Errorf("record blocked message groups: %w", err)
		}
		byOutbox[holds[i].Lane.Outbox].Restore(holds[i : i+1])
	}

	err = r.retryUnreachable(ctx, time.Time{}, func(ctx context.Context) error {
		return r.db.store.SaveCheckpoint(ctx, begin.Epoch, store.Checkpoint{Seq: store.NewSeq(begin.Epoch, 0)})
	})
	if err != nil {
		return fmt.Errorf("record adoption of blocked message groups: %w", err)
	}

	if len(holds) > 0 {
		r.log.Warn("message groups blocked by earlier FAILED rows", "groups", len(holds), "example", holds[0].Lane.String(), "row", holds[0].ID,
			"remedy", "requeue the rows (deadletters requeue) or skip them (lanes skip)")
	}
	return nil
}
