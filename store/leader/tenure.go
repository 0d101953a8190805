package leader

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// pingInterval is how often the tenure pings the database.
	pingInterval = time.Second
	// pingValidity is how long an answer confirms the lock, counted from the start of the
	// ping. It is less than store.MinLockLease by the time that a request may take to
	// start.
	pingValidity = 3 * time.Second
)

// Tenure is the time for which a relay holds the lock. All methods but Run are safe for
// concurrent use.
type Tenure struct {
	lock store.Lock
	lost chan struct{} // closed when the lock is lost

	requestCount int64         // at the latest ping; used by Run only
	requested    chan struct{} // capacity 1
	handOver     chan struct{} // capacity 1

	mu           sync.Mutex
	pingedAt     time.Time     // start of the latest answered ping
	pingAnswered chan struct{} // closed and replaced at each answer
	reason       error         // why the lock is lost
}

func newTenure(lock store.Lock, pingedAt time.Time) *Tenure {
	return &Tenure{
		lock: lock, pingedAt: pingedAt, lost: make(chan struct{}), pingAnswered: make(chan struct{}),
		requestCount: lock.RequestCount(), requested: make(chan struct{}, 1), handOver: make(chan struct{}, 1),
	}
}

// Run maintains the lock until the context ends or the lock is lost. After a loss its error
// wraps store.ErrNotLeader. It may be called once.
func (t *Tenure) Run(ctx context.Context) error {
	for {
		if err := t.watch(ctx); err != nil {
			return t.fail(err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		sentAt := time.Now()
		err := t.ping(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return t.fail(err)
		}
		t.recordPing(sentAt)
		t.signalRequests(t.lock.RequestCount())
	}
}

// signalRequests signals an increase of the request count.
func (t *Tenure) signalRequests(n int64) {
	if n > t.requestCount {
		for _, signal := range []chan struct{}{t.requested, t.handOver} {
			select {
			case signal <- struct{}{}:
			default: // an earlier signal is still pending
			}
		}
	}
	t.requestCount = n
}

// watch waits until the next ping is due, which is immediately after a slow answer.
func (t *Tenure) watch(ctx context.Context) error {
	ctx, cancel := context.WithDeadline(ctx, t.pingedAt.Add(pingInterval)) // only Run changes pingedAt
	defer cancel()
	return t.lock.Watch(ctx)
}

// ping confirms the lock. It fails when the database may have released the lock.
func (t *Tenure) ping(ctx context.Context) error {
	ctx, cancel := context.WithDeadline(ctx, t.pingedAt.Add(store.MinLockLease))
	defer cancel()
	return t.lock.Ping(ctx)
}

func (t *Tenure) recordPing(sentAt time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pingedAt = sentAt
	close(t.pingAnswered)
	t.pingAnswered = make(chan struct{})
}

func (t *Tenure) fail(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no database answer for %s: %w", store.MinLockLease, err)
	}
	err = fmt.Errorf("relay lock lost: %w: %w", err, store.ErrNotLeader)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reason = err
	close(t.lost)
	return err
}

// Await returns nil while the lock is confirmed. It waits while no recent ping was
// answered. It returns the context's error, or, once the lock is lost, an error that wraps
// store.ErrNotLeader.
func (t *Tenure) Await(ctx context.Context) error {
	for {
		t.mu.Lock()
		valid, reason, answered := t.pingValid(time.Now()), t.reason, t.pingAnswered
		t.mu.Unlock()
		switch {
		case reason != nil:
			return reason
		case valid:
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-answered:
		case <-t.lost:
		}
	}
}

// Requested returns a channel that receives a signal about a second after requests were
// written during the tenure, see store.Requester. One pending signal stands for any number
// of requests. The channel is never closed. The caller reads earlier requests at the start
// of the tenure.
func (t *Tenure) Requested() <-chan struct{} { return t.requested }

// HandOverRequested is Requested for another receiver, who looks for a request to hand over.
func (t *Tenure) HandOverRequested() <-chan struct{} { return t.handOver }

// Lost returns a channel that is closed when the lock is lost.
func (t *Tenure) Lost() <-chan struct{} { return t.lost }

// IsLeader reports whether the relay certainly leads.
func (t *Tenure) IsLeader() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reason == nil && t.pingValid(time.Now())
}

// pingValid checks the monotonic and the wall clock, because the first may stop while the
// machine sleeps and the second may be set back. The caller holds t.mu.
func (t *Tenure) pingValid(now time.Time) bool {
	return now.Sub(t.pingedAt) < pingValidity && now.Round(0).Sub(t.pingedAt.Round(0)) < pingValidity
}

// Release releases the lock. Run must have returned.
func (t *Tenure) Release() { t.lock.Release() }
