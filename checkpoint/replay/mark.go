package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// marks are markers that the desk wrote into the log and that have yet to come back.
type marks struct {
	mu      sync.Mutex
	written int
	waiting map[string]chan<- store.Checkpoint // by token
	bound   time.Duration                      // is markBound, but in tests
}

// Marked is told of each marker that the log brings, behind the rows in front of it;
// see dispatch.Feed.
func (d *Desk) Marked(token string, at store.Position, seq store.Seq) {
	m := &d.marks
	m.mu.Lock()
	came := m.waiting[token]
	delete(m.waiting, token)
	m.mu.Unlock()
	if came != nil {
		came <- store.Checkpoint{Position: at, Seq: seq}
	}
}

// lateMark is how long a marker takes before it is worth a word.
const lateMark = 2 * time.Second

// markBound is how long the desk waits for a marker before it looks after its other
// checkpoints again, and then writes another one.
const markBound = 30 * time.Second

// markSoon is mark, but does not wait for longer than markBound: late is then true, and
// said was called.
func (d *Desk) markSoon(ctx context.Context, said func()) (at store.Checkpoint, late bool, err error) {
	bounded, stop := context.WithTimeout(ctx, cmp.Or(d.marks.bound, markBound))
	defer stop()
	written := false
	at, err = d.mark(bounded, func() { written = true; said() })
	if written && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return at, true, nil
	}
	return at, false, err
}

// mark returns the place in the log of a marker that it writes: every row up to there is
// in a lane, parked or settled. late is called if that takes long: a log that is not
// read for want of room brings no marker.
func (d *Desk) mark(ctx context.Context, late func()) (store.Checkpoint, error) {
	m, came := &d.marks, make(chan store.Checkpoint, 1)
	m.mu.Lock()
	m.written++
	token := fmt.Sprintf("replay-%d-%d", d.Epoch, m.written)
	if m.waiting == nil {
		m.waiting = map[string]chan<- store.Checkpoint{}
	}
	m.waiting[token] = came
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(m.waiting, token)
		m.mu.Unlock()
	}()
	if err := d.Log.Mark(ctx, token); err != nil {
		return store.Checkpoint{}, fmt.Errorf("write a marker into the log: %w", err)
	}
	timer := time.NewTimer(lateMark)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return store.Checkpoint{}, ctx.Err()
		case <-timer.C:
			late()
		case at := <-came:
			if at.Position == "" {
				return at, fmt.Errorf("marker %s came back without a place in the log", token)
			}
			at.Origin = d.Log.Origin
			return at, nil
		}
	}
}
