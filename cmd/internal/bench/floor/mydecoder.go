package floor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
)

// rowsDecoder reads the events of a binlog that the inserts of one table come in,
// https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_replication_binlog_event.html
type rowsDecoder struct {
	schema, table   string
	idAt, payloadAt int // the places of the columns

	tail    int    // bytes of the checksum behind each event
	known   []byte // the last description of the table, and what it says
	columns []cell
	tableID uint64
	arena   arena
}

// cell is how a column's value lies in a row.
type cell struct {
	size   int // of a value; with a prefix, the bytes of its length
	prefix bool
}

// describe reads a FORMAT_DESCRIPTION event: whether events have a checksum.
func (d *rowsDecoder) describe(raw []byte) {
	const sum = replication.BinlogChecksumLength
	d.tail = 0
	if raw[len(raw)-sum-1] == byte(replication.BINLOG_CHECKSUM_ALG_CRC32) {
		d.tail = sum
	}
}

// body is an event without its header and its checksum.
func (d *rowsDecoder) body(raw []byte) []byte {
	return raw[replication.EventHeaderSize : len(raw)-d.tail]
}

// tableID reads the number that stands for a table, and the flags behind it.
func tableID(body []byte) (id uint64, rest []byte) {
	id = uint64(binary.LittleEndian.Uint32(body)) | uint64(binary.LittleEndian.Uint16(body[4:]))<<32
	return id, body[8:]
}

// tableMap reads a TABLE_MAP event: of the table, or of another one.
func (d *rowsDecoder) tableMap(raw []byte) error {
	id, rest := tableID(d.body(raw))
	r := reader{rest}
	schema := r.take(int(r.take(1)[0]))
	r.take(1) // a zero
	table := r.take(int(r.take(1)[0]))
	r.take(1)
	if string(table) != d.table || string(schema) != d.schema {
		if id == d.tableID {
			d.tableID = 0
		}
		return nil
	}
	d.tableID = id
	if bytes.Equal(r.rest, d.known) {
		return nil
	}
	d.known = bytes.Clone(r.rest)
	types := r.take(r.length())
	meta := reader{r.take(r.length())}
	d.columns = d.columns[:0]
	for i, t := range types {
		c, err := cellOf(t, &meta)
		if err != nil {
			return fmt.Errorf("column %d of %s: %w", i+1, d.table, err)
		}
		d.columns = append(d.columns, c)
	}
	if max(d.idAt, d.payloadAt) >= len(d.columns) {
		return fmt.Errorf("the log has %d columns of %s: it was changed", len(d.columns), d.table)
	}
	return nil
}

// cellOf reads what the description says of a column of a type. Others than those of
// an outbox are not known.
func cellOf(t byte, meta *reader) (cell, error) {
	switch t {
	case mysql.MYSQL_TYPE_TINY:
		return cell{size: 1}, nil
	case mysql.MYSQL_TYPE_SHORT:
		return cell{size: 2}, nil
	case mysql.MYSQL_TYPE_LONG:
		return cell{size: 4}, nil
	case mysql.MYSQL_TYPE_LONGLONG:
		return cell{size: 8}, nil
	case mysql.MYSQL_TYPE_VARCHAR:
		if binary.LittleEndian.Uint16(meta.take(2)) < 256 {
			return cell{size: 1, prefix: true}, nil
		}
		return cell{size: 2, prefix: true}, nil
	case mysql.MYSQL_TYPE_BLOB, mysql.MYSQL_TYPE_JSON:
		return cell{size: int(meta.take(1)[0]), prefix: true}, nil
	case mysql.MYSQL_TYPE_TIMESTAMP2:
		return cell{size: 4 + int(meta.take(1)[0]+1)/2}, nil
	case mysql.MYSQL_TYPE_DATETIME2:
		return cell{size: 5 + int(meta.take(1)[0]+1)/2}, nil
	}
	return cell{}, fmt.Errorf("the floor cannot read its type (%d)", t)
}

// inserts reads the rows of a WRITE_ROWS event and gives each to take. An event of
// another table has none.
func (d *rowsDecoder) inserts(kind replication.EventType, raw []byte, take func(row) error) error {
	id, rest := tableID(d.body(raw))
	if id != d.tableID {
		return nil
	}
	r := reader{rest}
	if kind == replication.WRITE_ROWS_EVENTv2 {
		r.take(int(binary.LittleEndian.Uint16(r.rest))) // what else there is, its length included
	}
	columns := r.length()
	if columns != len(d.columns) {
		return fmt.Errorf("%d columns of %s are in the log, and %d in its description", columns, d.table, len(d.columns))
	}
	bitmap := (columns + 7) / 8
	for _, b := range r.take(bitmap)[:columns/8] {
		if b != 0xff {
			return errors.New("the log lacks columns: binlog_row_image is not FULL")
		}
	}
	for len(r.rest) > 0 {
		next, err := d.row(&r, r.take(bitmap))
		if err != nil {
			return err
		}
		if err := take(next); err != nil {
			return err
		}
	}
	return nil
}

// row reads one row, whose bits say which columns are NULL.
func (d *rowsDecoder) row(r *reader, null []byte) (row, error) {
	var id, payload []byte
	for i := range d.columns {
		if null[i/8]>>(i%8)&1 == 1 {
			continue
		}
		c, value := &d.columns[i], []byte(nil)
		if size := c.size; c.prefix {
			value = r.take(r.small(size))
		} else {
			value = r.take(size)
		}
		switch i {
		case d.idAt:
			id = value
		case d.payloadAt:
			payload = value
		}
	}
	if payload == nil {
		return row{}, fmt.Errorf("the payload of row %s of %s is NULL", id, d.table)
	}
	return row{id: d.arena.keep(id), payload: d.arena.keep(payload)}, nil
}

// small reads a number of a few bytes.
func (r *reader) small(bytes int) (n int) {
	for i, b := range r.take(bytes) {
		n |= int(b) << (8 * i)
	}
	return n
}

// length reads a number of the protocol's own form, which is below 2^24.
func (r *reader) length() int {
	switch first := r.take(1)[0]; first {
	case 0xfc:
		return r.small(2)
	case 0xfd:
		return r.small(3)
	default:
		return int(first)
	}
}
