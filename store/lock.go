package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strings"
	"time"
)

// MinLockLease is the minimum time for which a database keeps a lock after it has answered
// a ping, even if the holder dies.
const MinLockLease = 4 * time.Second

// CloseTimeout bounds the end of a session on a server that may be gone.
const CloseTimeout = time.Second

// Locker lets one relay of a name lead at a time. The lock provides liveness: two relays do
// not take leadership from each other in turns. The epoch provides safety, even against a
// relay that still believes in a lost lock.
type Locker interface {
	// Lock acquires the lock of the relay's name without waiting. It returns a *LockedError
	// if another relay holds the lock. The caller must release the returned Lock.
	Lock(ctx context.Context) (Lock, error)
}

// Lock is a lock that a relay holds. One goroutine at a time may call it; Release is safe
// for concurrent use.
type Lock interface {
	// Ping returns nil if the database confirmed the lock. No other relay can then acquire
	// it for MinLockLease, counted from the call of Ping, unless an administrator ends the
	// holder's session. Any error means that the lock is lost for good.
	Ping(ctx context.Context) error
	// RequestCount returns the number of requests written for the relay, see Requester, at
	// the last Ping; 0 before the first. It is also 0 if the count cannot be read, for
	// example because the table or a privilege is missing.
	RequestCount() int64
	// Watch waits until the context ends, and returns nil then. It returns the reason as
	// soon as the lock is known to be lost. It sends nothing to the database.
	Watch(ctx context.Context) error
	// Release releases the lock. It may be called more than once.
	Release()
}

// LockedError reports that another relay of the same name holds the lock.
type LockedError struct {
	// Holder is the name of the other relay, "" if unknown.
	Holder string
}

func (e *LockedError) Error() string {
	if e.Holder == "" {
		return "relay lock held by another session"
	}
	return "relay lock held by " + e.Holder
}

// Leader is the current or last leader.
type Leader struct {
	Epoch Epoch
	// Holder is the leader's name for itself.
	Holder string
	// Since is when it acquired leadership, by the database's clock.
	Since time.Time
}

// maxHolderLength is the maximum length of the name in a holder.
const maxHolderLength = 200

// NewHolder returns a unique holder for a store: the name, which may be empty, and random
// digits. The result is ASCII because it must fit every database encoding.
func NewHolder(name string) string {
	var digits [4]byte
	_, _ = rand.Read(digits[:]) // never fails
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, name)
	return strings.TrimPrefix(name[:min(len(name), maxHolderLength)]+"#"+hex.EncodeToString(digits[:]), "#")
}

// HandOver is a request of a relay that stands by to lead.
type HandOver struct {
	To string // the holder that requests it; "" if none did
	N  int64  // grows with each request
}

// HandOvers are requests of relays that stand by to lead. The leader decides. Any process may call it.
type HandOvers interface {
	// RequestHandOver requests that the leader hands over to a holder. It counts as a request; see
	// Lock.RequestCount.
	RequestHandOver(ctx context.Context, to string) error
	// HandOver returns the latest request, also one of a time before the leader led.
	HandOver(ctx context.Context) (HandOver, error)
}
