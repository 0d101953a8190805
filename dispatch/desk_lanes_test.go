package dispatch

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// shelf is what a desk keeps of lanes that stand still and of FAILED rows.
type shelf struct {
	holds []store.Hold
	dead  []store.Item
}

func (d *desk) LoadHolds(context.Context) ([]store.Hold, error) { return d.shelf.holds, nil }

func (d *desk) Hold(ctx context.Context, _ store.Epoch, h store.Hold) error {
	err := d.statement(ctx, nil)
	defer d.mu.Unlock()
	if err == nil {
		d.shelf.holds = append(d.shelf.holds, h)
	}
	return err
}

func (d *desk) Release(ctx context.Context, _ store.Epoch, lane store.LaneKey, kind store.HoldKind) error {
	err := d.statement(ctx, nil)
	defer d.mu.Unlock()
	if err == nil {
		d.shelf.holds = slices.DeleteFunc(d.shelf.holds, func(h store.Hold) bool { return h.Lane == lane && h.Kind == kind })
	}
	return err
}

func (d *desk) CountFailed(context.Context, store.DeadLetterFilter) (int, error) {
	return 0, errors.New("no dispatcher counts")
}

func (d *desk) Failed(context.Context, store.DeadLetterFilter, int, bool) ([]store.DeadLetter, error) {
	return nil, errors.New("no dispatcher reads")
}

// take removes the first FAILED rows.
func (d *desk) take(ctx context.Context, limit int) ([]store.Item, error) {
	err := d.statement(ctx, nil)
	defer d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	n := min(limit, len(d.shelf.dead))
	taken := slices.Clone(d.shelf.dead[:n])
	d.shelf.dead = d.shelf.dead[n:]
	return taken, nil
}

func (d *desk) Requeue(ctx context.Context, _ store.Epoch, _ store.DeadLetterFilter, limit int) ([]store.Item, error) {
	return d.take(ctx, limit)
}

func (d *desk) Discard(ctx context.Context, _ store.Epoch, _ store.DeadLetterFilter, limit int) (refs []store.Ref, err error) {
	taken, err := d.take(ctx, limit)
	for _, it := range taken {
		refs = append(refs, it.Ref)
	}
	return refs, err
}

func (d *desk) BreakersChanged(all []OpenBreaker) {
	d.set(func() {
		words := "trusted"
		for i, s := range all {
			if i == 0 {
				words = ""
			}
			words += s.Endpoint + s.LastFailure.Class.String()
			if s.Idle {
				words += ", idle"
			}
		}
		d.suspicions = append(d.suspicions, words)
	})
}

func (d *desk) Stalled(lane *LaneInfo) { d.set(func() { d.stalled = append(d.stalled, lane.Head) }) }

func (d *desk) Requested(req RequestInfo, _ *sink.Result, _ time.Duration) {
	d.set(func() { d.seen = append(d.seen, req) })
}
