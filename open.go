package sluicebox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// retryUnreachable calls do until it succeeds, fails for another reason than an
// unreachable database, or the deadline passes. A zero deadline means no deadline.
func (r *Relay) retryUnreachable(ctx context.Context, deadline time.Time, do func(context.Context) error) error {
	retry := backoff.Doubling{Min: 200 * time.Millisecond, Max: 5 * time.Second}
	for {
		err := do(ctx)
		if err == nil || ctx.Err() != nil || !r.db.Unreachable(err) {
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

// prepare creates missing relay tables if the role may, and checks the configured
// outboxes.
func (r *Relay) prepare(ctx context.Context) error {
	if err := r.db.store.Install(ctx); err != nil {
		return fmt.Errorf("install relay tables: %w", err)
	}
	if err := r.db.store.Check(ctx); err != nil {
		return err
	}
	r.health.ok("database", "reached")
	return nil
}

// openSource opens the log at the relay's position. If the server does not allow that and
// the mode is auto, it opens the polling source instead.
func (r *Relay) openSource(ctx context.Context, lost *capture.LostError) (source, checkpoint.StartPoint, error) {
	mode := r.opt.Mode
	if mode != ModePoll {
		src, err := r.db.newStream()
		if err != nil {
			return nil, checkpoint.StartPoint{}, err
		}
		begin, err := checkpoint.Start(ctx, src, r.db.store, r.opt.tables(), r.opt.smallestBuffer(), lost)
		if err == nil {
			r.observer.Mode(ModeStream)
			r.isPolling.Store(false)
			r.sourceDetail = "reading the log"
			return src, begin, nil
		}
		src.Close()
		var no *capture.NoStreamError
		if mode == ModeStream || !errors.As(err, &no) {
			return nil, begin, err
		}
		r.log.Warn("log unreadable; polling", "reason", no.Problem, "remedy", no.Remedy)
		r.dropUnusedSlot(ctx)
		r.sourceDetail = "polling, because " + no.Error()
	} else {
		r.sourceDetail = "polling"
	}

	src := poll.New(r.opt.pollConfig(), timedViewer{r.db.store, &r.progress}, pollLanes{r})
	r.observer.Mode(ModePoll)
	r.isPolling.Store(true)
	begin, err := checkpoint.Start(ctx, src, r.db.store, r.opt.tables(), r.opt.smallestBuffer(), lost)
	return pollSource{src}, begin, err
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
