package floor

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// noColumn stands for a column that was not found.
const noColumn = -1

// decoder reads the messages of pgoutput that the inserts of one table come in,
// protocol version 1, https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
type decoder struct {
	table       uint32 // its OID
	name        string
	id, payload string // columns

	idAt, payloadAt int // their places in a tuple
	arena           arena
}

// relation finds the columns. Its message comes before the first insert, and again
// when the table was changed.
func (d *decoder) relation(body []byte) error {
	r := reader{body}
	if oid := r.uint32(); oid != d.table {
		return fmt.Errorf("the publication publishes %q.%q, and not only %s", r.text(), r.text(), d.name)
	}
	r.text()  // schema
	r.text()  // name
	r.take(1) // replica identity
	d.idAt, d.payloadAt = noColumn, noColumn
	for i := range int(r.uint16()) {
		r.take(1) // flags
		switch name := string(r.text()); name {
		case d.id:
			d.idAt = i
		case d.payload:
			d.payloadAt = i
		}
		r.take(8) // type and modifier
	}
	if d.idAt == noColumn || d.payloadAt == noColumn {
		return fmt.Errorf("the publication does not publish columns %s and %s of %s", d.id, d.payload, d.name)
	}
	return nil
}

// insert reads a row.
func (d *decoder) insert(body []byte) (row, error) {
	r := reader{body}
	r.take(5) // OID, 'N' for new
	var id, payload []byte
	for i := range int(r.uint16()) {
		var value []byte
		if r.take(1)[0] == 't' { // else NULL
			value = r.take(int(r.uint32()))
		}
		switch i {
		case d.idAt:
			id = value
		case d.payloadAt:
			payload = value
		}
	}
	if payload == nil {
		return row{}, fmt.Errorf("the payload of row %s of %s is NULL", id, d.name)
	}
	return row{id: d.arena.keep(id), payload: d.arena.keep(payload)}, nil
}

// commitEnd returns where a commit record ends.
func commitEnd(body []byte) uint64 {
	r := reader{body}
	r.take(9) // flags, the record's beginning
	return binary.BigEndian.Uint64(r.take(8))
}

// reader walks over one message of the server, which is trusted to be whole.
type reader struct{ rest []byte }

func (r *reader) take(n int) []byte {
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) uint16() uint16 { return binary.BigEndian.Uint16(r.take(2)) }
func (r *reader) uint32() uint32 { return binary.BigEndian.Uint32(r.take(4)) }

// text reads up to a NUL, and over it.
func (r *reader) text() []byte {
	b := r.take(bytes.IndexByte(r.rest, 0))
	r.take(1)
	return b
}
