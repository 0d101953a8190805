package document

import (
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// timeForm is RFC 3339 in UTC with the millisecond precision of a BSON date.
const timeForm = "2006-01-02T15:04:05.000Z"

// FormatTime formats a time for a text field that the relay writes.
func FormatTime(t time.Time) string { return t.UTC().Format(timeForm) }

// AppendJSON appends the plain JSON of a value to dst; see the package documentation.
func AppendJSON(dst []byte, v bson.RawValue) []byte {
	switch v.Type {
	case bson.TypeEmbeddedDocument:
		return appendElements(dst, v.Document(), '{', '}')
	case bson.TypeArray:
		return appendElements(dst, bson.Raw(v.Array()), '[', ']')
	case bson.TypeString:
		return appendQuoted(dst, v.StringValue())
	case bson.TypeSymbol:
		return appendQuoted(dst, v.Symbol())
	case bson.TypeJavaScript:
		return appendQuoted(dst, v.JavaScript())
	case bson.TypeCodeWithScope:
		code, _ := v.CodeWithScope()
		return appendQuoted(dst, code)
	case bson.TypeRegex:
		pattern, options := v.Regex()
		return appendQuoted(dst, "/"+pattern+"/"+options)
	case bson.TypeObjectID:
		return quote(dst, v.ObjectID().Hex())
	case bson.TypeDBPointer:
		_, id := v.DBPointer()
		return quote(dst, id.Hex())
	case bson.TypeBinary:
		return appendBinary(dst, v)
	case bson.TypeDateTime:
		return appendDate(dst, v.DateTime())
	case bson.TypeMinKey:
		return quote(dst, "MinKey")
	case bson.TypeMaxKey:
		return quote(dst, "MaxKey")
	case bson.TypeBoolean:
		return strconv.AppendBool(dst, v.Boolean())
	}

	return appendNumber(dst, v)
}

// appendNumber appends the JSON of a numeric value, or null for anything else.
func appendNumber(dst []byte, v bson.RawValue) []byte {
	switch v.Type {
	case bson.TypeInt32:
		return strconv.AppendInt(dst, int64(v.Int32()), 10)
	case bson.TypeInt64:
		return strconv.AppendInt(dst, v.Int64(), 10)
	case bson.TypeDouble:
		return appendDouble(dst, v.Double())
	case bson.TypeDecimal128:
		return quote(dst, v.Decimal128().String())
	case bson.TypeTimestamp:
		t, i := v.Timestamp()
		dst = strconv.AppendUint(append(dst, `{"t":`...), uint64(t), 10)
		dst = strconv.AppendUint(append(dst, `,"i":`...), uint64(i), 10)
		return append(dst, '}')
	}
	return append(dst, "null"...)
}

// appendElements appends an object or a list, by its brackets. The keys of a list are left
// out.
func appendElements(dst []byte, doc bson.Raw, begin, end byte) []byte {
	elements, err := doc.Elements()
	if err != nil {
		return append(dst, "null"...) // the server stores no such document
	}

	dst = append(dst, begin)
	for i, e := range elements {
		if i > 0 {
			dst = append(dst, ',')
		}
		if begin == '{' {
			dst = append(appendQuoted(dst, e.Key()), ':')
		}
		dst = AppendJSON(dst, e.Value())
	}
	return append(dst, end)
}

func appendBinary(dst []byte, v bson.RawValue) []byte {
	subtype, data := v.Binary()
	if id, is := asUUID(subtype, data); is {
		return quote(dst, id.String())
	}
	dst = base64.StdEncoding.AppendEncode(append(dst, '"'), data)
	return append(dst, '"')
}

// firstDate and lastDate are the first millisecond of the year 0 and the last of the year
// 9999, since 1970.
const firstDate, lastDate = -62167219200000, 253402300799999

func appendDate(dst []byte, ms int64) []byte {
	if ms < firstDate || ms > lastDate {
		return strconv.AppendInt(dst, ms, 10)
	}
	dst = time.UnixMilli(ms).UTC().AppendFormat(append(dst, '"'), timeForm)
	return append(dst, '"')
}

// appendDouble writes the shortest digits that identify the double, as encoding/json does.
func appendDouble(dst []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(dst, "null"...)
	}
	form := byte('f')
	if size := math.Abs(f); size != 0 && (size < 1e-6 || size >= 1e21) {
		form = 'e'
	}
	return strconv.AppendFloat(dst, f, form, -1, 64)
}

// quote appends a string that needs no escaping.
func quote(dst []byte, text string) []byte {
	return append(append(append(dst, '"'), text...), '"')
}

// appendQuoted appends a string as JSON, escaping only the required characters. Invalid
// UTF-8 becomes U+FFFD.
func appendQuoted(dst []byte, text string) []byte {
	isEscaped := func(r rune) bool { return r < ' ' || r == '"' || r == '\\' || r == utf8.RuneError }
	if !strings.ContainsFunc(text, isEscaped) {
		return quote(dst, text)
	}

	dst = append(dst, '"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, `\n`...)
		case r == '\r':
			dst = append(dst, `\r`...)
		case r == '\t':
			dst = append(dst, `\t`...)
		case r < ' ':
			dst = fmt.Appendf(dst, `\u%04x`, r)
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}
