package bench

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// warmUpTime is the maximum duration of the writes before the measured ones. They open
// connections, prepare statements and fill caches.
const warmUpTime = time.Second

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
		if pr.serverCPU == 0 {
			b.missingMeasures[cpuPerRowBoth] = true
		} else {
			f[cpuPerRowBoth] = float64((pr.cpu() + b.serverCPU() - pr.serverCPU).Microseconds()) / float64(rows)
		}
	}
	if peak := pr.peakMemory(); peak > 0 {
		f[peakRSS] = float64(peak) / (1 << 20)
	}
	return f, nil
}

// floorVariant selects a floor.
type floorVariant struct {
	bulk     bool
	noClaims bool // it posts and completes only
	peer     bool // the program of the options in its place
}

// withFloor returns the run of a side with a floor. measure starts the floor and measures it.
func withFloor(measure func(ctx context.Context, b *bench, of floorVariant, p *benchDatabase, to *receiver) (figures, error), of floorVariant) func(context.Context, *bench) (figures, error) {
	return func(ctx context.Context, b *bench) (figures, error) {
		return b.withNewDatabase(ctx, func(p *benchDatabase, to *receiver) (figures, error) { return measure(ctx, b, of, p, to) })
	}
}

// peer returns the program of a variant, "" for the floor.
func (b *bench) peer(of floorVariant) string {
	if of.peer {
		return b.opts.Peer
	}
	return ""
}

// latencyAndDrain returns a run that measures the latency and then, in another database, a drain.
func latencyAndDrain(latency, drain func(context.Context, *bench) (figures, error)) func(context.Context, *bench) (figures, error) {
	return func(ctx context.Context, b *bench) (figures, error) {
		f, err := latency(ctx, b)
		if err != nil {
			return nil, err
		}
		d, err := drain(ctx, b)
		if err != nil {
			return nil, err
		}
		for _, measure := range []string{drainRate, cpuPerRow, cpuPerRowBoth, peakRSS} {
			if v, ok := d[measure]; ok {
				f[measure] = v
			}
		}
		return f, nil
	}
}

// withClaims returns a run of the relay with claims on.
func withClaims(run func(context.Context, *bench) (figures, error)) func(context.Context, *bench) (figures, error) {
	return func(ctx context.Context, b *bench) (figures, error) {
		turn := *b
		turn.opts.Claims = "on"
		return run(ctx, &turn)
	}
}

func floorLatency(ctx context.Context, b *bench, of floorVariant, p *benchDatabase, to *receiver) (figures, error) {
	cfg, err := b.newFloorConfig(ctx, p, to, of)
	if err != nil {
		return nil, err
	}
	pr, err := b.startFloor(ctx, p, cfg, b.peer(of))
	if err != nil {
		return nil, err
	}
	to.unordered = to.topic != "" // the floor does not know the groups: the key of its records is the id
	return b.withProcess(ctx, pr, p, p.rowsWritten, func(ctx context.Context) (figures, error) { return b.measureLatency(ctx, p, to) })
}

// measureLatency writes rows for the duration and returns their latencies.
func (b *bench) measureLatency(ctx context.Context, p *benchDatabase, to *receiver) (figures, error) {
	if err := b.warmUp(ctx, p, to); err != nil {
		return nil, err
	}
	all, err := b.latencies(ctx, p, to, b.opts.Duration)
	return latencyFigures(all), err
}

// warmUp writes rows that do not count.
func (b *bench) warmUp(ctx context.Context, p *benchDatabase, to *receiver) error {
	_, err := b.latencies(ctx, p, to, min(warmUpTime, b.opts.Duration))
	return err
}

// latencies writes rows for a time and returns the latency of each in milliseconds. Something
// else may happen at the same time.
func (b *bench) latencies(ctx context.Context, p *benchDatabase, to *receiver, d time.Duration, beside ...func(context.Context) error) ([]float64, error) {
	// If the number of sessions divides the number of groups, each group has one writer.
	groups := (b.opts.Groups + b.opts.Clients - 1) / b.opts.Clients * b.opts.Clients
	turn := *b
	turn.opts.Groups = groups
	t := newTally(p.rowsWritten+1, max(1, int(d.Seconds()*float64(b.opts.Rate))), groups)
	to.tally.Store(t)

	work, working := errgroup.WithContext(ctx)
	work.Go(func() error { return turn.write(working, p, t) })
	for _, do := range beside {
		work.Go(func() error { return do(working) })
	}
	if err := work.Wait(); err != nil {
		return nil, err
	}
	if err := t.wait(ctx); err != nil {
		return nil, err
	}
	return t.latencies(), t.check(!to.unordered)
}

// latencies returns the latencies in milliseconds. A row that arrives before its COMMIT returns
// has latency 0.
func (t *tally) latencies() []float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]float64, t.count)
	for i := range all {
		all[i] = max(0, float64(t.arrivals[i]-t.commits[i].Load())/float64(time.Millisecond))
	}
	return all
}

// latencyFigures returns the percentiles of latencies.
func latencyFigures(all []float64) figures {
	if len(all) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(all))
	at := func(q float64) float64 { return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))] }
	return figures{p50: at(.50), p99: at(.99), p999: at(.999), longest: sorted[len(sorted)-1]}
}
