package sluicebox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

const (
	// filesInterval is how often the relay checks the files of the sinks' credentials for
	// changes. After a receiver refuses credentials it checks sooner, at most once per
	// minFilesInterval.
	filesInterval    = 5 * time.Second
	minFilesInterval = time.Second
)

// reopeningSink is the sink a dispatcher uses for a whole session. It opens the real sink
// once that is possible, and reopens it when the files of its credentials change. Until
// then it answers every request as misconfigured, so the circuit breaker opens and rows
// wait or spill as they do for a dead receiver.
type reopeningSink struct {
	limits func(kind string) sink.Limits
	// name is that of the sink among the destinations that relays share, if not nil.
	name         string
	destinations *Destinations
	// onRefusedCredentials is called when the receiver refuses the credentials.
	onRefusedCredentials func()
	// log and count are for a sink.Reporter.
	log   *slog.Logger
	count func(kind, typ string, rows int)

	mu            sync.Mutex
	current       *sharedSink // nil while it cannot be opened
	currentInputs any         // of current
	openError     error       // set while current is nil
}

// sharedSink is a real sink with a count of its users.
type sharedSink struct {
	sink.Sink
	users   int
	retired bool
}

// close closes the sink if it has a method Close.
func (s *sharedSink) close() {
	if c, ok := s.Sink.(interface{ Close() }); ok {
		c.Close()
	}
}

// borrowed is a sink of the caller, which the relay does not close.
type borrowed struct{ sink.Sink }

// Ping implements sink.Pinger if the caller's sink does.
func (s borrowed) Ping(ctx context.Context, kind string) (res sink.Result, pings bool) {
	if p, is := s.Sink.(sink.Pinger); is {
		return p.Ping(ctx, kind)
	}
	return res, false
}

// reopen opens a new real sink if its inputs have changed, and reports whether it did. If
// that fails, the current sink stays in use.
func (s *reopeningSink) reopen(as Sink) (changed bool, err error) {
	s.mu.Lock()
	same := s.current != nil && reflect.DeepEqual(as.Inputs, s.currentInputs)
	s.mu.Unlock()
	if same {
		return false, nil
	}

	if as.Open == nil {
		return false, errors.New("sink missing after a reload")
	}
	fresh, err := s.destinations.open(s.name, as)
	if r, is := fresh.(sink.Reporter); is && err == nil {
		r.ReportTo(s.log, s.count)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.openError = err
		return false, err
	}

	s.retire()
	s.current, s.currentInputs, s.openError = &sharedSink{Sink: fresh}, as.Inputs, nil
	return true, nil
}

// retire closes the current sink after its last use. The caller holds the lock.
func (s *reopeningSink) retire() {
	if o := s.current; o != nil {
		s.current, o.retired = nil, true
		if o.users == 0 {
			o.close()
		}
	}
}

// withCurrent calls with the current sink. If there is none, it returns false and the
// reason.
func (s *reopeningSink) withCurrent(with func(sink.Sink)) (reason error, ok bool) {
	s.mu.Lock()
	o := s.current
	if o == nil {
		defer s.mu.Unlock()
		return s.openError, false
	}

	o.users++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if o.users--; o.retired && o.users == 0 {
			o.close()
		}
	}()
	with(o.Sink)
	return nil, true
}

// isOpen reports whether there is a current sink, and the reason if not.
func (s *reopeningSink) isOpen() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current != nil, s.openError
}

// Limits implements sink.Sink. They depend only on the configuration.
func (s *reopeningSink) Limits(kind string) sink.Limits { return s.limits(kind) }

// Deliver implements sink.Sink.
func (s *reopeningSink) Deliver(ctx context.Context, msgs []sink.Message) (res sink.Result) {
	reason, ok := s.withCurrent(func(to sink.Sink) { res = to.Deliver(ctx, msgs) })
	if !ok {
		return s.notOpenResult(reason)
	}
	s.noteOutcome(res.Outcome)
	return res
}

// Ping implements sink.Pinger if the current sink does.
func (s *reopeningSink) Ping(ctx context.Context, kind string) (res sink.Result, pings bool) {
	reason, ok := s.withCurrent(func(to sink.Sink) {
		if p, is := to.(sink.Pinger); is {
			res, pings = p.Ping(ctx, kind)
		}
	})
	if !ok {
		return s.notOpenResult(reason), true
	}
	s.noteOutcome(res.Outcome)
	return res, pings
}

// noteOutcome detects a receiver that refuses the credentials.
func (s *reopeningSink) noteOutcome(out sink.Outcome) {
	if out.Class == sink.Misconfigured && (out.Reason == store.ReasonUnauthorized || out.Reason == store.ReasonForbidden) {
		s.onRefusedCredentials()
	}
}

