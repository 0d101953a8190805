package sluicebox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
	"github.com/sluicebox/sluicebox/store/leader"
)

const (
	// firstConnectTimeout is how long the first start waits for an unreachable database.
	// After the first connection the relay retries indefinitely.
	firstConnectTimeout = 30 * time.Second
	// drainTimeout is how long a request in flight may outlast its own timeout during
	// shutdown.
	drainTimeout = 5 * time.Second
	// minRestartDelay and maxRestartDelay limit the wait before another session, because
	// the cause of one failure may fail the next session at once.
	minRestartDelay = 100 * time.Millisecond
	maxRestartDelay = 10 * time.Second
)

// Relay relays the rows of outboxes. Its methods are safe for concurrent use.
type Relay struct {
	options  atomic.Pointer[Options] // in force; see opt
	log      *slog.Logger
	observer Observer
	health   *health
	db       *database
	// progress is the state of the current session.
	progress progress
	// tenure is nil while another relay is the leader.
	tenure      atomic.Pointer[leader.Tenure]
	epoch       atomic.Int64           // of the current tenure's latest session; 0 before it
	otherLeader atomic.Pointer[string] // holder of the lock, if known
	// currentDispatchers are the dispatchers of the current session, by sink. Polling and
	// operators use them.
	currentDispatchers atomic.Pointer[map[string]*dispatch.Dispatcher]
	hasRun             bool            // a session had lanes, or another relay was the leader
	drained            bool            // the session before ended for other options
	isPolling          atomic.Bool     // reads the tables, not the log
	hasPositions       atomic.Bool     // reads the log, or a table by position
	requested          <-chan struct{} // of the tenure
	rowFailed          chan struct{}   // signals the letterMover; one waits for all
	// claims is the claims mode of the current tenure, nil without one. loggedClaims is the
	// last mode that was looked at for the log.
	claims       atomic.Pointer[ClaimsStatus]
	loggedClaims ClaimsStatus
	// replayStatus is the work of the current session's replay controller. It is nil
	// before the controller has read it.
	replayStatus atomic.Pointer[ReplayStatus]
	// sourceDetail describes the source and the reason for it. It is set before a session
	// starts.
	sourceDetail string
	reloading    reloading
	moves        moves // of the lead
}

// opt returns the options in force. A session has those with which it began, except that its sinks
// may be opened again; see Reload.
func (r *Relay) opt() *Options { return r.options.Load() }

// New returns a relay. It starts nothing and opens no connection. The error is a
// *store.SetupError with every problem of the options.
func New(o Options) (*Relay, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, &store.SetupError{Problem: err.Error()}
	}
	r := &Relay{log: o.Logger, observer: o.Observer, health: newHealth(), rowFailed: make(chan struct{}, 1)}
	r.options.Store(&o)
	return r, nil
}

// Run relays until the context ends, then shuts down gracefully and returns nil: requests in
// flight finish, outcomes and the checkpoint are saved. Any other end is an error. If its
// chain holds a *store.SetupError, a restart does not help. Call Run once.
func (r *Relay) Run(ctx context.Context) error {
	err := r.run(ctx)
	switch {
	case ctx.Err() == nil:
		return err
	case errors.Is(err, store.ErrNotLeader): // the new leader sends the rows in flight
		r.log.Warn("shutdown without drain", "reason", err)
	case err != nil && !errors.Is(err, context.Canceled):
		return err
	default:
		r.log.Info("shutdown complete")
	}
	return nil
}

