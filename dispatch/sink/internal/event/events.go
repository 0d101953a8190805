package event

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"mime"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
	"github.com/sluicebox/sluicebox/store"
)

// maxID is the maximum length in bytes of an id that is sent unchanged, prefix included.
const maxID = 255

// MediaType is the content type of an event in JSON.
const MediaType = "application/cloudevents+json; charset=utf-8"

// NoIDReason is why a row without an id cannot be sent.
const NoIDReason = "row has an empty id, which receivers need to identify rows; set id-prefix"

// ID returns the id of a row for receivers, the same on every attempt. It returns "" for an empty
// id without a prefix. An id that is too long for a header is replaced by its digest.
func ID(prefix, id string) string {
	if len(prefix)+len(id) <= maxID {
		return prefix + id
	}
	sum := sha256.Sum256([]byte(id))
	return prefix + "sha256-" + hex.EncodeToString(sum[:])
}

// AsIs is the escape of a text that needs none, or is encoded as a whole.
func AsIs(s string) string { return s }

// Time returns when the event of a row happened: its attribute time or the commit time,
// "" if neither is known.
func Time(m *sink.Message) string {
	at, ok := m.Attributes.Get(store.AttributeTime)
	if !ok && !m.Committed.IsZero() {
		at = m.Committed.UTC().Format(time.RFC3339Nano)
	}
	return at
}

// Events describes rows as CloudEvents.
type Events struct {
	source, contentType, idPrefix string

	types   []template.Template // the first that gives a text is the type of the event
	subject template.Template

	// extensions is a function, so that printing an Events does not show the texts.
	extensions func() map[string]template.Template
}

// NewEvents returns the Events of valid settings with an event format. Those of their headers that
// are extensions, ce-NAME, are part of JSON.
func NewEvents(s Settings) *Events {
	s = s.withDefaults()
	e := &Events{
		source: s.CloudEventsSource, contentType: s.ContentType, idPrefix: s.IDPrefix,
		types:   []template.Template{template.MustParse("{type}"), template.MustParse("{kind}")},
		subject: template.MustParse(cmp.Or(s.CloudEventsSubject, "{group}")),
	}
	if s.CloudEventsType != "" {
		e.types = []template.Template{template.MustParse(s.CloudEventsType)}
	}
	extensions := map[string]template.Template{}
	for name, value := range s.Headers {
		if extension, ok := Extension(name); ok {
			extensions[extension] = template.MustParse(string(value))
		}
	}
	e.extensions = func() map[string]template.Template { return extensions }
	return e
}

// Extension returns the extension that a header of the configuration stands for.
func Extension(header string) (name string, ok bool) {
	return strings.CutPrefix(strings.ToLower(header), "ce-")
}

// Attributes are the context attributes of a row that depend on it; "" is none.
type Attributes struct{ Type, Time, Subject, PartitionKey string }

// Attributes returns the context attributes of a row. reason is set if a required one has no
// value.
func (e *Events) Attributes(m *sink.Message) (a Attributes, reason string) {
	lacks := "value for it"
	for i := range e.types {
		var missing string
		if a.Type, missing = e.types[i].Text(m, AsIs); a.Type != "" {
			break
		}
		lacks = cmp.Or(missing, lacks)
	}
	if a.Type == "" {
		return a, "CloudEvent has no type, because the row has no " + lacks + "; set cloudevents-type"
	}
	a.Subject, _ = e.subject.Text(m, AsIs)
	a.PartitionKey, a.Time = m.Group.Name, Time(m)
	return a, ""
}

// JSON returns a row as an event (JSON format 1.0.2). A payload of JSON is part of it byte for
// byte. reason is set if the row can never be sent.
func (e *Events) JSON(m *sink.Message) (text []byte, reason string) {
	id := ID(e.idPrefix, m.ID)
	if id == "" {
		return nil, NoIDReason
	}
	a, reason := e.Attributes(m)
	if reason != "" {
		return nil, reason
	}
	name, data, reason := e.data(m.Payload)
	if reason != "" {
		return nil, reason
	}
	contentType := e.contentType
	if name == "" {
		contentType = "" // it describes data
	}
	attributes := map[string]string{"specversion": "1.0", "id": id, "source": e.source, "type": a.Type}
	for name, t := range e.extensions() {
		if value, missing := t.Text(m, AsIs); missing == "" && value != "" {
			attributes[name] = value
		}
	}
	for name, value := range map[string]string{
		"time": a.Time, "subject": a.Subject, "partitionkey": a.PartitionKey, "datacontenttype": contentType,
	} {
		if value != "" {
			attributes[name] = value
		}
	}
	text = marshal(attributes)
	if name == "" {
		return text, ""
	}
	text = append(text[:len(text)-1], `,"`+name+`":`...)
	return append(append(text, data...), '}'), ""
}

// data returns the member of an event that holds the payload and its value; "" for an empty
// payload. Bytes that are not UTF-8 cannot be a part of JSON.
func (e *Events) data(payload []byte) (name string, value []byte, reason string) {
	switch {
	case len(payload) == 0:
		return "", nil, ""
	case !utf8.Valid(payload):
		return "data_base64", marshal(base64.StdEncoding.EncodeToString(payload)), ""
	case !IsJSON(e.contentType):
		return "data", marshal(string(payload)), ""
	}
	if reason = NotJSON(payload); reason != "" {
		return "", nil, reason + ", as its content-type " + e.contentType + " says"
	}
	return "data", payload, ""
}

// NotJSON returns the reason why a payload cannot be a part of JSON as it is, "" if it can.
func NotJSON(payload []byte) (reason string) {
	switch {
	case len(payload) == 0:
		return "payload is empty and not JSON"
	case jsontext.Value(payload).IsValid(jsontext.AllowDuplicateNames(true)): // a quarter of the time of json.Valid
		return ""
	case !utf8.Valid(payload): // json.Valid accepts any bytes in a string
		return "payload is not UTF-8 and so not JSON"
	case !json.Valid(payload): // it accepts half of a surrogate pair
		return "payload is not JSON"
	}
	return ""
}

// marshal returns a text or a map of texts as JSON. Names are sorted.
func marshal(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // texts have no errors
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// IsJSON reports whether a media type is one of JSON (RFC 6839, section 3.1).
func IsJSON(contentType string) bool {
	media, _, _ := mime.ParseMediaType(contentType)
	return media == "application/json" || media == "text/json" || strings.HasSuffix(media, "+json")
}
