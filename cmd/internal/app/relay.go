package app

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
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/leader"
)

const (
	// drainTimeout is what requests in flight may take beyond their own
	// time-out once the relay stops.
	drainTimeout = 5 * time.Second
	// minRestartDelay and mostRest bound the wait before another life: what ended one
	// may end the next at once.
	minRestartDelay = 100 * time.Millisecond
	maxRestartDelay = 10 * time.Second
)

// relay is one relay from start to end.
type relay struct {
	cfg       *config.Config
	log       *slog.Logger
	version   string
	metrics   *Metrics
	health    *health
	db        *database
	startedAt time.Time
	// progress is that of the life that runs.
	progress    progress
	failedCount failedRows // as last counted
	// tenure is nil while another relay leads.
	tenure      atomic.Pointer[leader.Tenure]
	epoch       atomic.Int64           // of the tenure's latest life, 0 before it has begun
	otherLeader atomic.Pointer[string] // who leads instead, as far as is known
	// currentDispatchers are the dispatchers of the life that runs, by sink; for the gauges
	// and for polling.
	currentDispatchers atomic.Pointer[map[string]*dispatch.Dispatcher]
	hasRun             bool            // a life got as far as to have lanes, or another relay leads
	isPolling          atomic.Bool     // the tables are read, not the log
	requested          <-chan struct{} // of the tenure
	// replayStatus is what the desk of the life that runs has to do, nil before it looked.
	replayStatus atomic.Pointer[admin.ReplayStatus]
	// sourceDetail says what is read, and why; it is set before a life begins.
	sourceDetail string
}

