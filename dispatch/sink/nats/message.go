package nats

import (
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/ascii"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
)

// Headers of a batch (ADR-50).
const (
	batchIDHeader       = "Nats-Batch-Id"
	batchSequenceHeader = "Nats-Batch-Sequence"
	batchCommitHeader   = "Nats-Batch-Commit"
)

const (
	// batchVersion is the first version whose batches may have a Nats-Msg-Id.
	batchMajor, batchMinor, batchPatch = 2, 12, 1

	// maxHeader is the size of headers that a server stores (server, checkMsgHeaders).
	maxHeader = 65535

	// batchHeaderBytes is the most that the headers of a batch add.
	batchHeaderBytes = 128
)

// encode makes msg the message for a row. reason is set if the row can never be sent.
func (s *Sink) encode(msg *nats.Msg, m *sink.Message) (reason string) {
	if msg.Subject, reason = subjectOf(&s.subject, m); reason != "" {
		return reason
	}
	stream, reason := streamOf(&s.stream, m)
	if reason != "" {
		return reason
	}
	id := event.ID(s.idPrefix, m.ID)
	if id == "" {
		return "row has an empty id, which streams need to drop repetitions; set id-prefix"
	}
	e, reason := s.encoder.Encode(m)
	if reason != "" {
		return reason
	}
	msg.Data, msg.Reply = e.Body, ""
	if msg.Header == nil {
		msg.Header = nats.Header{}
	}
	clear(msg.Header)
	values := make([]string, 0, len(e.Headers)+2) // of all headers, for one allocation
	set := func(name, value string) {
		values = append(values, value)
		msg.Header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	for _, h := range e.Headers {
		set(h.Name, h.Value)
	}
	if stream != "" {
		set(jetstream.ExpectedStreamHeader, stream)
	}
	set(jetstream.MsgIDHeader, msgID(m, id))
	return ""
}

// prepare is encode. It returns the outcome of a message that can never be sent. more is the most that
// the caller adds to the headers.
func (s *Sink) prepare(msg *nats.Msg, m *sink.Message, maxPayload int64, more int) (out sink.Outcome, ok bool) {
	if reason := s.encode(msg, m); reason != "" {
		return s.rejected("%s", reason), false
	}
	if reason := tooLarge(msg, maxPayload, more); reason != "" {
		out = s.rejected("%s", reason)
		out.Final = true
		return out, false
	}
	return out, true
}

// msgID returns the Nats-Msg-Id of a row with this id for receivers. The outbox is part of it,
// because a stream drops a message whose Nats-Msg-Id it has: the row 1 of another table would be
// lost. The parts have no slash of their own, so different rows have different ids.
func msgID(m *sink.Message, id string) string {
	parts := []string{id}
	switch {
	case m.Replay != "":
		parts = []string{m.Outbox, id, m.Replay}
	case m.Outbox != "":
		parts = []string{m.Outbox, id}
	}
	for i := range parts {
		parts[i] = ascii.PercentEncode(parts[i], "/")
	}
	return strings.Join(parts, "/")
}

// tooLarge returns the reason why a server would refuse a message by its size when its headers
// have grown by more bytes, "" if none.
func tooLarge(msg *nats.Msg, maxPayload int64, more int) (reason string) {
	header := len("NATS/1.0\r\n\r\n") + more
	for name, values := range msg.Header {
		for _, value := range values {
			header += len(name) + len(": \r\n") + len(value)
		}
	}
	switch size := int64(header + len(msg.Data)); {
	case header > maxHeader:
		return fmt.Sprintf("headers of %d bytes exceed %d", header, maxHeader)
	case size > maxPayload:
		return fmt.Sprintf("message of %d bytes with its headers exceeds max_payload of the server (%d)", size, maxPayload)
	}
	return ""
}

// versionError reports a server without batches that drop repetitions.
type versionError struct{ version string }

func (e *versionError) Error() string {
	return fmt.Sprintf("server %s has no atomic batches with Nats-Msg-Id; set batch: none, or use %d.%d.%d",
		e.version, batchMajor, batchMinor, batchPatch)
}

// hasBatches reports whether a server of a version has atomic batches with Nats-Msg-Id.
func hasBatches(version string) bool {
	var major, minor, patch int
	if n, _ := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); n < 3 {
		return false
	}
	if major != batchMajor {
		return major > batchMajor
	}
	return minor > batchMinor || minor == batchMinor && patch >= batchPatch
}
