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
	store.Replays
	store.ReplayKeeper
	store.ReplayLedger
	store.ReplayReader
	store.Viewer
}

// Past is a source that reads a part of the log once more.
type Past interface {
	capture.Past
	Close()
}

// Keeper has log kept for checkpoints.
type Keeper interface {
	capture.LogKeeper
	Close()
}

// Looker looks how far back a server's log reaches.
type Looker interface {
	capture.LogLooker
	Close()
}

// Live is what the desk asks of the source that the relay reads; see capture.Source.
type Live interface {
	Mark(ctx context.Context, token string) error
	Compare(a, b store.Position) int
	Retained(ctx context.Context) (capture.Retained, error)
}

// Log is the log that the relay reads.
type Log struct {
	Live
	// Origin names the log, see store.Checkpoint.
	Origin string
	// Past returns a source that reads a part of it once more; the caller closes it.
	// It is nil where the log does not hold the rows.
	Past func() (Past, error)
	// Look returns a source that looks how far back the log reaches; the caller closes
	// it. It is nil where log is kept for checkpoints, or holds no rows.
	Look func() (Looker, error)
}

// Stand keeps lanes from moving; see dispatch.Dispatcher.
type Stand interface {
	HoldFor(job string, lane store.LaneKey)
	Still(lane store.LaneKey) (still, paused bool)
	LetGo(job string, lane store.LaneKey)
}

// Sender sends rows of jobs; see dispatch.Dispatcher.
type Sender interface {
	Replay(job string, rows []store.ReplayRow)
	ReplayLoad(job string) (total dispatch.Load, byLane map[store.LaneKey]int, changed <-chan struct{})
	TakeBack(job string)
	Gone() int64
}

// Lanes are those of one sink.
type Lanes interface {
	Stand
	Sender
}

// Sink is one whose lanes stand and that rows are sent to.
type Sink struct {
	Lanes  Lanes
	Config dispatch.Config
}

// NamedObserver is told of named checkpoints; see Observer.
type NamedObserver interface {
	// Named: a checkpoint was made, was refused, or has lost its log.
	Named(n *store.Named)
	// Kept: this is the log that is kept for checkpoints, as of now.
	Kept(list []capture.KeptLog)
}

// Observer is told what the desk does. Calls come from several goroutines and must return
// at once.
type Observer interface {
	NamedObserver
	// Job: this is a job as of now; it came to its state or was looked at.
	Job(j *store.Job)
	// Jobs: these are all jobs as of now, the one asked for last first. The list stays the
	// desk's.
	Jobs(list []store.Job)
	// Skipped: rows of a job were passed over that would have gone to a sink.
	Skipped(sink string, rows int)
	// DeskFailed: something could not be done, and is tried again.
	DeskFailed(err error)
}

// Desk makes named checkpoints and runs replays for the leader of an epoch. Set its
// fields before Run.
type Desk struct {
	Store    Store
	Epoch    store.Epoch
	Outboxes []store.Outbox
	// Sinks are those that rows can be sent to, by name, and Routes gives the name of
	// each outbox's.
	Sinks  map[string]Sink
	Routes map[string]string
	// Log is nil while the relay polls.
	Log *Log
	// Keeper returns what has log kept for checkpoints, where the database can; it is
	// called when that is first needed. Nil where it cannot.
	Keeper func() (Keeper, error)
	// MaxKept is the most bytes of log that are kept for one checkpoint; 0 is no bound.
	MaxKept int64
	// Wished is signalled when there may be new wishes.
	Wished   <-chan struct{}
	Observer Observer

	// pageRows, segmentRows and askEvery are the constants of those names, but in tests.
	pageRows, segmentRows int
	askEvery              time.Duration

	marks  marks
	keeper keeping
	reader reader
	// toName and toRun are signalled when there is something to look at.
	toName, toRun chan struct{}
	stuck         map[string]*stuck
}

// Run makes checkpoints and runs jobs until the context ends, and returns its error, or
// one that wraps store.ErrNotLeader. It may be called once.
func (d *Desk) Run(ctx context.Context) error {
	d.toName, d.toRun, d.stuck = make(chan struct{}, 1), make(chan struct{}, 1), map[string]*stuck{}
	defer d.keeper.close()
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return d.listen(ctx) })
	work.Go(func() error { return d.attend(ctx, d.toName, d.names) })
	work.Go(func() error { return d.attend(ctx, d.toRun, d.jobs) })
	return work.Wait()
}

// listen passes on that there are wishes.
func (d *Desk) listen(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.Wished:
			notify(d.toName)
			notify(d.toRun)
		}
	}
}

// again is the pause before a round that failed is made again.
const again = 5 * time.Second

// attend makes rounds: one at once, one for each signal, and one after the time that
// the last one asked for, if it is not 0.
func (d *Desk) attend(ctx context.Context, signal <-chan struct{}, round func(context.Context) (time.Duration, error)) error {
	for {
		next, err := round(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, store.ErrNotLeader):
			return err
		case err != nil:
			d.Observer.DeskFailed(err)
			next = again
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

// rest waits, unless the context ends.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
