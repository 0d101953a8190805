package document

import (
	"encoding/base64"
	"math"
	"strconv"
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
		return appendObject(dst, v.Document())
	case bson.TypeArray:
		return appendList(dst, v.Array())
	case bson.TypeString:
		return AppendQuoted(dst, v.StringValue())
	case bson.TypeSymbol:
		return AppendQuoted(dst, v.Symbol())
	case bson.TypeJavaScript:
		return AppendQuoted(dst, v.JavaScript())
	case bson.TypeCodeWithScope:
		code, _ := v.CodeWithScope()
		return AppendQuoted(dst, code)
	case bson.TypeRegex:
		pattern, options := v.Regex()
		return AppendQuoted(dst, "/"+pattern+"/"+options)
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

func appendObject(dst []byte, doc bson.Raw) []byte {
	elements, err := doc.Elements()
	if err != nil {
		return append(dst, "null"...) // the server stores no such document
	}

	dst = append(dst, '{')
	for i, e := range elements {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(AppendQuoted(dst, e.Key()), ':')
		dst = AppendJSON(dst, e.Value())
	}
	return append(dst, '}')
}

func appendList(dst []byte, list bson.RawArray) []byte {
	values, err := list.Values()
	if err != nil {
		return append(dst, "null"...) // the server stores no such array
	}

	dst = append(dst, '[')
	for i, v := range values {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendJSON(dst, v)
	}
	return append(dst, ']')
}

func appendBinary(dst []byte, v bson.RawValue) []byte {
	subtype, data := v.Binary()
	if id, is := asUUID(subtype, data); is {
		return quote(dst, id.String())
	}
	dst = base64.StdEncoding.AppendEncode(append(dst, '"'), data)
	return append(dst, '"')
}

// lastDate is the last millisecond of the year 9999, since 1970.
const lastDate = 253402300799999

// firstDate is the first millisecond of the year 0, since 1970.
const firstDate = -62167219200000

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

const digits = "0123456789abcdef"

// AppendQuoted appends a string as JSON, escaping only the required characters. Invalid
// UTF-8 becomes U+FFFD.
func AppendQuoted(dst []byte, text string) []byte {
	dst = append(dst, '"')
	begin := 0
	for i := 0; i < len(text); {
		c := text[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' {
				i++
				continue
			}
			dst = appendEscape(append(dst, text[begin:i]...), c)
			i++
			begin = i
			continue
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		if r == utf8.RuneError && size == 1 {
			dst = append(append(dst, text[begin:i]...), string(utf8.RuneError)...)
			begin = i + size
		}
		i += size
	}

	return append(append(dst, text[begin:]...), '"')
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	return append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
}
