package mysql

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/google/uuid"
	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/encoding/unicode/utf32"

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

// charset converts the bytes of a column to UTF-8, because the binlog holds text in the
// column's charset, whatever the session uses.
type charset struct {
	name string
	// append appends the text to dst. If it is nil, the bytes are UTF-8 already.
	append func(dst, text []byte) ([]byte, error)
}

// charsets finds charsets by name and by collation id.
type charsets struct {
	byName      map[string]*charset // nil: a charset that cannot be read
	byCollation map[uint64]string
	// load reads a missing charset from the server; nil means that it cannot be read.
	load func(name string) (*charset, error)
}

// newCharsets returns the charsets that need no query.
func newCharsets() *charsets {
	cs := &charsets{byName: map[string]*charset{}, byCollation: map[uint64]string{}}
	for _, name := range []string{"binary", "ascii", "utf8", "utf8mb3", "utf8mb4"} {
		cs.byName[name] = &charset{name: name}
	}
	utf16 := decodeUnicode(unicode.UTF16(unicode.BigEndian, unicode.IgnoreBOM), 2)
	for name, read := range map[string]func(dst, text []byte) ([]byte, error){
		"ucs2": utf16, "utf16": utf16,
		"utf16le": decodeUnicode(unicode.UTF16(unicode.LittleEndian, unicode.IgnoreBOM), 2),
		"utf32":   decodeUnicode(utf32.UTF32(utf32.BigEndian, utf32.IgnoreBOM), 4),
	} {
		cs.byName[name] = &charset{name: name, append: read}
	}
	return cs
}

// find returns a charset; nil if it cannot be read.
func (cs *charsets) find(name string) (*charset, error) {
	c, known := cs.byName[name]
	if known || cs.load == nil {
		return c, nil
	}
	c, err := cs.load(name)
	if err == nil {
		cs.byName[name] = c
	}
	return c, err
}

// loadCollations reads the charset of each collation. MariaDB leaves the ids of newer
// collations out of COLLATIONS, and MySQL has no ids in
// COLLATION_CHARACTER_SET_APPLICABILITY.
func (c *control) loadCollations(ctx context.Context, sv *server, cs *charsets) error {
	query := "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATIONS WHERE ID IS NOT NULL AND CHARACTER_SET_NAME IS NOT NULL"
	if sv.flavour == mariaDB && !sv.version.before(version{10, 10}) {
		query = "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY WHERE ID IS NOT NULL"
	}

	err := c.each(ctx, func(row *sql.Rows) error {
		var id uint64
		var name string
		err := row.Scan(&id, &name)
		cs.byCollation[id] = name
		return err
	}, query)
	if err != nil {
		return fmt.Errorf("read collations: %w", mystore.Explain(err))
	}
	return nil
}

// byteTable maps each byte of a single-byte charset to UTF-8.
type byteTable [256]string

func (t *byteTable) append(dst, text []byte) ([]byte, error) {
	for _, b := range text {
		dst = append(dst, t[b]...)
	}
	return dst, nil
}

// loadCharset reads a charset from the server character by character, because the
// server's definition counts: for example, MySQL's latin1 is neither ISO 8859-1 nor quite
// cp1252. It returns nil for a multi-byte charset.
func (c *control) loadCharset(ctx context.Context, name string) (*charset, error) {
	maxLen, err := c.queryStrings(ctx, "SELECT CAST(MAXLEN AS CHAR) FROM information_schema.CHARACTER_SETS WHERE CHARACTER_SET_NAME = ?", name)
	if err != nil || len(maxLen) == 0 || maxLen[0] != "1" {
		return nil, mystore.Explain(err)
	}

	var parts []string
	for b := range 256 {
		// The server provided the name.
		parts = append(parts, fmt.Sprintf("SELECT %d, CONVERT(_%s X'%02X' USING utf8mb4)", b, name, b))
	}

	var table byteTable
	err = c.each(ctx, func(row *sql.Rows) error {
		var b byte
		var text string
		err := row.Scan(&b, &text)
		table[b] = text
		return err
	}, strings.Join(parts, " UNION ALL "))
	if err != nil {
		return nil, fmt.Errorf("read charset %s: %w", name, mystore.Explain(err))
	}
	return &charset{name: name, append: table.append}, nil
}

// decodeUnicode returns a conversion from an encoding with units of some bytes to UTF-8.
func decodeUnicode(from encoding.Encoding, unit int) func(dst, text []byte) ([]byte, error) {
	return func(dst, text []byte) ([]byte, error) {
		if len(text)%unit != 0 {
			return dst, fmt.Errorf("%d bytes are not valid %s", len(text), from)
		}
		decoded, err := from.NewDecoder().Bytes(text)
		return append(dst, decoded...), err
	}
}
