package app

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/dispatch"
)

// The relay asks how much log the database retains for it every retainedEvery. Once an
// eighth of the bound is retained it asks every retainedOften, and sooner, down to
// retainedLeast, where another eighth is written before that.
const (
	retainedEvery = 2 * time.Second
	retainedOften = 200 * time.Millisecond
	retainedLeast = 20 * time.Millisecond
)

// pressure bounds the log that the database keeps for the relay: once there is too
// much of it, rows are parked, and the checkpoint passes them.
type pressure struct {
	*relay
	source capture.Retention
	feed   *dispatch.Feed
	lanes  map[string]*dispatch.Dispatcher
	urge   chan<- struct{} // has the checkpoint saved

	pressed time.Time // since when the log is at its bound; zero if it is not
	growth  growth
}

// run looks at the log until the context ends and returns its error.
func (p *pressure) run(ctx context.Context) error {
	for wait := retainedEvery; ; {
		if err := rest(ctx, wait); err != nil {
			return err
		}
		p.metrics.Paused(p.feed.Paused())
		p.progress.look(time.Now())
		kept, err := p.source.Retained(ctx)
		if err != nil { // the source tells by itself what is wrong with the log
			continue
		}
		p.retained(kept)
		p.press(kept, time.Now())
		eighth := p.bound(kept) / 8
		often := p.growth.until(eighth, kept.Bytes, time.Now())
		if wait = retainedEvery; kept.Bytes >= eighth || !p.pressed.IsZero() {
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

// until takes a look, and returns how long it takes until so many bytes more are
// retained: retainedLeast at least and retainedOften at most. A checkpoint that is saved
// between two looks hides how much was written, so a rate outlasts it and fades by half
// with each look that saw less.
func (g *growth) until(bytes, retained int64, now time.Time) time.Duration {
	took := now.Sub(g.at).Seconds()
	if g.at.IsZero() || took <= 0 {
		g.bytes, g.at = retained, now
		return retainedOften
	}
	g.rate = max(float64(retained-g.bytes)/took, g.rate/2)
	g.bytes, g.at = retained, now
	if g.rate*retainedOften.Seconds() <= float64(bytes) {
		return retainedOften
	}
	return max(retainedLeast, time.Duration(float64(bytes)/g.rate*float64(time.Second)))
}

// press parks what is in the way where the log has reached its bound, or where no
// place in it could be saved yet, because rows that were in the tables at the cut
// are still under way: a relay that took over would have to cut again, and would
// lose the order of what was committed since. First the lanes are parked that do
// not move; if it stays so, all.
func (p *pressure) press(kept capture.Retained, now time.Time) {
	bound := p.bound(kept)
	unsaved := p.progress.look(now).saved.Position == ""
	over, was := kept.Bytes >= bound || unsaved, !p.pressed.IsZero()
	if kept.Bytes >= bound/2 || unsaved {
		select {
		case p.urge <- struct{}{}:
		default:
		}
	}
	p.feed.Press(over)
	switch {
	case over && !was:
		p.pressed = now
		if unsaved {
			p.log.Info("rows of before are under way; they are parked, so that the place in the log can be saved")
			break
		}
		p.log.Warn("the log that is kept for the relay has reached its bound; rows are parked", "bytes", kept.Bytes, "bound", bound)
	case !over && was:
		p.log.Info("the log that is kept for the relay is within its bound", "bytes", kept.Bytes, "bound", bound)
		p.pressed = time.Time{}
	}
	if over {
		for _, d := range p.lanes {
			d.Press(now.Sub(p.pressed) >= retainedEvery)
		}
	}
}

// retained tells how much log is kept, and how much may be.
func (p *pressure) retained(kept capture.Retained) {
	bound := p.bound(kept)
	p.metrics.Retained(kept.Bytes, bound)
	p.progress.set(func() { p.progress.kept, p.progress.bound = kept, bound })
}

// bound is how much log may be kept: what the configuration says, and no more than
// half of what the server keeps before it takes the log away.
func (p *pressure) bound(kept capture.Retained) int64 {
	bound := int64(p.cfg.Settings.Checkpoint.MaxHold)
	if kept.Limit > 0 {
		bound = min(bound, max(1, kept.Limit/2))
	}
	return bound
}
