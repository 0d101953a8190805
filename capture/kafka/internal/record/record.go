// Package record has the records of a topic between capture and dispatch: their format, how a
// feeder makes them of batches, and which of them a shard takes.
//
// # Places
//
// A row is read again after a change of the feeder, so its partition may have it several times.
// Its place tells: After, the position that the database's log had last given before the row's
// transaction, and Index, its number among the rows of this transaction in its partition. The last
// of these rows carries End, the position behind the transaction. A shard remembers the End of
// the last transaction that it has, and how many rows of the next one. A transaction whose After is
// below that End is a repetition, because the End is that of the transaction itself or of a later one.
// Positions without rows are no Ends: two feeders may be given different ones.
package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Kind says what a record is.
type Kind uint8

const (
	// Row is a row of an outbox.
	Row Kind = iota + 1
	// Leader begins the records of a feeder: those of earlier epochs behind it are void.
	Leader
	// Gap says that the database's log was lost before the records that follow.
	Gap
	// Idle shows that the log was read, without a row for this partition.
	Idle
	// Mark is a marker of the database's log.
	Mark
	// End ends a transaction whose last part has no row for this partition.
	End
	// Part is a part of a Row that is too large for one record, because of its attributes or its
	// group. The next Parts follow it.
	Part

	kinds = Part
)

// Record is one record of a partition.
type Record struct {
	Kind  Kind
	Epoch store.Epoch // of the feeder
	// Number counts the feeder's records in the partition, from 0 for its Leader.
	Number uint64

	Partitions int // of a Leader

	// AckedEpoch and Acked, of a Leader, are the place that a shard has at least, unless Kafka has
	// lost records: the feeder's checkpoint rests on those of AckedEpoch with a number below Acked. Without
	// such a checkpoint AckedEpoch is 0.
	AckedEpoch store.Epoch
	Acked      uint64

	// After is explained by the package. For Idle and Mark it is the position itself.
	After store.Position
	Index uint64 // of a Row, from 1
	// End is "" for a Row whose transaction goes on. For a Mark it is where a shard that begins
	// behind it counts repetitions from.
	End store.Position

	Token string     // of a Mark, without the partition
	Time  time.Time  // of a Mark: when it was committed
	Item  store.Item // of a Row, without Seq and Captured

	// First and Last tell the Parts of a row apart; Data are bytes of the Row.
	First, Last bool
	Data        []byte
}

// version is the first byte of a record. Another one has another format.
const version = 1

// Flags of a part.
const (
	isFirst = 1 << iota
	isLast
)

// Flags of a row.
const (
	hasGroup = 1 << iota
	hasPayload
	hasAttributes
)

// Append appends the record's bytes.
func (r *Record) Append(b []byte) []byte {
	b = append(b, version, byte(r.Kind))
	b = binary.AppendUvarint(b, uint64(r.Epoch))
	b = binary.AppendUvarint(b, r.Number)
	switch r.Kind {
	case Leader:
		b = binary.AppendUvarint(b, uint64(r.Partitions))
		b = binary.AppendUvarint(b, uint64(r.AckedEpoch))
		b = binary.AppendUvarint(b, r.Acked)
	case Idle:
		b = appendText(b, r.After)
	case Mark:
		b = appendText(b, r.After)
		b = appendText(b, r.End)
		b = appendText(b, r.Token)
		b = appendTime(b, r.Time)
	case End:
		b = appendText(b, r.After)
		b = appendText(b, r.End)
	case Row:
		b = appendText(b, r.After)
		b = binary.AppendUvarint(b, r.Index)
		b = appendText(b, r.End)
		b = appendItem(b, &r.Item)
	case Part:
		b = append(b, bit(isFirst, r.First)|bit(isLast, r.Last))
		b = append(b, r.Data...)
	}
	return b
}

func bit(value byte, set bool) byte {
	if set {
		return value
	}
	return 0
}

func appendItem(b []byte, it *store.Item) []byte {
	b = append(b, bit(hasGroup, it.Group.Valid)|bit(hasPayload, it.Payload != nil)|bit(hasAttributes, it.Attributes != nil))
	b = appendText(b, it.Outbox)
	b = appendText(b, it.ID)
	b = appendText(b, it.Kind)
	b = appendText(b, it.Group.Name)
	b = binary.AppendUvarint(b, uint64(it.Txn))
	b = binary.AppendUvarint(b, uint64(it.RetryCount))
	b = appendTime(b, it.Committed)
	if it.Attributes != nil {
		b = binary.AppendUvarint(b, uint64(len(it.Attributes)))
		for i := range it.Attributes {
			b = appendText(b, it.Attributes[i].Name)
			b = appendText(b, it.Attributes[i].Value)
		}
	}
	b = binary.AppendUvarint(b, uint64(it.PayloadSize))
	return append(b, it.Payload...)
}

