package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
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

// bulkLatency measures the latency of other groups while a transaction with many rows of one
// group commits, which are then refused.
func bulkLatency(ctx context.Context, b *bench) (figures, error) {
	return b.withNewDatabase(ctx, func(p *benchDatabase, to *receiver) (figures, error) {
		return b.withRelay(ctx, p, to, func(ctx context.Context) (figures, error) {
			if err := b.warmUp(ctx, p, to); err != nil {
				return nil, err
			}
			bulk := b.nextRows(p, b.opts.Rows)
			bulk.first, bulk.last, bulk.oneGroup = firstBlockedRow+1, firstBlockedRow+b.opts.Rows, "blocked"
			began := time.Now()
			all, err := b.latencies(ctx, p, to, b.opts.Duration, func(ctx context.Context) error {
				if err := p.load(ctx, bulk); err != nil {
					return fmt.Errorf("load bulk transaction: %w", err)
				}
				if took := time.Since(began); took > b.opts.Duration*2/3 {
					return fmt.Errorf("the transaction took %s, and few rows would follow it; use --duration %s",
						took.Round(time.Second), (2 * took).Round(time.Second))
				}
				return nil
			})
			return latencyFigures(all), err
		})
	})
}

// replayLatency measures the latency of rows while delivered rows of other groups are sent
// again. It writes for the duration while the replay copies its rows, and once more while the
// replay sends them.
func replayLatency(ctx context.Context, b *bench) (figures, error) {
	return b.besideDelivered(ctx, func(ctx context.Context, pr *process, p *benchDatabase, to *receiver) (figures, error) {
		client, err := admin.NewClient(pr.admin, "")
		if err != nil {
			return nil, err
		}
		defer client.Close()
		id, err := client.StartReplay(ctx, &replay.Spec{Since: time.Now().Add(-time.Hour)})
		if err != nil {
			return nil, fmt.Errorf("start replay: %w", err)
		}
		if err := awaitReplay(ctx, client, id, store.JobCopying); err != nil {
			return nil, err
		}
		all, err := b.latencies(ctx, p, to, b.opts.Duration)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(awaitReplay(ctx, client, id, store.JobPlaying), to.awaitReplayed(ctx)); err != nil {
			return nil, err
		}
		began, before := time.Now(), to.replayed.Load()
		more, err := b.latencies(ctx, p, to, b.opts.Duration)
		if err != nil {
			return nil, err
		}
		rate := float64(to.replayed.Load()-before) / time.Since(began).Seconds()
		if err := awaitReplay(ctx, client, id, store.JobPlaying); err != nil {
			return nil, err
		}
		f := latencyFigures(append(all, more...))
		f[replayRate] = rate
		return f, nil
	})
}

// deliveredLatency measures what replayLatency measures, without a replay.
func deliveredLatency(ctx context.Context, b *bench) (figures, error) {
	return b.besideDelivered(ctx, func(ctx context.Context, _ *process, p *benchDatabase, to *receiver) (figures, error) {
		all, err := b.latencies(ctx, p, to, b.opts.Duration)
		if err != nil {
			return nil, err
		}
		more, err := b.latencies(ctx, p, to, b.opts.Duration)
		return latencyFigures(append(all, more...)), err
	})
}

// besideDelivered runs a measurement beside a relay that has delivered rows of other groups.
func (b *bench) besideDelivered(ctx context.Context, measure func(context.Context, *process, *benchDatabase, *receiver) (figures, error)) (figures, error) {
	return b.withNewDatabase(ctx, func(p *benchDatabase, to *receiver) (figures, error) {
		pr, err := b.startRelay(ctx, p, to)
		if err != nil {
			return nil, err
		}
		return b.withProcess(ctx, pr, p, p.rowsWritten, func(ctx context.Context) (figures, error) {
			t := newTally(p.rowsWritten+1, b.opts.Rows, b.opts.Rows)
			to.tally.Store(t)
			if err := b.load(ctx, p, b.opts.Rows, loadBatchRows, func(r *rowSpan) { r.firstGroup = deliveredGroups }); err != nil {
				return nil, err
			}
			if err := errors.Join(t.wait(ctx), b.warmUp(ctx, p, to)); err != nil {
				return nil, err
			}
			return measure(ctx, pr, p, to)
		})
	})
}

// deliveredGroups is the first group of rows that were delivered before a measurement.
const deliveredGroups = maxGroups

// awaitReplay waits until a replay is in a state.
func awaitReplay(ctx context.Context, of admin.Replays, id string, state store.JobState) error {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, fmt.Errorf("replay is not %s within %s", state, callTimeout))
	defer cancel()
	for {
		job, err := admin.FindReplay(ctx, of, id)
		switch {
		case err != nil:
			return errors.Join(err, context.Cause(ctx))
		case job.State == string(state):
			return nil
		case job.Ended() && job.State != string(store.JobDone):
			return fmt.Errorf("replay is %s: %s", job.State, job.Reason)
		case job.Ended() || state == store.JobCopying && job.State == string(store.JobPlaying):
			return fmt.Errorf("replay of %d rows was too short to measure beside it; use more --rows", job.Rows)
		}
		if err := backoff.Sleep(ctx, 5*time.Millisecond); err != nil {
			return context.Cause(ctx)
		}
	}
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
			if err := errors.Join(t.wait(ctx), backoff.Sleep(ctx, min(warmUpTime, b.opts.Duration))); err != nil {
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
		b.missingMeasures[scans] = true
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
