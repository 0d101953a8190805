package mysql

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/google/uuid"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/capture/internal/logsource"
	"github.com/sluicebox/sluicebox/store"
)

// layout describes a table as in a TABLE_MAP event, with the columns of each outbox.
type layout struct {
	table   *table
	columns []column
	rows    []logsource.Columns
	changes []logsource.ChangeColumns // of a watch
	named   bool                      // the binlog names the columns
}

// column describes how to convert the values of a column to text.
type column struct {
	name     string
	typ      byte // the real type of a MYSQL_TYPE_STRING
	unsigned bool
	bytes    bool     // it holds bytes, not text
	uuid     bool     // its bytes are a UUID
	padded   int      // length of a BINARY column in bytes
	charset  *charset // nil: bytes
	members  []string // of an ENUM or SET
	isSet    bool
}

// newLayout finds the columns of a table by their names in the binlog
// (binlog_row_metadata=FULL), otherwise by their order in the description of the table.
// In the second case the number and the types of all columns must equal the binlog's.
func newLayout(t *table, cs *charsets, e *replication.TableMapEvent) (*layout, error) {
	l := &layout{table: t, columns: make([]column, e.ColumnCount)}
	var err error
	if i := slices.IndexFunc(e.ColumnType, isCompressed); i >= 0 {
		return nil, fmt.Errorf("column %d is COMPRESSED, which is not supported", i+1)
	}

	if len(e.ColumnName) == int(e.ColumnCount) && e.ColumnCount > 0 {
		l.named = true
		err = l.fromLog(e, cs)
	} else {
		err = l.fromDescription(e, cs)
	}
	if err != nil {
		return nil, err
	}

	for _, o := range t.outboxes {
		rm, err := l.outboxColumns(o)
		if err != nil {
			return nil, err
		}
		l.rows = append(l.rows, rm)
	}

	return l, nil
}

// isCompressed reports whether a column is MariaDB's BLOB_COMPRESSED or
// VARCHAR_COMPRESSED (field_types.h). The library reads their metadata in the event as
// another column's.
func isCompressed(typ byte) bool { return typ == 140 || typ == 141 }

// readType reads the type from the part that every TABLE_MAP event has.
func (c *column) readType(e *replication.TableMapEvent, i int) {
	c.typ = e.ColumnType[i]
	if c.typ == mysql.MYSQL_TYPE_STRING {
		switch high := byte(e.ColumnMeta[i] >> 8); high {
		case mysql.MYSQL_TYPE_ENUM, mysql.MYSQL_TYPE_SET:
			c.typ = high
		}
	}
}

// stringLength returns the length of a CHAR or BINARY column in bytes. The type holds its
// upper two bits, inverted (Field_string in field.cc).
func stringLength(meta uint16) int { return int(meta&0xff) | int((meta>>12&0x3)^0x3)<<8 }

func (l *layout) fromLog(e *replication.TableMapEvent, cs *charsets) error {
	unsigned, collations, words := e.UnsignedMap(), e.CollationMap(), e.EnumStrValueMap()
	wordCollations, sets := e.EnumSetCollationMap(), e.SetStrValueMap()
	for i := range l.columns {
		c := &l.columns[i]
		c.readType(e, i)
		c.name, c.unsigned = string(e.ColumnName[i]), unsigned[i]
		list, isWords := words[i]
		if !isWords {
			list, c.isSet = sets[i]
		}

		if isWords || c.isSet {
			var err error
			if c.members, err = cs.decodeMembers(list, wordCollations[i]); err != nil {
				return fmt.Errorf("values of column %s: %w", c.name, err)
			}
			continue
		}

		if collation, ok := collations[i]; ok {
			if err := c.setCharset(cs, cs.byCollation[collation], e.ColumnMeta[i]); err != nil {
				return err
			}
		}

		if d := l.table.column(c.name); d != nil && d.dataType == uuidType {
			c.setUUID()
		}
	}

	return nil
}

// decodeMembers converts the values of an ENUM or SET to UTF-8.
func (cs *charsets) decodeMembers(list []string, collation uint64) ([]string, error) {
	set, err := cs.find(cs.byCollation[collation])
	if err != nil {
		return nil, err
	}

	words := make([]string, len(list))
	for i, word := range list {
		words[i] = strings.Clone(word)
		if set != nil && set.append != nil {
			text, err := set.append(nil, []byte(word))
			if err != nil {
				return nil, err
			}
			words[i] = string(text)
		}
	}

	return words, nil
}

func (c *column) setCharset(cs *charsets, name string, meta uint16) error {
	if name == "binary" {
		c.bytes = true
		if c.typ == mysql.MYSQL_TYPE_STRING {
			c.padded = stringLength(meta)
		}
		return nil
	}

	var err error
	if c.charset, err = cs.find(name); c.charset == nil {
		// A column that no outbox names may have any charset.
		c.charset = &charset{name: name, append: func(dst, _ []byte) ([]byte, error) {
			return dst, fmt.Errorf("charset %q is not supported; convert the column to utf8mb4", name)
		}}
	}

	return err
}

// uuidType is a type of MariaDB, 16 bytes in the binlog.
const uuidType = "uuid"

func (c *column) setUUID() { c.uuid, c.bytes, c.charset, c.padded = true, false, nil, len(uuid.UUID{}) }

