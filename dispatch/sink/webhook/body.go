package webhook

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"mime"
	"strings"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// fit returns the body of a request with as many of the leading messages as it may carry, and
// their number. If it is 0, reason is the reason why the first can never be sent.
func (s *Sink) fit(msgs []sink.Message) (body []byte, n int, reason string) {
	if !s.cfg.Format.severalRows() {
		msgs = msgs[:1]
	}
	for i := range msgs {
		one, reason := s.encode(&msgs[i])
		size := len(body) + len(one)
		if s.cfg.Format.severalRows() {
			size += 2 // a bracket or a comma before it, and the last bracket
		}
		if limit := s.cfg.MaxRequestBytes; reason == "" && limit > 0 && size > limit {
			reason = fmt.Sprintf("payload of %d bytes needs a request of %d bytes, which exceeds max-request-bytes (%d)", len(msgs[i].Payload), size, limit)
		}
		switch {
		case reason != "" && i == 0:
			return nil, 0, reason
		case reason != "":
			return append(body, ']'), n, ""
		case !s.cfg.Format.severalRows():
			return one, 1, ""
		case i == 0:
			body = append(body, '[')
		default:
			body = append(body, ',')
		}
		body, n = append(body, one...), n+1
	}
	return append(body, ']'), n, ""
}

// encode returns the part of the body for a row. reason is set if it can never be sent.
func (s *Sink) encode(m *sink.Message) (one []byte, reason string) {
	switch s.cfg.Format {
	case FormatStructured, FormatBatch:
		return s.encodeEvent(m)
	case FormatJSONArray:
		if reason := notJSON(m.Payload); reason != "" {
			return nil, reason + ", as format: " + string(FormatJSONArray) + " needs"
		}
	}
	return m.Payload, ""
}

// encodeEvent returns a row as a CloudEvent (JSON format 1.0.2). A payload of JSON is part of
// it byte for byte.
func (s *Sink) encodeEvent(m *sink.Message) (text []byte, reason string) {
	id := messageID(s.cfg.IDPrefix, m.ID)
	if id == "" {
		return nil, noIDReason
	}
	e, reason := s.event(m)
	if reason != "" {
		return nil, reason
	}
	name, data, reason := s.data(m.Payload)
	if reason != "" {
		return nil, reason
	}
	contentType := s.cfg.ContentType
	if name == "" {
		contentType = "" // it describes data
	}
	attributes := map[string]string{"specversion": "1.0", "id": id, "source": s.cfg.CloudEventsSource, "type": e.typ}
	for name, t := range s.extensions() {
		if value, missing := t.Text(m, asIs); missing == "" && value != "" {
			attributes[name] = value
		}
	}
	for name, value := range map[string]string{
		"time": e.time, "subject": e.subject, "partitionkey": e.partitionKey, "datacontenttype": contentType,
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
func (s *Sink) data(payload []byte) (name string, value []byte, reason string) {
	switch {
	case len(payload) == 0:
		return "", nil, ""
	case !utf8.Valid(payload):
		return "data_base64", marshal(base64.StdEncoding.EncodeToString(payload)), ""
	case !isJSON(s.cfg.ContentType):
		return "data", marshal(string(payload)), ""
	}
	if reason = notJSON(payload); reason != "" {
		return "", nil, reason + ", as its content-type " + s.cfg.ContentType + " says"
	}
	return "data", payload, ""
}

// notJSON returns the reason why a payload cannot be a part of JSON as it is, "" if it can.
func notJSON(payload []byte) (reason string) {
	switch {
	case len(payload) == 0:
		return "payload is empty and not JSON"
	case !utf8.Valid(payload): // json.Valid accepts any bytes in a string
		return "payload is not UTF-8 and so not JSON"
	case !json.Valid(payload):
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

// isJSON reports whether a media type is one of JSON (RFC 6839, section 3.1).
func isJSON(contentType string) bool {
	media, _, _ := mime.ParseMediaType(contentType)
	return media == "application/json" || media == "text/json" || strings.HasSuffix(media, "+json")
}

// batchID returns the id of a request with several rows: the same on every attempt with the
// same rows.
func batchID(prefix string, msgs []sink.Message) string {
	sum := sha256.New()
	for i := range msgs {
		_, _ = fmt.Fprintf(sum, "%d:%s", len(msgs[i].ID), msgs[i].ID)
	}
	return prefix + "batch-" + hex.EncodeToString(sum.Sum(nil))
}
