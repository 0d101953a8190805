package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strings"
	"time"
)

// MinLockLease is how long a database keeps a lock at the least after it has answered
// a ping, whatever becomes of the holder meanwhile.
const MinLockLease = 4 * time.Second

// Locker lets one relay of a name lead at a time. The lock gives liveness: two
// relays do not take the lead from each other in turns. The epoch gives safety:
// it holds also against a relay that takes a lost lock for its own.
type Locker interface {
	// Lock takes the lock of the relay's name. It does not wait: a
	// *LockedError says that another relay holds it. Release the lock.
	Lock(ctx context.Context) (Lock, error)
}

// Lock is a lock that a relay holds. One goroutine at a time asks it; Release may
// come from any.
type Lock interface {
	// Ping returns nil if the lock is held: it was when the database answered,
	// and nobody else can have it for MinLockLease from the moment that Ping was
	// called, unless an administrator ends the holder's session. Any error means
	// that it is lost for good.
	Ping(ctx context.Context) error
	// RequestCount is how many wishes had been written for the relay, see [RequestCount], when the
	// database answered the last Ping; 0 before the first. Where the count cannot be
	// read, for want of the table or of a right to it, it is 0 too.
	RequestCount() int64
	// Watch waits until the context ends and returns nil then, or the reason as
	// soon as the lock is known to be lost. It asks nothing of the database.
	Watch(ctx context.Context) error
	// Release gives the lock up. It may be called more than once.
	Release()
}

// LockedError says that another relay of the same name holds the lock.
type LockedError struct {
	// Holder is what the other relay calls itself, "" if that is not known.
	Holder string
}

func (e *LockedError) Error() string {
	if e.Holder == "" {
		return "another relay of this name runs"
	}
	return "another relay of this name runs: " + e.Holder
}

// Leader is who leads, or led last.
type Leader struct {
	Epoch Epoch
	// Holder is what the leader calls itself.
	Holder string
	// Since is when it took the lead, by the database's clock.
	Since time.Time
}

// maxHolderLength is the most characters of the name that a holder is given.
const maxHolderLength = 200

// NewHolder makes what a store calls itself, which no other store does: the name,
// which may be empty, and a few digits at random. It is ASCII, since it must fit
// every encoding of a database.
func NewHolder(name string) string {
	var digits [4]byte
	_, _ = rand.Read(digits[:]) // it never fails
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, name)
	return strings.TrimPrefix(name[:min(len(name), maxHolderLength)]+"#"+hex.EncodeToString(digits[:]), "#")
}
