package mysql

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/google/uuid"

	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// appendText appends the text of a value to dst in the store's format of ids, kinds and
// groups, e.g. 0x0a1b for bytes.
func (c *column) appendText(dst []byte, v any) ([]byte, error) {
	if !c.bytes {
		return c.append(dst, v)
	}
	begin := len(dst)
	dst, err := c.append(dst, v)
	if err != nil {
		return dst, err
	}
	raw := bytes.Clone(dst[begin:])
	return hex.AppendEncode(append(dst[:begin], "0x"...), raw), nil
}

// append appends the content of a value to dst in UTF-8, as a SELECT would show it. The
// library decodes the value without knowing the names of ENUM values, signs, charsets or
// the length of a BINARY column.
func (c *column) append(dst []byte, v any) ([]byte, error) {
	switch x := v.(type) {
	case string:
		return c.appendBytes(dst, []byte(x))
	case []byte:
		return c.appendBytes(dst, x)
	case int8:
		return c.appendInt(dst, int64(x), 8)
	case int16:
		return c.appendInt(dst, int64(x), 16)
	case int32:
		bits := 32
		if c.typ == mysql.MYSQL_TYPE_INT24 {
			bits = 24
		}
		return c.appendInt(dst, int64(x), bits)
	case int64:
		switch c.typ {
		case mysql.MYSQL_TYPE_ENUM:
			return c.appendEnum(dst, x)
		case mysql.MYSQL_TYPE_SET:
			return c.appendSet(dst, uint64(x))
		}
		return c.appendInt(dst, x, 64)
	case int: // YEAR
		return fmt.Appendf(dst, "%04d", x), nil
	}

	return dst, fmt.Errorf("column %s has a type that the relay cannot read from the binlog (%d, %T)", mystore.Ident(c.name), c.typ, v)
}

// appendInt appends a number. The library decodes every number as signed.
func (c *column) appendInt(dst []byte, n int64, bits int) ([]byte, error) {
	if c.unsigned {
		return strconv.AppendUint(dst, uint64(n)&(1<<bits-1), 10), nil
	}
	return strconv.AppendInt(dst, n, 10), nil
}

// appendEnum appends an ENUM's text; 0 is the empty text of an invalid value.
func (c *column) appendEnum(dst []byte, n int64) ([]byte, error) {
	switch {
	case n == 0:
		return dst, nil
	case n > int64(len(c.members)):
		return dst, fmt.Errorf("column %s has value number %d of an ENUM with %d values", mystore.Ident(c.name), n, len(c.members))
	}
	return append(dst, c.members[n-1]...), nil
}

// appendSet appends a SET's text.
func (c *column) appendSet(dst []byte, bits uint64) ([]byte, error) {
	first := true
	for i := 0; bits != 0; i, bits = i+1, bits>>1 {
		if bits&1 == 0 {
			continue
		}
		if i >= len(c.members) {
			return dst, fmt.Errorf("column %s has value number %d of a SET with %d values", mystore.Ident(c.name), i+1, len(c.members))
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(dst, c.members[i]...)
	}

	return dst, nil
}

func (c *column) appendBytes(dst, text []byte) ([]byte, error) {
	if c.typ == mysql.MYSQL_TYPE_JSON {
		return appendJSON(dst, text), nil
	}
	if c.charset != nil && c.charset.append != nil {
		dst, err := c.charset.append(dst, text)
		if err != nil {
			return dst, fmt.Errorf("column %s: %w", mystore.Ident(c.name), err)
		}
		return dst, nil
	}

	begin := len(dst)
	dst = append(dst, text...)
	for n := len(text); n < c.padded; n++ {
		dst = append(dst, 0) // the server omits trailing zeros
	}

	if c.uuid {
		return appendUUID(dst[:begin], dst[begin:])
	}
	return dst, nil
}

// appendUUID appends a UUID from MariaDB's bytes.
func appendUUID(dst, raw []byte) ([]byte, error) {
	id, err := uuid.FromBytes(raw)
	if err != nil {
		return dst, err
	}
	return append(dst, id.String()...), nil
}

// appendJSON appends a JSON text in the server's format: with a space after each comma
// and colon, which the library omits.
func appendJSON(dst, text []byte) []byte {
	quoted, escaped := false, false
	for _, b := range text {
		dst = append(dst, b)
		switch {
		case escaped:
			escaped = false
		case quoted && b == '\\':
			escaped = true
		case b == '"':
			quoted = !quoted
		case !quoted && (b == ',' || b == ':'):
			dst = append(dst, ' ')
		}
	}

	return dst
}
