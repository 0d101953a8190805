package webhook

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
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
	return m.Payload, ""
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
