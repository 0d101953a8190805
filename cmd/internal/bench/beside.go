package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// blockedLatency measures the latency of other groups beside one whose rows are
// refused.
func blockedLatency(ctx context.Context, b *bench) (figures, error) {
	return b.inPlace(ctx, func(p *place, to *receiver) (figures, error) {
		return b.relayed(ctx, p, to, func(ctx context.Context) (figures, error) {
			if err := b.block(ctx, p, to); err != nil {
				return nil, err
			}
			return b.latency(ctx, p, to)
		})
	})
}

// block commits the rows of the blocked group, and waits until the relay has read
// them: until a row that was committed behind them has arrived.
func (b *bench) block(ctx context.Context, p *place, to *receiver) error {
	t := newTally(p.rows+1, 1, b.opts.Groups)
	to.tally.Store(t)
	numbers := p.rows
	p.rows = blockedFrom
	err := b.load(ctx, p, b.opts.Rows, rowsOfALoad, func(r *rowSpan) { r.oneGroup = "blocked" })
	if p.rows = numbers; err != nil {
		return err
	}
	if err := b.load(ctx, p, 1, rowsOfALoad, nil); err != nil {
		return err
	}
	return t.wait(ctx)
}

// relayIdle leaves a relay alone.
func relayIdle(ctx context.Context, b *bench) (figures, error) {
	return b.inPlace(ctx, func(p *place, to *receiver) (figures, error) {
		pr, err := b.startRelay(ctx, p, to)
		if err != nil {
			return nil, err
		}
		return b.beside(ctx, pr, p, p.rows, func(ctx context.Context) (figures, error) {
			// It has something to do at its start, and with its first row.
			t, err := b.backlog(ctx, p, to, 1)
			if err != nil {
				return nil, err
			}
			if err := errors.Join(t.wait(ctx), b.rest(ctx, warmUp)); err != nil {
				return nil, err
			}
			profiled := b.profile(ctx, p, pr)
			f, err := b.idle(ctx, p, pr)
			return f, errors.Join(err, profiled())
		})
	})
}

// idle measures for the duration, in which nothing happens.
func (b *bench) idle(ctx context.Context, p *place, pr *process) (figures, error) {
	began := time.Now()
	cpuBefore, err := pr.metric(ctx, "process_cpu_seconds_total")
	if err != nil {
		return nil, err
	}
	scansBefore, uncounted := p.scans(ctx)
	if uncounted != nil && !errors.Is(uncounted, errUncounted) {
		return nil, uncounted
	}
	if err := b.rest(ctx, b.opts.Duration); err != nil {
		return nil, err
	}
	cpu, err := pr.metric(ctx, "process_cpu_seconds_total")
	if err != nil {
		return nil, err
	}
	took := time.Since(began)
	f := figures{cpuOfCore: 100 * (cpu - cpuBefore) / took.Seconds()}
	if uncounted != nil {
		b.missing = map[string]bool{scans: true}
		return f, nil
	}
	after, err := p.scans(ctx)
	f[scans] = float64(after-scansBefore) / took.Minutes()
	return f, err
}

func (b *bench) rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// metric returns a metric without labels of the relay.
func (pr *process) metric(ctx context.Context, name string) (float64, error) {
	resp, err := pr.get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, errors.Join(lines.Err(), fmt.Errorf("the relay has no metric %s", name))
}

// drainBeside is how many rows are drained beside a full table, or as many as it has.
const drainBeside = 100_000

// fillTable makes the database with the many rows that were delivered before.
func fillTable(ctx context.Context, b *bench) (func(context.Context) error, error) {
	p, err := b.newPlace(ctx)
	if err != nil {
		return nil, err
	}
	b.say("filling the table with %d completed rows", b.opts.Rows)
	if err := b.fill(ctx, p); err != nil {
		return nil, errors.Join(err, p.drop(ctx))
	}
	b.full = p
	return p.drop, nil
}

// fill writes completed rows, and lets the server look at what it has.
func (b *bench) fill(ctx context.Context, p *place) error {
	if b.opts.Layout != layoutWords {
		return &store.SetupError{
			Problem: "layout " + b.opts.Layout + " deletes delivered rows, so its table does not grow",
			Remedy:  "measure big-table with --layout " + layoutWords,
		}
	}
	const atOnce = 500_000
	if err := b.load(ctx, p, b.opts.Rows, atOnce, func(r *rowSpan) { r.completed = true }); err != nil {
		return fmt.Errorf("fill the table: %w", err)
	}
	if err := p.settle(ctx); err != nil {
		return fmt.Errorf("settle the table: %w", err)
	}
	return nil
}

func fullTable(ctx context.Context, b *bench) (figures, error) {
	return b.received(ctx, func(to *receiver) (figures, error) { return b.both(ctx, b.full, to) })
}

func emptyTable(ctx context.Context, b *bench) (figures, error) {
	return b.inPlace(ctx, func(p *place, to *receiver) (figures, error) { return b.both(ctx, p, to) })
}

// both measures the latency and then a drain.
func (b *bench) both(ctx context.Context, p *place, to *receiver) (figures, error) {
	f, err := b.relayed(ctx, p, to, func(ctx context.Context) (figures, error) { return b.latency(ctx, p, to) })
	if err != nil {
		return nil, err
	}
	d, err := b.drainRelay(ctx, p, to, min(drainBeside, b.opts.Rows), 0)
	if err != nil {
		return nil, err
	}
	f[drainRate] = d[drainRate]
	return f, nil
}
