package dispatch

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// operatorState is the backend's holds and FAILED rows.
type operatorState struct {
	holds  []store.Hold
	failed []store.Item
}

func (d *fakeBackend) LoadHolds(context.Context) ([]store.Hold, error) { return d.operated.holds, nil }

func (d *fakeBackend) Hold(ctx context.Context, _ store.Epoch, h store.Hold) error {
	err := d.statement(ctx, nil)
	defer d.mu.Unlock()
	if err == nil {
		d.operated.holds = append(d.operated.holds, h)
	}
	return err
}

func (d *fakeBackend) Release(ctx context.Context, _ store.Epoch, lane store.LaneKey, kind store.HoldKind) error {
	err := d.statement(ctx, nil)
	defer d.mu.Unlock()
	if err == nil {
		d.operated.holds = slices.DeleteFunc(d.operated.holds, func(h store.Hold) bool { return h.Lane == lane && h.Kind == kind })
	}
	return err
}

func (d *fakeBackend) CountFailed(context.Context, store.DeadLetterFilter) (int, error) {
	return 0, errors.New("no dispatcher counts")
}

func (d *fakeBackend) Failed(context.Context, store.DeadLetterFilter, int, bool) ([]store.DeadLetter, error) {
	return nil, errors.New("no dispatcher reads")
}

// removeFailed removes the first FAILED rows.
func (d *fakeBackend) removeFailed(ctx context.Context, limit int) ([]store.Item, error) {
	err := d.statement(ctx, nil)
	defer d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	n := min(limit, len(d.operated.failed))
	taken := slices.Clone(d.operated.failed[:n])
	d.operated.failed = d.operated.failed[n:]
	return taken, nil
}

func (d *fakeBackend) Requeue(ctx context.Context, _ store.Epoch, _ store.DeadLetterFilter, limit int) ([]store.Item, error) {
	return d.removeFailed(ctx, limit)
}

func (d *fakeBackend) Discard(ctx context.Context, _ store.Epoch, _ store.DeadLetterFilter, limit int) (refs []store.Ref, err error) {
	taken, err := d.removeFailed(ctx, limit)
	for _, it := range taken {
		refs = append(refs, it.Ref)
	}
	return refs, err
}

func (d *fakeBackend) BreakersChanged(all []OpenBreaker) {
	d.set(func() {
		state := "closed"
		for i, s := range all {
			if i == 0 {
				state = ""
			}
			state += s.Endpoint + s.LastFailure.Class.String()
			if s.Idle {
				state += ", idle"
			}
		}
		d.breakerReports = append(d.breakerReports, state)
	})
}

func (d *fakeBackend) Stalled(lane *LaneInfo) {
	d.set(func() { d.stalled = append(d.stalled, lane.Head) })
}

func (d *fakeBackend) Requested(req RequestInfo, _ *sink.Result, _ time.Duration) {
	d.set(func() { d.requestInfos = append(d.requestInfos, req) })
}
