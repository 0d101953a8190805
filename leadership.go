package sluicebox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
	"github.com/sluicebox/sluicebox/store/leader"
)

// run alternates between standby and leadership. It ends with the context, or with an
// error that neither a new tenure nor a new session fixes.
func (r *Relay) run(ctx context.Context) error {
	db, err := openDatabase(r.opt)
	if err != nil {
		return err
	}
	defer db.store.Close()
	r.db = db
	if err := r.retryUnreachable(ctx, time.Now().Add(firstConnectTimeout), r.prepare); err != nil {
		return err
	}
	if err := backoff.Sleep(ctx, r.opt().Patience); err != nil {
		return err
	}

	for {
		tenure, err := r.compete(ctx)
		if err != nil {
			return err
		}
		pause := minRestartDelay
		err = r.runAsLeader(ctx, tenure)
		r.moves.end()
		switch {
		case ctx.Err() == nil && errors.Is(err, errHandedOver):
			r.log.Info("leadership handed over", "to", r.moves.to)
			r.health.replaceAll(passedCheck("leader", "handed over to "+r.moves.to), passedCheck("database", "reached"))
			pause = handOverPause
		case ctx.Err() != nil || !errors.Is(err, store.ErrNotLeader):
			return err
		default:
			r.log.Warn("leadership lost", append([]any{"reason", err}, r.successor(ctx)...)...)
			r.health.replaceAll(failedCheck("leader", err.Error()))
		}
		r.observer.SetStandby()
		if err := backoff.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// compete waits until this relay leads. Meanwhile it requests the lead if it is to have it.
func (r *Relay) compete(ctx context.Context) (*leader.Tenure, error) {
	by := &standby{Relay: r}
	candidate := leader.Candidate{Locker: r.db.store, Observer: by}
	if r.opt().HandOver == nil {
		return candidate.Compete(ctx)
	}
	asks, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.requestLead(asks, by)
	}()
	defer func() { stop(); <-ended }()
	return candidate.Compete(ctx)
}

// HandOver moves the lead of a relay to the process that is to have it, while both run. A relay that
// stands by without a failure for After requests the lead from one to which it is preferred. The leader
// that has led as long ends its session as a shutdown does, releases the lock and leaves it to others for a while.
// Each move is to a preferred process, so moves end. For each time that the lead comes back
// soon after it was handed over, the leader keeps it twice as long, up to 128 times After.
type HandOver struct {
	// After is the time between two moves.
	After time.Duration

	// Prefers reports whether a process is to lead rather than another; both are values of
	// Options.Holder, or of another version of the program. All processes must agree.
	Prefers func(process, than string) bool

	// Slots, if not nil, limits the moves of all relays that have it to its capacity at a time. A
	// move that finds it full is requested again.
	Slots chan struct{}
}

const (
	// handOverPause is how long a relay that has handed over leaves the lead to others. A relay that
	// stands by tries every 250 ms.
	handOverPause = 3 * time.Second
	// maxHandOverDoublings limits how long a leader keeps the lead that came back.
	maxHandOverDoublings = 7
	// soonFactor is how many times After may pass until a lead that comes back counts no more.
	soonFactor = 20
)

// errHandedOver ends a tenure whose lead goes to another process.
var errHandedOver = errors.New("leadership handed over")

// moves are the moves of a relay's lead.
type moves struct {
	to    string    // the holder to whom it was handed over last
	at    time.Time // when
	back  int       // how often it came back soon
	inUse chan struct{}
}

// begin takes a slot for a move; false if there is none.
func (m *moves) begin(slots chan struct{}) bool {
	if slots == nil {
		return true
	}
	select {
	case slots <- struct{}{}:
		m.inUse = slots
		return true
	default:
		return false
	}
}

// end gives the slot back. The lock is released.
func (m *moves) end() {
	if m.inUse != nil {
		<-m.inUse
		m.inUse = nil
	}
}

// requestLead requests the lead whenever the relay has stood by for long enough beside a leader to whom it
// is preferred.
func (r *Relay) requestLead(ctx context.Context, by *standby) {
	of := r.opt().HandOver
	for backoff.Sleep(ctx, of.After/4) == nil {
		since, holder := by.steady()
		if holder == "" || time.Since(since) < of.After || !of.Prefers(r.opt().Holder, holder) {
			continue
		}
		asked, cancel := context.WithTimeout(ctx, firstConnectTimeout)
		err := r.db.store.RequestHandOver(asked, r.opt().Holder)
		cancel()
		if err != nil && ctx.Err() == nil {
			r.log.Warn("hand-over not requested; retrying", "error", err)
		}
	}
}

// handOver ends the tenure with errHandedOver once another process is to have the lead and requests
// it. It returns when the context ends.
func (r *Relay) handOver(ctx context.Context, tenure *leader.Tenure, depose func(error)) {
	of, began := r.opt().HandOver, time.Now()
	if !r.moves.at.IsZero() && began.Sub(r.moves.at) < soonFactor*of.After {
		r.moves.back = min(r.moves.back+1, maxHandOverDoublings)
	} else {
		r.moves.back = 0
	}
	var last int64 // the number of the latest request that is not new
	known := false
	for {
		now, err := r.db.store.HandOver(ctx)
		switch {
		case err != nil: // the next request is read
		case !known:
			known, last = true, now.N
		case now.N > last:
			last = now.N
			if time.Since(began) >= of.After<<r.moves.back && of.Prefers(now.To, r.opt().Holder) && r.moves.begin(of.Slots) {
				r.moves.to, r.moves.at = now.To, time.Now()
				r.log.Info("handing leadership over; draining", "to", now.To)
				depose(errHandedOver)
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tenure.HandOverRequested():
		}
	}
}

// successor returns log attributes that name the new leader. They are empty if there is
// none or the database does not answer: a lost session alone does not prove a takeover.
func (r *Relay) successor(ctx context.Context) (attributes []any) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	led := r.epoch.Load()
	now, err := r.db.store.Leader(ctx)
	if err != nil || led == 0 || int64(now.Epoch) <= led {
		return nil
	}
	return []any{"successor", now.Holder, "epoch", int64(now.Epoch)}
}

// runAsLeader runs sessions until the tenure or the context ends. It releases the lock
// after everything it started has ended. When the tenure is over, the error wraps
// store.ErrNotLeader.
func (r *Relay) runAsLeader(ctx context.Context, tenure *leader.Tenure) error {
	defer tenure.Release()
	leads, depose := context.WithCancelCause(ctx)
	defer depose(nil)
	defer context.AfterFunc(ctx, func() { r.log.Info("shutdown started; draining") })()
	// Keep the lock until the relay has drained, also after a signal.
	watch, end := context.WithCancel(context.WithoutCancel(ctx))
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if err := tenure.Run(watch); watch.Err() == nil {
			depose(err)
		}
	}()
	defer func() {
		end()
		<-watched
	}()
	if r.opt().HandOver != nil {
		moved := make(chan struct{})
		go func() {
			defer close(moved)
			r.handOver(leads, tenure, depose)
		}()
		defer func() { depose(nil); <-moved }()
	}
	r.health.replaceAll(passedCheck("leader", "lock acquired; starting"), passedCheck("database", "reached"), failedCheck("source", "not yet reading"))
	r.otherLeader.Store(nil)
	r.epoch.Store(0)
	r.tenure.Store(tenure)
	defer r.claims.Store(nil)
	r.requested = tenure.Requested()
	defer r.tenure.Store(nil)
	err := r.refuseStrayLegs(leads)
	if err == nil {
		err = r.runSessions(leads, tenure)
	}
	// What the loss of the lock interrupts, also a pause between sessions, knows only that its context has ended.
	if cause := context.Cause(leads); errors.Is(cause, store.ErrNotLeader) || errors.Is(cause, errHandedOver) {
		return cause
	}
	return err
}

