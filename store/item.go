package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"
)

// Group is the message group of a row: rows of one group are delivered in order. The zero
// value means no group (NULL), which differs from a group with an empty name.
type Group struct {
	Name  string
	Valid bool
}

// GroupOf returns the group with the given name.
func GroupOf(name string) Group { return Group{Name: name, Valid: true} }

// String returns the name, or "(none)" without a group.
func (g Group) String() string {
	if !g.Valid {
		return "(none)"
	}
	return g.Name
}

// MarshalJSON returns the name, or null without a group.
func (g Group) MarshalJSON() ([]byte, error) {
	if !g.Valid {
		return []byte("null"), nil
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // the caller's encoder escapes if it is to
	err := e.Encode(g.Name)
	return text.Bytes(), err
}

// UnmarshalJSON reads what MarshalJSON returns.
func (g *Group) UnmarshalJSON(text []byte) error {
	g.Valid = string(text) != "null"
	return json.Unmarshal(text, &g.Name) // null changes nothing
}

// LaneKey identifies the lane of a row. It is a struct and not a joined string, because
// some combinations of names would join to the same string.
type LaneKey struct {
	Outbox string `json:"outbox"`
	Kind   string `json:"kind"`
	Group  Group  `json:"group"`
}

func (k LaneKey) String() string {
	if k.Kind == "" {
		return k.Outbox + "/" + k.Group.String()
	}
	return fmt.Sprintf("%s/%s/%s", k.Outbox, k.Kind, k.Group)
}

// Txn identifies the transaction that inserted a row. Only the store of the same database
// interprets it: on Postgres, for example, it is the 32-bit xid of the Begin message. 0
// means that the row was read from its table, and was visible then.
type Txn uint64

// Ref identifies one row.
type Ref struct {
	Outbox string `json:"outbox"` // name of the outbox in the configuration
	ID     string `json:"id"`     // row id in the database's canonical text form
}

// Item is one outbox row, as captured. The receiver of an Item owns it; the payload is
// never shared with a read buffer.
type Item struct {
	Ref
	Kind  string
	Group Group
	// Payload is the row's payload, byte for byte. It is nil if it was dropped to limit
	// memory; the claim then reads it again.
	Payload []byte
	// Attributes are the values of the columns that the layout names as attributes. They are
	// dropped and read again together with the payload, but a source keeps those of an outbox with
	// routes; see Outbox.KeepsAttributes.
	Attributes Attributes
	// PayloadSize is the payload's length in bytes, even if Payload is nil.
	PayloadSize int
	// RetryCount is the number of counted failures stored in the row.
	RetryCount int
	Txn        Txn
	Seq        Seq
	// Committed is when the row's transaction committed, by the server's clock; zero for a
	// row that was read from its table.
	Committed time.Time
	// Captured is when the relay first saw the row, by the relay's clock.
	Captured time.Time
}

// Bytes returns the memory used by the row's texts and content.
func (it *Item) Bytes() int { return it.TextBytes() + it.ContentBytes() }

// ContentBytes returns the memory used by the payload and the attributes.
func (it *Item) ContentBytes() int { return len(it.Payload) + it.Attributes.Bytes() }

// DropContent drops the payload and the attributes; a claim reads them again.
func (it *Item) DropContent() { it.Payload, it.Attributes = nil, nil }

// TextBytes returns the memory used by id, kind and group. A group can be as large as a
// payload.
func (it *Item) TextBytes() int { return len(it.ID) + len(it.Kind) + len(it.Group.Name) }

// OwnKind returns the kind of the row itself: its attribute kind, or else that of its lane.
func (it *Item) OwnKind() string {
	if kind, ok := it.Attributes.Get(AttributeKind); ok {
		return kind
	}
	return it.Kind
}

// BytesOf returns the sum of Bytes over items.
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

// Epoch is the fencing token. It grows with each change of leader; the first leader has
// epoch 1.
type Epoch int64

// seqBits is the width of the capture counter below the epoch. It allows 2^40 rows per
// leader and 2^23 changes of leader in an int64.
const seqBits = 40

// Seq orders all items of a relay across leaders in one integer: epoch · 2^40 + capture
// counter.
type Seq int64

// NewSeq returns the seq of the n-th row that the leader of epoch e captured. It panics if
// n exceeds 40 bits, after 10^12 rows under one leader, because continuing would break the
// order.
func NewSeq(e Epoch, n int64) Seq {
	if n < 0 || n >= 1<<seqBits {
		panic("store: capture counter " + strconv.FormatInt(n, 10) + " exceeds 40 bits; restart the relay for a new epoch")
	}
	return Seq(int64(e)<<seqBits | n)
}

// Epoch returns the epoch of the leader that captured the row.
func (s Seq) Epoch() Epoch { return Epoch(s >> seqBits) }

// Position is an opaque position in a source's log, in a readable text form: an LSN, a GTID
// set or a resume token. Only its source compares positions. "" means no position.
type Position string

// Checkpoint is the position below which every row is settled or spilled.
type Checkpoint struct {
	// Origin identifies the log of Position, for example by the server's identity and
	// timeline. A position of another origin is meaningless.
	Origin   string
	Position Position
	Seq      Seq
	// Legs are the marks of the legs, by name. Position is the least of them. Rows of outboxes
	// without routes have none, and are below Position and Seq.
	Legs map[string]LegMark
}

// IsZero reports whether there is no checkpoint.
func (c Checkpoint) IsZero() bool { return c.Equal(Checkpoint{}) }

// Equal reports whether two checkpoints are the same.
func (c Checkpoint) Equal(other Checkpoint) bool {
	return c.Origin == other.Origin && c.Position == other.Position && c.Seq == other.Seq && maps.Equal(c.Legs, other.Legs)
}
