package webhook

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/ascii"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
	"github.com/sluicebox/sluicebox/store"
)

const (
	// maxID is the maximum length in bytes of an id that is sent unchanged, prefix
	// included.
	maxID = 255

	// maxValue is the maximum length in bytes of a header about a row. Many servers
	// accept 8 KiB of headers in total.
	maxValue = 2 << 10

	// maxValues is the maximum length in bytes of all headers about a row. A server may
	// close an HTTP/2 connection instead of refusing a request with more, which would look
	// like an outage.
	maxValues = 16 << 10
)

// messageID returns the id of a row for receivers, the same on every attempt. It
// returns "" for an empty id. An id that is too long for a header is replaced by its
// digest.
func messageID(prefix, id string) string {
	if len(prefix)+len(id) <= maxID {
		return prefix + id
	}
	sum := sha256.Sum256([]byte(id))
	return prefix + "sha256-" + hex.EncodeToString(sum[:])
}

// attribute encodes the value of a CloudEvents attribute for a header (HTTP binding
// 1.0.2, section 3.1.3.2).
func attribute(s string) string { return ascii.PercentEncode(s, `"`) }

// setEventHeaders sets the context attributes of a row. reason is set if a required
// attribute has no value.
func (s *Sink) setEventHeaders(h http.Header, m *sink.Message, id string) (reason string) {
	e, reason := s.event(m)
	if reason != "" {
		return reason
	}
	h.Set("Ce-Specversion", "1.0")
	h.Set("Ce-Id", attribute(id))
	h.Set("Ce-Source", attribute(s.cfg.CloudEventsSource))
	typ := attribute(e.typ)
	if len(typ) > maxValue {
		return fmt.Sprintf("type of the CloudEvent needs %d bytes in a header, which exceeds %d", len(typ), maxValue)
	}
	h.Set("Ce-Type", typ)
	for name, value := range map[string]string{"Ce-Time": e.time, "Ce-Subject": e.subject, "Ce-Partitionkey": e.partitionKey} {
		// None may be empty (specification, "subject"; extension "partitioning").
		if value = attribute(value); value != "" && len(value) <= maxValue {
			h.Set(name, value)
		}
	}
	return ""
}

// event are the context attributes of a row that depend on it; "" is none.
type event struct{ typ, time, subject, partitionKey string }

// event returns the context attributes of a row. reason is set if a required one has no
// value.
func (s *Sink) event(m *sink.Message) (e event, reason string) {
	lacks := "value for it"
	for i := range s.eventTypes {
		var missing string
		if e.typ, missing = s.eventTypes[i].Text(m, asIs); e.typ != "" {
			break
		}
		lacks = cmp.Or(missing, lacks)
	}
	if e.typ == "" {
		return e, "CloudEvent has no type, because the row has no " + lacks + "; set cloudevents-type"
	}
	e.subject, _ = s.eventSubject.Text(m, asIs)
	e.partitionKey, e.time = m.Group.Name, eventTime(m)
	return e, ""
}

// eventTypes returns the templates of the type of events, of which the first that gives a text
// counts.
func eventTypes(text string) []template.Template {
	if text != "" {
		return []template.Template{template.MustParse(text)}
	}
	return []template.Template{template.MustParse("{type}"), template.MustParse("{kind}")}
}

// eventTime returns when the event of a row happened: its attribute time or the commit time,
// "" if neither is known.
func eventTime(m *sink.Message) string {
	at, ok := m.Attributes.Get(store.AttributeTime)
	if !ok && !m.Committed.IsZero() {
		at = m.Committed.UTC().Format(time.RFC3339Nano)
	}
	return at
}

// asIs is the escape of a text that is encoded as a whole.
func asIs(s string) string { return s }

// reservedEventAttribute returns the reason why a context attribute cannot be set as a header, ""
// if it can: as an extension, whose name has lower-case letters and digits (specification,
// "Naming conventions").
func reservedEventAttribute(name string, format Format) string {
	key := ""
	switch name {
	case "type", "source", "subject":
		key = "; use the key cloudevents-" + name
	case "time":
		key = "; name its column in columns.time"
	case "id", "specversion", "datacontenttype", "partitionkey":
	case "data", "data_base64", "":
		return "it is no extension of an event"
	default:
		switch {
		case !format.isEvent():
			return "names starting with ce- belong to the formats of CloudEvents"
		case strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") != "":
			return "the name of an extension has letters and digits only behind ce-"
		}
		return ""
	}
	return "the relay sets ce-" + name + key
}
