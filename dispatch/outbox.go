package dispatch

import (
	"context"
	"fmt"
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/store"
)

// PauseOutbox keeps all lanes of an outbox from moving until ResumeOutbox, across restarts,
// replay lanes included. They claim nothing and begin no request; a request in flight ends
// first. Their rows are spilled like those of a receiver that is down. The pause is durable when
// PauseOutbox returns. Another pause replaces the reason and the time.
func (d *Dispatcher) PauseOutbox(ctx context.Context, outbox, reason string) error {
	d.operatorMu.Lock()
	defer d.operatorMu.Unlock()
	h := store.Hold{Lane: store.PauseOfOutbox(outbox), Kind: store.OutboxPaused, Reason: reason, Since: time.Now()}
	if err := d.opt.Store.Hold(ctx, d.opt.Epoch, h); err != nil {
		return err
	}
	d.change(func(c *core) { c.operator.pauseOutbox(&h) })
	return nil
}

// ErrNotPaused is returned if an outbox to resume is not paused.
var ErrNotPaused = fmt.Errorf("%w: outbox is not paused", ErrLaneState)

// ResumeOutbox ends a pause of an outbox durably. Lanes that were paused one by one stay paused.
func (d *Dispatcher) ResumeOutbox(ctx context.Context, outbox string) error {
	d.operatorMu.Lock()
	defer d.operatorMu.Unlock()
	d.mu.Lock()
	paused := d.core.lanes.OutboxPause(outbox) != nil
	d.mu.Unlock()
	if !paused {
		return ErrNotPaused
	}
	return d.release(ctx, store.PauseOfOutbox(outbox), store.OutboxPaused, func(c *core) { c.operator.resumeOutbox(outbox) })
}

// errOutboxPaused is returned if a pause keeps the rows of an outbox where they are.
var errOutboxPaused = fmt.Errorf("%w: outbox is paused; resume it first", ErrLaneState)

// SkipOutbox passes over all rows of an outbox that wait now, in memory or spilled, and returns
// their number. Each becomes FAILED with the reason as its error, in the background and in the
// order of its lane, so it can still be requeued. A row in flight is skipped only if its request
// fails. Rows that come later are sent. Spilled rows of a lane on hold stay.
//
// A restart ends the action: rows that were not skipped by then are sent.
func (d *Dispatcher) SkipOutbox(outbox, reason string) (rows int, err error) {
	d.operatorMu.Lock()
	defer d.operatorMu.Unlock()
	d.mu.Lock()
	paused := d.core.lanes.OutboxPause(outbox) != nil
	rows = d.core.outboxStats(outbox).Waiting
	d.mu.Unlock()
	if paused {
		return 0, errOutboxPaused
	}
	d.change(func(c *core) { c.operator.skipOutbox(outbox, reason, store.NewSeq(d.opt.Epoch, 0), time.Now()) })
	return rows, nil
}

// OutboxStats is a snapshot of the rows that a dispatcher holds of one outbox, without replayed
// rows.
type OutboxStats struct {
	Rows    int // in memory
	Spilled int // in the spilled rows of the store; some are in memory too
	Waiting int // in memory or spilled, each counted once

	// Oldest is the commit time of the oldest row in memory, or its capture time if the log has
	// no commit time; zero if no row is in memory.
	Oldest time.Time

	Blocked, Paused int // lanes; a pause of the whole outbox does not count

	// Pause is the pause of the whole outbox; nil if it is not paused.
	Pause *store.Hold

	// BreakerOpen: rows wait for an endpoint with an open circuit breaker.
	BreakerOpen bool

	// Delivered is when the receiver last accepted a row in this session; zero if it has not.
	Delivered time.Time
}

// OutboxStats counts the rows of one outbox. The time is linear in the rows in memory and in the
// spilled lanes.
func (d *Dispatcher) OutboxStats(outbox string) OutboxStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.outboxStats(outbox)
}

func (c *core) outboxStats(outbox string) OutboxStats {
	s := OutboxStats{Pause: c.lanes.OutboxPause(outbox), Delivered: c.delivered[outbox]}
	spilled, kinds := c.spill.OutboxRows(outbox)
	s.Spilled, s.Waiting = spilled, spilled
	for _, kind := range kinds {
		s.BreakerOpen = s.BreakerOpen || c.lanes.Endpoints.Of(kind).Breaker.Open()
	}
	see := func(rw *row) {
		s.Rows++
		if rw.Copy == lanes.CopyStored {
			s.Spilled++
		}
		s.Waiting++
		if since := rw.CommittedOrCaptured(); !since.IsZero() && (s.Oldest.IsZero() || since.Before(s.Oldest)) {
			s.Oldest = since
		}
	}

	for _, l := range c.lanes.Live() {
		if l.Name.Outbox != outbox {
			continue
		}
		if l.Blocked != nil {
			s.Blocked++
		}
		if l.Paused != nil {
			s.Paused++
		}
		s.BreakerOpen = s.BreakerOpen || !l.OnHold() && l.Receiver.Breaker.Open()
		s.Spilled, s.Waiting = s.Spilled+l.SpilledRows, s.Waiting+l.SpilledRows
		for _, rows := range [][]*row{l.Rows, l.UnspillableTail} {
			for _, rw := range rows {
				see(rw)
			}
		}
	}
	for o := range c.outcomes.All() {
		if o.Outbox == outbox && o.Of.Lane == nil && o.Status.Settled() {
			see(o.Of.Row)
		}
	}
	return s
}
