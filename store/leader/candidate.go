package leader

import (
	"context"
	"errors"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// tryInterval is how often a standby tries: the death of the leader goes
	// unnoticed for as long at the most. Each try is a round trip or two.
	tryInterval = 250 * time.Millisecond
	// constraintTimeout bounds one try, in which a connection may have to be opened, and
	// several hosts tried for it.
	tryTimeout = 15 * time.Second
)

// Observer is told what a candidate finds. It must return at once.
type Observer interface {
	// Standby: another relay holds the lock; it calls itself holder, if that is
	// known.
	Standby(holder string)
	// LockFailed: the lock could not be asked for. It is tried again.
	LockFailed(err error)
}

// Candidate is a relay that wants to lead.
type Candidate struct {
	Locker   store.Locker
	Observer Observer
}

// Compete waits until the relay holds the lock. Run the tenure, and release it.
// The error is the context's or one that trying again does not mend, which is a
// *store.SetupError.
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
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(tryInterval):
		}
	}
}

// try asks for the lock. It may take long to get, while a connection is opened; so
// the tenure counts from a ping.
func (c *Candidate) try(ctx context.Context) (*Tenure, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	lock, err := c.Locker.Lock(ctx)
	if err != nil {
		return nil, err
	}
	asked := time.Now()
	if err := lock.Ping(ctx); err != nil {
		lock.Release()
		return nil, err
	}
	return newTenure(lock, asked), nil
}
