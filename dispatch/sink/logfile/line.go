package logfile

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/store"
)

// row is a line of FormatRow.
type row struct {
	ID         string            `json:"id"`
	Kind       string            `json:"kind,omitempty"`
	Type       string            `json:"type,omitempty"`
	Group      *string           `json:"group,omitempty"`
	Time       string            `json:"time,omitempty"`
	Replay     string            `json:"replay,omitempty"`
	Headers    map[string]string `json:"headers,omitempty"`
	Data       json.RawMessage   `json:"data,omitempty"`
	DataBase64 string            `json:"data_base64,omitempty"`
}

// appendLine appends the line of a message with its line break. reason is set if there can be
// none.
func (s *Sink) appendLine(to *bytes.Buffer, m *sink.Message) (reason string) {
	before := to.Len()
	switch s.cfg.Format {
	case FormatRaw:
		reason = s.appendPayload(to, m.Payload)
	case FormatStructured:
		var msg event.Message
		if msg, reason = s.encoder.Encode(m); reason == "" {
			_ = json.Compact(to, msg.Body) // it is valid
		}
	default:
		reason = s.appendRow(to, m)
	}
	if reason != "" {
		to.Truncate(before)
		return reason
	}
	to.WriteByte('\n')
	return ""
}

// appendPayload appends a payload as it is. One of JSON may have line breaks, which are removed.
func (s *Sink) appendPayload(to *bytes.Buffer, payload []byte) (reason string) {
	if event.IsJSON(s.cfg.ContentType) {
		if reason = event.NotJSON(payload); reason == "" {
			_ = json.Compact(to, payload) // it is valid
			return ""
		}
		return reason + ", as its content-type " + s.cfg.ContentType + " says"
	}
	if bytes.ContainsAny(payload, "\r\n") {
		return "payload has a line break; use format: " + string(FormatRow)
	}
	to.Write(payload)
	return ""
}

// appendRow appends a line of FormatRow.
func (s *Sink) appendRow(to *bytes.Buffer, m *sink.Message) (reason string) {
	msg, reason := s.encoder.Encode(m)
	if reason != "" {
		return reason
	}
	r := row{ID: event.ID(s.cfg.IDPrefix, m.ID), Kind: m.Kind, Time: event.Time(m), Replay: m.Replay}
	r.Type, _ = m.Attributes.Get(store.AttributeType)
	if m.Group.Valid {
		r.Group = &m.Group.Name
	}
	for _, h := range msg.Headers {
		if h.Name == sink.ReplayHeader {
			continue // a member of its own
		}
		if r.Headers == nil {
			r.Headers = map[string]string{}
		}
		r.Headers[h.Name] = h.Value
	}
	switch {
	case len(m.Payload) == 0:
	case !utf8.Valid(m.Payload):
		r.DataBase64 = base64.StdEncoding.EncodeToString(m.Payload)
	case event.IsJSON(s.cfg.ContentType):
		if reason := event.NotJSON(m.Payload); reason != "" {
			return reason + ", as its content-type " + s.cfg.ContentType + " says"
		}
		r.Data = m.Payload
	default:
		r.Data = text(string(m.Payload))
	}
	to.Write(text(r))
	return ""
}

// text returns a value of texts and valid JSON as JSON in one line.
func text(v any) []byte {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // texts have no errors
	return []byte(strings.TrimSuffix(b.String(), "\n"))
}
