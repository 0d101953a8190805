package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"
)

// HoldKind is the reason why a lane is held until it is released.
type HoldKind uint8

// Kinds of holds. A lane can have one of each.
const (
	// Blocked: a row of the lane is FAILED and no later row may pass it.
	Blocked HoldKind = iota + 1
	// Paused: an operator paused the lane.
	Paused
	// OutboxPaused: an operator paused all lanes of the outbox. Such a hold names the outbox
	// alone; see PauseOfOutbox.
	OutboxPaused
)

// String returns the word in the relay's tables and logs.
func (k HoldKind) String() string {
	switch k {
	case Blocked:
		return "blocked"
	case Paused:
		return "paused"
	case OutboxPaused:
		return "outbox paused"
	}
	return "unknown"
}

// ParseHoldKind parses the word that String returns.
func ParseHoldKind(word string) (HoldKind, error) {
	for k := Blocked; k <= OutboxPaused; k++ {
		if word == k.String() {
			return k, nil
		}
	}
	return 0, fmt.Errorf("unknown hold kind %q", word)
}

// LaneHash identifies a lane of an outbox in the relay's tables, in a fixed length for any
// kind and group. It begins with the KindHash of its kind, so that the lanes of a kind are
// one range of every index.
type LaneHash [20]byte

// KindHash identifies a kind in a LaneHash.
type KindHash [4]byte

// Hash returns the first 4 bytes of SHA-256(kind), followed by the first 16 bytes of the
// SHA-256 of these, concatenated:
//
//   - the kind's length in bytes (8 bytes, big-endian),
//   - the kind,
//   - a byte that is 1 if there is a group and 0 if it is NULL,
//   - the group's name.
//
// The outbox is not part of the hash.
func (k LaneKey) Hash() (h LaneHash) {
	kind := KindHash{0xe3, 0xb0, 0xc4, 0x42} // of "", which most lanes have
	if k.Kind != "" {
		sum := sha256.Sum256([]byte(k.Kind))
		kind = KindHash(sum[:len(kind)])
	}
	text := binary.BigEndian.AppendUint64(make([]byte, 0, 128), uint64(len(k.Kind)))
	text = append(text, k.Kind...)
	if k.Group.Valid {
		text = append(append(text, 1), k.Group.Name...)
	} else {
		text = append(text, 0)
	}
	lane := sha256.Sum256(text)
	n := copy(h[:], kind[:])
	copy(h[n:], lane[:])
	return h
}

// Kind returns the hash of the lane's kind. Two kinds can have the same hash, though it is
// unlikely.
func (h LaneHash) Kind() KindHash { return KindHash(h[:len(KindHash{})]) }

// Last returns the largest possible LaneHash of the kind.
func (k KindHash) Last() (h LaneHash) {
	for i := copy(h[:], k[:]); i < len(h); i++ {
		h[i] = 0xff
	}
	return h
}

// Hold is the stored record of a held lane. It survives restarts.
type Hold struct {
	Lane LaneKey
	Kind HoldKind
	// ID is the FAILED row that blocks the lane; "" for a paused lane.
	ID string
	// RetryCount is the retry count of the FAILED row.
	RetryCount int
	// Reason is the row's error, or the operator's note.
	Reason string
	// Since is when the lane was held, by the relay's clock.
	Since time.Time
}

// Validate reports whether the hold may be recorded for o.
func (h *Hold) Validate(*Outbox) error {
	switch {
	case h.Kind < Blocked || h.Kind > OutboxPaused:
		return fmt.Errorf("lane %s: unknown hold kind %d", h.Lane, h.Kind)
	case h.Kind == OutboxPaused && h.Lane != PauseOfOutbox(h.Lane.Outbox):
		return fmt.Errorf("lane %s: a pause of an outbox names no lane", h.Lane)
	}
	return nil
}

// PauseOfOutbox returns the lane of an OutboxPaused hold.
func PauseOfOutbox(outbox string) LaneKey { return LaneKey{Outbox: outbox} }

// Holds stores which lanes are held. A lane becomes Blocked by an Outcome, or by Hold if
// its row FAILED before the relay started.
type Holds interface {
	// LoadHolds returns the holds of the relay's outboxes, in no order. A Blocked hold
	// whose row is no longer FAILED is not returned. It does not come back if the row
	// becomes FAILED again without Outcome.Block.
	LoadHolds(ctx context.Context) ([]Hold, error)
	// Hold records a hold and replaces an earlier one of the same lane and kind, durably.
	// Reasons are stored like error texts, and times like outcome times. After ErrNotLeader
	// nothing was written.
	Hold(ctx context.Context, epoch Epoch, h Hold) error
	// Release deletes the hold of a lane and kind, durably. A missing hold is not an error.
	// After ErrNotLeader nothing was written.
	Release(ctx context.Context, epoch Epoch, lane LaneKey, kind HoldKind) error
}
