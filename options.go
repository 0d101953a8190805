package sluicebox

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Options configure a relay. Database, Outboxes and Sinks are required.
type Options struct {
	// Name is the relay's name, [a-z0-9_]{1,40}; of a relay of one partition, see store.ShardName. Of several relays with one name, one is the
	// leader and the others stand by. "" is sluicebox.
	Name string

	// Holder identifies this process to operators. "" is the host and the process id.
	Holder string

	Database Database
	Outboxes []Outbox

	// Sinks are the destinations by name. A sink without an outbox serves only replays.
	Sinks map[string]Sink

	// Reload lets the relay reopen sinks while it runs; see [Reload].
	Reload Reload

	// Mode selects how rows are captured. "" is ModeAuto.
	Mode Mode

	// Poll configures polling. The zero value polls every second, 500 rows at most.
	Poll PollOptions

	// TakeoverTimeout is how long another program's claim holds a row. 0: a row in
	// PROCESSING that this relay did not claim is claimed at once.
	TakeoverTimeout time.Duration

	// Claims says when a row is claimed. "" is ClaimsLate. For ClaimsOff set
	// store.Layout.Unclaimed of each outbox instead.
	Claims ClaimsMode

	// MaxHold is the log in bytes that the database may retain for undelivered rows. Above
	// it, or above half of the server's own limit, rows are spilled, unless a backlog is
	// delivered fast. 0 is 1 GiB.
	MaxHold int64

	// MaxKept is the log in bytes that the database may retain for each named checkpoint.
	// 0 is 10 GiB.
	MaxKept int64

	// SweepInterval is the time between two searches of the tables for rows that were reset
	// to PENDING. 0 is a minute.
	SweepInterval time.Duration

	// Patience is how long the relay waits before it first competes for leadership, so that another
	// process with less of it becomes the leader if both start together. 0 is none.
	Patience time.Duration

	// IdleTimeout is how long sessions that have nothing to do stay open; see store.Settings. A reload
	// does not change it.
	IdleTimeout time.Duration

	// Destinations, if not nil, are shared with the other relays of the process that have them too.
	// Sinks of one name are one destination then; see [Destinations].
	Destinations *Destinations

	// HandOver, if not nil, moves the lead to the process that is to have it; see [HandOver].
	HandOver *HandOver

	// WrapSink, if not nil, returns what delivers to a sink in its place, for example to trace its
	// rows. It is called for each session, and passes everything on to the sink. A wrapper of a
	// sink.Pinger is one too.
	WrapSink func(name string, to sink.Sink) sink.Sink

	// Logger receives the events of deploy/events.md. nil is slog.Default.
	Logger *slog.Logger

	// Observer receives the measurements. It may be nil.
	Observer Observer
}

// Outbox is an outbox table and the sink of its rows. If the sink returns receipts
// (sink.Outcome), Layout.Record names the columns of the table that keep them.
//
// With Routes the rows go to several sinks instead, and Sink is "". A row is COMPLETED once each
// route that matches it and is not optional has delivered it, and FAILED if one of them failed and
// all have ended.
type Outbox struct {
	store.Outbox
	Sink string

	// Routes are the destinations, at most 31. The fields of store.Outbox with these names are
	// ignored.
	Routes []Route

	// FirstMatch sends a row to the first route that matches it only.
	FirstMatch bool

	// AnyRequired: a row is COMPLETED with the first required route that delivers it, and FAILED
	// once all of them failed.
	AnyRequired bool

	// Unmatched says what becomes of a row that no route matches. "" is UnmatchedFail.
	Unmatched Unmatched
}

// Mode selects how rows are captured.
type Mode string

// Values of Mode.
const (
	// ModeAuto streams if the server allows it, and else polls.
	ModeAuto Mode = "auto"

	// ModeStream reads the database's log.
	ModeStream Mode = "stream"

	// ModePoll reads the tables.
	ModePoll Mode = "poll"
)

// PollOptions configure polling; see poll.Config. A zero field takes its default.
type PollOptions struct {
	Interval  time.Duration
	BatchSize int
	Backoff   poll.Backoff
}

// Sink is a destination.
type Sink struct {
	// Sink delivers the rows. The relay does not close it. It is nil if Open is set.
	Sink sink.Sink

	// Open opens the sink for a session, which closes it at its end if it has a method
	// Close. If the error is a *sink.FileError the session starts without the sink, whose
	// rows wait, and tries again. Any other error ends Run.
	Open func() (sink.Sink, error)

	// Limits are the limits of the sink that Open opens; see sink.Sink.
	Limits func(kind string) sink.Limits

	// Inputs are the values that Open depends on. After a Reload the sink is opened again
	// unless reflect.DeepEqual finds the new ones equal. If they are an InPlace, Relay.Reload
	// may open the sink again within the session.
	Inputs any

	// Dispatch configures the delivery. The zero value is dispatch.DefaultConfig.
	Dispatch dispatch.Config

	// RequestTimeout is the longest duration of a Deliver. At shutdown the relay waits for
	// it. 0 is 30 s.
	RequestTimeout time.Duration
}

