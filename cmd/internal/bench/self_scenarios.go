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
	"github.com/sluicebox/sluicebox/store/backoff"
)

// blockedLatency measures the latency of other groups while the rows of one group are
// refused.
func blockedLatency(ctx context.Context, b *bench) (figures, error) {
	return b.withNewDatabase(ctx, func(p *benchDatabase, to *receiver) (figures, error) {
		return b.withRelay(ctx, p, to, func(ctx context.Context) (figures, error) {
			if err := b.commitBlockedGroup(ctx, p, to); err != nil {
				return nil, err
			}
			return b.measureLatency(ctx, p, to)
		})
	})
}

// commitBlockedGroup commits the rows of the blocked group. It waits until the relay has
// read them, that is, until a row committed after them has arrived.
func (b *bench) commitBlockedGroup(ctx context.Context, p *benchDatabase, to *receiver) error {
	t := newTally(p.rowsWritten+1, 1, b.opts.Groups)
	to.tally.Store(t)
	numbers := p.rowsWritten
	p.rowsWritten = firstBlockedRow
	err := b.load(ctx, p, b.opts.Rows, loadBatchRows, func(r *rowSpan) { r.oneGroup = "blocked" })
	if p.rowsWritten = numbers; err != nil {
		return err
	}
	if err := b.load(ctx, p, 1, loadBatchRows, nil); err != nil {
		return err
	}
	return t.wait(ctx)
}

// relayIdle measures a relay without work.
func relayIdle(ctx context.Context, b *bench) (figures, error) {
	return b.withNewDatabase(ctx, func(p *benchDatabase, to *receiver) (figures, error) {
		pr, err := b.startRelay(ctx, p, to)
		if err != nil {
			return nil, err
		}
		return b.withProcess(ctx, pr, p, p.rowsWritten, func(ctx context.Context) (figures, error) {
			// The relay has work at its start and with its first row.
			t, err := b.commitBacklog(ctx, p, to, 1)
			if err != nil {
				return nil, err
			}
			if err := errors.Join(t.wait(ctx), backoff.Sleep(ctx, min(warmUp, b.opts.Duration))); err != nil {
				return nil, err
			}
			profiled := b.profile(ctx, p, pr)
			f, err := b.measureIdle(ctx, p, pr)
			return f, errors.Join(err, profiled())
		})
	})
}

// measureIdle measures for the duration, without any rows.
func (b *bench) measureIdle(ctx context.Context, p *benchDatabase, pr *process) (figures, error) {
	began := time.Now()
	cpuBefore, err := pr.metric(ctx, "process_cpu_seconds_total")
	if err != nil {
		return nil, err
	}

	scansBefore, uncounted := p.scans(ctx)
	if uncounted != nil && !errors.Is(uncounted, errNotMeasured) {
		return nil, uncounted
	}
	if err := backoff.Sleep(ctx, b.opts.Duration); err != nil {
		return nil, err
	}

	cpu, err := pr.metric(ctx, "process_cpu_seconds_total")
	if err != nil {
		return nil, err
	}

	took := time.Since(began)
	f := figures{cpuPercent: 100 * (cpu - cpuBefore) / took.Seconds()}
	if uncounted != nil {
		b.missingMeasures = map[string]bool{scans: true}
		return f, nil
	}

	after, err := p.scans(ctx)
	f[scans] = float64(after-scansBefore) / took.Minutes()
	return f, err
}

// metric returns a metric of the relay that has no labels.
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
	return 0, errors.Join(lines.Err(), fmt.Errorf("relay has no metric %s", name))
}

// fullTableDrainRows is the number of rows to drain beside a full table, at most as many as
// it has.
const fullTableDrainRows = 100_000

// fillTable creates the database with many delivered rows.
func fillTable(ctx context.Context, b *bench) (func(context.Context) error, error) {
	p, err := b.newBenchDatabase(ctx)
	if err != nil {
		return nil, err
	}
	b.logf("filling the table with %d completed rows", b.opts.Rows)
	if err := b.writeCompletedRows(ctx, p); err != nil {
		return nil, errors.Join(err, p.drop(ctx))
	}
	b.fullDatabase = p
	return p.drop, nil
}

// writeCompletedRows writes completed rows and lets the server update its statistics.
func (b *bench) writeCompletedRows(ctx context.Context, p *benchDatabase) error {
	if b.opts.Layout != layoutWords {
		return &store.SetupError{
			Problem: "layout " + b.opts.Layout + " deletes delivered rows, so its table does not grow",
			Remedy:  "use big-table with --layout " + layoutWords,
		}
	}
	const atOnce = 500_000
	if err := b.load(ctx, p, b.opts.Rows, atOnce, func(r *rowSpan) { r.completed = true }); err != nil {
		return fmt.Errorf("fill table: %w", err)
	}
	if err := p.flush(ctx); err != nil {
		return fmt.Errorf("flush table: %w", err)
	}
	return nil
}

func fullTable(ctx context.Context, b *bench) (figures, error) {
	return b.withReceiver(ctx, func(to *receiver) (figures, error) { return b.measureLatencyAndDrain(ctx, b.fullDatabase, to) })
}

func emptyTable(ctx context.Context, b *bench) (figures, error) {
	return b.withNewDatabase(ctx, func(p *benchDatabase, to *receiver) (figures, error) { return b.measureLatencyAndDrain(ctx, p, to) })
}

// measureLatencyAndDrain measures the latency and then a drain.
func (b *bench) measureLatencyAndDrain(ctx context.Context, p *benchDatabase, to *receiver) (figures, error) {
	f, err := b.withRelay(ctx, p, to, func(ctx context.Context) (figures, error) { return b.measureLatency(ctx, p, to) })
	if err != nil {
		return nil, err
	}
	d, err := b.measureRelayDrain(ctx, p, to, min(fullTableDrainRows, b.opts.Rows), 0)
	if err != nil {
		return nil, err
	}
	f[drainRate] = d[drainRate]
	return f, nil
}
