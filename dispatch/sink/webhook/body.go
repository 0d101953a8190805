package webhook

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
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
		return s.events.JSON(m)
	case FormatJSONArray:
		if reason := event.NotJSON(m.Payload); reason != "" {
			return nil, reason + ", as format: " + string(FormatJSONArray) + " needs"
		}
	}
	name, given := bodyMember(s.cfg.Body)
	if !given {
		return m.Payload, ""
	}
	one, found := template.Member(m.Payload, name)
	if !found {
		return nil, "payload is no JSON object with the member " + name + ", which body needs"
	}
	return one, ""
}

// bodyMember returns the member of the payload that a value of Body names.
func bodyMember(text string) (name string, ok bool) {
	t, err := template.ParsePayload(text)
	if names := t.Members(); err == nil && len(names) == 1 && text == "{payload."+names[0]+"}" {
		return names[0], true
	}
	return "", false
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
