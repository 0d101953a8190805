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
	// pingInterval is how often the database is asked for the lock.
	pingInterval = time.Second
	// pingValidity is how long an answer counts, from when it was asked for. It is
	// less than store.MinLockLease, by what a request may take to begin.
	pingValidity = 3 * time.Second
)

// Tenure is the time from when a relay got the lock until it has lost it or given
// it up. All methods but Run are safe for concurrent use.
type Tenure struct {
	lock store.Lock
	lost chan struct{} // closed when the lock is lost

	requestCount int64         // as of the latest ping; Run's alone
	requested    chan struct{} // has room for one

	mu           sync.Mutex
	pingedAt     time.Time     // when the latest ping that was answered was sent
	pingAnswered chan struct{} // closed and replaced with each answer
	reason       error         // why the lock is lost
}

func newTenure(lock store.Lock, asked time.Time) *Tenure {
	return &Tenure{
		lock: lock, pingedAt: asked, lost: make(chan struct{}), pingAnswered: make(chan struct{}),
		requestCount: lock.RequestCount(), requested: make(chan struct{}, 1),
	}
}

// Run watches over the lock until the context ends, or until the lock is lost and
// the tenure over: then the error wraps store.ErrNotLeader. It may be called once.
func (t *Tenure) Run(ctx context.Context) error {
	for {
		if err := t.watch(ctx); err != nil {
			return t.fail(err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		asked := time.Now()
		err := t.ping(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return t.fail(err)
		}
		t.recordPing(asked)
		t.signalRequests(t.lock.RequestCount())
	}
}

// signalRequests signals that there are more wishes than before.
func (t *Tenure) signalRequests(n int64) {
	if n > t.requestCount {
		select {
		case t.requested <- struct{}{}:
		default: // the signal of earlier ones is not taken yet
		}
	}
	t.requestCount = n
}

// watch waits for the time of the next ping. After a slow answer that is now.
func (t *Tenure) watch(ctx context.Context) error {
	ctx, cancel := context.WithDeadline(ctx, t.pingedAt.Add(pingInterval)) // only Run changes it
	defer cancel()
	return t.lock.Watch(ctx)
}

// ping asks for the lock, until the database may have given it away.
func (t *Tenure) ping(ctx context.Context) error {
	ctx, cancel := context.WithDeadline(ctx, t.pingedAt.Add(store.MinLockLease))
	defer cancel()
	return t.lock.Ping(ctx)
}

func (t *Tenure) recordPing(asked time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pingedAt = asked
	close(t.pingAnswered)
	t.pingAnswered = make(chan struct{})
}

func (t *Tenure) fail(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("the database has not answered for %s: %w", store.MinLockLease, err)
	}
	err = fmt.Errorf("the lock is lost: %w: %w", err, store.ErrNotLeader)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reason = err
	close(t.lost)
	return err
}

// Await returns nil while the relay is sure to lead. While it is in doubt it
// waits. The error is the context's, or, once the lock is lost, one that wraps
// store.ErrNotLeader.
func (t *Tenure) Await(ctx context.Context) error {
	for {
		t.mu.Lock()
		sure, reason, heard := t.pingValid(time.Now()), t.reason, t.pingAnswered
		t.mu.Unlock()
		switch {
		case reason != nil:
			return reason
		case sure:
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-heard:
		case <-t.lost:
		}
	}
}

// Requested has a signal once somebody has written wishes since the tenure began, see
// store.Wishes: a second or so after they were written. It has one for all that came
// until it is taken, and is never closed. Wishes of before are to be read when the
// tenure begins.
func (t *Tenure) Requested() <-chan struct{} { return t.requested }

// Lost is closed when the lock is lost.
func (t *Tenure) Lost() <-chan struct{} { return t.lost }

// IsLeader reports whether the relay leads, and no other can.
func (t *Tenure) IsLeader() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reason == nil && t.pingValid(time.Now())
}

// pingValid asks both clocks. One may have stood still while the machine slept, the
// other may be set back. The caller holds the lock.
func (t *Tenure) pingValid(now time.Time) bool {
	return now.Sub(t.pingedAt) < pingValidity && now.Round(0).Sub(t.pingedAt.Round(0)) < pingValidity
}

// Release gives the lock up. Run must have returned.
func (t *Tenure) Release() { t.lock.Release() }
