package postgres

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
)

// Messages of pgoutput, protocol version 1, without streaming. Source:
// https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
const (
	msgBegin    = 'B'
	msgCommit   = 'C'
	msgRelation = 'R'
	msgInsert   = 'I'
	msgMessage  = 'M'
	msgOrigin   = 'O'
	msgType     = 'Y'
	msgTruncate = 'T'
	msgUpdate   = 'U'
	msgDelete   = 'D'
)

// Kinds of a column value in a tuple. An inserted row has no unchanged values, and the
// source does not request binary ones.
const (
	colNull = 'n'
	colText = 't'
)

// reader parses one message. It never reads past the end and never allocates by a length
// in the message. The first error sticks, and every later read returns a zero value.
type reader struct {
	buf []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.buf) {
		r.bad, r.buf = true, nil
		return nil
	}
	b := r.buf[:n:n]
	r.buf = r.buf[n:]
	return b
}

func (r *reader) uint8() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint16() uint16 {
	if b := r.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// cstring reads up to a NUL, which it consumes.
func (r *reader) cstring() []byte {
	n := bytes.IndexByte(r.buf, 0)
	s := r.take(n)
	r.take(1)
	return s
}

func (r *reader) lsn() pglogrepl.LSN { return pglogrepl.LSN(r.uint64()) }

// pgEpoch is the zero of the server's timestamps, 2000-01-01 UTC, in microseconds of Unix
// time.
const pgEpoch = 946684800 * 1_000_000

func (r *reader) time() time.Time { return time.UnixMicro(int64(r.uint64()) + pgEpoch) }

// end returns an error if the message was too short or too long.
func (r *reader) end(message string) error {
	if r.bad {
		return fmt.Errorf("pgoutput: %s message ends too early", message)
	}
	if len(r.buf) > 0 {
		return fmt.Errorf("pgoutput: %s message has %d bytes too many", message, len(r.buf))
	}
	return nil
}

type beginMsg struct {
	commit    pglogrepl.LSN // start of the commit record
	committed time.Time
	xid       uint32
}

func parseBegin(body []byte) (beginMsg, error) {
	r := reader{buf: body}
	m := beginMsg{commit: r.lsn(), committed: r.time(), xid: r.uint32()}
	return m, r.end("Begin")
}

// parseCommit returns the end of the commit record, because acknowledging its start would
// bring the transaction again.
func parseCommit(body []byte) (pglogrepl.LSN, error) {
	r := reader{buf: body}
	r.uint8() // flags, unused
	r.lsn()   // start of the commit record
	end := r.lsn()
	r.time()
	return end, r.end("Commit")
}

type column struct {
	name    string
	typeOID uint32
	isBytea bool // set by tables.relation
}

type relationMsg struct {
	oid          uint32
	schema, name string
	columns      []column
}

func parseRelation(body []byte) (relationMsg, error) {
	r := reader{buf: body}
	m := relationMsg{oid: r.uint32(), schema: string(r.cstring()), name: string(r.cstring())}
	r.uint8() // replica identity
	n := int(r.uint16())
	if minSize := 10 * n; minSize > len(r.buf) { // flags, NUL, type, modifier
		r.bad = true
		n = 0
	}

	m.columns = make([]column, n)
	for i := range m.columns {
		r.uint8() // flags
		m.columns[i] = column{name: string(r.cstring()), typeOID: r.uint32()}
		r.uint32() // type modifier
	}

	return m, r.end("Relation")
}

// typeMsg names the base type of a column's domain type, or the type itself. The schema
// of built-in types is empty.
type typeMsg struct {
	oid          uint32
	schema, name string
}

func parseType(body []byte) (typeMsg, error) {
	r := reader{buf: body}
	m := typeMsg{oid: r.uint32(), schema: string(r.cstring()), name: string(r.cstring())}
	return m, r.end("Type")
}

// parseInsert parses an Insert into the values of a row and reuses its memory. The values
// alias the message.
func parseInsert(body []byte, t *row) (oid uint32, err error) {
	r := reader{buf: body}
	oid = r.uint32()
	if kind := r.uint8(); kind != 'N' && !r.bad {
		return 0, fmt.Errorf("pgoutput: Insert message has a tuple of kind %q", kind)
	}

	n := int(r.uint16())
	t.values = t.values[:0]
	for range n {
		switch kind := r.uint8(); {
		case r.bad:
			return 0, r.end("Insert")
		case kind == colNull:
			t.values = append(t.values, nil)
		case kind == colText:
			t.values = append(t.values, r.take(int(r.uint32())))
		default:
			return 0, fmt.Errorf("pgoutput: column of kind %q in an Insert message", kind)
		}
	}

	return oid, r.end("Insert")
}

type logicalMsg struct {
	transactional bool
	lsn           pglogrepl.LSN
	prefix        []byte
	content       []byte
}

func parseMessage(body []byte) (logicalMsg, error) {
	r := reader{buf: body}
	m := logicalMsg{transactional: r.uint8()&1 != 0}
	m.lsn = r.lsn()
	m.prefix = r.cstring()
	m.content = r.take(int(r.uint32()))
	return m, r.end("Message")
}
