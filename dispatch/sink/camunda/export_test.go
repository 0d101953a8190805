package camunda

import (
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// RawCodec is the codec, for servers.
type RawCodec = rawCodec

// Encode returns both forms of the message of a row.
func Encode(c Config, m *sink.Message) (json, proto []byte, reason string) {
	c = c.withDefaults()
	e := newEncoder(&c)
	msg, reason := e.encode(m)
	if reason != "" {
		return nil, nil, reason
	}
	return msg.json(time.Hour), msg.proto(time.Hour), ""
}

// ReadTopology returns what a probe says about an answer.
func ReadTopology(b []byte) (facts string, doubts []string, err error) {
	of, err := readTopology(b)
	return of.String(), of.doubts(), err
}
