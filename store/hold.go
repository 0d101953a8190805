package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"
)

// HoldKind says why a lane stands still until somebody lets it go.
type HoldKind uint8

// The kinds of holds. A lane may have one of each.
const (
	// Blocked: a row of the lane is FAILED and nothing may pass it.
	Blocked HoldKind = iota + 1
	// Paused: somebody asked for it.
	Paused
)

// String returns the word that the own tables and the logs use.
func (k HoldKind) String() string {
	switch k {
	case Blocked:
		return "blocked"
	case Paused:
		return "paused"
	}
	return "unknown"
}

// ParseHoldKind reads the word that String returns.
func ParseHoldKind(word string) (HoldKind, error) {
	for k := Blocked; k <= Paused; k++ {
		if word == k.String() {
			return k, nil
		}
	}
	return 0, fmt.Errorf("%q is no kind of hold", word)
}

// LaneHash names a lane inside its outbox in the relay's own tables, in one
// length for any kind and group. It begins with the KindHash of its kind, so that
// the lanes of a kind are a range of every index.
type LaneHash [20]byte

// KindHash names a kind in a LaneHash.
type KindHash [4]byte

// Hash returns the first 4 bytes of the SHA-256 of the kind, and the first 16 of
// that of the kind's length in bytes (8 bytes, big-endian), the kind, a byte that is
// 1 if there is a group and 0 if it is NULL, and the group's name. The outbox is not
// part of it.
func (k LaneKey) Hash() (h LaneHash) {
	kind := sha256.Sum256([]byte(k.Kind))
	text := binary.BigEndian.AppendUint64(nil, uint64(len(k.Kind)))
	text = append(text, k.Kind...)
	if k.Group.Valid {
		text = append(append(text, 1), k.Group.Name...)
	} else {
		text = append(text, 0)
	}
	lane := sha256.Sum256(text)
	n := copy(h[:], kind[:len(KindHash{})])
	copy(h[n:], lane[:])
	return h
}

// Kind is the kind that the lane is of. Two kinds of one hash are possible, if
// unlikely.
func (h LaneHash) Kind() KindHash { return KindHash(h[:len(KindHash{})]) }

// Last is the last hash that a lane of the kind could have.
func (k KindHash) Last() (h LaneHash) {
	for i := copy(h[:], k[:]); i < len(h); i++ {
		h[i] = 0xff
	}
	return h
}

// Hold is the record of a lane that stands still, also across restarts.
type Hold struct {
	Lane LaneKey
	Kind HoldKind
	// ID is the FAILED row that blocks the lane; "" for a paused one.
	ID string
	// RetryCount is the count of the FAILED row.
	RetryCount int
	// Reason is the row's error, or what the operator said.
	Reason string
	// Since is when the lane came to stand still, by the relay's clock.
	Since time.Time
}

// Validate reports whether a hold may be recorded for its outbox.
func (h *Hold) Validate(o *Outbox) error {
	switch h.Kind {
	case Paused:
		return nil
	case Blocked:
		if o.Layout.State == StateNone {
			return cannotBlock(o)
		}
		return nil
	}
	return fmt.Errorf("lane %s: %d is no kind of hold", h.Lane, h.Kind)
}

// cannotBlock is the error for a table whose rows cannot say that they FAILED.
func cannotBlock(o *Outbox) error {
	return &SetupError{
		Problem: fmt.Sprintf("outbox %s: layout %s keeps no state, so no FAILED row can block its lane", o.Name, o.Layout.Name),
		Remedy:  "set on-failed: continue for its sink, or use a layout that keeps a state",
	}
}

// Holds keeps which lanes stand still. A lane becomes Blocked by an Outcome, or by Hold
// where its row FAILED before the relay came.
type Holds interface {
	// LoadHolds returns the holds of the relay's outboxes, in no order. A row
	// that blocked its lane and is no longer FAILED blocks nothing: its hold is
	// not returned, and it does not come back if the row is FAILED again without
	// Outcome.Block.
	LoadHolds(ctx context.Context) ([]Hold, error)
	// Hold records a hold in place of one of the same lane and kind. It is
	// durable when Hold returns. Reasons are stored like error texts, times as
	// outcomes' are. ErrNotLeader means that nothing was written.
	Hold(ctx context.Context, epoch Epoch, h Hold) error
	// Release forgets the hold of a lane and kind, durably; none is no error.
	// ErrNotLeader means that nothing was written.
	Release(ctx context.Context, epoch Epoch, lane LaneKey, kind HoldKind) error
}
