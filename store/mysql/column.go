package mysql

import (
	"encoding/hex"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// family groups the types that the relay treats alike.
type family uint8

const (
	familyOther family = iota
	familyText
	familyBytes
	familyInteger
	familyDecimal
	familyTime
	familyUUID
	familyJSON
)

// familyOf returns the family of a type name in information_schema.
func familyOf(dataType string) family {
	switch dataType {
	case "char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set":
		return familyText
	case "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob":
		return familyBytes
	case "tinyint", "smallint", "mediumint", "int", "bigint":
		return familyInteger
	case "decimal":
		return familyDecimal
	case "datetime", "timestamp":
		return familyTime
	case "uuid":
		return familyUUID
	case "json":
		return familyJSON
	}

	return familyOther
}

// column is a column of a table.
type column struct {
	name      string
	typ       string // e.g. varchar
	full      string // e.g. varchar(26)
	family    family
	unsigned  bool
	charset   string // of a text
	collation string
	limit     int // maximum length of a text in characters, or in bytes
	scale     int // fractional digits of a decimal
	fraction  int // fractional digits of a time's seconds
	notNull   bool
	serial    bool // AUTO_INCREMENT
}

// textOf returns an expression for a column's value as text. Bytes become an SQL literal,
// e.g. 0x0a1b.
func (c column) textOf() string {
	ref := "o." + Ident(c.name)
	switch c.family {
	case familyInteger, familyDecimal:
		return c.withoutZerofill(ref)
	case familyText, familyTime, familyUUID:
		return ref
	case familyBytes:
		return "CONCAT('0x', LOWER(HEX(" + ref + ")))"
	}
	return "CAST(" + ref + " AS CHAR)"
}

// withoutZerofill returns an expression for a number without ZEROFILL's zeros, because
// the binlog does not contain them. Only unsigned columns are zero-filled.
func (c column) withoutZerofill(ref string) string {
	switch {
	case !strings.Contains(c.full, "zerofill"):
		return ref
	case c.family == familyDecimal:
		return "CAST(" + ref + " AS DECIMAL(65, " + strconv.Itoa(c.scale) + "))"
	}
	return "CAST(" + ref + " AS UNSIGNED)"
}

// bytesOf returns an expression for the UTF-8 bytes of a column's text, so that only
// identical texts compare as equal.
func (c column) bytesOf() string {
	if c.family == familyText && c.charset == "utf8mb4" && c.typ != "enum" && c.typ != "set" {
		return "CAST(o." + Ident(c.name) + " AS BINARY)"
	}
	return "CAST(CONVERT(" + c.textOf() + " USING utf8mb4) AS BINARY)"
}

// content returns an expression for a column's content: raw bytes, or the text of any
// other type.
func (c column) content() string {
	if c.family == familyBytes {
		return "o." + Ident(c.name)
	}
	return c.textOf()
}

// Formats of ids.
var (
	decimalForm = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.([0-9]+))?$`)
	uuidForm    = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

// key returns an id as a value of the column's type, and false if no row can have this
// id.
func (c column) key(id string) (any, bool) {
	switch c.family {
	case familyText:
		return id, utf8.ValidString(id)
	case familyBytes:
		body, ok := strings.CutPrefix(id, "0x")
		raw, err := hex.DecodeString(body)
		return raw, ok && err == nil && body == strings.ToLower(body)
	case familyInteger:
		return c.integerKey(id)
	case familyDecimal:
		form := decimalForm.FindStringSubmatch(id)
		return id, form != nil && len(form[3]) == c.scale
	case familyUUID:
		return id, uuidForm.MatchString(id)
	}

	return nil, false
}

func (c column) integerKey(id string) (any, bool) {
	if c.unsigned {
		n, err := strconv.ParseUint(id, 10, 64)
		return n, err == nil && strconv.FormatUint(n, 10) == id
	}
	n, err := strconv.ParseInt(id, 10, 64)
	return n, err == nil && strconv.FormatInt(n, 10) == id
}

// placeholder returns the placeholder of a key in a statement. It has the type and
// collation of the column, so that an index on the column can be used.
func (c column) placeholder() string {
	switch {
	case c.family == familyDecimal:
		return "CAST(? AS DECIMAL(65, " + strconv.Itoa(c.scale) + "))"
	case c.family == familyText && c.charset != "utf8mb4":
		// Characters that the column's charset lacks must match no row, and not raise an
		// error.
		return "CONVERT(CAST(? AS CHAR CHARACTER SET utf8mb4) USING " + c.charset + ") COLLATE " + c.collation
	}
	return "?"
}

// comparesExactly reports whether the column's comparison treats only identical keys as
// equal.
func (c column) comparesExactly() bool {
	return c.family != familyText || c.collation == "utf8mb4_0900_bin" || strings.HasSuffix(c.collation, "_nopad_bin")
}

// time returns a time as the column stores it, because MySQL would round the excess
// digits and MariaDB would truncate them.
func (c column) time(t time.Time) string {
	form := "2006-01-02 15:04:05"
	if c.fraction > 0 {
		form += "." + strings.Repeat("0", c.fraction)
	}
	return c.truncateTime(t).Format(form)
}

// truncateTime truncates a time to the precision of the column.
func (c column) truncateTime(t time.Time) time.Time {
	unit := time.Second
	for range c.fraction {
		unit /= 10
	}
	return t.UTC().Truncate(unit)
}

// readTime parses a time as the server prints it. It returns false for the zero date.
func readTime(text string) (time.Time, bool) {
	t, err := time.ParseInLocation("2006-01-02 15:04:05", text, time.UTC)
	return t, err == nil
}

// maxInteger returns the largest integer that the column holds.
func (c column) maxInteger() int64 {
	bits := map[string]int{"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32}[c.typ]
	switch {
	case bits == 0:
		return math.MaxInt64
	case c.unsigned:
		return 1<<bits - 1
	}
	return 1<<(bits-1) - 1
}

// minInteger returns the smallest one.
func (c column) minInteger() int64 {
	if c.unsigned {
		return 0
	}
	return -c.maxInteger() - 1
}

// labels returns the values of an ENUM; nil for any other type. The full type of an ENUM
// is, for example, enum('a','it”s').
func (c column) labels() []string {
	body, ok := strings.CutPrefix(c.full, "enum('")
	if !ok {
		return nil
	}
	list := strings.Split(strings.TrimSuffix(body, "')"), "','")
	for i, label := range list {
		list[i] = strings.ReplaceAll(label, "''", "'")
	}
	return list
}

// json reports whether the column may hold JSON from which a group is extracted.
func (c column) json() bool {
	return slices.Contains([]family{familyText, familyBytes, familyJSON}, c.family)
}

// assign returns the SET list of a statement; value provides the value to bind for each
// column.
func (t *table) assign(s *statement, set []columns.Assignment, value func(c column, v columns.Value) any) string {
	parts := make([]string, len(set))
	for i, a := range set {
		name := Ident(a.Column)
		switch a.Value {
		case columns.Null:
			parts[i] = "o." + name + " = NULL"
		case columns.Zero:
			parts[i] = "o." + name + " = 0"
		case columns.Blank:
			parts[i] = "o." + name + " = ''"
		case columns.Error: // an outcome without an error keeps the row's text
			parts[i] = fmt.Sprintf("o.%s = COALESCE(NULLIF(%s, ''), o.%[1]s)", name, s.arg(value(t.mustColumn(a.Column), a.Value)))
		default:
			parts[i] = "o." + name + " = " + s.arg(value(t.mustColumn(a.Column), a.Value))
		}
	}

	return strings.Join(parts, ", ")
}
