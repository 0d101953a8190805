package webhook

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
)

const (
	// maxID is the maximum length in bytes of an id that is sent unchanged, prefix
	// included.
	maxID = 255

	// maxGroup is the maximum length in bytes of a header about a row. Many servers
	// accept 8 KiB of headers in total.
	maxGroup = 2 << 10
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
func attribute(s string) string { return httpsink.PercentEncode(s, `"`) }

// setEventHeaders sets the context attributes of a row. reason is set if a required
// attribute has no value.
func (s *Sink) setEventHeaders(h http.Header, m *sink.Message, id string) (reason string) {
	kind := cmp.Or(s.cfg.CloudEventsType, m.Kind)
	if kind == "" {
		return "CloudEvent has no type, because the row has no kind; set cloudevents-type"
	}

	h.Set("Ce-Specversion", "1.0")
	h.Set("Ce-Id", attribute(id))
	h.Set("Ce-Source", attribute(s.cfg.CloudEventsSource))
	h.Set("Ce-Type", attribute(kind))
	if !m.Committed.IsZero() {
		h.Set("Ce-Time", m.Committed.UTC().Format(time.RFC3339Nano))
	}

	// Neither may be empty (specification, "subject"; extension "partitioning").
	if group := attribute(m.Group.Name); m.Group.Valid && group != "" && len(group) <= maxGroup {
		h.Set("Ce-Subject", group)
		h.Set("Ce-Partitionkey", group)
	}
	return ""
}