func (s *reopeningSink) notOpenResult(reason error) sink.Result {
	return sink.Result{Outcome: sink.Outcome{
		Class: sink.Misconfigured, Reason: store.ReasonInternal, Detail: fmt.Sprintf("sink not open: %v", reason),
	}}
}

// Close closes the current sink. Call it after the last Deliver has returned.
func (s *reopeningSink) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retire()
	s.openError = errors.New("relay stopped")
}

// sinkFiles keeps the sinks of a session open and up to date with their files.
type sinkFiles struct {
	*Relay
	sinks              map[string]*reopeningSink
	credentialsRefused chan struct{} // signals that a receiver refused credentials
	fileInfos          map[string]os.FileInfo
	loggedErrors       map[string]string // last logged error, by sink
	// retryNeeded is set if changed files could not be used. The next try may succeed
	// without another change, for example after chown.
	retryNeeded bool
}

// keepOpen checks the files periodically, and soon after a receiver refused credentials.
// It retries sinks that are not open with a growing delay.
func (f *sinkFiles) keepOpen(ctx context.Context) error {
	retry := backoff.Doubling{Min: minFilesInterval, Max: 2 * filesInterval}
	for {
		pause := filesInterval
		if f.anyClosed() {
			pause = retry.Next()
		} else {
			retry.Reset()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		case <-f.credentialsRefused:
			if err := backoff.Sleep(ctx, minFilesInterval); err != nil {
				return err
			}
		}
		f.check()
	}
}

// check reopens sinks if a file changed or a sink is not open.
func (f *sinkFiles) check() {
	f.reloading.mu.Lock()
	defer f.reloading.mu.Unlock()
	if f.filesChanged(f.opt().Reload.Files) || f.retryNeeded || f.anyClosed() {
		f.reopenSinks()
	}
}

// anyClosed reports whether a sink is not open.
func (f *sinkFiles) anyClosed() bool {
	for _, s := range f.sinks {
		if open, _ := s.isOpen(); !open {
			return true
		}
	}
	return false
}

// filesChanged reports whether a file was replaced, created, deleted or modified since
// the last call.
func (f *sinkFiles) filesChanged(paths []string) bool {
	now := make(map[string]os.FileInfo, len(paths))
	changed := false
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			info = nil
		}
		now[path] = info
		before := f.fileInfos[path]
		changed = changed || (info == nil) != (before == nil) ||
			info != nil && (!os.SameFile(info, before) || info.Size() != before.Size() || !info.ModTime().Equal(before.ModTime()))
	}

	f.fileInfos = now
	return changed
}

// reopenSinks reads the files and reopens the sinks whose inputs changed.
func (f *sinkFiles) reopenSinks() {
	now, err := f.opt().reload()
	f.logOpenError("", err)
	if f.retryNeeded = err != nil; f.retryNeeded {
		return
	}

	for name, s := range f.sinks {
		was, _ := s.isOpen()
		changed, err := s.reopen(now[name])
		f.logOpenError(name, err)
		f.retryNeeded = f.retryNeeded || err != nil
		if changed {
			f.log.Info("sink opened", "sink", name, "reopened", was)
		}
	}
}

// logOpenError logs the error of opening a sink, once per error.
func (f *sinkFiles) logOpenError(name string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}

	s := f.sinks[name] // nil for an error that affects all sinks
	open := true
	if s != nil {
		open, _ = s.isOpen()
		f.observer.Sink(name).SetOpen(open)
		if open {
			f.health.remove(openCheckName(name))
		} else {
			f.health.fail(openCheckName(name), text)
		}
	}

	if before, known := f.loggedErrors[name]; known && before == text {
		return
	}
	if f.loggedErrors[name] = text; err == nil {
		return
	}

	if !open {
		f.log.Error("sink open failed; retrying", "sink", name, "error", text, "remedy", "fix the file; other sinks are not affected")
		return
	}

	f.log.Warn("changed files rejected; previous settings in use", "sink", name, "error", text)
}

// openCheckName returns the name of the check for a sink that cannot be opened.
func openCheckName(sink string) string { return "sink " + sink + " open" }

