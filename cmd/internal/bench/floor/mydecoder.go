package floor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
)

// rowsDecoder decodes the binlog events of inserts into one table,
// https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_replication_binlog_event.html
type rowsDecoder struct {
	schema, table   string
	idAt, payloadAt int // indexes of the columns

	checksumBytes int    // size of the checksum after each event
	lastTableMap  []byte // the last TABLE_MAP event of the table, and its content
	columns       []columnFormat
	tableID       uint64
	arena         arena
}

// columnFormat is the encoding of a column's value in a row.
type columnFormat struct {
	size   int // of a value; with a prefix, the size of its length
	prefix bool
}

// describe reads from a FORMAT_DESCRIPTION event whether events have a checksum.
func (d *rowsDecoder) describe(raw []byte) {
	const sum = replication.BinlogChecksumLength
	d.checksumBytes = 0
	if raw[len(raw)-sum-1] == byte(replication.BINLOG_CHECKSUM_ALG_CRC32) {
		d.checksumBytes = sum
	}
}

// body returns an event without its header and checksum.
func (d *rowsDecoder) body(raw []byte) []byte {
	return raw[replication.EventHeaderSize : len(raw)-d.checksumBytes]
}

// tableID reads the number of a table and the flags after it.
func tableID(body []byte) (id uint64, rest []byte) {
	id = uint64(binary.LittleEndian.Uint32(body)) | uint64(binary.LittleEndian.Uint16(body[4:]))<<32
	return id, body[8:]
}

// tableMap reads a TABLE_MAP event, of this table or another.
func (d *rowsDecoder) tableMap(raw []byte) error {
	id, rest := tableID(d.body(raw))
	r := messageReader{rest}
	schema := r.next(int(r.next(1)[0]))
	r.next(1) // a zero
	table := r.next(int(r.next(1)[0]))
	r.next(1)
	if string(table) != d.table || string(schema) != d.schema {
		if id == d.tableID {
			d.tableID = 0
		}
		return nil
	}

	d.tableID = id
	if bytes.Equal(r.remaining, d.lastTableMap) {
		return nil
	}

	d.lastTableMap = bytes.Clone(r.remaining)
	types := r.next(r.encodedLength())
	meta := messageReader{r.next(r.encodedLength())}
	d.columns = d.columns[:0]
	for i, t := range types {
		c, err := columnFormatOf(t, &meta)
		if err != nil {
			return fmt.Errorf("column %d of %s: %w", i+1, d.table, err)
		}
		d.columns = append(d.columns, c)
	}
	if max(d.idAt, d.payloadAt) >= len(d.columns) {
		return fmt.Errorf("binlog has %d columns of %s: the table was changed", len(d.columns), d.table)
	}
	return nil
}

// columnFormatOf returns the format of a column of a type. It supports only the types of
// outbox columns.
func columnFormatOf(t byte, meta *messageReader) (columnFormat, error) {
	switch t {
	case mysql.MYSQL_TYPE_TINY:
		return columnFormat{size: 1}, nil
	case mysql.MYSQL_TYPE_SHORT:
		return columnFormat{size: 2}, nil
	case mysql.MYSQL_TYPE_LONG:
		return columnFormat{size: 4}, nil
	case mysql.MYSQL_TYPE_LONGLONG:
		return columnFormat{size: 8}, nil
	case mysql.MYSQL_TYPE_VARCHAR:
		if binary.LittleEndian.Uint16(meta.next(2)) < 256 {
			return columnFormat{size: 1, prefix: true}, nil
		}
		return columnFormat{size: 2, prefix: true}, nil
	case mysql.MYSQL_TYPE_BLOB, mysql.MYSQL_TYPE_JSON:
		return columnFormat{size: int(meta.next(1)[0]), prefix: true}, nil
	case mysql.MYSQL_TYPE_TIMESTAMP2:
		return columnFormat{size: 4 + int(meta.next(1)[0]+1)/2}, nil
	case mysql.MYSQL_TYPE_DATETIME2:
		return columnFormat{size: 5 + int(meta.next(1)[0]+1)/2}, nil
	}
	return columnFormat{}, fmt.Errorf("unsupported column type %d", t)
}

// inserts reads the rows of a WRITE_ROWS event and passes each to take. An event of another
// table has none.
func (d *rowsDecoder) inserts(kind replication.EventType, raw []byte, take func(row) error) error {
	id, rest := tableID(d.body(raw))
	if id != d.tableID {
		return nil
	}

	r := messageReader{rest}
	if kind == replication.WRITE_ROWS_EVENTv2 {
		r.next(int(binary.LittleEndian.Uint16(r.remaining))) // extra data, its length included
	}

	columns := r.encodedLength()
	if columns != len(d.columns) {
		return fmt.Errorf("row event has %d columns of %s, table map has %d", columns, d.table, len(d.columns))
	}

	bitmap := (columns + 7) / 8
	for _, b := range r.next(bitmap)[:columns/8] {
		if b != 0xff {
			return errors.New("row event lacks columns: binlog_row_image is not FULL")
		}
	}

	for len(r.remaining) > 0 {
		next, err := d.row(&r, r.next(bitmap))
		if err != nil {
			return err
		}
		if err := take(next); err != nil {
			return err
		}
	}
	return nil
}

// row reads one row. Bits mark its NULL columns.
func (d *rowsDecoder) row(r *messageReader, null []byte) (row, error) {
	var id, payload []byte
	for i := range d.columns {
		if null[i/8]>>(i%8)&1 == 1 {
			continue
		}
		c, value := &d.columns[i], []byte(nil)
		if size := c.size; c.prefix {
			value = r.next(r.fixedInt(size))
		} else {
			value = r.next(size)
		}
		switch i {
		case d.idAt:
			id = value
		case d.payloadAt:
			payload = value
		}
	}
	if payload == nil {
		return row{}, fmt.Errorf("payload of row %s of %s is NULL", id, d.table)
	}
	return row{id: d.arena.add(id), payload: d.arena.add(payload)}, nil
}

// fixedInt reads an integer of a fixed size.
func (r *messageReader) fixedInt(bytes int) (n int) {
	for i, b := range r.next(bytes) {
		n |= int(b) << (8 * i)
	}
	return n
}

// encodedLength reads a length-encoded integer below 2^24.
func (r *messageReader) encodedLength() int {
	switch first := r.next(1)[0]; first {
	case 0xfc:
		return r.fixedInt(2)
	case 0xfd:
		return r.fixedInt(3)
	default:
		return int(first)
	}
}
