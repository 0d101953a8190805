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
	// firstRest and mostRest bound the wait before another life: what ended one
	// may end the next at once.
	firstRest = 100 * time.Millisecond
	mostRest  = 10 * time.Second
)

// relay is one relay from start to end.
type relay struct {
	cfg     *config.Config
	log     *slog.Logger
	version string
	metrics *Metrics
	health  *health
	db      *database
	began   time.Time
	// progress is that of the life that runs.
	progress progress
	failed   failedRows // as last counted
	// tenure is nil while another relay leads.
	tenure atomic.Pointer[leader.Tenure]
	epoch  atomic.Int64           // of the tenure's latest life, 0 before it has begun
	other  atomic.Pointer[string] // who leads instead, as far as is known
	// lanes are the dispatchers of the life that runs, by sink; for the gauges
	// and for polling.
	lanes  atomic.Pointer[map[string]*dispatch.Dispatcher]
	ran    bool            // a life got as far as to have lanes, or another relay leads
	polls  atomic.Bool     // the tables are read, not the log
	wished <-chan struct{} // of the tenure
	// replays is what the desk of the life that runs has to do, nil before it looked.
	replays atomic.Pointer[admin.ReplayStatus]
	// reading says what is read, and why; it is set before a life begins.
	reading string
}

// rest waits, unless the context ends.
func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// live is one life: from a place in the log until the context ends, the log is
// lost, or another relay leads. lost says how the life before it ended.
func (r *relay) live(ctx context.Context, tenure *leader.Tenure, lost *capture.LostError) error {
	sinks, err := r.sinks() // before anything is made that a relay must look after
	if err != nil {
		return err
	}
	defer sinks.close()
	var src source
	var begin checkpoint.Begin
	err = r.reach(ctx, time.Time{}, func(ctx context.Context) (err error) {
		src, begin, err = r.open(ctx, lost)
		return err
	})
	if err != nil {
		return err
	}
	defer src.Close()
	epoch := begin.Epoch
	r.metrics.Leads(epoch)
	r.epoch.Store(int64(epoch))
	r.health.ok("leader", fmt.Sprintf("leading, epoch %d", epoch))
	r.log.Info("leading", "name", r.cfg.Settings.Name, "epoch", epoch, "position", begin.From,
		"backlog", int64(len(begin.Backlog))+begin.Parked, "why", begin.Why)

	var holds []store.Hold
	lanes, routes := r.dispatchers(sinks.sinks, epoch, tenure)
	err = r.reach(ctx, time.Time{}, func(ctx context.Context) (err error) {
		if holds, err = r.db.store.LoadHolds(ctx); err == nil {
			err = r.db.store.ParkedLanes(ctx, func(l store.ParkedLane) { routes[l.Outbox].RestoreParked(l) })
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("read which message groups stand still: %w", err)
	}
	r.restore(routes, holds)
	if err := r.takeBlocks(ctx, &begin, routes); err != nil {
		return err
	}
	tracker := checkpoint.NewTracker(begin.Frontier)
	feed := dispatch.NewFeed(tracker, epoch, routes, r.metrics.Captured)
	if begin.Why != "" {
		if err := feed.Backlog(begin.Backlog, begin.Parked, begin.From); err != nil {
			return err
		}
	}
	defer r.progress.begin(r.strides(&begin, tracker, feed))()
	r.lanes.Store(&lanes)
	r.ran = true
	defer r.lanes.Store(nil)
	defer r.replays.Store(nil)
	urge := make(chan struct{}, 1)
	keeper := &checkpoint.Keeper{
		Config: checkpoint.DefaultKeeperConfig(), Tracker: tracker, Store: r.db.store,
		Source: src, Epoch: epoch, Observer: checkpointWatch{r}, Urged: urge,
	}
	if begin.Why == "" {
		src.Acknowledge(begin.From) // it is saved; the server may not have heard
	}
	return r.flow(ctx, src, begin.From, feed, lanes, keeper, append(r.besides(src, feed, lanes, urge, &begin), sinks.keepOpen))
}

// besides returns what a life does besides the way of the rows: it looks for rows
// that were set back, for a log that can be read or that grows too long, for rows
// that were kept long enough.
func (r *relay) besides(src source, feed *dispatch.Feed, lanes map[string]*dispatch.Dispatcher,
	urge chan<- struct{}, begin *checkpoint.Begin,
) []func(context.Context) error {
	epoch := begin.Epoch
	retainer := &checkpoint.Retainer{Tables: r.db.store, Epoch: epoch, Outboxes: r.cfg.Outboxes(), Observer: retainWatch{r}}
	r.metrics.Paused(false)
	r.metrics.Retained(0, 0)
	desk := r.desk(epoch, lanes)
	if r.polls.Load() { // polling finds what a sweep would
		return []func(context.Context) error{retainer.Run, desk.Run, r.watchLog}
	}
	desk.Log = &replay.Log{Live: src, Origin: begin.Frontier.Origin, Past: r.db.past, Look: r.db.look}
	sweeper := &checkpoint.Sweeper{
		Interval: r.cfg.Settings.Checkpoint.SweepInterval, Outboxes: r.cfg.Outboxes(), Most: r.cfg.Buffer(),
		Source: src, Tables: r.db.store, Lanes: feed, Observer: sweepWatch{r}, Epoch: epoch, CaughtUp: feed.CaughtUp,
	}
	feed.Marked = func(token string, at store.Position, seq store.Seq) {
		sweeper.Marked(token)
		desk.Marked(token, at, seq)
	}
	feed.CatchUp(r.db.store)
	feed.ClaimsTell = r.claimsTell()
	feed.Parks = true
	pressure := &pressure{relay: r, source: src, feed: feed, lanes: lanes, urge: urge}
	return []func(context.Context) error{retainer.Run, sweeper.Run, pressure.run, desk.Run}
}

// claimsTell reports whether every claim finds out if its row is settled.
func (r *relay) claimsTell() bool {
	return !slices.ContainsFunc(r.cfg.Outboxes(), func(o store.Outbox) bool { return !o.Layout.WritesClaims() })
}

// errReadable ends a life that polls, because the log can be read.
var errReadable = errors.New("the log can be read")

// readableEvery is how often a relay that polls for want of a log asks again.
const readableEvery = 5 * time.Second

// watchLog ends a life that polls as soon as the log can be read, where the
// configuration leaves the choice to the relay.
func (r *relay) watchLog(ctx context.Context) error {
	if r.cfg.Settings.Source.Mode == "poll" || r.db.readable == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	log, err := r.db.readable()
	if err != nil {
		return err
	}
	defer log.Close()
	_ = log.Ready(ctx) // it could not be read a moment ago
	why := ""
	for {
		if err := rest(ctx, readableEvery); err != nil {
			return err
		}
		err := log.Ready(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			return errReadable
		case err.Error() != why:
			why = err.Error()
			r.log.Warn("polling goes on, because the log cannot be read", "reason", why)
		}
	}
}

// flow runs the parts of a life. They end in the order of the row's way: the
// feed and the dispatchers first, which drain; then the keeper, which saves what
// they settled; then the source, which tells the server.
func (r *relay) flow(ctx context.Context, src source, from store.Position, feed *dispatch.Feed,
	lanes map[string]*dispatch.Dispatcher, keeper *checkpoint.Keeper, others []func(context.Context) error,
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

	batches := make(chan capture.Batch, config.BatchesAhead)
	src.Resume().MaxPayload = r.cfg.MaxCarried()
	stopSource := part(func(ctx context.Context) error {
		return capture.Follow(ctx, src, from, batches, sourceWatch{r})
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
	keeperErr := stopKeeper(cmp.Or(r.deposed(), context.Cause(ctx), err))
	sourceErr := stopSource(nil)
	for _, e := range []error{keeperErr, sourceErr, err} {
		if e != nil && !errors.Is(e, context.Canceled) {
			return e
		}
	}
	return err
}