// runSession runs one session: from a position in the log until the context ends, the log
// is lost, or leadership ends. lost is how the previous session ended, if it lost the
// log.
func (r *Relay) runSession(ctx context.Context, tenure *leader.Tenure, lost *capture.LostError) error {
	sinks, err := r.openSinks() // before anything exists that the relay would have to clean up
	if err != nil {
		return err
	}
	defer r.closeSinks(sinks)
	var src source
	var st *sessionStore
	var begin checkpoint.StartPoint
	err = r.retryUnreachable(ctx, time.Time{}, func(ctx context.Context) (err error) {
		src, st, begin, err = r.openSource(ctx, lost)
		return err
	})
	if err != nil {
		return err
	}
	defer src.Close()
	r.reportStart(&begin)
	r.updateClaims(ctx)
	freed := make(chan struct{}, 1)
	lanes, routes := r.newDispatchers(sinks.sinks, st, begin.Epoch, tenure, freed)
	defer closeDispatchers(lanes)
	if err := r.restoreLanes(ctx, st, &begin, routes); err != nil {
		return err
	}
	if err := r.adoptBlocks(ctx, &begin, routes); err != nil {
		return err
	}
	keeper, err := r.newAttemptKeeper(ctx, st.replays(r.db.store), begin.Epoch, lanes, routes)
	if err != nil {
		return err
	}

	trackers := checkpoint.NewTrackers(begin.Watermark, src.Compare)
	in := newIntake(trackers.Rest(), begin.Epoch, routes, freed, r.observer.Captured)
	in.fanOutTo(st.fan, routes, trackers, begin.Watermark.Legs, src.Compare)
	if begin.SnapshotReason != "" {
		if err := in.placeBacklog(ctx, begin.Backlog, begin.Spilled, begin.From); err != nil {
			return err
		}
	}
	defer r.progress.startSession(r.newSessionStats(&begin, trackers.Rest(), in, src))()
	r.currentDispatchers.Store(&lanes)
	r.hasRun = true
	r.reloading.sessionStarted()
	defer r.currentDispatchers.Store(nil)
	defer r.replayStatus.Store(nil)
	saveNow := make(chan struct{}, 1)
	saver := &checkpoint.Saver{
		Config: checkpoint.DefaultSaverConfig(), Tracker: trackers, Store: r.db.store,
		Source: src, Epoch: begin.Epoch, Observer: checkpointObserver{r}, SaveNow: saveNow,
	}

	if begin.SnapshotReason == "" {
		src.Acknowledge(begin.From) // saved, but the server may not know it
	}
	return r.runPipeline(ctx, src, begin.From, in, lanes, saver, append(r.backgroundTasks(src, st, in, lanes, saveNow, &begin), sinks.keepOpen, keeper.run))
}

// restoreLanes restores the holds and the spilled lanes of earlier sessions.
func (r *Relay) restoreLanes(ctx context.Context, st *sessionStore, begin *checkpoint.StartPoint, routes map[string]*dispatch.Dispatcher) error {
	var holds []store.Hold
	err := r.retryUnreachable(ctx, time.Time{}, func(ctx context.Context) (err error) {
		if err = st.adoptMissing(ctx, begin, !r.hasPositions.Load()); err != nil {
			return err
		}
		if err = st.rerouteUnmatched(ctx, begin, !r.hasPositions.Load()); err != nil {
			return err
		}
		if holds, err = st.LoadHolds(ctx); err != nil {
			return err
		}
		return r.restoreSpilled(ctx, st, routes)
	})
	if err != nil {
		return fmt.Errorf("restore lanes: %w", err)
	}
	r.restoreHolds(routes, holds)
	return nil
}

// restoreSpilled registers the lanes with spilled rows.
func (r *Relay) restoreSpilled(ctx context.Context, st *sessionStore, routes map[string]*dispatch.Dispatcher) error {
	var unrouted string
	err := st.SpilledLanes(ctx, func(l store.SpilledLane) {
		if d := routes[l.Outbox]; d != nil {
			d.RestoreSpilled(l)
		} else {
			unrouted = l.Outbox
		}
	})
	if err == nil && unrouted != "" {
		err = &store.SetupError{
			Problem: fmt.Sprintf("spilled rows wait for %s, which the configuration does not name", unrouted),
			Remedy:  "configure its outbox again until they are delivered; " + strayRemedy(store.SplitLegName(unrouted)),
		}
	}
	return err
}

// reportStart reports that the relay leads, and logs where the session starts. After a snapshot it names the outboxes whose earlier
// rows nobody reads, because no table shows which of them are to be sent, and the log before
// could not be read.
func (r *Relay) reportStart(begin *checkpoint.StartPoint) {
	r.observer.SetLeader(begin.Epoch)
	r.epoch.Store(int64(begin.Epoch))
	r.health.ok("leader", fmt.Sprintf("leading, epoch %d", begin.Epoch))
	r.log.Info("leadership acquired", "name", r.opt().Name, "epoch", begin.Epoch, "position", begin.From,
		"backlog", int64(len(begin.Backlog))+begin.Spilled, "reason", begin.SnapshotReason)
	var names []string
	for i := range r.opt().Outboxes {
		if o := &r.opt().Outboxes[i]; o.Layout.LogOnly() && !slices.Contains(begin.Kept, o.Name) {
			names = append(names, o.Name)
		}
	}
	if begin.SnapshotReason != "" && len(names) > 0 {
		r.log.Warn("rows before this position not read", "outboxes", names, "position", begin.From, "reason", begin.SnapshotReason)
	}
}

