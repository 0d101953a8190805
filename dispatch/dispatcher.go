package dispatch

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	pending "github.com/sluicebox/sluicebox/dispatch/internal/outcome"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Dispatcher delivers the rows of the outboxes that share one sink.
type Dispatcher struct {
	cfg Config
	opt Options
	obs Observer

	mu   sync.Mutex
	core *core

	// operatorMu serializes operator actions, because each changes both the store and the
	// core.
	operatorMu sync.Mutex

	signals
	member   *member // nil: no other dispatcher shares the destination
	claims   claimer
	sending  sending
	writers  [pending.Writers]writer
	spill    spillWorker
	breakers breakerReport

	unsure  chan error    // of a requeue whose answer was lost; it ends Run
	stopped chan struct{} // closed when Run ends
}

// signals wake the workers. Each has a buffer of one and is named for its worker, or for its
// event.
type signals struct {
	toClaim, toPace, toWrite, toSpill, toRecord, toAwait, toPing, settled, roomFreed, replayChanged chan struct{}
}

func newSignals() signals {
	signal := func() chan struct{} { return make(chan struct{}, 1) }
	return signals{
		toClaim: signal(), toPace: signal(), toWrite: signal(), toSpill: signal(), toRecord: signal(), toAwait: signal(), toPing: signal(),
		settled: signal(), roomFreed: signal(), replayChanged: signal(),
	}
}

// New returns the dispatcher of one sink. It starts nothing.
func New(cfg Config, opt Options) *Dispatcher {
	d := &Dispatcher{
		cfg: cfg, opt: opt, obs: opt.Observer,
		signals: newSignals(),
		unsure:  make(chan error, 1),
		stopped: make(chan struct{}),
	}
	of := cfg.lanes(opt.Sink.Limits, rand.Float64)
	if opt.Destination != nil {
		d.member = opt.Destination.join(cfg, d.toPace)
		of.Share, of.Breakers = d.member.share, &opt.Destination.breakers
	}
	d.core = newCore(cfg, of)
	d.claims.d, d.spill.d, d.breakers.d = d, d, d
	for i := range d.writers {
		d.writers[i] = writer{d: d, number: i}
	}
	d.sending = sending{d: d, requests: make(chan *request, cfg.MaxConcurrentGroups)}
	d.core.lanes.Memory.LogOnly = opt.LogOnly
	d.core.late.allowed, d.core.lanes.Requests.Fresh.Unwritten = opt.Late, opt.Unwritten
	if opt.Frontiers != nil {
		d.core.overtaken.set(opt.Frontiers)
	}
	_, d.core.answers.pings.possible = opt.Sink.(sink.Pinger)
	if opt.Spill {
		d.core.spill.AllowUnwritten()
	}
	if opt.SpillWhole {
		d.core.spill.SpillWhole()
	}
	return d
}

func notify(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// change changes the core and wakes the workers.
func (d *Dispatcher) change(do func(*core)) {
	d.mu.Lock()
	do(d.core)
	d.mu.Unlock()
	d.wakeWorkers()
}

// await waits for a signal, or until a time if that is not zero.
func await(ctx context.Context, signal <-chan struct{}, until time.Time) error {
	var due <-chan time.Time
	if !until.IsZero() {
		wait := time.Until(until)
		if wait <= 0 {
			return ctx.Err()
		}
		due = time.After(wait)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-signal:
	case <-due:
	}
	return nil
}

// Append puts rows at the end of their lanes, in the given order, and reports each settled
// row to t. It does not block; check Room first.
func (d *Dispatcher) Append(items []store.Item, t Ticket) { d.AppendFresh(items, t, time.Time{}) }

// AppendFresh is Append for rows that the log has just brought. Until a time they may be sent
// before they are claimed, if Options.Late allows it. The caller knows for certain that they were
// committed no longer than a second before that time, and that only this leader may have sent them.
func (d *Dispatcher) AppendFresh(items []store.Item, t Ticket, until time.Time) {
	d.mu.Lock()
	d.core.appendFresh(items, t, until)
	if !until.IsZero() {
		now := time.Now()
		d.core.late.start(now)
		d.sending.dispatch(now)
	}
	d.notifySpill()
	d.mu.Unlock()
	notify(d.toClaim)
}

// Room returns how many rows fit into the buffer. It is negative if the buffer is over its
// limit.
func (d *Dispatcher) Room() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cfg.BufferRows - d.core.bufferedRows()
}

