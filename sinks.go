package sluicebox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/checkpoint"
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
func (r *Relay) newDispatchers(sinks map[string]*reopeningSink, epoch store.Epoch, lease dispatch.Lease) (bySink, byOutbox map[string]*dispatch.Dispatcher) {
	bySink, byOutbox = map[string]*dispatch.Dispatcher{}, map[string]*dispatch.Dispatcher{}
	for name, s := range sinks {
		watch := &sinkObserver{relay: r, sink: name, SinkObserver: r.observer.Sink(name)}
		watch.reset()
		opt := r.opt.Sinks[name]
		bySink[name] = dispatch.New(opt.Dispatch, r.db.store, s, epoch, watch, opt.RequestTimeout+drainTimeout)
		bySink[name].Lease, bySink[name].Replays = lease, r.db.store
		bySink[name].Replayed = watch.countReplayed
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

// adoptBlocks records a hold for each message group that has rows behind a row that
// FAILED before the relay's first start. It does so only with on-failed: block.
//
// Nothing is saved or sent before, so an interrupted start is followed by another first
// start. Afterwards a checkpoint without a position marks the holds as recorded.
// Otherwise a group that an operator has resumed would be blocked again if the relay
// ended before its backlog was saved.
func (r *Relay) adoptBlocks(ctx context.Context, begin *checkpoint.StartPoint, byOutbox map[string]*dispatch.Dispatcher) error {
	if !begin.IsFirst() {
		return nil
	}
	routes := r.opt.routes()
	var outboxes []string
	for _, o := range r.opt.tables() {
		if o.Layout.State != store.StateNone && r.opt.Sinks[routes[o.Name]].Dispatch.OnFailed == dispatch.Block {
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
		return !h.Lane.Group.Valid && r.opt.Sinks[routes[h.Lane.Outbox]].Dispatch.Ungrouped == dispatch.Parallel
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
