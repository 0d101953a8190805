package sluicebox

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/route"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// versioned are inputs that change in place within a version.
type versioned struct{ version, secret int }

func (v versioned) ChangesInPlace(before any) bool { return before.(versioned).version == v.version }

// reloadable returns options whose sinks open, and the number of sinks that are open.
func reloadable() (o Options, opened *int) {
	o, opened = testOptions(), new(int)
	for name := range o.Sinks {
		o.Sinks[name] = Sink{Inputs: versioned{1, 1}, Limits: idle{}.Limits, Open: func() (sink.Sink, error) {
			*opened++
			return closing{idle{}, opened}, nil
		}}
	}
	o.Outboxes[0].Retention = time.Hour
	o.Outboxes[1].Sink, o.Outboxes[1].Routes = "", []Route{{Name: "a", Sink: "near", When: route.Rule{Kind: []string{"EVENT"}}}}
	return o, opened
}

// closing counts the sinks that are open.
type closing struct {
	sink.Sink
	opened *int
}

func (c closing) Close() { *c.opened-- }

// Reload tells what changes within a session, what needs another one, and what may not change. A
// change that is not applied leaves no trace.
func TestReloadClasses(t *testing.T) {
	const inPlace, nextSession, unchanged = "in place", "next session", "unchanged"
	for name, c := range map[string]struct {
		change func(o *Options)
		want   string // else the error
	}{
		"nothing":        {func(*Options) {}, inPlace},
		"a secret":       {func(o *Options) { s := o.Sinks["near"]; s.Inputs = versioned{1, 2}; o.Sinks["near"] = s }, inPlace},
		"a topic":        {func(o *Options) { s := o.Sinks["near"]; s.Inputs = versioned{2, 1}; o.Sinks["near"] = s }, nextSession},
		"a timeout":      {func(o *Options) { s := o.Sinks["near"]; s.RequestTimeout = time.Second; o.Sinks["near"] = s }, nextSession},
		"another sink":   {func(o *Options) { o.Sinks["third"] = o.Sinks["near"] }, nextSession},
		"a filter":       {func(o *Options) { o.Outboxes[1].Routes[0].When.Kind = []string{"JOB"} }, nextSession},
		"a sink of rows": {func(o *Options) { o.Outboxes[0].Sink = "far" }, nextSession},
		"retention":      {func(o *Options) { o.Outboxes[0].Retention = time.Minute }, nextSession},
		"the log":        {func(o *Options) { o.MaxHold = 1 << 20 }, nextSession},
		"no retention":   {func(o *Options) { o.Outboxes[0].Retention = 0 }, "Outbox orders"},
		"the name":       {func(o *Options) { o.Name = "other" }, "Name"},
		"a table":        {func(o *Options) { o.Outboxes[0].Table = "other" }, "Outbox orders"},
		"another table":  {func(o *Options) { o.Outboxes = o.Outboxes[:1] }, "Outboxes"},
		"a route":        {func(o *Options) { o.Outboxes[1].Routes[0].Optional = true }, "Outbox bills"},
		"a claim":        {func(o *Options) { o.TakeoverTimeout = time.Minute }, "TakeoverTimeout"},
		"invalid":        {func(o *Options) { o.Outboxes[0].Sink = "none" }, `unknown sink "none"`},
		"a bad file": {func(o *Options) {
			s := o.Sinks["far"]
			s.Inputs, s.Open = versioned{1, 3}, func() (sink.Sink, error) { return nil, errors.New("no such file") }
			o.Sinks["far"] = s
		}, "sink far: no such file"},
	} {
		o, opened := reloadable()
		r, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		before := r.opt()
		to, _ := reloadable()
		for name, s := range to.Sinks {
			s.Open = o.Sinks[name].Open
			to.Sinks[name] = s
		}
		c.change(&to)
		restarted, err := r.Reload(t.Context(), to)
		got := unchanged
		switch {
		case r.opt() != before:
			got = inPlace
		case r.reloading.pending != nil:
			got = nextSession
		}
		want := c.want
		if want != inPlace && want != nextSession {
			if want = unchanged; !errors.As(err, new(*store.SetupError)) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", name, err, c.want)
			}
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got != want || restarted || *opened != 0 {
			t.Errorf("%s: %s, want %s; restarted %t, %d sinks open", name, got, want, restarted, *opened)
		}
	}
}

// A reload ends the session of a leader, and returns once the next one has the new options.
func TestReloadEndsTheSession(t *testing.T) {
	o, _ := reloadable()
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	session, end := r.beginSession(t.Context())
	defer end(nil)
	done := make(chan error)
	go func() {
		to, _ := reloadable()
		to.MaxHold = 1 << 20
		restarted, err := r.Reload(t.Context(), to)
		if !restarted {
			err = errors.New("not restarted")
		}
		done <- err
	}()
	<-session.Done()
	r.reloading.sessionStarted() // one that began before has the old options
	if r.opt().MaxHold != 1<<30 {
		t.Error("a session that runs has other options")
	}
	_, endNext := r.beginSession(t.Context())
	defer endNext(nil)
	if r.opt().MaxHold != 1<<20 {
		t.Error("the next session has the old options")
	}
	select {
	case err := <-done:
		t.Errorf("Reload returned before the session started: %v", err)
	default:
	}
	r.reloading.sessionStarted()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
