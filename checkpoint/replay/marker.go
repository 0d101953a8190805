package replay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// pendingMarkers are the markers that the Controller wrote into the log and that have
// not come back.
type pendingMarkers struct {
	written atomic.Int64
	waiting sync.Map // chan<- store.Checkpoint by token
}

// OnMarker handles a marker of the log. It is called after the rows before the
// marker.
func (d *Controller) OnMarker(token string, at store.Position, seq store.Seq) {
	if arrived, there := d.markers.waiting.LoadAndDelete(token); there {
		arrived.(chan<- store.Checkpoint) <- store.Checkpoint{Position: at, Seq: seq}
	}
}

// lateMarkerAfter is the time after which the Controller reports that it waits for a
// marker.
const lateMarkerAfter = 2 * time.Second

// markerTimeout is the maximum wait for a marker. The Controller then serves its
// other checkpoints, and writes another marker later.
const markerTimeout = 30 * time.Second

// markWithTimeout is writeMarker with markerTimeout. After the timeout late is true,
// and onLate was called.
func (d *Controller) markWithTimeout(ctx context.Context, onLate func()) (at store.Checkpoint, late bool, err error) {
	bounded, stop := context.WithTimeout(ctx, d.limits.markerTimeout)
	defer stop()
	written := false
	at, err = d.writeMarker(bounded, func() { written = true; onLate() })
	if written && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return at, true, nil
	}
	return at, false, err
}

// writeMarker writes a marker and returns its position in the log. Every row up to
// there is in a lane, spilled or settled. It calls onLate if that takes long, because a
// paused capture brings no marker.
func (d *Controller) writeMarker(ctx context.Context, onLate func()) (store.Checkpoint, error) {
	m, arrived := &d.markers, make(chan store.Checkpoint, 1)
	token := fmt.Sprintf("replay-%d-%d", d.Epoch, m.written.Add(1))
	m.waiting.Store(token, (chan<- store.Checkpoint)(arrived))
	defer m.waiting.Delete(token)
	if err := d.Log.Mark(ctx, token); err != nil {
		return store.Checkpoint{}, fmt.Errorf("write marker: %w", err)
	}

	timer := time.NewTimer(lateMarkerAfter)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return store.Checkpoint{}, ctx.Err()
		case <-timer.C:
			onLate()
		case at := <-arrived:
			if at.Position == "" {
				return at, fmt.Errorf("marker %s has no log position", token)
			}
			at.Origin = d.Log.Origin
			return at, nil
		}
	}
}
