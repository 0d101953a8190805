package kafka

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// record is a row as Kafka stores it.
type record struct {
	topic   string
	key     []byte // nil: none
	value   []byte // nil: a tombstone
	headers []kmsg.Header

	// time is in milliseconds since 1970; 0 is the time of the attempt.
	time int64

	// place is hashed to the partition; nil if the row may go to any.
	place []byte
}

// Sizes in bytes. A varint of 32 bits has at most 5, one of 64 bits 10.
const (
	// batchOverhead is the length of a record batch before its records, and recordOverhead
	// bounds the length of a record without its texts (KIP-98, "message format").
	batchOverhead  = 61
	recordOverhead = 5 + 1 + 10 + 5 + 5 + 5 + 5
	headerOverhead = 5 + 5
)

// size bounds the length of the record in a batch that is not compressed.
func (r *record) size() int {
	n := recordOverhead + len(r.key) + len(r.value)
	for i := range r.headers {
		n += headerOverhead + len(r.headers[i].Key) + len(r.headers[i].Value)
	}
	return n
}

// append appends the record at a position of its batch, some
// milliseconds after the first one. scratch is memory to reuse.
func (r *record) append(dst []byte, position int, delay int64, scratch *[]byte) []byte {
	k := kmsg.Record{OffsetDelta: int32(position), TimestampDelta64: delay, Key: r.key, Value: r.value, Headers: r.headers}
	*scratch = k.AppendTo((*scratch)[:0])
	body := (*scratch)[1:] // behind the length, which is 0 and so one byte
	dst = kbin.AppendVarint(dst, int32(len(body)))
	return append(dst, body...)
}

// batch are rows of a request for one partition. The broker stores all of them or none.
type batch struct {
	partition int32
	rows      []int // positions in the request, in order

	// wire is what is sent: the same bytes on each attempt, by which the broker knows a batch
	// that it has stored. It is nil before the first attempt.
	wire []byte

	// unknown: an attempt was not answered, so the broker may have stored the batch.
	unknown bool

	answer answer // to the last attempt
}

// sequence numbers the batches of a producer in a partition, so that the broker stores none
// twice.
type sequence struct {
	producer int64
	epoch    int16
	first    int32
}

// encode makes the batch's wire of the request's records.
func (b *batch) encode(records []record, seq sequence, compress kgo.Compressor) {
	var body, scratch []byte
	now := time.Now().UnixMilli()
	first, last := cmp.Or(records[b.rows[0]].time, now), int64(0)
	for i, row := range b.rows {
		at := cmp.Or(records[row].time, now)
		last = max(last, at)
		body = records[row].append(body, i, at-first, &scratch)
	}
	rb := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2,
		LastOffsetDelta: int32(len(b.rows) - 1), FirstTimestamp: first, MaxTimestamp: last,
		ProducerID: seq.producer, ProducerEpoch: seq.epoch, FirstSequence: seq.first,
		NumRecords: int32(len(b.rows)), Records: body,
	}
	if compress != nil {
		packed, codec := compress.Compress(new(bytes.Buffer), body)
		if codec >= kgo.CodecNone && len(packed) < len(body) {
			rb.Records, rb.Attributes = packed, int16(codec)
		}
	}
	b.wire = rb.AppendTo(nil)

	// The length counts what follows it, and the checksum covers what follows it.
	binary.BigEndian.PutUint32(b.wire[8:], uint32(len(b.wire)-12))
	binary.BigEndian.PutUint32(b.wire[17:], crc32.Checksum(b.wire[21:], crc32.MakeTable(crc32.Castagnoli)))
}
