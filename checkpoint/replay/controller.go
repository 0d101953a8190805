package replay

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// Store is the part of a store that the Controller needs.
type Store interface {
	Tables
	store.ReplayLister
	store.ReplayWriter
	store.ReplayFinisher
	store.ReplayReader
}

// Tables is what a Controller reads from the outbox tables.
type Tables interface {
	store.Viewer
	store.RowStatusReader
}

// HistoryReader is a source that reads a range of the log again.
type HistoryReader interface {
	capture.HistoryReader
	Close()
}

// SlotRetainer retains log for named checkpoints.
type SlotRetainer interface {
	capture.SlotRetainer
	Close()
}

// RetentionChecker checks how far back a server's log reaches.
type RetentionChecker interface {
	capture.RetentionChecker
	Close()
}

// LiveSource is the part of the relay's source that the Controller needs; see
// capture.Source.
type LiveSource interface {
	Mark(ctx context.Context, token string) error
	Compare(a, b store.Position) int
	Retained(ctx context.Context) (capture.RetainedLog, error)
}

// Log is the log that the relay reads.
type Log struct {
	LiveSource

	// Origin identifies the log; see store.Checkpoint.
	Origin string

	// OpenHistory returns a source that reads a range of the log again. The caller
	// closes it. It is nil if the log does not hold the rows.
	OpenHistory func() (HistoryReader, error)

	// OpenRetention returns a source that checks how far back the log reaches. The
	// caller closes it. It is nil if log is retained per checkpoint, or the log holds
	// no rows.
	OpenRetention func() (RetentionChecker, error)
}

// LaneHolder holds live lanes during a replay; see dispatch.Dispatcher.
type LaneHolder interface {
	HoldForReplay(job string, lane store.LaneKey)
	HeldLane(lane store.LaneKey) dispatch.HeldLane
	ReleaseReplayHold(job string, lane store.LaneKey)
}

// Sender sends rows of jobs; see dispatch.Dispatcher.
type Sender interface {
	Replay(job string, rows []store.ReplayRow)
	ReplayLoad(job string) (total dispatch.JobLoad, byLane map[store.LaneKey]int, changed <-chan struct{})
	WithdrawReplay(job string)
	DoneCount() int64
}

// Lanes are the lanes of one sink.
type Lanes interface {
	LaneHolder
	Sender
}

// Sink is a sink with lanes to hold and to send to.
type Sink struct {
	Lanes  Lanes
	Config dispatch.Config
}

// SavepointObserver receives the events of named checkpoints; see Observer.
type SavepointObserver interface {
	// SavepointChanged reports that a checkpoint was created or refused, or has lost
	// its log.
	SavepointChanged(n *store.Savepoint)

	// LogsRetained reports the log that the database currently retains for
	// checkpoints.
	LogsRetained(list []capture.RetainedSlot)
}

// Observer receives the events of a Controller. Several goroutines call its methods,
// which must return at once.
type Observer interface {
	SavepointObserver

	// Job reports the current state of a job, after a change or a read.
	Job(j *store.Job)

	// Jobs reports all jobs, the latest request first. The Controller reuses the list:
	// an observer that keeps it makes a copy.
	Jobs(list []store.Job)

	// Skipped reports rows of a job that were not sent to a sink.
	Skipped(sink string, rows int)

	// ControllerFailed reports a failed step. The Controller retries it.
	ControllerFailed(err error)
}

// Options are what a Controller works with.
type Options struct {
	Store    Store
	Epoch    store.Epoch
	Outboxes []store.Outbox

	// Sinks are the possible receivers by name. Routes has the name of the sink of
	// each outbox without routes, and of each leg.
	Sinks  map[string]Sink
	Routes map[string]string

	// Legs, if not nil, returns the names of the legs that get a row of an outbox with routes. A
	// job names the legs that it sends rows to.
	Legs func(it *store.Item) []string

	// Log is nil while the relay polls.
	Log *Log

	// OpenRetainer returns a SlotRetainer. It is called when one is first needed, and
	// is nil if the database cannot retain log for a checkpoint.
	OpenRetainer func() (SlotRetainer, error)

	// MaxRetainedBytes is the maximum log in bytes that is retained for one
	// checkpoint, 0 for no bound.
	MaxRetainedBytes int64

	// RequestsChanged receives a signal when there may be new requests.
	RequestsChanged <-chan struct{}
	Observer        Observer
}

// Controller creates named checkpoints and runs replays for the leader of an epoch.
type Controller struct {
	Options
	legs         legNames
	limits       limits
	markers      pendingMarkers
	retainer     lazyRetainer
	activeReader logReader

	// savepointsChanged and jobsChanged receive a signal when there is work to do.
	savepointsChanged, jobsChanged chan struct{}
	retries                        map[string]retryState
}

// limits are constants, except in tests.
type limits struct {
	pageRows, segmentRows            int
	retentionInterval, markerTimeout time.Duration
}

// New returns a controller. It starts nothing.
func New(opt Options) *Controller {
	return &Controller{
		Options: opt, legs: newLegNames(opt.Outboxes), limits: limits{pageRows, segmentRows, retentionInterval, markerTimeout},
		savepointsChanged: make(chan struct{}, 1), jobsChanged: make(chan struct{}, 1), retries: map[string]retryState{},
	}
}

// Run creates checkpoints and runs jobs until the context ends. It returns the
// context's error, or one that wraps store.ErrNotLeader. It may be called once.
func (d *Controller) Run(ctx context.Context) error {
	defer d.retainer.close()
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return d.forwardRequests(ctx) })
	work.Go(func() error { return d.runRounds(ctx, d.savepointsChanged, d.reconcileSavepoints) })
	work.Go(func() error { return d.runRounds(ctx, d.jobsChanged, d.runJobs) })
	return work.Wait()
}

// forwardRequests forwards RequestsChanged to both loops.
func (d *Controller) forwardRequests(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.RequestsChanged:
			notify(d.savepointsChanged)
			notify(d.jobsChanged)
		}
	}
}

// retryInterval is the pause before a failed round is retried.
const retryInterval = 5 * time.Second

// runRounds calls round at once, after each signal, and after the time that the last
// round returned, unless that is 0.
func (d *Controller) runRounds(ctx context.Context, signal <-chan struct{}, round func(context.Context) (time.Duration, error)) error {
	for {
		next, err := round(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, store.ErrNotLeader):
			return err
		case err != nil:
			d.Observer.ControllerFailed(err)
			next = retryInterval
		}
		var due <-chan time.Time
		if next > 0 {
			due = time.After(next)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-signal:
		case <-due:
		}
	}
}

func notify(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}