// sleep waits, unless the context ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// runSession is one life: from a place in the log until the context ends, the log is
// lost, or another relay leads. lost says how the life before it ended.
func (r *relay) runSession(ctx context.Context, tenure *leader.Tenure, lost *capture.LostError) error {
	sinks, err := r.openSinks() // before anything is made that a relay must look after
	if err != nil {
		return err
	}
	defer sinks.close()
	var src source
	var begin checkpoint.StartPoint
	err = r.retryUnreachable(ctx, time.Time{}, func(ctx context.Context) (err error) {
		src, begin, err = r.openSource(ctx, lost)
		return err
	})
	if err != nil {
		return err
	}
	defer src.Close()
	epoch := begin.Epoch
	r.metrics.SetLeader(epoch)
	r.epoch.Store(int64(epoch))
	r.health.ok("leader", fmt.Sprintf("leading, epoch %d", epoch))
	r.log.Info("leadership acquired", "name", r.cfg.Settings.Name, "epoch", epoch, "position", begin.From,
		"backlog", int64(len(begin.Backlog))+begin.Spilled, "reason", begin.SnapshotReason)

	var holds []store.Hold
	lanes, routes := r.newDispatchers(sinks.sinks, epoch, tenure)
	err = r.retryUnreachable(ctx, time.Time{}, func(ctx context.Context) (err error) {
		if holds, err = r.db.store.LoadHolds(ctx); err == nil {
			err = r.db.store.SpilledLanes(ctx, func(l store.SpilledLane) { routes[l.Outbox].RestoreSpilled(l) })
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("read which message groups stand still: %w", err)
	}
	r.restoreHolds(routes, holds)
	if err := r.adoptBlocks(ctx, &begin, routes); err != nil {
		return err
	}
	tracker := checkpoint.NewTracker(begin.Watermark)
	feed := dispatch.NewFeed(tracker, epoch, routes, r.metrics.Captured)
	if begin.SnapshotReason != "" {
		if err := feed.Backlog(begin.Backlog, begin.Spilled, begin.From); err != nil {
			return err
		}
	}
	defer r.progress.startSession(r.newSessionStats(&begin, tracker, feed))()
	r.currentDispatchers.Store(&lanes)
	r.hasRun = true
	defer r.currentDispatchers.Store(nil)
	defer r.replayStatus.Store(nil)
	urge := make(chan struct{}, 1)
	keeper := &checkpoint.CheckpointSaver{
		Config: checkpoint.DefaultSaverConfig(), Tracker: tracker, Store: r.db.store,
		Source: src, Epoch: epoch, Observer: checkpointObserver{r}, SaveNow: urge,
	}
	if begin.SnapshotReason == "" {
		src.Acknowledge(begin.From) // it is saved; the server may not have heard
	}
	return r.runPipeline(ctx, src, begin.From, feed, lanes, keeper, append(r.backgroundTasks(src, feed, lanes, urge, &begin), sinks.keepOpen))
}

// backgroundTasks returns what a life does besides the way of the rows: it looks for rows
// that were set back, for a log that can be read or that grows too long, for rows
// that were kept long enough.
func (r *relay) backgroundTasks(src source, feed *dispatch.Feed, lanes map[string]*dispatch.Dispatcher,
	urge chan<- struct{}, begin *checkpoint.StartPoint,
) []func(context.Context) error {
	epoch := begin.Epoch
	retainer := &checkpoint.Pruner{Tables: r.db.store, Epoch: epoch, Outboxes: r.cfg.Outboxes(), Observer: retentionObserver{r}}
	r.metrics.Paused(false)
	r.metrics.Retained(0, 0)
	desk := r.newSessionController(epoch, lanes)
	if r.isPolling.Load() { // polling finds what a sweep would
		return []func(context.Context) error{retainer.Run, desk.Run, r.awaitReadableLog}
	}
	desk.Log = &replay.Log{LiveSource: src, Origin: begin.Watermark.Origin, OpenHistory: r.db.newHistoryReader, OpenRetention: r.db.newRetentionChecker}
	sweeper := &checkpoint.Sweeper{
		Interval: r.cfg.Settings.Checkpoint.SweepInterval, Outboxes: r.cfg.Outboxes(), Bound: r.cfg.SmallestBuffer(),
		Source: src, Tables: r.db.store, Lanes: feed, Observer: sweepObserver{r}, Epoch: epoch, OnCaughtUp: feed.EndCatchUp,
	}
	feed.OnMarker = func(token string, at store.Position, seq store.Seq) {
		sweeper.OnMarker(token)
		desk.OnMarker(token, at, seq)
	}
	feed.BeginCatchUp(r.db.store)
	feed.ClaimsDetectSettled = r.claimsDetectSettled()
	feed.SpillEnabled = true
	pressure := &pressure{relay: r, source: src, feed: feed, dispatchers: lanes, saveRequests: urge}
	return []func(context.Context) error{retainer.Run, sweeper.Run, pressure.run, desk.Run}
}

// claimsDetectSettled reports whether every claim finds out if its row is settled.
func (r *relay) claimsDetectSettled() bool {
	return !slices.ContainsFunc(r.cfg.Outboxes(), func(o store.Outbox) bool { return !o.Layout.WritesClaims() })
}

// errLogReadable ends a life that polls, because the log can be read.
var errLogReadable = errors.New("the log can be read")

// readableInterval is how often a relay that polls for want of a log asks again.
const readableInterval = 5 * time.Second

// awaitReadableLog ends a life that polls as soon as the log can be read, where the
// configuration leaves the choice to the relay.
func (r *relay) awaitReadableLog(ctx context.Context) error {
	if r.cfg.Settings.Source.Mode == "poll" || r.db.newReadinessChecker == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	log, err := r.db.newReadinessChecker()
	if err != nil {
		return err
	}
	defer log.Close()
	_ = log.Ready(ctx) // it could not be read a moment ago
	why := ""
	for {
		if err := sleep(ctx, readableInterval); err != nil {
			return err
		}
		err := log.Ready(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			return errLogReadable
		case err.Error() != why:
			why = err.Error()
			r.log.Warn("log still unreadable; polling continues", "reason", why)
		}
	}
}

// runPipeline runs the parts of a life. They end in the order of the row's way: the
// feed and the dispatchers first, which drain; then the keeper, which saves what
// they settled; then the source, which tells the server.
func (r *relay) runPipeline(ctx context.Context, src source, from store.Position, feed *dispatch.Feed,
	lanes map[string]*dispatch.Dispatcher, keeper *checkpoint.CheckpointSaver, others []func(context.Context) error,
) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	part := func(run func(context.Context) error) (stop func(why error) error) {
		own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		done := make(chan error, 1)
		go func() {
			err := run(own)
			if own.Err() == nil {
				fail(err) // it ended by itself: all end
			}
			done <- err
		}()
		return func(why error) error { cancel(why); return <-done }
	}

	batches := make(chan capture.Batch, config.BatchQueueSize)
	src.Resume().MaxPayload = r.cfg.MaxSourcePayload()
	stopSource := part(func(ctx context.Context) error {
		return capture.Follow(ctx, src, from, batches, sourceObserver{r})
	})
	stopKeeper := part(keeper.Run)
	work, workCtx := errgroup.WithContext(ctx)
	work.Go(func() error { return feed.Run(workCtx, batches) })
	for _, run := range others {
		work.Go(func() error { return run(workCtx) })
	}
	for _, d := range lanes {
		work.Go(func() error { return d.Run(workCtx) })
	}
	err := work.Wait()
	keeperErr := stopKeeper(cmp.Or(r.leadershipError(), context.Cause(ctx), err))
	sourceErr := stopSource(nil)
	for _, e := range []error{keeperErr, sourceErr, err} {
		if e != nil && !errors.Is(e, context.Canceled) {
			return e
		}
	}
	return err
}