// backgroundTasks returns the tasks that run beside delivery: sweeping, replays, pruning,
// limiting the retained log, reading the claims mode, and checking whether an unreadable log
// has become readable.
func (r *Relay) backgroundTasks(src source, st *sessionStore, in *intake, lanes map[string]*dispatch.Dispatcher,
	saveNow chan<- struct{}, begin *checkpoint.StartPoint,
) []func(context.Context) error {
	epoch := begin.Epoch
	pruning := r.newPruner(epoch)
	r.observer.Paused(false)
	r.observer.Retained(0, 0)
	if !r.hasPositions.Load() { // polling finds the rows that a sweep would
		in.spillEnabled = in.fan != nil // see pollLanes
		return []func(context.Context) error{pruning.run, r.newLetterMover().run, r.newSessionController(st, epoch, lanes, nil).Run, r.awaitReadableLog}
	}

	log := &replay.Log{LiveSource: src, Origin: begin.Watermark.Origin, OpenHistory: r.db.newHistoryReader, OpenRetention: r.db.newRetentionChecker}
	if r.isPolling.Load() {
		log = nil
	}
	controller := r.newSessionController(st, epoch, lanes, log)
	sweep := r.newSweeper(epoch, src, in)

	in.onMarker = func(token string, at store.Position, seq store.Seq) {
		sweep.onMarker(token)
		controller.OnMarker(token, at, seq)
	}

	in.beginCatchUp(r.db.store)
	in.claimsDetectSettled, in.logOnly = r.claimsDetectSettled(), r.opt().logOnly("")
	in.spillEnabled = true
	tasks := []func(context.Context) error{pruning.run, r.newLetterMover().run, sweep.run, controller.Run, r.watchClaims}
	if !r.isPolling.Load() && (r.opt().Claims == ClaimsLate || r.opt().neverClaims()) {
		in.fresh = newFreshness(epoch, src, r.mayGoUnclaimed)
		tasks = append(tasks, in.fresh.run)
	}
	pressure := &pressure{Relay: r, source: src, intake: in, dispatchers: lanes, saveRequests: saveNow, compare: src.Compare}
	return append(tasks, pressure.run)
}

// claimsDetectSettled reports whether a claim always detects a settled row.
func (r *Relay) claimsDetectSettled() bool {
	return !slices.ContainsFunc(r.opt().tables(), func(o store.Outbox) bool { return !o.Layout.WritesClaims() })
}

// errLogReadable ends a polling session because the log has become readable.
var errLogReadable = errors.New("the log can be read")

// readableInterval is how often a polling relay checks whether the log can be read.
const readableInterval = 5 * time.Second

// awaitReadableLog ends a polling session once the log can be read. In ModePoll it only
// waits for the context.
func (r *Relay) awaitReadableLog(ctx context.Context) error {
	if r.opt().Mode == ModePoll || r.db.newReadinessChecker == nil {
		<-ctx.Done()
		return ctx.Err()
	}

	log, err := r.db.newReadinessChecker()
	if err != nil {
		return err
	}
	defer log.Close()
	_ = log.Ready(ctx) // known to be unreadable; lets it record its state
	reason := ""
	for {
		if err := backoff.Sleep(ctx, readableInterval); err != nil {
			return err
		}
		err := log.Ready(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			return errLogReadable
		case err.Error() != reason:
			reason = err.Error()
			r.log.Warn("log still unreadable; polling continues", "reason", reason)
		}
	}
}

// runPipeline runs the parts of a session. They stop in the order in which rows pass:
//   - the intake and the dispatchers, which drain;
//   - the checkpoint saver, which saves the settled rows;
//   - the source, which acknowledges the saved position to the server.
func (r *Relay) runPipeline(ctx context.Context, src source, from store.Position, in *intake,
	lanes map[string]*dispatch.Dispatcher, saver *checkpoint.Saver, others []func(context.Context) error,
) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	part := func(run func(context.Context) error) (stop func(reason error) error) {
		own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		done := make(chan error, 1)
		go func() {
			err := run(own)
			if own.Err() == nil {
				fail(err) // it ended by itself, so all parts end
			}
			done <- err
		}()
		return func(reason error) error { cancel(reason); return <-done }
	}

	batches := make(chan capture.Batch, batchQueueSize)
	src.Resume().MaxPayload = r.opt().maxSourcePayload()
	stopSource := part(func(ctx context.Context) error {
		return capture.Follow(ctx, src, from, batches, sourceObserver{r, in.connected})
	})
	stopSaver := part(saver.Run)
	work, workCtx := errgroup.WithContext(ctx)
	work.Go(func() error { return in.run(workCtx, batches) })
	for _, run := range others {
		work.Go(func() error { return run(workCtx) })
	}

	for _, d := range lanes {
		work.Go(func() error { return d.Run(workCtx) })
	}
	err := work.Wait()
	saverErr := stopSaver(cmp.Or(r.leadershipError(), context.Cause(ctx), err))
	sourceErr := stopSource(nil)
	for _, e := range []error{saverErr, sourceErr, err} {
		if e != nil && !errors.Is(e, context.Canceled) {
			return e
		}
	}

	return err
}
