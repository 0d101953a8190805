package store

import (
	"fmt"
	"strconv"
	"time"
)

// Group is the message group of a row: rows of one group are delivered in
// order. The zero value is the absence of a group (NULL), which differs from a
// group whose name is empty.
type Group struct {
	Name  string
	Valid bool
}

// GroupOf returns the group of the given name.
func GroupOf(name string) Group { return Group{Name: name, Valid: true} }

// String returns the name, or "(none)" for a row without a group.
func (g Group) String() string {
	if !g.Valid {
		return "(none)"
	}
	return g.Name
}

// LaneKey names the lane of a row. It is a struct and never a joined string, so
// that no choice of names can make two lanes one.
type LaneKey struct {
	Outbox string
	Kind   string
	Group  Group
}

func (k LaneKey) String() string {
	return fmt.Sprintf("%s/%s/%s", k.Outbox, k.Kind, k.Group)
}

// Txn is what the source knows of the transaction that inserted a row, in a
// form that only the store of the same database reads. On Postgres it is the
// 32-bit xid of the Begin message. 0 says that the row came from a read of the
// table and so was visible then.
type Txn uint64

// Ref names one row.
type Ref struct {
	Outbox string // name of the outbox, as configured
	ID     string // the row's id in the database's canonical text form
}

// Item is one outbox row, as captured. Whoever receives an Item owns it; the
// payload is not shared with a read buffer.
type Item struct {
	Ref
	Kind  string
	Group Group
	// Payload is the row's payload, byte for byte. It is nil where the memory
	// bound dropped it; the claim then reads it again.
	Payload []byte
	// PayloadSize is the payload's length in bytes, also when Payload is nil.
	PayloadSize int
	// RetryCount is the number of counted failures that the row records.
	RetryCount int
	Txn        Txn
	Seq        Seq
	// Committed is when the row's transaction committed, by the server's clock;
	// zero for a row from a table read.
	Committed time.Time
	// Captured is when the relay first saw the row, by the relay's clock.
	Captured time.Time
}

// Bytes is how much memory the row's texts and its payload take.
func (it *Item) Bytes() int { return it.TextBytes() + len(it.Payload) }

// TextBytes is how much the row takes without its payload: a group may be as large.
func (it *Item) TextBytes() int { return len(it.ID) + len(it.Kind) + len(it.Group.Name) }

// BytesOf is the sum of the bytes of some rows.
func BytesOf(items []Item) (sum int64) {
	for i := range items {
		sum += int64(items[i].Bytes())
	}
	return sum
}

// Lane returns the key of the row's lane.
func (it *Item) Lane() LaneKey {
	return LaneKey{Outbox: it.Outbox, Kind: it.Kind, Group: it.Group}
}

// Epoch grows with each change of leader. The first leader has epoch 1.
type Epoch int64

// seqBits is the room for a capture counter below the epoch: 2^40 rows for one
// leader, and 2^23 changes of leader before int64 ends.
const seqBits = 40

// Seq orders all items of a relay across leaders in one integer:
// epoch · 2^40 + capture counter.
type Seq int64

// NewSeq returns the seq of the n-th row that the leader of epoch e captured.
// It panics if n has outgrown its 40 bits, after 10^12 rows under one leader:
// going on would break the order.
func NewSeq(e Epoch, n int64) Seq {
	if n < 0 || n >= 1<<seqBits {
		panic("store: capture counter " + strconv.FormatInt(n, 10) + " does not fit; restart the relay for a new epoch")
	}
	return Seq(int64(e)<<seqBits | n)
}

// Epoch returns the epoch of the leader that captured the row.
func (s Seq) Epoch() Epoch { return Epoch(s >> seqBits) }

// Position is an opaque place in a source's log: an LSN, a GTID set, a resume
// token, in a text form that an operator may read. Only its source compares
// positions. "" is no position.
type Position string

// Checkpoint is the place below which every row is settled or parked.
type Checkpoint struct {
	// Origin names the log that Position points into, such as a server's
	// identity and timeline. A position of another origin means nothing.
	Origin   string
	Position Position
	Seq      Seq
}
