package sluicebox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"sync"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/route"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Route sends rows of an outbox to a sink. Each route has lanes, retries, holds, FAILED rows and a
// progress of its own: a leg, whose name is that of the outbox, a slash and that of the route.
type Route struct {
	// Name is unique within the outbox: 1 to 40 of a-z, 0-9, _ and -, not beginning with _ or -.
	Name string

	// Sink is the name of the sink.
	Sink string

	// Optional: the row's status does not depend on this route.
	Optional bool

	// When selects the rows. The zero value selects all.
	When route.Rule
}

// Unmatched says what becomes of a row that no route of its outbox matches.
type Unmatched string

// Values of Unmatched.
const (
	// UnmatchedFail makes the row FAILED.
	UnmatchedFail Unmatched = "fail"

	// UnmatchedComplete makes the row COMPLETED.
	UnmatchedComplete Unmatched = "complete"

	// UnmatchedHold lets the row wait, with the rows of its group behind it.
	UnmatchedHold Unmatched = "hold"
)

// unmatchedRoute is the route of rows that no other route matches. Its leg has lanes like any other,
// so such rows are in order, can be spilled, and are dead letters if they FAIL.
const unmatchedRoute = route.Unmatched

// unmatchedSink returns the name of the sink of rows that no route matches. No configured sink has
// such a name.
func (u Unmatched) sink() string { return unmatchedRoute + ":" + string(u) }

// open returns the sink. A row is not retried: what its routes are does not change.
func (u Unmatched) open() Sink {
	to := unmatchedSink{u}
	cfg := dispatch.DefaultConfig()
	cfg.MaxRetries = 0
	return Sink{
		Sink: to, Open: func() (sink.Sink, error) { return borrowed{to}, nil }, Limits: to.Limits,
		Dispatch: cfg, RequestTimeout: defaultRequestTimeout,
	}
}

// unmatchedSink answers for rows that no route matches.
type unmatchedSink struct{ answer Unmatched }

// unmatchedLanes is the maximum number of rows in a request, one of each lane.
const unmatchedLanes = 500

// Limits implements sink.Sink.
func (s unmatchedSink) Limits(string) sink.Limits {
	return sink.Limits{Mode: sink.PerItem, Endpoint: string(s.answer), MaxItems: unmatchedLanes, MaxBytes: math.MaxInt32}
}

// Deliver implements sink.Sink. A rejected row says nothing about the next one, so the circuit
// breaker must not open for it: the result is Unsent.
func (s unmatchedSink) Deliver(_ context.Context, msgs []sink.Message) sink.Result {
	if s.answer == UnmatchedComplete {
		return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
	}
	res := sink.Result{Items: make([]sink.Outcome, len(msgs)), Unsent: s.answer == UnmatchedFail}
	for i := range msgs {
		out := &res.Items[i]
		out.Class, out.Reason, out.Detail = sink.Rejected, store.ReasonBadRequest, unmatchedText(&msgs[i])
		if s.answer == UnmatchedHold {
			out.Class, out.Reason = sink.Misconfigured, store.ReasonInternal
		}
	}
	return res
}

// unmatchedText says which row no route matches.
func unmatchedText(m *sink.Message) string {
	text := "no route matches the row of kind " + m.Kind
	if kind, ok := m.Attributes.Get(store.AttributeType); ok {
		text += ", type " + kind
	}
	return text + "; add a route that does"
}

// StoreOutbox returns the outbox as a store knows it: with its routes, and that of rows that none of them
// matches.
func (o *Outbox) StoreOutbox() store.Outbox {
	box := o.Outbox
	if len(o.Routes) == 0 {
		return box
	}
	box.AnyRequired, box.Routes = o.AnyRequired, make([]store.Route, 0, len(o.Routes)+1)
	for i := range o.Routes {
		box.Routes = append(box.Routes, store.Route{Name: o.Routes[i].Name, Optional: o.Routes[i].Optional})
	}
	box.Routes = append(box.Routes, store.Route{Name: unmatchedRoute})
	return box
}

// sole reports whether each row that takes a route takes no other, and is settled in its table exactly
// if the route's leg has ended.
func (o *Outbox) sole(r store.Route) bool {
	return (o.FirstMatch || len(o.Routes) == 1) && !r.Optional && !o.AnyRequired && !o.Layout.LogOnly()
}

// router returns the router of an outbox with routes.
func (o *Outbox) router() (*route.Router, error) {
	rules := make([]route.Rule, len(o.Routes))
	for i := range o.Routes {
		rules[i] = o.Routes[i].When
	}
	return route.Compile(rules, o.FirstMatch)
}

