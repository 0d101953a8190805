package floor

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// noColumn is the index of a column that was not found.
const noColumn = -1

// pgDecoder decodes the pgoutput messages of inserts into one table, protocol version 1,
// https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
type pgDecoder struct {
	table       uint32 // its OID
	name        string
	id, payload string // columns

	idAt, payloadAt int // their indexes in a tuple
	arena           arena
}

// relation finds the columns. The message comes before the first insert, and again after a
// change of the table.
func (d *pgDecoder) relation(body []byte) error {
	r := messageReader{body}
	if oid := r.uint32(); oid != d.table {
		return fmt.Errorf("publication publishes %q.%q, not only %s", r.text(), r.text(), d.name)
	}

	r.text()  // schema
	r.text()  // name
	r.next(1) // replica identity
	d.idAt, d.payloadAt = noColumn, noColumn
	for i := range int(r.uint16()) {
		r.next(1) // flags
		switch name := string(r.text()); name {
		case d.id:
			d.idAt = i
		case d.payload:
			d.payloadAt = i
		}
		r.next(8) // type and modifier
	}
	if d.idAt == noColumn || d.payloadAt == noColumn {
		return fmt.Errorf("publication does not publish columns %s and %s of %s", d.id, d.payload, d.name)
	}
	return nil
}

// insert decodes a row.
func (d *pgDecoder) insert(body []byte) (row, error) {
	r := messageReader{body}
	r.next(5) // OID, 'N' for new
	var id, payload []byte
	for i := range int(r.uint16()) {
		var value []byte
		if r.next(1)[0] == 't' { // otherwise NULL
			value = r.next(int(r.uint32()))
		}
		switch i {
		case d.idAt:
			id = value
		case d.payloadAt:
			payload = value
		}
	}
	if payload == nil {
		return row{}, fmt.Errorf("payload of row %s of %s is NULL", id, d.name)
	}
	return row{id: d.arena.add(id), payload: d.arena.add(payload)}, nil
}

// commitEnd returns the end position of a commit record.
func commitEnd(body []byte) uint64 {
	r := messageReader{body}
	r.next(9) // flags, start of the record
	return binary.BigEndian.Uint64(r.next(8))
}

// messageReader reads one message of the server. It trusts the message to be complete.
type messageReader struct{ remaining []byte }

func (r *messageReader) next(n int) []byte {
	b := r.remaining[:n]
	r.remaining = r.remaining[n:]
	return b
}

func (r *messageReader) uint16() uint16 { return binary.BigEndian.Uint16(r.next(2)) }
func (r *messageReader) uint32() uint32 { return binary.BigEndian.Uint32(r.next(4)) }

// text reads a NUL-terminated text.
func (r *messageReader) text() []byte {
	b := r.next(bytes.IndexByte(r.remaining, 0))
	r.next(1)
	return b
}
