package outbox

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/store"
)

// message returns the content of a logical message: a JSON object with the fields, or the payload
// if that is the whole content. The payload is a JSON string, so that it is read back byte for byte.
func (o *Outbox) message(fields []Field) (string, error) {
	if o.wholeContent() {
		return o.wholeMessage(fields)
	}
	object := make(map[string]any, len(fields))
	for i := range fields {
		switch value := fields[i].Value.(type) {
		case []byte:
			if !utf8.Valid(value) {
				return "", &RowError{Key: payloadKey, Problem: "has bytes that are not UTF-8", Remedy: "encode it, for example as base64"}
			}
			object[fields[i].Column] = string(value)
		case time.Time:
			object[fields[i].Column] = value.Format(time.RFC3339Nano)
		default:
			object[fields[i].Column] = value
		}
	}
	var content bytes.Buffer
	e := json.NewEncoder(&content)
	e.SetEscapeHTML(false)
	err := e.Encode(object)
	return strings.TrimSuffix(content.String(), "\n"), err
}

// wholeMessage returns the payload, whose members must be what else the row says.
func (o *Outbox) wholeMessage(fields []Field) (string, error) {
	payload := fields[0].Value.([]byte)
	names := make([]string, len(fields))
	for i := range fields {
		names[i] = fields[i].Column
	}
	values, _ := store.ReadMembers(payload, names)
	for i := range fields {
		f := &fields[i]
		if f.Content() && f.Key != payloadKey && (values == nil || !bytes.Equal(values[i], text(f.Value))) {
			return "", &RowError{Key: f.Key, Problem: "is not what member " + f.Column + " of the payload says", Remedy: "write it there, or name a member for the payload in columns.payload"}
		}
	}
	return string(payload), nil
}
