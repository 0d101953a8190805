package sluicebox

import (
	"context"
	"errors"
	"fmt"
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
		candidate := leader.Candidate{Locker: db.store, Observer: &standby{Relay: r}}
		tenure, err := candidate.Compete(ctx)
		if err != nil {
			return err
		}
		err = r.runAsLeader(ctx, tenure)
		if ctx.Err() != nil || !errors.Is(err, store.ErrNotLeader) {
			return err
		}
		r.log.Warn("leadership lost", append([]any{"reason", err}, r.successor(ctx)...)...)
		r.observer.SetStandby()
		r.health.replaceAll(failedCheck("leader", err.Error()))
		if err := backoff.Sleep(ctx, minRestartDelay); err != nil {
			return err
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
	if cause := context.Cause(leads); errors.Is(cause, store.ErrNotLeader) {
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
}

// Standby implements leader.Observer.
func (s *standby) Standby(holder string) {
	s.hasRun = true
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