// Held returns the ids of an outbox that are in lanes or have an unwritten outcome.
func (d *Dispatcher) Held(outbox string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.heldIDs(outbox)
}

// Run delivers rows until the context ends, then drains: requests in flight end, outcomes
// are written, claims are given back. It returns nil or an error that wraps
// store.ErrNotLeader or store.ErrUnsure. If leadership is lost, Run does not drain but cancels the requests in
// flight. Call Run once.
func (d *Dispatcher) Run(ctx context.Context) error {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer close(d.stopped)
	if d.cfg.TakeoverWait > 0 {
		d.mu.Lock()
		d.core.notBefore = time.Now().Add(d.cfg.TakeoverWait)
		d.mu.Unlock()
	}

	workers, work := errgroup.WithContext(work)
	workers.Go(func() error { return d.claims.run(work) })
	if d.cfg.RateLimit > 0 || d.member != nil {
		workers.Go(func() error { return d.sending.pace(work) })
	}
	if d.member != nil {
		workers.Go(func() error { return d.member.follow(work, d) })
	}
	for i := range d.writers {
		workers.Go(func() error { return d.writers[i].run(work) })
	}
	workers.Go(func() error { return d.spill.run(work) })
	workers.Go(func() error { return d.awaitTables(work) })
	if d.opt.Replays != nil {
		workers.Go(func() error { return d.recordReplayed(work) })
	}
	for range d.cfg.MaxConcurrentGroups {
		workers.Go(func() error { return d.sending.run(work) })
	}
	if to, ok := d.opt.Sink.(sink.Pinger); ok {
		workers.Go(func() error { return d.ping(work, to) })
	}
	if d.opt.Lease != nil {
		workers.Go(func() error { return d.watchLease(work) })
	}
	workers.Go(func() error { return d.watchUnsure(work) })

	select {
	case <-ctx.Done():
		if !errors.Is(context.Cause(ctx), store.ErrNotLeader) {
			d.drain(work)
		}
	case <-work.Done(): // a worker failed
	}

	cancel()
	if err := workers.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// watchLease ends the workers once the lease is lost, during a drain too.
func (d *Dispatcher) watchLease(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-d.opt.Lease.Lost():
		return d.opt.Lease.Await(ctx)
	}
}

// watchUnsure ends the workers once a requeue may have been carried out that no lane knows of.
func (d *Dispatcher) watchUnsure(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-d.unsure:
		return err
	}
}

// drain ends the core and waits until nothing is in flight, at most for the drain timeout.
// Requests still in flight are then canceled, and the next leader finds their rows.
func (d *Dispatcher) drain(work context.Context) {
	d.mu.Lock()
	d.core.end()
	d.notifySpill()
	d.mu.Unlock()
	notify(d.toWrite)
	limit := time.NewTimer(d.opt.DrainTimeout)
	defer limit.Stop()

	for {
		d.mu.Lock()
		drained := d.core.drained()
		d.mu.Unlock()
		if drained {
			return
		}
		select {
		case <-d.settled:
		case <-limit.C:
			return
		case <-work.Done():
			return
		}
	}
}

// wakeWorkers wakes the workers that have work after a change of the core. The outcome
// writer is woken only if needed: it has no work after most claims, and a sender needs the
// processor then.
func (d *Dispatcher) wakeWorkers() {
	d.mu.Lock()
	d.notifySpill()
	write, record, changed := d.core.outcomes.Ready(), d.core.replays.jobs.Waiting() > 0, d.core.replays.jobs.TakeChanged()
	_, _, locked := d.core.outcomes.NextTable()
	cleared := d.spill.cleared()
	d.mu.Unlock()
	if cleared {
		d.obs.UnspillableCleared()
	}
	notify(d.toClaim)
	if write {
		notify(d.toWrite)
	}
	if record {
		notify(d.toRecord)
	}
	if changed {
		notify(d.replayChanged)
	}
	if locked {
		notify(d.toAwait)
	}
	notify(d.opt.Freed)
	notify(d.settled)
	notify(d.roomFreed)
}
