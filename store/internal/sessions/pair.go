package sessions

import (
	"context"
	"sync/atomic"
	"time"
)

// Pair chooses between two sessions that serve the same calls. It is safe for concurrent use.
type Pair struct {
	busy    atomic.Bool  // a call has the first session
	without atomic.Int64 // until when the second one is not tried; Unix time in nanoseconds
}

// reopenAfter is how long a second session that cannot be opened is not tried again: the server may have
// none to spare.
const reopenAfter = time.Minute

// Take returns which session serves a call, 0 or 1. The second one serves it while another call has the first,
// so it is opened only then; without it the call waits for the first. The caller calls free when the call has
// ended.
func (p *Pair) Take(ctx context.Context, second *Session) (number int, free func()) {
	if p.busy.CompareAndSwap(false, true) {
		return 0, func() { p.busy.Store(false) }
	}
	free = func() {}
	if time.Now().UnixNano() < p.without.Load() {
		return 0, free
	}
	if err := second.Do(ctx, func(context.Context) error { return nil }); err != nil {
		if ctx.Err() == nil {
			p.without.Store(time.Now().Add(reopenAfter).UnixNano())
		}
		return 0, free
	}
	return 1, free
}
