package app

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/dispatch"
)

// The relay asks how much log the database retains for it every retainedInterval. Once an
// eighth of the bound is retained it asks every fastRetainedInterval, and sooner, down to
// minRetainedInterval, where another eighth is written before that.
const (
	retainedInterval     = 2 * time.Second
	fastRetainedInterval = 200 * time.Millisecond
	minRetainedInterval  = 20 * time.Millisecond
)

// pressure bounds the log that the database keeps for the relay: once there is too
// much of it, rows are parked, and the checkpoint passes them.
type pressure struct {
	*relay
	source       capture.Retention
	feed         *dispatch.Feed
	dispatchers  map[string]*dispatch.Dispatcher
	saveRequests chan<- struct{} // has the checkpoint saved

	overLimitSince time.Time // since when the log is at its bound; zero if it is not
	growth         growth
}

// run looks at the log until the context ends and returns its error.
func (p *pressure) run(ctx context.Context) error {
	for wait := retainedInterval; ; {
		if err := sleep(ctx, wait); err != nil {
			return err
		}
		p.metrics.Paused(p.feed.Paused())
		p.progress.current(time.Now())
		kept, err := p.source.Retained(ctx)
		if err != nil { // the source tells by itself what is wrong with the log
			continue
		}
		p.reportRetained(kept)
		p.enforceLimit(kept, time.Now())
		eighth := p.limit(kept) / 8
		often := p.growth.timeToGrow(eighth, kept.Bytes, time.Now())
		if wait = retainedInterval; kept.Bytes >= eighth || !p.overLimitSince.IsZero() {
			wait = often
		}
	}
}

// growth is how fast the retained log grows.
type growth struct {
	bytes int64 // at the last look
	at    time.Time
	rate  float64 // bytes a second
}

// timeToGrow takes a look, and returns how long it takes until so many bytes more are
// retained: minRetainedInterval at least and fastRetainedInterval at most. A checkpoint that is saved
// between two looks hides how much was written, so a rate outlasts it and fades by half
// with each look that saw less.
func (g *growth) timeToGrow(bytes, retained int64, now time.Time) time.Duration {
	took := now.Sub(g.at).Seconds()
	if g.at.IsZero() || took <= 0 {
		g.bytes, g.at = retained, now
		return fastRetainedInterval
	}
	g.rate = max(float64(retained-g.bytes)/took, g.rate/2)
	g.bytes, g.at = retained, now
	if g.rate*fastRetainedInterval.Seconds() <= float64(bytes) {
		return fastRetainedInterval
	}
	return max(minRetainedInterval, time.Duration(float64(bytes)/g.rate*float64(time.Second)))
}

// enforceLimit parks what is in the way where the log has reached its bound, or where no
// place in it could be saved yet, because rows that were in the tables at the cut
// are still under way: a relay that took over would have to cut again, and would
// lose the order of what was committed since. First the lanes are parked that do
// not move; if it stays so, all.
func (p *pressure) enforceLimit(kept capture.RetainedLog, now time.Time) {
	bound := p.limit(kept)
	unsaved := p.progress.current(now).saved.Position == ""
	over, was := kept.Bytes >= bound || unsaved, !p.overLimitSince.IsZero()
	if kept.Bytes >= bound/2 || unsaved {
		select {
		case p.saveRequests <- struct{}{}:
		default:
		}
	}
	p.feed.SetLogPressure(over)
	switch {
	case over && !was:
		p.overLimitSince = now
		if unsaved {
			p.log.Info("spilling initial backlog", "reason", "no checkpoint saved yet")
			break
		}
		p.log.Warn("retained log limit reached; spilling rows", "bytes", kept.Bytes, "limit", bound)
	case !over && was:
		p.log.Info("retained log within limit", "bytes", kept.Bytes, "limit", bound)
		p.overLimitSince = time.Time{}
	}
	if over {
		for _, d := range p.dispatchers {
			d.Spill(now.Sub(p.overLimitSince) >= retainedInterval)
		}
	}
}

// reportRetained tells how much log is kept, and how much may be.
func (p *pressure) reportRetained(kept capture.RetainedLog) {
	bound := p.limit(kept)
	p.metrics.Retained(kept.Bytes, bound)
	p.progress.update(func() { p.progress.retained, p.progress.retainedLimit = kept, bound })
}

// limit is how much log may be kept: what the configuration says, and no more than
// half of what the server keeps before it takes the log away.
func (p *pressure) limit(kept capture.RetainedLog) int64 {
	bound := int64(p.cfg.Settings.Checkpoint.MaxHold)
	if kept.Limit > 0 {
		bound = min(bound, max(1, kept.Limit/2))
	}
	return bound
}
