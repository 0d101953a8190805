package sluicebox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// retryUnreachable calls do until it succeeds, fails for another reason than an
// unreachable database, or the deadline passes. A zero deadline means no deadline.
func (r *Relay) retryUnreachable(ctx context.Context, deadline time.Time, do func(context.Context) error) error {
	retry := backoff.Doubling{Min: 200 * time.Millisecond, Max: 5 * time.Second}
	for {
		err := do(ctx)
		if err == nil || ctx.Err() != nil || !r.db.Unreachable(err) && !errors.Is(err, errNoAnswer) {
			return err
		}
		wait := retry.Next()
		if !deadline.IsZero() && time.Now().Add(wait).After(deadline) {
			return fmt.Errorf("database unreachable for %s: %w", firstConnectTimeout, err)
		}
		r.log.Warn("database unreachable; retrying", "error", err, "wait", wait)
		r.health.fail("database", err.Error())
		if err := backoff.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// errNoAnswer says that the database did not answer a read in time. A retry may succeed.
var errNoAnswer = errors.New("no answer")

// firstReadTimeout is how long the first attempt of a read may take. It is long, because a
// database that starts with a cold cache is slow.
const firstReadTimeout = 30 * time.Second

// readPatiently is retryUnreachable without a deadline for a read that may hang. Each attempt has
// twice the time of the one before, because there may be much to read.
func (r *Relay) readPatiently(ctx context.Context, do func(context.Context) error) error {
	limit := firstReadTimeout
	return r.retryUnreachable(ctx, time.Time{}, func(ctx context.Context) error {
		bounded, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		err := do(bounded)
		if err != nil && bounded.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w within %s: %w", errNoAnswer, limit, err)
			limit *= 2
		}
		return err
	})
}

// prepare creates missing relay tables if the role may, and checks the configured
// outboxes.
func (r *Relay) prepare(ctx context.Context) error {
	if err := r.db.store.Install(ctx); err != nil {
		return err
	}
	if err := r.db.store.Check(ctx); err != nil {
		return err
	}
	r.health.ok("database", "reached")
	return nil
}

// openSource opens the log at the relay's position. If the server does not allow that and
// the mode is auto, it opens the polling source instead, if polling finds every row.
func (r *Relay) openSource(ctx context.Context, lost *capture.LostError) (source, *sessionStore, checkpoint.StartPoint, error) {
	mode := r.opt().Mode
	if mode != ModePoll {
		src, err := r.db.newStream()
		if err != nil {
			return nil, nil, checkpoint.StartPoint{}, err
		}
		st, begin, err := r.start(ctx, src, false, lost)
		if err == nil {
			r.observer.Mode(ModeStream)
			r.isPolling.Store(false)
			r.hasPositions.Store(true)
			r.sourceDetail = "reading the log"
			return src, st, begin, nil
		}
		src.Close()
		var no *capture.NoStreamError
		if mode == ModeStream || !errors.As(err, &no) || !poll.ShowsUnsettled(r.opt().tables()) {
			return nil, nil, begin, err // the slot stays, because only it may have the rows
		}
		r.log.Warn("log unreadable; polling", "reason", no.Problem, "remedy", no.Remedy)
		r.dropUnusedSlot(ctx)
		r.sourceDetail = "polling, because " + no.Error()
	} else {
		r.sourceDetail = "polling"
	}

	src, views, lanes := source(nil), timedViewer{r.db.store, &r.progress}, &pollLanes{Relay: r}
	byPosition := poll.ReadsByPosition(r.opt().tables())
	if byPosition {
		src = poll.NewTail(r.opt().pollConfig(), views)
		r.sourceDetail += " by position"
	} else {
		views.Viewer = pollViewer{r.db.store, lanes}
		src = pollSource{poll.New(r.opt().pollConfig(), views, lanes)}
	}
	r.observer.Mode(ModePoll)
	r.isPolling.Store(true)
	r.hasPositions.Store(byPosition)
	st, begin, err := r.start(ctx, src, !byPosition, lost)
	if err == nil {
		lanes.join = st.join
	}
	return src, st, begin, err
}

// start starts at the saved checkpoint, or with a snapshot. polling is a source without positions.
func (r *Relay) start(ctx context.Context, src checkpoint.Opener, polling bool, lost *capture.LostError) (*sessionStore, checkpoint.StartPoint, error) {
	st, err := r.newSessionStore(polling)
	if err != nil {
		return nil, checkpoint.StartPoint{}, err
	}
	tables := st.laneStore
	if st.fan != nil {
		tables = startStore{tables, st.join, st.fan}
	}
	begin, err := checkpoint.Start(ctx, src, tables, r.opt().tables(), r.opt().smallestBuffer(), lost)
	return st, begin, err
}

// dropUnusedSlot drops the replication slot, so that a polling relay does not make the
// server retain WAL.
func (r *Relay) dropUnusedSlot(ctx context.Context) {
	if err := r.db.dropSlot(ctx); err != nil {
		r.log.Warn("replication slot not dropped; server retains WAL", "error", err)
	}
}

// pollSource is a polling source. It has nothing to close.
type pollSource struct{ *poll.Source }

func (pollSource) Close() {}

// Database opens the store and the log of one database. The type Database of
// capture/postgres, capture/mysql, capture/mongo and capture/sqlite implements it.
type Database interface {
	// Store returns the store of a relay, without a connection.
	Store(of store.Settings) (ledger.Store, error)

	// Stream returns a source that reads the log, without a connection. The source may also
	// be a capture.HistoryReader, SlotRetainer, RetentionChecker, ReadinessChecker or
	// SlotDropper.
	Stream(of capture.Settings) (capture.Stream, error)

	// MaxSilence is the longest time between two messages of the log. 0: a log may be silent.
	MaxSilence() time.Duration

	// Unreachable reports whether an error may pass by itself, so that a retry makes sense.
	Unreachable(err error) bool
}

// source is a capture source that capture.Follow can run and that holds sessions.
type source interface {
	capture.Resumer
	Close()
}

// readinessChecker is a capture.ReadinessChecker with sessions.
type readinessChecker interface {
	capture.ReadinessChecker
	Close()
}

// slotDropper is a capture.SlotDropper with sessions.
type slotDropper interface {
	capture.SlotDropper
	Close()
}

// database is a Database in use. A function is nil if the database has no such component.
type database struct {
	Database
	store               ledger.Store
	newStream           func() (capture.Stream, error)
	newReadinessChecker func() (readinessChecker, error)
	newHistoryReader    func() (replay.HistoryReader, error)
	newSlotRetainer     func() (replay.SlotRetainer, error)
	newRetentionChecker func() (replay.RetentionChecker, error)
	newSlotDropper      func() (slotDropper, error)
}

// openDatabase opens the database of a relay with these options, without a connection. Close its
// store when done.
func openDatabase(options func() *Options) (*database, error) {
	o := options()
	st, err := o.Database.Store(store.Settings{Name: o.Name, Holder: o.Holder, Outboxes: o.tables(), TakeoverTimeout: o.TakeoverTimeout, IdleTimeout: o.IdleTimeout})
	if err != nil {
		return nil, err
	}
	db := &database{Database: o.Database, store: st, newStream: func() (capture.Stream, error) {
		return o.Database.Stream(capture.Settings{Name: o.Name, Outboxes: o.tables(), MaxBatchBytes: options().maxBatchBytes()})
	}}
	src, err := db.newStream()
	if err != nil {
		return db, nil // opening the log reports the error
	}
	defer src.Close()
	db.newReadinessChecker = streamAs[readinessChecker](db.newStream, src)
	db.newHistoryReader = streamAs[replay.HistoryReader](db.newStream, src)
	db.newSlotRetainer = streamAs[replay.SlotRetainer](db.newStream, src)
	db.newRetentionChecker = streamAs[replay.RetentionChecker](db.newStream, src)
	db.newSlotDropper = streamAs[slotDropper](db.newStream, src)
	return db, nil
}

// streamAs returns a function that opens another source as a component, or nil if the
// sources of the database are no such component.
func streamAs[T any](open func() (capture.Stream, error), example capture.Stream) func() (T, error) {
	if _, is := example.(T); !is {
		return nil
	}
	return func() (component T, err error) {
		src, err := open()
		if err != nil {
			return component, err
		}
		return src.(T), nil
	}
}

// dropSlot drops the slot of the relay, if the database has slots.
func (d *database) dropSlot(ctx context.Context) error {
	if d.newSlotDropper == nil {
		return nil
	}
	src, err := d.newSlotDropper()
	if err != nil {
		return err
	}
	defer src.Close()
	return src.DropSlot(ctx)
}

// HolderName identifies this process as a leader, e.g. "db1 process 812". It is the default of
// Options.Holder.
func HolderName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s process %d", host, os.Getpid())
}