// leadershipError returns store.ErrNotLeader once the tenure is over, else nil.
func (r *Relay) leadershipError() error {
	t := r.tenure.Load()
	if t == nil {
		return nil
	}
	select {
	case <-t.Lost():
		return store.ErrNotLeader
	default:
		return nil
	}
}

// runSessions starts one session after another. It returns when the context ends, the
// relay is no longer the leader, or a new session would fail in the same way.
func (r *Relay) runSessions(ctx context.Context, tenure *leader.Tenure) error {
	var lost *capture.LostError
	restart := backoff.Doubling{Min: minRestartDelay, Max: maxRestartDelay}
	defer r.reloading.sessionsEnded()
	for {
		began, pause := time.Now(), restart.Next()
		session, end := r.beginSession(ctx)
		err := r.runSession(session, tenure, lost)
		reloaded := errors.Is(context.Cause(session), errReloaded)
		end(nil)
		lost, r.drained = nil, false
		var no *capture.NoStreamError
		switch {
		case errors.Is(context.Cause(ctx), store.ErrNotLeader):
			return err
		case reloaded && ctx.Err() == nil && (err == nil || errors.Is(err, context.Canceled) || errors.Is(err, errReloaded)):
			restart.Reset()
			r.drained = true
			continue
		case errors.Is(err, errLogReadable):
			r.log.Info("log readable; streaming")
			pause = 0
		case errors.As(err, &lost):
			r.observer.LogLost()
			r.log.Error("log lost; taking a new snapshot", "reason", lost.Reason)
		case errors.As(err, &no) && r.hasRun && ctx.Err() == nil:
			r.observer.LogLost()
			r.log.Error("log became unreadable", "reason", no.Problem, "remedy", no.Remedy)
		case errors.Is(err, store.ErrInterrupted):
			r.log.Warn("database unavailable; restarting from checkpoint", "error", err)
		case ctx.Err() == nil && r.canRestart(err):
			r.log.Warn("session failed; restarting from checkpoint", "error", err)
		default:
			return err
		}
		r.health.fail("source", err.Error())
		if time.Since(began) > maxRestartDelay {
			restart.Reset()
		}
		if err := backoff.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// canRestart reports whether a new session may succeed after err. Once the relay has run,
// only a lost leadership or a setup error ends its sessions.
func (r *Relay) canRestart(err error) bool {
	var setup *store.SetupError
	return r.hasRun && !errors.As(err, &setup) && !errors.Is(err, store.ErrNotLeader)
}

// standby reports the relay's state while another relay is the leader. It implements
// leader.Observer.
type standby struct {
	*Relay
	lastReported string // avoids repeated log lines

	mu     sync.Mutex
	holder string    // of the lock
	since  time.Time // when the relay began to stand by beside this holder without a failure
}

// steady returns the holder beside whom the relay stands by, and since when; "" if none is known.
func (s *standby) steady() (since time.Time, holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since, s.holder
}

// setHolder records the holder of the lock, "" if it is not known.
func (s *standby) setHolder(holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder != holder {
		s.holder, s.since = holder, time.Now()
	}
}

// Standby implements leader.Observer.
func (s *standby) Standby(holder string) {
	s.hasRun = true
	s.setHolder(holder)
	s.otherLeader.Store(&holder)
	if holder == "" {
		holder = "another relay"
	}
	detail := "standing by; " + holder + " leads"
	s.health.replaceAll(passedCheck("leader", detail), passedCheck("database", "reached"))
	if s.isNew(detail) {
		s.observer.SetStandby()
		s.log.Info("standing by", "name", s.opt().Name, "leader", holder)
	}
}

// LockFailed implements leader.Observer.
func (s *standby) LockFailed(err error) {
	s.setHolder("")
	s.otherLeader.Store(nil)
	s.health.replaceAll(failedCheck("database", err.Error()))
	if s.isNew(err.Error()) {
		s.log.Warn("leader lock unavailable; retrying", "error", err)
	}
}

// isNew reports whether text differs from the last one.
func (s *standby) isNew(text string) bool {
	before := s.lastReported
	s.lastReported = text
	return text != before
}

// Leader implements admin.Leader.
func (r *Relay) Leader() (leads bool, detail string) {
	if t, epoch := r.tenure.Load(), r.epoch.Load(); t != nil && epoch > 0 {
		if t.IsLeader() {
			return true, fmt.Sprintf("leading, epoch %d", epoch)
		}
		return false, "leadership unconfirmed: no response from the database"
	}
	for _, c := range r.health.Checks() {
		if c.Name == "leader" {
			return false, c.Detail
		}
	}
	return false, "not leading"
}
