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

// Store is what the desk asks of a store.
type Store interface {
	store.ReplayLister
	store.ReplayWriter
	store.ReplayFinisher
	store.ReplayReader
	store.Viewer
}

// HistoryReader is a source that reads a part of the log once more.
type HistoryReader interface {
	capture.HistoryReader
	Close()
}

// SlotRetainer has log kept for checkpoints.
type SlotRetainer interface {
	capture.SlotRetainer
	Close()
}

// RetentionChecker looks how far back a server's log reaches.
type RetentionChecker interface {
	capture.RetentionChecker
	Close()
}

// LiveSource is what the desk asks of the source that the relay reads; see capture.Source.
type LiveSource interface {
	Mark(ctx context.Context, token string) error
	Compare(a, b store.Position) int
	Retained(ctx context.Context) (capture.RetainedLog, error)
}

// Log is the log that the relay reads.
type Log struct {
	LiveSource
	// Origin names the log, see store.Checkpoint.
	Origin string
	// OpenHistory returns a source that reads a part of it once more; the caller closes it.
	// It is nil where the log does not hold the rows.
	OpenHistory func() (HistoryReader, error)
	// OpenRetention returns a source that looks how far back the log reaches; the caller closes
	// it. It is nil where log is kept for checkpoints, or holds no rows.
	OpenRetention func() (RetentionChecker, error)
}

// LaneHolder keeps lanes from moving; see dispatch.Dispatcher.
type LaneHolder interface {
	HoldForReplay(job string, lane store.LaneKey)
	Quiescent(lane store.LaneKey) (still, paused bool)
	ReleaseReplayHold(job string, lane store.LaneKey)
}

// ReplaySender sends rows of jobs; see dispatch.Dispatcher.
type ReplaySender interface {
	Replay(job string, rows []store.ReplayRow)
	ReplayLoad(job string) (total dispatch.JobLoad, byLane map[store.LaneKey]int, changed <-chan struct{})
	WithdrawReplay(job string)
	DoneCount() int64
}

// Lanes are those of one sink.
type Lanes interface {
	LaneHolder
	ReplaySender
}

// Sink is one whose lanes stand and that rows are sent to.
type Sink struct {
	Lanes  Lanes
	Config dispatch.Config
}

// SavepointObserver is told of named checkpoints; see Observer.
type SavepointObserver interface {
	// SavepointChanged: a checkpoint was made, was refused, or has lost its log.
	SavepointChanged(n *store.Savepoint)
	// LogsRetained: this is the log that is kept for checkpoints, as of now.
	LogsRetained(list []capture.RetainedSlot)
}

// Observer is told what the desk does. Calls come from several goroutines and must return
// at once.
type Observer interface {
	SavepointObserver
	// Job: this is a job as of now; it came to its state or was looked at.
	Job(j *store.Job)
	// Jobs: these are all jobs as of now, the one asked for last first. The list stays the
	// desk's.
	Jobs(list []store.Job)
	// Skipped: rows of a job were passed over that would have gone to a sink.
	Skipped(sink string, rows int)
	// ControllerFailed: something could not be done, and is tried again.
	ControllerFailed(err error)
}

// Controller makes named checkpoints and runs replays for the leader of an epoch. Set its
// fields before Run.
type Controller struct {
	Store    Store
	Epoch    store.Epoch
	Outboxes []store.Outbox
	// Sinks are those that rows can be sent to, by name, and Routes gives the name of
	// each outbox's.
	Sinks  map[string]Sink
	Routes map[string]string
	// Log is nil while the relay polls.
	Log *Log
	// OpenRetainer returns what has log kept for checkpoints, where the database can; it is
	// called when that is first needed. Nil where it cannot.
	OpenRetainer func() (SlotRetainer, error)
	// MaxRetainedBytes is the most bytes of log that are kept for one checkpoint; 0 is no bound.
	MaxRetainedBytes int64
	// RequestsChanged is signalled when there may be new wishes.
	RequestsChanged <-chan struct{}
	Observer        Observer

	// pageRows, segmentRows and askEvery are the constants of those names, but in tests.
	pageRows, segmentRows int
	retentionInterval     time.Duration

	markers      pendingMarkers
	retainer     lazyRetainer
	activeReader logReader
	// savepointsChanged and jobsChanged are signalled when there is something to look at.
	savepointsChanged, jobsChanged chan struct{}
	retries                        map[string]*retryState
}

// Run makes checkpoints and runs jobs until the context ends, and returns its error, or
// one that wraps store.ErrNotLeader. It may be called once.
func (d *Controller) Run(ctx context.Context) error {
	d.savepointsChanged, d.jobsChanged, d.retries = make(chan struct{}, 1), make(chan struct{}, 1), map[string]*retryState{}
	defer d.retainer.close()
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return d.forwardRequests(ctx) })
	work.Go(func() error { return d.runRounds(ctx, d.savepointsChanged, d.reconcileSavepoints) })
	work.Go(func() error { return d.runRounds(ctx, d.jobsChanged, d.runJobs) })
	return work.Wait()
}

// forwardRequests passes on that there are wishes.
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

// retryInterval is the pause before a round that failed is made again.
const retryInterval = 5 * time.Second

// runRounds makes rounds: one at once, one for each signal, and one after the time that
// the last one asked for, if it is not 0.
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

// sleep waits, unless the context ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