// Reload reads the sinks again when files of theirs change, for example credentials. The
// zero value reads nothing.
type Reload struct {
	// Files are checked for changes every few seconds.
	Files []string

	// Sinks returns the sinks with the present content of the files. It has the same names
	// as Options.Sinks. Only Open and Inputs may differ.
	Sinks func() (map[string]Sink, error)
}

// Defaults of Options.
const (
	defaultName           = "sluicebox"
	defaultPollInterval   = time.Second
	defaultPollBatchSize  = 500
	defaultMaxHold        = 1 << 30
	defaultMaxKept        = 10 << 30
	defaultSweepInterval  = time.Minute
	defaultRequestTimeout = 30 * time.Second
)

// withDefaults returns the options with a value for each optional field.
func (o Options) withDefaults() Options {
	o.Name = cmp.Or(o.Name, defaultName)
	o.Holder = cmp.Or(o.Holder, HolderName())
	o.Mode = cmp.Or(o.Mode, ModeAuto)
	o.Claims = cmp.Or(o.Claims, ClaimsLate)
	o.Poll.Interval = cmp.Or(o.Poll.Interval, defaultPollInterval)
	o.Poll.BatchSize = cmp.Or(o.Poll.BatchSize, defaultPollBatchSize)
	o.Poll.Backoff = cmp.Or(o.Poll.Backoff, poll.DefaultBackoff())
	o.MaxHold, o.MaxKept = cmp.Or(o.MaxHold, defaultMaxHold), cmp.Or(o.MaxKept, defaultMaxKept)
	o.SweepInterval = cmp.Or(o.SweepInterval, defaultSweepInterval)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	o.Sinks = maps.Clone(o.Sinks)
	for name, s := range o.Sinks {
		s.Dispatch = cmp.Or(s.Dispatch, dispatch.DefaultConfig())
		s.RequestTimeout = cmp.Or(s.RequestTimeout, defaultRequestTimeout)
		if own := s.Sink; own != nil {
			s.Open, s.Limits = func() (sink.Sink, error) { return borrowed{own}, nil }, own.Limits
		}
		o.Sinks[name] = s
	}
	o.Outboxes = slices.Clone(o.Outboxes)
	for i := range o.Outboxes {
		if box := &o.Outboxes[i]; len(box.Routes) > 0 {
			box.Unmatched = cmp.Or(box.Unmatched, UnmatchedFail)
			o.Sinks[box.Unmatched.sink()] = box.Unmatched.open()
		}
	}
	return o
}

// validate reports every missing or invalid value in one error.
func (o *Options) validate() error {
	errs := []error{store.ValidateShardName(o.Name), store.ValidateOutboxes(o.tables(), o.TakeoverTimeout)}
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.Database == nil {
		fault("database: none configured")
	}
	if !slices.Contains([]Mode{ModeAuto, ModeStream, ModePoll}, o.Mode) {
		fault("mode is %q, must be auto, stream or poll", o.Mode)
	}
	if o.Claims != ClaimsOn && o.Claims != ClaimsLate {
		fault("claims is %q, must be on or late; for off set Layout.Unclaimed of each outbox", o.Claims)
	}
	for i := range o.Outboxes {
		errs = append(errs, o.Outboxes[i].validate(o.Sinks))
	}
	for name, s := range o.Sinks {
		if s.Open == nil || s.Limits == nil {
			fault("sink %s: set Sink, or Open and Limits", name)
		}
		if err := s.Dispatch.Validate(); err != nil {
			fault("sink %s: %w", name, err)
		}
	}
	if o.Patience < 0 || o.MaxHold < 0 || o.MaxKept < 0 || o.SweepInterval < 0 {
		fault("patience, max hold, max kept and sweep interval must not be negative")
	}
	polling := o.pollConfig()
	return errors.Join(append(errs, polling.Validate())...)
}

// tables returns the outboxes without their sinks, those with routes once.
func (o *Options) tables() []store.Outbox {
	tables := make([]store.Outbox, len(o.Outboxes))
	for i := range o.Outboxes {
		tables[i] = o.Outboxes[i].StoreOutbox()
	}
	return tables
}

// hasRoutes reports whether an outbox has routes.
func (o *Options) hasRoutes() bool {
	return slices.ContainsFunc(o.Outboxes, func(b Outbox) bool { return len(b.Routes) > 0 })
}

