package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

const (
	// filesInterval is how often the relay looks whether a file has changed that a sink's
	// credentials come from, and minFilesInterval how often it does so at the most, when
	// receivers refuse them.
	filesInterval    = 5 * time.Second
	minFilesInterval = time.Second
)

// reopener is a sink as its dispatcher has it for a whole life. It opens the real one when
// that can be opened, and again when the files change that its credentials come from.
// Until then every request is answered with what is missing, as misconfigured: the
// breaker opens, and its rows wait or spill as those of a dead receiver.
type reopener struct {
	name   string
	limits func(kind string) sink.Limits
	open   func(*config.Config) (destination, error)
	// refused is told that the receiver refuses the credentials.
	refused func()

	mu   sync.Mutex
	real *opened // nil while it cannot be opened
	made origin  // of real
	why  error   // why there is no real one
}

// opened is a destination with those who use it.
type opened struct {
	destination
	users   int
	retired bool
}

// origin is what a sink was made of.
type origin struct {
	settings config.Sink
	ca       []byte
}

// reopen opens the sink anew if what it is made of has changed. It reports whether it did.
// A sink that is open stays so where the new one cannot be opened.
func (s *reopener) reopen(cfg *config.Config) (changed bool, err error) {
	made := origin{settings: cfg.Settings.Sinks[s.name]}
	if made.settings.CAFile != "" {
		made.ca, _ = os.ReadFile(made.settings.CAFile) // the sink says what is wrong with it
	}
	s.mu.Lock()
	same := s.real != nil && reflect.DeepEqual(made.settings, s.made.settings) && bytes.Equal(made.ca, s.made.ca)
	s.mu.Unlock()
	if same {
		return false, nil
	}
	fresh, err := s.open(cfg)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.why = err
		return false, err
	}
	s.retire()
	s.real, s.made, s.why = &opened{destination: fresh}, made, nil
	return true, nil
}

// retire closes the real sink when nobody uses it any more. The lock is held.
func (s *reopener) retire() {
	if o := s.real; o != nil {
		s.real, o.retired = nil, true
		if o.users == 0 {
			o.Close()
		}
	}
}

// use calls with the real sink, and reports false if there is none.
func (s *reopener) use(with func(destination)) (why error, ok bool) {
	s.mu.Lock()
	o := s.real
	if o == nil {
		defer s.mu.Unlock()
		return s.why, false
	}
	o.users++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if o.users--; o.retired && o.users == 0 {
			o.Close()
		}
	}()
	with(o.destination)
	return nil, true
}

// isOpen reports whether there is a real sink, and why not.
func (s *reopener) isOpen() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.real != nil, s.why
}

// Limits implements sink.Sink. They follow from the configuration alone.
func (s *reopener) Limits(kind string) sink.Limits { return s.limits(kind) }

// Deliver implements sink.Sink.
func (s *reopener) Deliver(ctx context.Context, msgs []sink.Message) (res sink.Result) {
	why, ok := s.use(func(to destination) { res = to.Deliver(ctx, msgs) })
	if !ok {
		return s.closed(why)
	}
	s.note(res.Outcome)
	return res
}

// Ping implements sink.Pinger, for a real sink that is one.
func (s *reopener) Ping(ctx context.Context, kind string) (res sink.Result, pings bool) {
	why, ok := s.use(func(to destination) {
		if p, is := to.(sink.Pinger); is {
			res, pings = p.Ping(ctx, kind)
		}
	})
	if !ok {
		return s.closed(why), true
	}
	s.note(res.Outcome)
	return res, pings
}

// note looks for a receiver that refuses the credentials.
func (s *reopener) note(out sink.Outcome) {
	if out.Class == sink.Misconfigured && (out.Reason == store.ReasonUnauthorized || out.Reason == store.ReasonForbidden) {
		s.refused()
	}
}

func (s *reopener) closed(why error) sink.Result {
	return sink.Result{Outcome: sink.Outcome{
		Class: sink.Misconfigured, Reason: store.ReasonInternal, Detail: fmt.Sprintf("the sink is not open: %v", why),
	}}
}

// Close closes the real sink. Call it when no Deliver runs any more.
func (s *reopener) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retire()
	s.why = errors.New("the relay stops")
}

// files keeps the sinks of a life open, and made of what the files hold now.
type files struct {
	*relay
	sinks   map[string]*reopener
	refused chan struct{} // a receiver refuses credentials
	seen    map[string]os.FileInfo
	said    map[string]string // the fault of each sink that the log has
	// unused: what changed was not used, and the next try may find it in order without
	// another change, like a file whose owner is corrected.
	unused bool
}

// keepOpen looks at the files in intervals, and soon after a receiver refused what came from
// them. Sinks that are not open are tried again with a growing wait.
func (f *files) keepOpen(ctx context.Context) error {
	paths := f.cfg.Files()
	wait := minFilesInterval
	for {
		pause := filesInterval
		if f.waiting() {
			pause, wait = wait, min(2*wait, 2*filesInterval)
		} else if wait = minFilesInterval; len(paths) == 0 {
			<-ctx.Done() // nothing can change
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		case <-f.refused:
			if err := rest(ctx, minFilesInterval); err != nil {
				return err
			}
		}
		if f.changed(paths) || f.unused || f.waiting() {
			f.renew()
		}
	}
}

// waiting reports whether a sink is not open.
func (f *files) waiting() bool {
	for _, s := range f.sinks {
		if open, _ := s.isOpen(); !open {
			return true
		}
	}
	return false
}

// changed reports whether a file is another one, or gone or come, since the last call.
func (f *files) changed(paths []string) bool {
	now := make(map[string]os.FileInfo, len(paths))
	changed := false
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			info = nil
		}
		now[path] = info
		before := f.seen[path]
		changed = changed || (info == nil) != (before == nil) ||
			info != nil && (!os.SameFile(info, before) || info.Size() != before.Size() || !info.ModTime().Equal(before.ModTime()))
	}
	f.seen = now
	return changed
}

// renew reads the files and opens the sinks anew for which something else is in them.
func (f *files) renew() {
	cfg, err := f.cfg.Reread()
	f.say("", err)
	if f.unused = err != nil; f.unused {
		return
	}
	for name, s := range f.sinks {
		was, _ := s.isOpen()
		changed, err := s.reopen(cfg)
		f.say(name, err)
		f.unused = f.unused || err != nil
		if changed {
			f.log.Info("sink opened", "sink", name, "again", was)
		}
	}
}

// say logs what keeps a sink from being opened anew, once.
func (f *files) say(name string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	s := f.sinks[name] // nil for all of them
	open := true
	if s != nil {
		open, _ = s.isOpen()
		f.metrics.Sink(name).Opened(open)
		if open {
			f.health.forget(opening(name))
		} else {
			f.health.fail(opening(name), text)
		}
	}
	if before, known := f.said[name]; known && before == text {
		return
	}
	if f.said[name] = text; err == nil {
		return
	}
	if !open {
		f.log.Error("sink not opened", "sink", name, "error", text, "remedy", "correct the file; the relay tries again by itself, and its other sinks deliver")
		return
	}
	f.log.Warn("changed files not used", "sink", name, "error", text)
}

// opening names the check of a sink that cannot be opened.
func opening(sink string) string { return "sink " + sink + " open" }
