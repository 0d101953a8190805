package record

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// Partition returns the partition of a row: its group's hash modulo their number. All rows of a lane
// share it, also where lanes have kinds. The rows without a group share one.
func Partition(it *store.Item, partitions int) int {
	if partitions == 1 {
		return 0
	}
	hash := store.LaneKey{Group: it.Group}.Hash()
	group := hash[len(store.KindHash{}):]
	return int(binary.BigEndian.Uint64(group) % uint64(partitions))
}

// AddressMark returns the token of a marker that only one partition is to have.
func AddressMark(partition int, token string) string { return fmt.Sprintf("p%d-%s", partition, token) }

// markPartition returns the partition of a marker, and its token there. A token without one is for
// all of them, in which case the partition is -1.
func markPartition(token string, partitions int) (int, string) {
	number, rest, cut := strings.Cut(strings.TrimPrefix(token, "p"), "-")
	if p, err := strconv.Atoi(number); cut && err == nil && token[0] == 'p' && p >= 0 && p < partitions {
		return p, rest
	}
	return -1, token
}

// Splitter makes records of the batches of one feeder.
type Splitter struct {
	// MaxBytes, if set, is the size above which a row becomes several Parts.
	MaxBytes int

	epoch store.Epoch
	parts []part
	after store.Position // the last position of the log
	open  bool           // the transaction after it has begun
	at    []int          // the partitions of a batch's rows
}

// part is the state of one partition.
type part struct {
	number uint64 // of the next record
	index  uint64 // rows of the open transaction
	last   int    // its last row in the batch
	idle   bool   // it had no record since the last Idle

	// done is where the last transaction with rows of the partition ended, or where the feeder
	// began. No later feeder begins before that, or gives another end.
	done store.Position
}

// NewSplitter returns a splitter behind a position of the log.
func NewSplitter(epoch store.Epoch, partitions int, after store.Position) *Splitter {
	s := &Splitter{epoch: epoch, parts: make([]part, partitions)}
	s.Begin(after)
	return s
}

// Begin sets the position behind which the log is read.
func (s *Splitter) Begin(after store.Position) {
	s.after = after
	for i := range s.parts {
		s.parts[i].done = after
	}
}

// emit numbers a record of a partition.
func (s *Splitter) emit(partition int, r *Record, to func(partition int, r *Record) error) error {
	p := &s.parts[partition]
	r.Epoch, r.Number = s.epoch, p.number
	p.number++
	p.idle = false
	return to(partition, r)
}

// rowBytes is what a record has beside its texts and its content: three positions' lengths, numbers, and
// the lengths of texts.
const rowBytes = 128

// attributeBytes are the lengths of an attribute's texts.
const attributeBytes = 20

// fits reports whether a row is surely within a number of bytes.
func (r *Record) fits(most int) bool {
	return r.Item.Bytes()+len(r.Item.Outbox)+len(r.After)+len(r.End)+rowBytes+attributeBytes*len(r.Item.Attributes) <= most
}

// row passes the record of a row, or its Parts. Their bytes are those of the row, so the shard needs
// no table to read it, and the row keeps its place in the order.
func (s *Splitter) row(partition int, r *Record, to func(partition int, r *Record) error) error {
	if s.MaxBytes == 0 || r.fits(s.MaxBytes) {
		return s.emit(partition, r, to)
	}
	text := r.Append(nil)
	if len(text)+rowBytes <= s.MaxBytes {
		return s.emit(partition, r, to)
	}
	size := max(1, s.MaxBytes-rowBytes)
	for from := 0; from < len(text); from += size {
		end := min(from+size, len(text))
		if err := s.emit(partition, &Record{Kind: Part, First: from == 0, Last: end == len(text), Data: text[from:end]}, to); err != nil {
			return err
		}
	}
	return nil
}

// Acked are the records of a feeder that Kafka has acknowledged.
type Acked struct {
	Epoch   store.Epoch
	Numbers []uint64 // of the next record of each partition
}

// Lead passes the first record of each partition. acked is what the feeder's checkpoint rests on. Numbers of another
// count of partitions prove nothing for a reader of these.
func (s *Splitter) Lead(acked Acked, to func(partition int, r *Record) error) error {
	for i := range s.parts {
		r := Record{Kind: Leader, Partitions: len(s.parts)}
		if len(acked.Numbers) == len(s.parts) {
			r.AckedEpoch, r.Acked = acked.Epoch, acked.Numbers[i]
		}
		if err := s.emit(i, &r, to); err != nil {
			return err
		}
	}
	return nil
}

// All passes one record for each partition.
func (s *Splitter) All(kind Kind, to func(partition int, r *Record) error) error {
	for i := range s.parts {
		if err := s.emit(i, &Record{Kind: kind, After: s.after}, to); err != nil {
			return err
		}
	}
	return nil
}

// Idle passes an Idle for each partition that had no record since the last call. It leaves out a partition
// whose records wait for Kafka, because an Idle behind them says no more than a later one.
func (s *Splitter) Idle(waits func(partition int) bool, to func(partition int, r *Record) error) error {
	for i := range s.parts {
		if s.parts[i].idle && !s.open && !waits(i) {
			if err := s.emit(i, &Record{Kind: Idle, After: s.after}, to); err != nil {
				return err
			}
		}
		s.parts[i].idle = true
	}
	return nil
}

// Split passes the records of a batch, each until the call returns. The batch is of one transaction.
func (s *Splitter) Split(b *capture.Batch, to func(partition int, r *Record) error) error {
	s.at = s.at[:0]
	for i := range b.Items {
		at := Partition(&b.Items[i], len(s.parts))
		s.at, s.parts[at].last = append(s.at, at), i
	}
	var r Record
	for i, at := range s.at {
		p := &s.parts[at]
		p.index++
		r = Record{Kind: Row, After: s.after, Index: p.index, Item: b.Items[i]}
		if b.Position != "" && p.last == i {
			r.End = b.Position
			p.index, p.done = 0, b.Position
		}
		s.open = true
		if err := s.row(at, &r, to); err != nil {
			return err
		}
	}
	if b.Position != "" {
		if err := s.end(b.Position, to); err != nil {
			return err
		}
	}
	return s.marks(b, to)
}

// end ends the transaction in the partitions that had rows of earlier parts only.
func (s *Splitter) end(at store.Position, to func(partition int, r *Record) error) error {
	for i := range s.parts {
		if s.parts[i].index == 0 {
			continue
		}
		s.parts[i].index, s.parts[i].done = 0, at
		if err := s.emit(i, &Record{Kind: End, After: s.after, End: at}, to); err != nil {
			return err
		}
	}
	s.after, s.open = at, false
	return nil
}

func (s *Splitter) marks(b *capture.Batch, to func(partition int, r *Record) error) error {
	for _, token := range b.Marks {
		only, token := markPartition(token, len(s.parts))
		for i := range s.parts {
			if only >= 0 && i != only {
				continue
			}
			if err := s.emit(i, &Record{Kind: Mark, After: s.after, End: s.parts[i].done, Token: token, Time: b.Marked}, to); err != nil {
				return err
			}
		}
	}
	return nil
}
