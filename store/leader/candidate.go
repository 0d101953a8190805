package leader

import (
	"context"
	"errors"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

const (
	// tryInterval is how often a standby tries to acquire the lock, so the upper bound for
	// noticing the leader's death. Each try takes one or two round trips.
	tryInterval = 250 * time.Millisecond
	// tryTimeout limits one try, which may open a connection and try several hosts for it.
	tryTimeout = 15 * time.Second
)

// Observer receives the events of a candidate. Its methods must return at once.
type Observer interface {
	// Standby: another relay holds the lock. holder is its name, "" if unknown.
	Standby(holder string)
	// LockFailed: the request for the lock failed. The candidate retries it.
	LockFailed(err error)
}

// Candidate is a relay that competes for leadership.
type Candidate struct {
	Locker   store.Locker
	Observer Observer
}

// Compete waits until the relay holds the lock. The caller must run the returned tenure and
// release it. Compete returns the context's error, or a *store.SetupError, because retries
// cannot fix that.
func (c *Candidate) Compete(ctx context.Context) (*Tenure, error) {
	for {
		tenure, err := c.try(ctx)
		if err == nil {
			return tenure, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}

		var held *store.LockedError
		var setup *store.SetupError
		switch {
		case errors.As(err, &held):
			c.Observer.Standby(held.Holder)
		case errors.As(err, &setup):
			return nil, err
		default:
			c.Observer.LockFailed(err)
		}

		if err := backoff.Sleep(ctx, tryInterval); err != nil {
			return nil, err
		}
	}
}

// try requests the lock once. It may take long, for example to open a connection, so the
// tenure starts from a ping.
func (c *Candidate) try(ctx context.Context) (*Tenure, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	lock, err := c.Locker.Lock(ctx)
	if err != nil {
		return nil, err
	}
	sentAt := time.Now()
	if err := lock.Ping(ctx); err != nil {
		lock.Release()
		return nil, err
	}
	return newTenure(lock, sentAt), nil
}
