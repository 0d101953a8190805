package sluicebox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/sluicebox/sluicebox/store"
)

// InPlace are Inputs of a sink that know which of their changes need no new session, for example
// those of credentials.
type InPlace interface {
	// ChangesInPlace reports whether requests of both sinks, the one with other inputs and this
	// one, have the same limits and mean the same rows, so that one can take the place of the
	// other while rows are in flight.
	ChangesInPlace(before any) bool
}

// errReloaded ends a session because the options changed.
var errReloaded = errors.New("options changed")

// reloading is how options change while a relay runs.
type reloading struct {
	// mu guards the fields, and the sinks while they are opened.
	mu      sync.Mutex
	pending *Options                // for the next session; nil if they are in force
	end     context.CancelCauseFunc // of the current session; nil between tenures
	started chan struct{}           // closed once a session has the pending options; nil if nobody waits
	sinks   *sinkFiles              // of the current session
}

// beginSession puts pending options into force, and returns the context of the next session.
func (r *Relay) beginSession(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	of := &r.reloading
	of.mu.Lock()
	defer of.mu.Unlock()
	if of.pending != nil {
		r.options.Store(of.pending)
		of.pending = nil
	}
	session, end := context.WithCancelCause(ctx)
	of.end = end
	return session, end
}

// sessionStarted reports that the lanes of a session exist.
func (of *reloading) sessionStarted() {
	of.mu.Lock()
	defer of.mu.Unlock()
	if of.pending == nil {
		of.release()
	}
}

// sessionsEnded reports that the relay is no longer the leader.
func (of *reloading) sessionsEnded() {
	of.mu.Lock()
	defer of.mu.Unlock()
	of.end = nil
	of.release()
}

// release lets the callers of Reload return. The caller holds the lock.
func (of *reloading) release() {
	if of.started != nil {
		close(of.started)
		of.started = nil
	}
}

// closeSinks closes the sinks of a session that ends.
func (r *Relay) closeSinks(f *sinkFiles) {
	r.reloading.mu.Lock()
	defer r.reloading.mu.Unlock()
	r.reloading.sinks = nil
	f.close()
}

// Reload replaces the options while the relay runs. Logger, Observer, Holder, WrapSink, Destinations and
// HandOver stay. All or none of the changes are applied.
//
//   - Sinks whose Inputs change in place (see [InPlace]) are opened again at once. Requests in flight
//     end with the old sink.
//   - Any other change ends the session as a shutdown does, except that the relay keeps the lead:
//     requests in flight end, their outcomes are written, and the next session has the new options.
//     restarted is true then, and Reload waits for the session until ctx ends.
//   - A relay that stands by has the new options once it leads.
//
// Name, Database, TakeoverTimeout and the tables may not change, except that a Retention may get
// another length; of a route, its Sink and When may. The error says what may not change, which value
// is invalid, or which sink cannot be opened. Then nothing has changed.
func (r *Relay) Reload(ctx context.Context, o Options) (restarted bool, err error) {
	started, restarted, err := r.reload(o)
	if started == nil || err != nil {
		return restarted, err
	}
	select {
	case <-ctx.Done():
		return restarted, fmt.Errorf("start session with new options: %w", ctx.Err())
	case <-started:
		return restarted, nil
	}
}

// reload puts options into force, or leaves them to the next session. started is closed once it
// runs.
func (r *Relay) reload(o Options) (started <-chan struct{}, restarted bool, err error) {
	of := &r.reloading
	of.mu.Lock()
	defer of.mu.Unlock()
	before := r.opt()
	if of.pending != nil {
		before = of.pending
	}
	o.Logger, o.Observer, o.Holder, o.WrapSink, o.Destinations, o.HandOver = before.Logger, before.Observer, before.Holder, before.WrapSink, before.Destinations, before.HandOver
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, false, &store.SetupError{Problem: err.Error()}
	}
	if changed := before.fixedChanges(&o); len(changed) > 0 {
		return nil, false, &store.SetupError{Problem: "options cannot change while the relay runs: " + strings.Join(changed, ", "), Remedy: "restart the relay"}
	}
	if err := before.tryChangedSinks(&o); err != nil {
		return nil, false, err
	}
	if of.pending == nil && before.changesInPlace(&o) {
		r.options.Store(&o)
		if of.sinks != nil {
			of.sinks.filesChanged(o.Reload.Files)
			of.sinks.reopenSinks()
		}
		return nil, false, nil
	}
	of.pending = &o
	if of.end == nil {
		return nil, false, nil
	}
	if of.started == nil {
		of.started = make(chan struct{})
	}
	of.end(errReloaded)
	return of.started, true, nil
}

// fixedChanges returns the options that differ and may not change.
func (o *Options) fixedChanges(to *Options) (changed []string) {
	if o.Name != to.Name {
		changed = append(changed, "Name")
	}
	if !reflect.DeepEqual(o.Database, to.Database) {
		changed = append(changed, "Database")
	}
	if o.TakeoverTimeout != to.TakeoverTimeout {
		changed = append(changed, "TakeoverTimeout")
	}
	was, will := o.tables(), to.tables()
	if len(was) != len(will) {
		return append(changed, "Outboxes")
	}
	for i := range was {
		if was[i].Retention > 0 && will[i].Retention > 0 { // a matter of each deletion
			was[i].Retention = will[i].Retention
		}
		if !reflect.DeepEqual(was[i], will[i]) {
			changed = append(changed, "Outbox "+was[i].Name)
		}
	}
	return changed
}

// tryChangedSinks opens the sinks that change, and closes them again.
func (o *Options) tryChangedSinks(to *Options) error {
	for _, name := range slices.Sorted(maps.Keys(to.Sinks)) {
		s := to.Sinks[name]
		if was, known := o.Sinks[name]; known && s.Inputs != nil && reflect.DeepEqual(was.Inputs, s.Inputs) {
			continue
		}
		opened, err := s.Open()
		if err != nil {
			return &store.SetupError{Problem: fmt.Sprintf("sink %s: %v", name, err)}
		}
		if c, ok := opened.(interface{ Close() }); ok {
			c.Close()
		}
	}
	return nil
}

// changesInPlace reports whether options differ only in the inputs of sinks that change in place.
func (o *Options) changesInPlace(to *Options) bool {
	if o.Mode != to.Mode || o.Claims != to.Claims || o.Poll != to.Poll || o.MaxHold != to.MaxHold || o.MaxKept != to.MaxKept ||
		o.SweepInterval != to.SweepInterval || !reflect.DeepEqual(o.Outboxes, to.Outboxes) || len(o.Sinks) != len(to.Sinks) {
		return false
	}
	for name, s := range to.Sinks {
		was, known := o.Sinks[name]
		if !known || was.Dispatch != s.Dispatch || was.RequestTimeout != s.RequestTimeout {
			return false
		}
		if s.Inputs != nil && reflect.DeepEqual(was.Inputs, s.Inputs) {
			continue
		}
		if own := o.hasUnmatched(name); own {
			continue // the relay's own, which never changes
		}
		if inputs, ok := s.Inputs.(InPlace); !ok || !inputs.ChangesInPlace(was.Inputs) {
			return false
		}
	}
	return true
}

// hasUnmatched reports whether a sink is the relay's own for rows that no route matches.
func (o *Options) hasUnmatched(sink string) bool {
	return slices.ContainsFunc(o.Outboxes, func(b Outbox) bool { return len(b.Routes) > 0 && b.Unmatched.sink() == sink })
}
