package webhook

import "github.com/sluicebox/sluicebox/dispatch/sink"

// AddressOf returns the address of the request for a row.
func AddressOf(s *Sink, m *sink.Message) (text, reason string) { return s.url().of(m) }
