package bench

import (
	"context"
	"errors"
	"slices"
	"time"
)

// warmUp is the maximum duration of the writes before the measured ones. They open
// connections, prepare statements and fill caches.
const warmUp = time.Second

func relayLatency(ctx context.Context, b *bench) (figures, error) {
	return b.withNewDatabase(ctx, func(p *benchDatabase, to *receiver) (figures, error) {
		return b.withRelay(ctx, p, to, func(ctx context.Context) (figures, error) { return b.measureLatency(ctx, p, to) })
	})
}

// withRelay runs a relay during a measurement.
func (b *bench) withRelay(ctx context.Context, p *benchDatabase, to *receiver, measure func(context.Context) (figures, error)) (figures, error) {
	pr, err := b.startRelay(ctx, p, to)
	if err != nil {
		return nil, err
	}
	profiled := b.profile(ctx, p, pr)
	return b.withProcess(ctx, pr, p, p.rowsWritten, func(ctx context.Context) (figures, error) {
		f, err := measure(ctx)
		return f, errors.Join(err, profiled())
	})
}

// withProcess runs a measurement beside a process, stops the process, and adds its resource
// use per row. The first rows, before, do not count. The measurement ends if the process
// does.
func (b *bench) withProcess(ctx context.Context, pr *process, p *benchDatabase, before int, measure func(context.Context) (figures, error)) (figures, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-pr.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	f, err := measure(ctx)
	if stopped := pr.stop(); stopped != nil {
		return nil, stopped // the reason why the measurement failed, if it did
	}
	if err != nil {
		return nil, err
	}
	if rows := p.rowsWritten - before; rows > 0 {
		f[cpuPerRow] = float64(pr.cpu().Microseconds()) / float64(rows)
	}
	if peak := pr.peakMemory(); peak > 0 {
		f[peakRSS] = float64(peak) / (1 << 20)
	}
	return f, nil
}

func floorLatency(ctx context.Context, b *bench) (figures, error) {
	return b.withNewDatabase(ctx, func(p *benchDatabase, to *receiver) (figures, error) {
		cfg, err := b.newFloorConfig(ctx, p, to, false)
		if err != nil {
			return nil, err
		}
		pr, err := b.startFloor(ctx, p, cfg)
		if err != nil {
			return nil, err
		}
		return b.withProcess(ctx, pr, p, p.rowsWritten, func(ctx context.Context) (figures, error) { return b.measureLatency(ctx, p, to) })
	})
}

// measureLatency writes rows for the duration and returns their latencies.
func (b *bench) measureLatency(ctx context.Context, p *benchDatabase, to *receiver) (figures, error) {
	// If the number of sessions divides the number of groups, each group has one writer.
	groups := (b.opts.Groups + b.opts.Clients - 1) / b.opts.Clients * b.opts.Clients
	turn := *b
	turn.opts.Groups = groups
	var f figures
	for _, d := range []time.Duration{min(warmUp, b.opts.Duration), b.opts.Duration} {
		count := max(1, int(d.Seconds()*float64(b.opts.Rate)))
		t := newTally(p.rowsWritten+1, count, groups)
		to.tally.Store(t)
		if err := turn.write(ctx, p, t); err != nil {
			return nil, err
		}
		if err := t.wait(ctx); err != nil {
			return nil, err
		}
		if err := t.check(true); err != nil {
			return nil, err
		}
		f = t.latencyFigures()
	}
	return f, nil
}

// latencyFigures returns the percentiles in milliseconds. A row that arrives before its
// COMMIT returns has latency 0.
func (t *tally) latencyFigures() figures {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]float64, t.count)
	for i := range all {
		all[i] = max(0, float64(t.arrivals[i]-t.commits[i].Load())/float64(time.Millisecond))
	}
	slices.Sort(all)
	at := func(q float64) float64 { return all[min(len(all)-1, int(q*float64(len(all))))] }
	return figures{p50: at(.50), p99: at(.99), p999: at(.999)}
}
