package nats

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
)

// SubjectOf returns the subject of a row.
func SubjectOf(text string, m *sink.Message) (subject, reason string) {
	t := template.MustParse(text)
	return subjectOf(&t, m)
}

// StreamOf returns the stream of a row.
func StreamOf(text string, m *sink.Message) (stream, reason string) {
	t := template.MustParse(text)
	return streamOf(&t, m)
}

// Covers is covers.
func Covers(filter, pattern string) bool { return covers(filter, pattern) }

// Wildcards returns the subjects of a template.
func Wildcards(text string) string {
	t := template.MustParse(text)
	return wildcards(&t)
}

// HasBatches is hasBatches.
func HasBatches(version string) bool { return hasBatches(version) }

// MsgID returns the Nats-Msg-Id of a row.
func MsgID(m *sink.Message) string { return msgID(m, m.ID) }

// PlainAck calls plainAck.
func PlainAck(text string) (ack jetstream.PubAck, ok bool) { return plainAck([]byte(text)) }

// SetLimitAge sets how long the limit of a server is believed.
func SetLimitAge(s *Sink, age time.Duration) { s.limitAge = age }
