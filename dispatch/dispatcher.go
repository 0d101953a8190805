package dispatch

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
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

	// breakersMu keeps BreakersChanged calls in order. openBreakers is the last reported
	// value.
	breakersMu   sync.Mutex
	openBreakers []OpenBreaker

	// lastExcessScan is the last search for rows to spill; guarded by mu.
	lastExcessScan time.Time

	// lastSpillRetry is the last retry of unspillable rows; guarded by mu.
	lastSpillRetry time.Time

	// unspillableReported: the observer knows of unspillable rows; guarded by mu.
	unspillableReported bool

	// Signals with a buffer of one. Each wakes the worker that waits for it.
	toClaim, toPace, toWrite, toSpill, toRecord, toAwait, toPing, settled, roomFreed, replayChanged chan struct{}

	// claims and outcomes are reused statement buffers. claimRows owns the first,
	// writeOutcomes the second.
	claims   []store.ClaimRow
	outcomes []store.Outcome

	toSend  chan *request
	unsure  chan error    // of a requeue whose answer was lost; it ends Run
	stopped chan struct{} // closed when Run ends
}

// New returns the dispatcher of one sink. It starts nothing.
func New(cfg Config, opt Options) *Dispatcher {
	signal := func() chan struct{} { return make(chan struct{}, 1) }
	d := &Dispatcher{
		cfg: cfg, opt: opt, obs: opt.Observer,
		core:    newCore(cfg, opt.Sink.Limits, rand.Float64),
		toClaim: signal(), toPace: signal(), toWrite: signal(), toSpill: signal(), toRecord: signal(), toAwait: signal(), toPing: signal(),
		settled: signal(), roomFreed: signal(), replayChanged: signal(),
		toSend:  make(chan *request, cfg.MaxConcurrentGroups),
		unsure:  make(chan error, 1),
		stopped: make(chan struct{}),
	}
	d.core.lanes.Memory.LogOnly = opt.LogOnly
	if opt.Frontier != nil {
		d.core.overtaken.frontier = opt.Frontier
	}
	_, d.core.answers.pings.possible = opt.Sink.(sink.Pinger)
	if opt.Spill {
		d.core.spill.AllowUnwritten()
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
		due = time.After(time.Until(until))
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
func (d *Dispatcher) Append(items []store.Item, t Ticket) {
	d.mu.Lock()
	d.core.append(items, t)
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
	workers.Go(func() error { return d.claimRows(work) })
	if d.cfg.RateLimit > 0 {
		workers.Go(func() error { return d.sendPaced(work) })
	}
	workers.Go(func() error { return d.writeOutcomes(work) })
	workers.Go(func() error { return d.runSpill(work) })
	workers.Go(func() error { return d.awaitTables(work) })
	if d.opt.Replays != nil {
		workers.Go(func() error { return d.recordReplayed(work) })
	}
	for range d.cfg.MaxConcurrentGroups {
		workers.Go(func() error { return d.send(work) })
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

// claimRows claims the rows of ready lanes, one statement at a time.
func (d *Dispatcher) claimRows(ctx context.Context) error {
	for {
		d.mu.Lock()
		now := time.Now()
		d.core.tick(now)
		if len(d.core.outcomes.Waiting()) > 0 {
			notify(d.toWrite) // some outcomes are due for a retry
		}
		d.notifySpill() // a lane with spilled rows may be due
		reqs := d.core.nextClaims(maxStatementRows, now)
		d.dispatchRequests(now) // replayed rows need no claim
		wake, _ := d.core.nextWake(now)
		d.mu.Unlock()
		d.notifyBreakers() // a receiver may have become idle or busy
		var err error
		if len(reqs) > 0 {
			err = d.claim(ctx, reqs)
		} else {
			err = await(ctx, d.toClaim, wake)
		}
		if err != nil {
			return err
		}
	}
}

// wakeWorkers wakes the workers that have work after a change of the core. The outcome
// writer is woken only if needed: it has no work after most claims, and a sender needs the
// processor then.
func (d *Dispatcher) wakeWorkers() {
	d.mu.Lock()
	d.notifySpill()
	write, record, changed := len(d.core.outcomes.Waiting()) > 0, d.core.replays.jobs.Waiting() > 0, d.core.replays.jobs.TakeChanged()
	_, _, locked := d.core.outcomes.NextTable()
	cleared := d.unspillableReported && d.core.spill.Counts().Unspillable == 0
	if cleared {
		d.unspillableReported = false
	}
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

// send is one sender.
func (d *Dispatcher) send(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case req := <-d.toSend:
			if d.opt.Lease != nil {
				if err := d.opt.Lease.Await(ctx); err != nil {
					return err
				}
			}
			began := time.Now()
			res := deliver(ctx, d.opt.Sink, req.Messages())
			if ctx.Err() != nil {
				return ctx.Err() // canceled: the result is unknown
			}
			d.answered(req, &res, began)
		}
	}
}

// deliver sends the messages up to the first that its source could not read. If that is the
// first of all, it is rejected, so that it becomes FAILED as any row that cannot be sent.
func deliver(ctx context.Context, to sink.Sink, msgs []sink.Message) sink.Result {
	for i := range msgs {
		reason, unreadable := msgs[i].Attributes.Get(store.AttributeUnreadable)
		switch {
		case !unreadable:
		case i == 0:
			return sink.RejectFirst(len(msgs), "not sent: "+reason)
		default:
			res := to.Deliver(ctx, msgs[:i])
			return res.Pad(i, len(msgs))
		}
	}
	return to.Deliver(ctx, msgs)
}

// answered passes a result to the core.
func (d *Dispatcher) answered(req *request, res *sink.Result, began time.Time) {
	now := time.Now()
	info := RequestInfo{Kind: req.Runs[0].Rows[0].Kind, Rows: req.Size(), Lanes: len(req.Runs), Probe: req.Probe != breaker.None, Split: req.Split}
	d.obs.Requested(info, res, now.Sub(began))
	d.mu.Lock()
	d.core.answers.take(req, res, now)
	d.dispatchRequests(now)
	stalled, ping := d.core.answers.takeStalled(), d.core.answers.pings.queue.Len() > 0
	d.mu.Unlock()
	if ping {
		notify(d.toPing)
	}
	d.wakeWorkers()

	for i := range stalled {
		d.obs.Stalled(&stalled[i])
	}
	d.notifyBreakers()
}

// notifyBreakers reports a change of the open circuit breakers to the observer.
func (d *Dispatcher) notifyBreakers() {
	d.breakersMu.Lock()
	defer d.breakersMu.Unlock()
	d.mu.Lock()
	now := d.core.openBreakers()
	d.mu.Unlock()
	same := slices.EqualFunc(now, d.openBreakers, func(a, b OpenBreaker) bool {
		return a.Endpoint == b.Endpoint && a.LastFailure.Class == b.LastFailure.Class && a.Idle == b.Idle
	})
	if d.openBreakers = now; !same {
		d.obs.BreakersChanged(now)
	}
}

// dispatchRequests passes claimed requests to the senders. It never blocks, because toSend
// has room for all requests that may be in flight. The caller holds the lock.
func (d *Dispatcher) dispatchRequests(now time.Time) (sent bool) {
	for req := d.core.lanes.Requests.Next(now); req != nil; req = d.core.lanes.Requests.Next(now) {
		d.toSend <- req
		sent = true
	}
	if _, waits := d.core.lanes.Requests.NextSend(); waits {
		notify(d.toPace)
	}
	return sent
}

// sendPaced passes claimed requests to the senders when the rate limit allows it.
func (d *Dispatcher) sendPaced(ctx context.Context) error {
	for {
		d.mu.Lock()
		at, waits := d.core.lanes.Requests.NextSend()
		d.mu.Unlock()
		if !waits {
			at = time.Time{}
		}
		if err := await(ctx, d.toPace, at); err != nil {
			return err
		}
		d.mu.Lock()
		at, waits = d.core.lanes.Requests.NextSend()
		due := waits && !time.Now().Before(at)
		if due && d.dispatchRequests(time.Now()) {
			notify(d.toClaim) // more may be claimed
		}
		d.mu.Unlock()
	}
}

// writeOutcomes writes queued outcomes, one batch at a time.
func (d *Dispatcher) writeOutcomes(ctx context.Context) error {
	for {
		d.mu.Lock()
		batch := d.core.outcomes.Next(maxStatementRows)
		d.mu.Unlock()
		var err error
		if len(batch) > 0 {
			err = d.write(ctx, batch)
		} else {
			err = await(ctx, d.toWrite, time.Time{})
		}
		if err != nil {
			return err
		}
	}
}
