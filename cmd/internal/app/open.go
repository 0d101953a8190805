package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/checkpoint"
)

// reach does something that needs the database, again while the database cannot
// be reached and the deadline (if there is one) has not passed.
func (r *relay) reach(ctx context.Context, deadline time.Time, do func(context.Context) error) error {
	const first, most = 200 * time.Millisecond, 5 * time.Second
	for wait := first; ; wait = min(2*wait, most) {
		err := do(ctx)
		if err == nil || ctx.Err() != nil || !r.db.unreachable(err) {
			return err
		}
		if !deadline.IsZero() && time.Now().Add(wait).After(deadline) {
			return fmt.Errorf("the database could not be reached or read for %s: %w", patience, err)
		}
		r.log.Warn("the database cannot be reached; trying again", "error", err, "wait", wait)
		r.health.fail("database", err.Error())
		if err := rest(ctx, wait); err != nil {
			return err
		}
	}
}

// prepare makes the relay's own tables where they are missing and it may, and
// checks everything that it works on.
func (r *relay) prepare(ctx context.Context) error {
	if err := r.db.store.Install(ctx); err != nil {
		return fmt.Errorf("make the relay's own tables: %w", err)
	}
	if err := r.db.store.Check(ctx); err != nil {
		return err
	}
	r.health.ok("database", "reached")
	return nil
}

// open finds the place to go on from: in the log, or, where the server does not
// let the relay read it and the mode allows, in the tables.
func (r *relay) open(ctx context.Context, lost *capture.LostError) (source, checkpoint.Begin, error) {
	mode := r.cfg.Settings.Source.Mode
	if mode != "poll" {
		src, err := r.db.stream()
		if err != nil {
			return nil, checkpoint.Begin{}, err
		}
		begin, err := checkpoint.Start(ctx, src, r.db.store, r.cfg.Outboxes(), r.cfg.Buffer(), lost)
		if err == nil {
			r.metrics.Mode("stream")
			r.polls.Store(false)
			r.reading = "reading the log"
			return src, begin, nil
		}
		src.Close()
		var no *capture.NoStreamError
		if mode == "stream" || !errors.As(err, &no) {
			return nil, begin, err
		}
		r.log.Warn("polling, because the log cannot be read", "reason", no.Problem, "to stream", no.Remedy)
		r.abandon(ctx)
		r.reading = "polling, because " + no.Error()
	} else {
		r.reading = "polling"
	}
	src := poll.New(r.cfg.Poll(), reader{r.db.store, &r.progress}, polled{r})
	r.metrics.Mode("poll")
	r.polls.Store(true)
	begin, err := checkpoint.Start(ctx, src, r.db.store, r.cfg.Outboxes(), r.cfg.Buffer(), lost)
	return pollSource{src}, begin, err
}

// abandon gives up what a log is kept for that is not read.
func (r *relay) abandon(ctx context.Context) {
	if r.db.abandon == nil {
		return
	}
	if err := r.db.abandon(ctx); err != nil {
		r.log.Warn("the place in the log is still kept, and with it the log", "error", err)
	}
}

// pollSource is a polling source, which has nothing to close.
type pollSource struct{ *poll.Source }

func (pollSource) Close() {}
