package webhook

import (
	"fmt"
	"net/http"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/ascii"
)

const (
	// maxValue is the maximum length in bytes of a header about a row. Many servers
	// accept 8 KiB of headers in total.
	maxValue = 2 << 10

	// maxValues is the maximum length in bytes of all headers about a row. A server may
	// close an HTTP/2 connection instead of refusing a request with more, which would look
	// like an outage.
	maxValues = 16 << 10
)

// attribute encodes the value of a CloudEvents attribute for a header (HTTP binding
// 1.0.2, section 3.1.3.2).
func attribute(s string) string { return ascii.PercentEncode(s, `"`) }

// setEventHeaders sets the context attributes of a row. reason is set if a required
// attribute has no value.
func (s *Sink) setEventHeaders(h http.Header, m *sink.Message, id string) (reason string) {
	e, reason := s.events.Attributes(m)
	if reason != "" {
		return reason
	}
	h.Set("Ce-Specversion", "1.0")
	h.Set("Ce-Id", attribute(id))
	h.Set("Ce-Source", attribute(s.cfg.CloudEventsSource))
	typ := attribute(e.Type)
	if len(typ) > maxValue {
		return fmt.Sprintf("type of the CloudEvent needs %d bytes in a header, which exceeds %d", len(typ), maxValue)
	}
	h.Set("Ce-Type", typ)
	for name, value := range map[string]string{"Ce-Time": e.Time, "Ce-Subject": e.Subject, "Ce-Partitionkey": e.PartitionKey} {
		// None may be empty (specification, "subject"; extension "partitioning").
		if value = attribute(value); value != "" && len(value) <= maxValue {
			h.Set(name, value)
		}
	}
	return ""
}