// openSinks opens all sinks, by name, also those without an outbox, because a replay may
// use them. A sink whose files are missing is opened later. The error is about a sink
// that can never be opened.
func (r *Relay) openSinks() (*sinkFiles, error) {
	f := &sinkFiles{Relay: r, sinks: map[string]*reopeningSink{}, credentialsRefused: make(chan struct{}, 1), loggedErrors: map[string]string{}}
	r.reloading.mu.Lock() // a reload changes these sinks or finds the next ones
	defer r.reloading.mu.Unlock()
	f.filesChanged(r.opt().Reload.Files)
	now, err := r.opt().reload() // files may have changed since the start
	if f.retryNeeded = err != nil; f.retryNeeded {
		now = r.opt().Sinks
	}

	for _, name := range slices.Sorted(maps.Keys(r.opt().Sinks)) {
		s := &reopeningSink{
			limits: r.opt().Sinks[name].Limits, onRefusedCredentials: f.requestCheck,
			name: name, destinations: r.opt().Destinations,
			log: r.log.With("sink", name), count: r.observer.Sink(name).Counted,
		}
		f.sinks[name] = s
		_, err := s.reopen(now[name])
		var file *sink.FileError
		if err != nil && !errors.As(err, &file) {
			f.close()
			return nil, &store.SetupError{Problem: fmt.Sprintf("sink %s: %v", name, err)}
		}
		f.logOpenError(name, err)
	}

	r.reloading.sinks = f
	return f, nil
}

// reload returns the sinks with the present content of their files.
func (o *Options) reload() (map[string]Sink, error) {
	if o.Reload.Sinks == nil {
		return o.Sinks, nil
	}
	sinks, err := o.Reload.Sinks()
	if err != nil || !o.hasRoutes() {
		return sinks, err
	}
	sinks = maps.Clone(sinks)
	for i := range o.Outboxes { // the relay's own
		if box := &o.Outboxes[i]; len(box.Routes) > 0 {
			sinks[box.Unmatched.sink()] = o.Sinks[box.Unmatched.sink()]
		}
	}
	return sinks, nil
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

// newDispatchers returns the dispatchers by sink, and the same dispatchers by outbox or leg.
// They signal freed when a buffer may have room again.
func (r *Relay) newDispatchers(sinks map[string]*reopeningSink, st *sessionStore, epoch store.Epoch, lease dispatch.Lease, freed chan<- struct{}) (bySink, byOutbox map[string]*dispatch.Dispatcher) {
	bySink, byOutbox = map[string]*dispatch.Dispatcher{}, map[string]*dispatch.Dispatcher{}
	frontiers := r.opt().frontiers(!r.hasPositions.Load())
	for name, s := range sinks {
		watch := &sinkObserver{relay: r, sink: name, SinkObserver: r.observer.Sink(name)}
		watch.reset()
		opt := r.opt().Sinks[name]
		if r.drained {
			opt.Dispatch.TakeoverWait = 0 // this relay has no request of the session before
		}
		bySink[name] = dispatch.New(opt.Dispatch, dispatch.Options{
			Store: st, Sink: r.wrapped(name, s), Destination: r.opt().Destinations.of(name, opt), Observer: watch, Epoch: epoch, DrainTimeout: opt.RequestTimeout + drainTimeout,
			LogOnly: r.opt().logOnly(name), Frontiers: frontiers, Lease: lease, Late: r.mayGoUnclaimed, Unwritten: r.opt().unwritten(), Replays: r.db.store, Replayed: watch.countReplayed, Freed: freed,
			Spill: r.hasPositions.Load() || st.fan != nil, SpillWhole: !r.hasPositions.Load(), // see pollLanes
		})
	}
	for outbox, name := range r.opt().routes() {
		byOutbox[outbox] = bySink[name]
	}
	return bySink, byOutbox
}

// wrapped returns what delivers to a sink.
func (r *Relay) wrapped(name string, to sink.Sink) sink.Sink {
	if wrap := r.opt().WrapSink; wrap != nil {
		return wrap(name, to)
	}
	return to
}

// restoreHolds restores the holds that operators or FAILED rows placed on lanes before
// the restart.
func (r *Relay) restoreHolds(byOutbox map[string]*dispatch.Dispatcher, holds []store.Hold) {
	routes := r.opt().routes()
	for _, h := range holds {
		if d := byOutbox[h.Lane.Outbox]; d != nil {
			d.Restore([]store.Hold{h})
			if h.Kind == store.OutboxPaused {
				r.log.Warn("route pause restored", "sink", routes[h.Lane.Outbox], "outbox", h.Lane.Outbox, "since", h.Since, "reason", h.Reason)
				continue
			}
			r.log.Warn("message group hold restored", "sink", routes[h.Lane.Outbox], "outbox", h.Lane.Outbox, "kind", h.Lane.Kind,
				"group", h.Lane.Group.String(), "state", h.Kind.String(), "row", h.ID, "reason", h.Reason)
		}
	}
}