// lanesOf returns the outboxes whose rows have lanes: each outbox without routes, and in place of
// the others their legs.
func (o *Options) lanesOf() []Outbox {
	var all []Outbox
	for i := range o.Outboxes {
		box := o.Outboxes[i]
		table := box.StoreOutbox()
		legs := table.Legs()
		if len(legs) == 0 {
			all = append(all, box)
		}
		for k, leg := range legs {
			sink := box.Unmatched.sink()
			if k < len(box.Routes) {
				sink = box.Routes[k].Sink
			}
			all = append(all, Outbox{Outbox: leg, Sink: sink})
		}
	}
	return all
}

// routes returns the sink of each outbox without routes and of each leg, by name.
func (o *Options) routes() map[string]string {
	routes := make(map[string]string, len(o.Outboxes))
	for _, box := range o.lanesOf() {
		routes[box.Name] = box.Sink
	}
	return routes
}

// pollConfig returns the configuration of the source that polls the tables.
func (o *Options) pollConfig() poll.Config {
	return poll.Config{Interval: o.Poll.Interval, BatchSize: o.Poll.BatchSize, Backoff: o.Poll.Backoff, Outboxes: o.tables(), Room: o.smallestBuffer()}
}

// smallestBuffer returns the size of the smallest buffer of a sink with an outbox.
func (o *Options) smallestBuffer() (least store.ReadLimit) {
	for _, box := range o.lanesOf() {
		d := o.Sinks[box.Sink].Dispatch
		if least.Rows == 0 || d.BufferRows < least.Rows {
			least.Rows = d.BufferRows
		}
		if least.Bytes == 0 || d.BufferBytes < least.Bytes {
			least.Bytes = d.BufferBytes
		}
	}
	return least
}

// batchQueueSize is the number of batches queued between the source and the lanes, so that
// neither waits for the other to be scheduled.
const batchQueueSize = 16

// maxBatchBytes limits a batch, so that the queued batches together hold at most one buffer.
func (o *Options) maxBatchBytes() int {
	return int(max(64<<10, min(4<<20, o.smallestBuffer().Bytes/batchQueueSize)))
}

// logOnly returns the outboxes of a sink whose rows only the log has; of all sinks if it is "". They
// include the legs, because no table tells which rows a leg has delivered.
func (o *Options) logOnly(sink string) map[string]bool {
	only := map[string]bool{}
	for _, box := range o.lanesOf() {
		if sink == "" || box.Sink == sink {
			only[box.Name] = box.Layout.LogOnly()
		}
	}
	return only
}

// frontiers returns the frontiers of the outboxes whose rows only the log has. The legs have one
// each, as they have a mark in the checkpoint. While the relay polls no mark holds. But the outcome
// of a row waits for the copies of legs that need not deliver it, so legs that others overtake
// spill their rows. The rows of a sole leg have none: their table tells which of them it has delivered.
func (o *Options) frontiers(polling bool) map[string]*dispatch.Frontier {
	shared, all := new(dispatch.Frontier), map[string]*dispatch.Frontier{}
	for i := range o.Outboxes {
		box, together := o.Outboxes[i].StoreOutbox(), new(dispatch.Frontier)
		if len(box.Routes) == 0 && box.Layout.LogOnly() {
			all[box.Name] = shared
		}
		for _, r := range box.Routes {
			switch leg := store.LegName(box.Name, r.Name); {
			case o.Outboxes[i].sole(r):
			case !polling:
				all[leg] = new(dispatch.Frontier)
			case box.AnyRequired || slices.ContainsFunc(box.Routes, func(r store.Route) bool { return r.Optional }):
				all[leg] = together
			}
		}
	}
	return all
}

// unwritten returns the outboxes whose claims write nothing into the table.
func (o *Options) unwritten() map[string]bool {
	unwritten := map[string]bool{}
	for i := range o.Outboxes {
		box := o.Outboxes[i].StoreOutbox()
		unwritten[box.Name] = !box.Layout.WritesClaims()
		for _, r := range box.Routes {
			unwritten[store.LegName(box.Name, r.Name)] = !box.Layout.WritesClaims()
		}
	}
	return unwritten
}

// maxSourcePayload is the largest payload that a source carries. With one payload of this
// size in each queued batch, the queue holds a quarter of a buffer. The claim reads larger
// payloads. 0 is any, because a leg may need a row after its table has lost it.
func (o *Options) maxSourcePayload() int {
	if o.hasRoutes() {
		return 0
	}
	return int(max(1, o.smallestBuffer().Bytes/(4*batchQueueSize)))
}