func appendText[T ~string](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendTime appends microseconds since 1970, the finest that a database has; 0 is no time.
func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return binary.AppendVarint(b, 0)
	}
	return binary.AppendVarint(b, t.UnixMicro())
}

var errShort = errors.New("it ends early")

// Parse reads a record. The record has copies of all texts, so b may be used again.
func Parse(b []byte) (Record, error) {
	if len(b) < 2 {
		return Record{}, fmt.Errorf("parse record of %d bytes: %w", len(b), errShort)
	}
	if b[0] != version {
		return Record{}, fmt.Errorf("parse record: version %d is not known; update this relay", b[0])
	}
	r, p := Record{Kind: Kind(b[1])}, parser{rest: b[2:]}
	if r.Kind == 0 || r.Kind > kinds {
		return Record{}, fmt.Errorf("parse record: kind %d is not known; update this relay", b[1])
	}
	r.Epoch, r.Number = store.Epoch(p.uint()), p.uint()
	switch r.Kind {
	case Leader:
		r.Partitions, r.AckedEpoch, r.Acked = int(p.uint()), store.Epoch(p.uint()), p.uint()
	case Idle:
		r.After = store.Position(p.text())
	case Mark:
		r.After, r.End, r.Token, r.Time = store.Position(p.text()), store.Position(p.text()), p.text(), p.time()
	case End:
		r.After, r.End = store.Position(p.text()), store.Position(p.text())
	case Row:
		r.After, r.Index, r.End = store.Position(p.text()), p.uint(), store.Position(p.text())
		p.item(&r.Item)
	case Part:
		flags := p.byte()
		r.First, r.Last, r.Data = flags&isFirst != 0, flags&isLast != 0, slices.Clone(p.rest)
		p.rest = nil
	}
	if p.err == nil && len(p.rest) > 0 {
		p.err = fmt.Errorf("%d bytes are left", len(p.rest))
	}
	if p.err == nil && (r.Epoch < 0 || r.AckedEpoch < 0 || r.Partitions < 0 || r.Item.RetryCount < 0 || r.Item.PayloadSize < 0) {
		p.err = errors.New("a number is too large")
	}
	if p.err != nil {
		return Record{}, fmt.Errorf("parse record: %w", p.err)
	}
	return r, nil
}

// parser reads values from the front of rest, until one fails.
type parser struct {
	rest []byte
	err  error
}

func (p *parser) fail() {
	if p.err == nil {
		p.err = errShort
	}
	p.rest = nil
}

func (p *parser) byte() byte {
	if len(p.rest) == 0 {
		p.fail()
		return 0
	}
	b := p.rest[0]
	p.rest = p.rest[1:]
	return b
}

func (p *parser) uint() uint64 {
	v, n := binary.Uvarint(p.rest)
	if n <= 0 {
		p.fail()
		return 0
	}
	p.rest = p.rest[n:]
	return v
}

func (p *parser) time() time.Time {
	v, n := binary.Varint(p.rest)
	if n <= 0 {
		p.fail()
		return time.Time{}
	}
	p.rest = p.rest[n:]
	if v == 0 {
		return time.Time{}
	}
	return time.UnixMicro(v)
}

func (p *parser) bytes() []byte {
	n := p.uint()
	if n > uint64(len(p.rest)) {
		p.fail()
		return nil
	}
	b := p.rest[:n]
	p.rest = p.rest[n:]
	return b
}

func (p *parser) text() string { return string(p.bytes()) }

func (p *parser) item(it *store.Item) {
	flags := p.byte()
	it.Outbox, it.ID, it.Kind = p.text(), p.text(), p.text()
	it.Group = store.Group{Name: p.text(), Valid: flags&hasGroup != 0}
	it.Txn, it.RetryCount, it.Committed = store.Txn(p.uint()), int(p.uint()), p.time()
	if flags&hasAttributes != 0 {
		n := p.uint()
		if n > uint64(len(p.rest)/2) { // each has at least two bytes
			p.fail()
			return
		}
		it.Attributes = make(store.Attributes, n)
		for i := range it.Attributes {
			it.Attributes[i] = store.Attribute{Name: p.text(), Value: p.text()}
		}
	}
	it.PayloadSize = int(p.uint())
	switch {
	case flags&hasPayload == 0:
	case it.PayloadSize != len(p.rest):
		p.fail()
	default:
		it.Payload = append(make([]byte, 0, len(p.rest)), p.rest...)
		p.rest = nil
	}
}
