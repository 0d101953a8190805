package mysql

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/klauspost/compress/zstd"
)

// decoder decodes the events of one binlog file. Each file starts with a description of
// its format.
type decoder struct {
	// events skips the optional part of TABLE_MAP events, because decoding it costs more
	// than all the rest, and each statement repeats it.
	events *replication.BinlogParser
	// maps decodes TABLE_MAP events completely.
	maps *replication.BinlogParser
}

// newDecoder returns a decoder for the format of a FORMAT_DESCRIPTION event.
func newDecoder(f flavour, format []byte) (*decoder, error) {
	d := &decoder{events: newParser(f), maps: newParser(f)}
	d.events.SetTableMapOptionalMetaDecodeFunc(func([]byte) error { return nil })
	for _, p := range []*replication.BinlogParser{d.events, d.maps} {
		if _, err := p.Parse(format); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func newParser(f flavour) *replication.BinlogParser {
	p := replication.NewBinlogParser()
	if f == mariaDB {
		p.SetFlavor("mariadb")
	}
	p.SetTimestampStringLocation(time.UTC) // otherwise in the time zone of this machine
	p.SetRenderJSONAsMySQLText(true)       // otherwise numbers and the order of keys change
	return p
}

// withoutChecksums returns a FORMAT_DESCRIPTION event for a file without checksums,
// because the events inside a compressed transaction have none.
func withoutChecksums(format []byte) []byte {
	const checksum = 4
	if len(format) <= checksum {
		return format
	}
	plain := bytes.Clone(format)
	plain[len(plain)-checksum-1] = 0
	return plain
}

// Sizes of the parts of an event, from its start
// (https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_replication_binlog_event.html).
const (
	headerSize  = replication.EventHeaderSize
	tableIDSize = 6
	flagsSize   = 2
)

// errTruncated is the error for an event that ends too early.
var errTruncated = errors.New("truncated event")

// tableIDOf reads the table id of a TABLE_MAP or rows event.
func tableIDOf(raw []byte) (id uint64, flags uint16, err error) {
	if len(raw) < headerSize+tableIDSize+flagsSize {
		return 0, 0, errTruncated
	}
	body := raw[headerSize:]
	id = uint64(binary.LittleEndian.Uint32(body)) | uint64(binary.LittleEndian.Uint16(body[4:]))<<32
	return id, binary.LittleEndian.Uint16(body[tableIDSize:]), nil
}

// tableMapKey reads the table name of a TABLE_MAP event in the format of tables.keyOf,
// and the rest of the event.
func tableMapKey(raw []byte) (key, rest []byte, err error) {
	const begin = headerSize + tableIDSize + flagsSize
	if len(raw) <= begin {
		return nil, nil, errTruncated
	}

	end := begin + 1 + int(raw[begin]) + 1 // the schema, after its length and before a 0
	if len(raw) <= end {
		return nil, nil, errTruncated
	}

	end += 1 + int(raw[end])
	if len(raw) <= end {
		return nil, nil, errTruncated
	}
	return raw[begin+1 : end], raw[end+1:], nil
}

// maxDecompressed limits the decompressed size of a transaction. The server also keeps a
// compressed transaction in memory, with max_allowed_packet (at most 1 GiB) as its limit,
// so only corrupt data is larger.
const maxDecompressed = 4 << 30

// decompress unpacks a TRANSACTION_PAYLOAD event.
func decompress(unpack *zstd.Decoder, raw []byte) ([]byte, error) {
	const (
		endMark     = 0
		compression = 2
		zstandard   = 0
	)

	body := raw[headerSize:]
	for kind := uint64(endMark); ; {
		field, rest, ok := lengthEncoded(body)
		if !ok {
			return nil, errTruncated
		}

		if field == endMark {
			if kind != zstandard {
				return nil, fmt.Errorf("unknown transaction compression type %d", kind)
			}
			return unpack.DecodeAll(rest, nil)
		}

		size, rest, ok := lengthEncoded(rest)
		if !ok || uint64(len(rest)) < size {
			return nil, errTruncated
		}

		if field == compression {
			if kind, _, ok = lengthEncoded(rest); !ok {
				return nil, errTruncated
			}
		}
		body = rest[size:]
	}
}

// lengthEncoded reads a length-encoded integer of MySQL's protocol. ok is false if it is
// NULL, invalid or cut off.
func lengthEncoded(b []byte) (n uint64, rest []byte, ok bool) {
	const invalid = 0xff
	var padded [9]byte // the library reads as many bytes as the first one announces
	copy(padded[:], b)
	n, null, size := mysql.LengthEncodedInt(padded[:])
	if null || padded[0] == invalid || size > len(b) {
		return 0, nil, false
	}
	return n, b[size:], true
}

// eachEvent calls take for each event of an unpacked transaction.
func eachEvent(unpacked []byte, take func(raw []byte) error) error {
	for len(unpacked) > 0 {
		const sizeAt = 9
		if len(unpacked) < headerSize {
			return errTruncated
		}
		size := int(binary.LittleEndian.Uint32(unpacked[sizeAt:]))
		if size < headerSize || size > len(unpacked) {
			return errTruncated
		}
		if err := take(unpacked[:size]); err != nil {
			return err
		}
		unpacked = unpacked[size:]
	}

	return nil
}
