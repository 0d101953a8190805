package document

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Lookup returns the value of a field or of a dotted path; the zero value if it is missing.
func Lookup(doc bson.Raw, name string) bson.RawValue {
	for {
		key, rest, more := strings.Cut(name, ".")
		v := doc.Lookup(key)
		if !more {
			return v
		}
		if v.Type != bson.TypeEmbeddedDocument {
			return bson.RawValue{}
		}
		doc, name = v.Document(), rest
	}
}

// Absent reports whether a value is missing, null or undefined.
func Absent(v bson.RawValue) bool {
	return v.Type == 0 || v.Type == bson.TypeNull || v.Type == bson.TypeUndefined
}

// AppendText appends the text of a kind or group to dst. An absent value appends nothing.
func AppendText(dst []byte, v bson.RawValue) []byte {
	if text, ok := appendID(dst, v); ok {
		return text
	}

	switch v.Type {
	case bson.TypeNull, bson.TypeUndefined, 0:
		return dst
	case bson.TypeEmbeddedDocument, bson.TypeArray, bson.TypeTimestamp:
		return AppendJSON(dst, v)
	}

	begin := len(dst)
	dst = AppendJSON(dst, v)
	var text string
	if dst[begin] == '"' && json.Unmarshal(dst[begin:], &text) == nil {
		dst = append(dst[:begin], text...)
	}
	return dst
}

// ID returns the text of an id. The error names its BSON type.
func ID(v bson.RawValue) (string, error) {
	if text, ok := appendID(nil, v); ok {
		return string(text), nil
	}
	if Absent(v) {
		return "", fmt.Errorf("document without an id (it is %s) cannot be relayed: claims and outcomes need the id", TypeName(v))
	}
	return "", fmt.Errorf("id is %s; supported are ObjectID, string, whole number, UUID, and binary data of subtype 0, 3 or 5", TypeName(v))
}

// TypeName describes the type of a value in error texts, with the names of $type, e.g. "of
// type int"; "missing" if there is no value.
func TypeName(v bson.RawValue) string {
	if v.Type == 0 {
		return "missing"
	}
	return "of type " + v.Type.String()
}

// appendID appends the text of a value whose type is allowed for ids.
func appendID(dst []byte, v bson.RawValue) (text []byte, ok bool) {
	switch v.Type {
	case bson.TypeString:
		return append(dst, v.StringValue()...), true
	case bson.TypeObjectID:
		id := v.ObjectID()
		return hex.AppendEncode(dst, id[:]), true
	case bson.TypeInt32:
		return strconv.AppendInt(dst, int64(v.Int32()), 10), true
	case bson.TypeInt64:
		return strconv.AppendInt(dst, v.Int64(), 10), true
	case bson.TypeDouble:
		n, isWhole := wholeNumber(v.Double())
		if !isWhole {
			return dst, false
		}
		return strconv.AppendInt(dst, n, 10), true
	case bson.TypeBinary:
		subtype, data := v.Binary()
		if id, isUUID := asUUID(subtype, data); isUUID {
			return append(dst, id.String()...), true
		}
		if known := binarySubtypes(); slices.Contains(known[:], subtype) {
			return hex.AppendEncode(append(dst, "0x"...), data), true
		}
	}

	return dst, false
}

func asUUID(subtype byte, data []byte) (id uuid.UUID, ok bool) {
	if subtype != bson.TypeBinaryUUID || len(data) != len(id) {
		return id, false
	}
	copy(id[:], data)
	return id, true
}

// wholeNumber returns a double as an integer. Doubles of 2^63 and above do not fit into an
// int64.
func wholeNumber(f float64) (int64, bool) {
	if f != math.Trunc(f) || f < -1<<63 || f >= 1<<63 {
		return 0, false
	}
	return int64(f), true
}

// binarySubtypes returns the binary subtypes in which programs keep ids, other than UUIDs:
// generic, the old UUID, whose byte order depends on the driver, and MD5.
func binarySubtypes() [3]byte {
	return [...]byte{bson.TypeBinaryGeneric, bson.TypeBinaryUUIDOld, bson.TypeBinaryMD5}
}

// IDs returns every value whose text, as returned by ID, is the given one. Numbers are
// int64; the server matches ints and doubles by them.
func IDs(text string) []any {
	values := []any{text}
	if n, is := number(text); is {
		values = append(values, n)
	}

	if len(text) == 24 && lowerHex(text) {
		if id, err := bson.ObjectIDFromHex(text); err == nil {
			values = append(values, id)
		}
	}

	if len(text) == 36 {
		if id, err := uuid.Parse(text); err == nil && id.String() == text {
			values = append(values, bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id[:]})
		}
	}

	if digits, is := strings.CutPrefix(text, "0x"); is && lowerHex(digits) {
		if data, err := hex.DecodeString(digits); err == nil {
			for _, subtype := range binarySubtypes() {
				values = append(values, bson.Binary{Subtype: subtype, Data: data})
			}
		}
	}

	return values
}

// number parses the text of a whole number.
func number(text string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && strconv.FormatInt(n, 10) == text
}

// IsNumberText reports whether the text is that of a whole number, which programs write as
// a number or as text. For other types two forms of one id occur only in copies of the same
// document.
func IsNumberText(text string) bool {
	_, is := number(text)
	return is
}

func lowerHex(text string) bool {
	return strings.Trim(text, "0123456789abcdef") == ""
}