func (l *layout) fromDescription(e *replication.TableMapEvent, cs *charsets) error {
	t := l.table
	if len(t.columns) != len(l.columns) {
		return fmt.Errorf("the binlog has %d columns, the table %d: the table was changed since, or has hidden columns; SET GLOBAL binlog_row_metadata = FULL adds column names to the binlog", len(l.columns), len(t.columns))
	}

	for i := range l.columns {
		c, d := &l.columns[i], &t.columns[i]
		c.readType(e, i)
		if !d.hasType(c.typ) {
			return fmt.Errorf("column %d is %s (%s) in the table, but has another type (%d) in the binlog: the table was changed since; SET GLOBAL binlog_row_metadata = FULL adds column names to the binlog", i+1, d.name, d.fullType, c.typ)
		}

		c.name, c.unsigned = d.name, strings.Contains(d.fullType, "unsigned")
		switch c.typ {
		case mysql.MYSQL_TYPE_ENUM, mysql.MYSQL_TYPE_SET:
			c.members, c.isSet = parseMembers(d.fullType), c.typ == mysql.MYSQL_TYPE_SET
			continue
		}

		var err error
		switch {
		case d.dataType == uuidType:
			c.setUUID()
		case d.charset != "":
			err = c.setCharset(cs, d.charset, e.ColumnMeta[i])
		case d.isBinary():
			err = c.setCharset(cs, "binary", e.ColumnMeta[i])
		}
		if err != nil {
			return err
		}
	}

	return nil
}

// parseMembers parses the values of a type such as enum('a','it”s').
func parseMembers(fullType string) []string {
	_, text, _ := strings.Cut(fullType, "(")
	var words []string
	for strings.HasPrefix(text, "'") {
		var word strings.Builder
		for text = text[1:]; text != ""; {
			i := strings.IndexByte(text, '\'')
			if i < 0 {
				return words
			}
			word.WriteString(text[:i])
			if text = text[i+1:]; !strings.HasPrefix(text, "'") {
				break
			}
			word.WriteByte('\'')
			text = text[1:]
		}
		words = append(words, word.String())
		text = strings.TrimPrefix(text, ",")
	}

	return words
}

// hasType reports whether a TABLE_MAP event shows a column of this data type with the
// type typ (enum_field_types, field_types.h).
func (d *columnInfo) hasType(typ byte) bool {
	switch d.dataType {
	case "date":
		return typ == mysql.MYSQL_TYPE_DATE || typ == mysql.MYSQL_TYPE_NEWDATE
	case "time":
		return typ == mysql.MYSQL_TYPE_TIME || typ == mysql.MYSQL_TYPE_TIME2
	case "datetime":
		return typ == mysql.MYSQL_TYPE_DATETIME || typ == mysql.MYSQL_TYPE_DATETIME2
	case "timestamp":
		return typ == mysql.MYSQL_TYPE_TIMESTAMP || typ == mysql.MYSQL_TYPE_TIMESTAMP2
	case "varchar", "varbinary":
		return typ == mysql.MYSQL_TYPE_VARCHAR || typ == mysql.MYSQL_TYPE_VAR_STRING
	case "char", "binary", uuidType, "inet4", "inet6":
		return typ == mysql.MYSQL_TYPE_STRING
	case "tinytext", "text", "mediumtext", "longtext", "tinyblob", "blob", "mediumblob", "longblob":
		return typ == mysql.MYSQL_TYPE_BLOB
	case "enum":
		return typ == mysql.MYSQL_TYPE_ENUM
	case "set":
		return typ == mysql.MYSQL_TYPE_SET
	case "json":
		return typ == mysql.MYSQL_TYPE_JSON
	case "vector":
		return typ == mysql.MYSQL_TYPE_VECTOR
	}

	if isGeometry(d.dataType) {
		return typ == mysql.MYSQL_TYPE_GEOMETRY
	}
	return typ == numberType(d.dataType)
}

// numberType returns the type of a number.
func numberType(dataType string) byte {
	switch dataType {
	case "tinyint":
		return mysql.MYSQL_TYPE_TINY
	case "smallint":
		return mysql.MYSQL_TYPE_SHORT
	case "mediumint":
		return mysql.MYSQL_TYPE_INT24
	case "int":
		return mysql.MYSQL_TYPE_LONG
	case "bigint":
		return mysql.MYSQL_TYPE_LONGLONG
	case "decimal":
		return mysql.MYSQL_TYPE_NEWDECIMAL
	case "float":
		return mysql.MYSQL_TYPE_FLOAT
	case "double":
		return mysql.MYSQL_TYPE_DOUBLE
	case "bit":
		return mysql.MYSQL_TYPE_BIT
	case "year":
		return mysql.MYSQL_TYPE_YEAR
	}

	return mysql.MYSQL_TYPE_NULL // no column has it
}

// outboxColumns finds the columns of an outbox.
func (l *layout) outboxColumns(o *store.Outbox) (logsource.Columns, error) {
	return logsource.FindColumns(o, l.find, l.missing(), "`")
}

// find returns the index of a column, or -1.
func (l *layout) find(name string) int {
	return slices.IndexFunc(l.columns, func(c column) bool { return strings.EqualFold(c.name, name) })
}

// missing is the error for columns that the binlog does not have.
func (l *layout) missing() fault.MissingColumnsError {
	e := fault.MissingColumnsError{Log: "the binlog", Table: l.table.schema + "." + l.table.name}
	e.Remedy = "correct the layout, or restore the column"
	return e
}

// changeColumns finds the columns of each outbox for a watch.
func (l *layout) changeColumns() (list []logsource.ChangeColumns, err error) {
	for _, o := range l.table.outboxes {
		c, err := logsource.FindChangeColumns(o, l.find, l.missing(), "`")
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}