// validate reports what is wrong with the destinations of an outbox.
func (o *Outbox) validate(sinks map[string]Sink) error {
	var errs []error
	fault := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("outbox %s: "+format, append([]any{o.Name}, args...)...))
	}
	if len(o.Routes) == 0 {
		if _, known := sinks[o.Sink]; !known {
			fault("unknown sink %q", o.Sink)
		}
		if o.FailedArchive != "" && sinks[o.Sink].Dispatch.OnFailed == dispatch.Block {
			fault("a FAILED row that moves to %s blocks no group; use OnFailed Continue, or keep FAILED rows", o.FailedArchive)
		}
		if o.FirstMatch || o.AnyRequired || o.Unmatched != "" {
			fault("fan-out, complete and unmatched need routes; add routes, or remove them")
		}
		return errors.Join(errs...)
	}

	if o.Sink != "" {
		fault("has sink %q and routes; name the sink in a route", o.Sink)
	}
	if len(o.Routes) >= store.MaxRoutes {
		fault("has %d routes; use at most %d", len(o.Routes), store.MaxRoutes-1)
	}
	if !slices.Contains([]Unmatched{UnmatchedFail, UnmatchedComplete, UnmatchedHold}, o.Unmatched) {
		fault("unmatched is %q, must be fail, complete or hold", string(o.Unmatched))
	}
	for i := range o.Routes {
		r := &o.Routes[i]
		if r.Name == unmatchedRoute {
			fault("route %q has the name that the relay gives to rows without a route; rename it", r.Name)
		}
		if _, known := sinks[r.Sink]; !known {
			fault("route %s: unknown sink %q", r.Name, r.Sink)
		}
	}
	if o.AnyRequired && !slices.ContainsFunc(o.Routes, func(r Route) bool { return !r.Optional }) {
		fault("complete any-required needs a required route; all are optional")
	}
	if _, err := o.router(); err != nil {
		fault("%w", err)
	}
	return errors.Join(errs...)
}

// Destinations are the destinations of relays in one process, by the names of their sinks. Relays that
// have them share for each name
//
//   - the requests in flight (dispatch.Config.MaxConcurrentGroups) and the rate limit, in turns
//   - the circuit breakers
//   - the opened sink with its connections, unless it is a sink.Reporter
//
// Sinks without Inputs are not shared. After a reload of some of the relays, a sink whose Inputs differ
// is opened beside the one of the others. It has circuit breakers of its own unless its Inputs change in
// place (see [InPlace]). The limits are those of the relay that was reloaded last, or that
// began to lead last.
type Destinations struct {
	mu    sync.Mutex
	named map[string][]*destination
	opens map[string][]*openedSink
}

// destination is a destination with the inputs of the sinks that share its circuit breakers.
type destination struct {
	*dispatch.Destination
	inputs any
}

// NewDestinations returns no destinations. It starts nothing.
func NewDestinations() *Destinations {
	return &Destinations{named: map[string][]*destination{}, opens: map[string][]*openedSink{}}
}

// Stats returns the state of each destination by the name of the sink.
func (d *Destinations) Stats() map[string]dispatch.DestinationStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make(map[string]dispatch.DestinationStats, len(d.named))
	for name, list := range d.named {
		var sum dispatch.DestinationStats
		for _, of := range list {
			s := of.Stats()
			sum.InFlight, sum.Limit, sum.Waiting = s.InFlight, s.Limit, s.Waiting // shared
			sum.OpenBreakers += s.OpenBreakers
			sum.Members += s.Members
		}
		all[name] = sum
	}
	return all
}

// of returns the destination of a sink, nil if it is not shared. The caller makes a dispatcher of it, which
// is counted from here on: the reload of another relay meanwhile must not take it for one that nobody uses.
func (d *Destinations) of(name string, s Sink) *dispatch.Destination {
	if d == nil || s.Inputs == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.named[name]
	var other *dispatch.Destination
	for _, of := range list {
		if inputs, ok := s.Inputs.(InPlace); reflect.DeepEqual(of.inputs, s.Inputs) || ok && inputs.ChangesInPlace(of.inputs) {
			of.inputs = s.Inputs
			of.Reserve()
			return of.Destination
		}
		other = of.Destination
	}
	list = slices.DeleteFunc(list, func(of *destination) bool { return of.Stats().Members == 0 })
	of := &destination{Destination: dispatch.NewDestination(other), inputs: s.Inputs}
	of.Reserve()
	d.named[name] = append(list, of)
	return of.Destination
}

// open opens a sink, or returns the one that another relay has opened with the same inputs.
func (d *Destinations) open(name string, as Sink) (sink.Sink, error) {
	if d == nil || as.Inputs == nil {
		return as.Open()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range d.opens[name] {
		if reflect.DeepEqual(o.inputs, as.Inputs) {
			o.users++
			return &sinkUser{openedSink: o}, nil
		}
	}
	fresh, err := as.Open()
	if _, reports := fresh.(sink.Reporter); reports || err != nil {
		return fresh, err
	}
	o := &openedSink{sharedSink: sharedSink{Sink: fresh, users: 1}, of: d, name: name, inputs: as.Inputs}
	d.opens[name] = append(d.opens[name], o)
	return &sinkUser{openedSink: o}, nil
}

// openedSink is a sink that several relays may use.
type openedSink struct {
	sharedSink
	of     *Destinations
	name   string
	inputs any
}

// sinkUser is the sink of one relay.
type sinkUser struct {
	*openedSink
	closed sync.Once
}

// Ping implements sink.Pinger if the sink does.
func (s *sinkUser) Ping(ctx context.Context, kind string) (res sink.Result, pings bool) {
	return borrowed{s.Sink}.Ping(ctx, kind)
}

// Close closes the sink once no other relay uses it.
func (s *sinkUser) Close() {
	s.closed.Do(func() {
		d, last := s.of, false
		d.mu.Lock()
		if s.users--; s.users == 0 {
			last = true
			d.opens[s.name] = slices.DeleteFunc(d.opens[s.name], func(o *openedSink) bool { return o == s.openedSink })
		}
		d.mu.Unlock()
		if last {
			s.close()
		}
	})
}

// closeDispatchers lets dispatchers leave what they share with those of other relays.
func closeDispatchers(all map[string]*dispatch.Dispatcher) {
	for _, d := range all {
		d.Close()
	}
}
