package bench

import (
	"context"
	"errors"
	"time"
)

func relayDrain(ctx context.Context, b *bench) (figures, error) {
	return b.withNewDatabase(ctx, func(p *benchDatabase, to *receiver) (figures, error) {
		return b.measureRelayDrain(ctx, p, to, b.opts.Rows, 0)
	})
}

// measureRelayDrain starts and stops a relay, so that it has a position in the log. Then it
// commits rows and measures how a restarted relay delivers them. Rows of a first wave that
// arrives at once do not count.
func (b *bench) measureRelayDrain(ctx context.Context, p *benchDatabase, to *receiver, rows, wave int) (figures, error) {
	pr, err := b.startRelay(ctx, p, to)
	if err != nil {
		return nil, err
	}
	if err := pr.stop(); err != nil {
		return nil, err
	}

	before := p.rowsWritten
	t, err := b.commitBacklog(ctx, p, to, rows)
	if err != nil {
		return nil, err
	}
	if pr, err = b.startRelay(ctx, p, to); err != nil {
		return nil, err
	}

	profiled := b.profile(ctx, p, pr)
	return b.withProcess(ctx, pr, p, before, func(ctx context.Context) (figures, error) {
		err := t.wait(ctx)
		return t.drainFigures(wave), errors.Join(err, t.check(!b.opts.Ungrouped), profiled())
	})
}

func floorDrain(ctx context.Context, b *bench, of floorVariant, p *benchDatabase, to *receiver) (figures, error) {
	cfg, err := b.newFloorConfig(ctx, p, to, of)
	if err != nil {
		return nil, err
	}
	before := p.rowsWritten
	t, err := b.commitBacklog(ctx, p, to, b.opts.Rows)
	if err != nil {
		return nil, err
	}
	pr, err := b.startFloor(ctx, p, cfg, b.peer(of))
	if err != nil {
		return nil, err
	}
	profiled := b.profile(ctx, p, pr)
	return b.withProcess(ctx, pr, p, before, func(ctx context.Context) (figures, error) {
		err := t.wait(ctx)
		return t.drainFigures(0), errors.Join(err, t.check(false), profiled())
	})
}

// commitBacklog commits rows and registers them with the receiver.
func (b *bench) commitBacklog(ctx context.Context, p *benchDatabase, to *receiver, rows int) (*tally, error) {
	t := newTally(p.rowsWritten+1, rows, b.opts.Groups)
	to.tally.Store(t)
	return t, b.load(ctx, p, rows, loadBatchRows, nil)
}

// drainFigures returns the rate at which rows arrived after the first request. The rows of
// the first request, or of a first wave, do not count because they took no time.
func (t *tally) drainFigures(wave int) figures {
	t.mu.Lock()
	defer t.mu.Unlock()
	took := max(t.end.Sub(t.begin), time.Nanosecond)
	return figures{drainRate: float64(t.count-max(wave, t.firstRequestRows)) / took.Seconds()}
}

// relaySlow drains into a slow receiver. The receiver's measured service time bounds the
// rate: each sender is busy all the time.
func relaySlow(ctx context.Context, b *bench) (figures, error) {
	return b.withNewDatabase(ctx, func(p *benchDatabase, to *receiver) (figures, error) {
		wave := b.opts.Senders * b.opts.Batch
		f, err := b.measureRelayDrain(ctx, p, to, b.opts.Rows, wave)
		if err != nil {
			return nil, err
		}
		if b.opts.Batch == 1 { // with several rows in a request, the service time does not bound the rate
			f[shareOfServiceTime] = f[drainRate] * to.serviceTime().Seconds() / float64(wave)
		}
		return f, nil
	})
}
