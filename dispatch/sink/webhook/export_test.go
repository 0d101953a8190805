package webhook

import (
	"net"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// AddressOf returns the address of the request for a row.
func AddressOf(s *Sink, m *sink.Message) (text, reason string) {
	to, reason := s.url().of(m)
	return to.text, reason
}

// SetResolver sets the resolver of the hosts that rows name.
func SetResolver(s *Sink, r *net.Resolver) { s.dialer.Resolver = r }

// Sign returns the signature of a request.
func Sign(s *Sink, id, timestamp string, body []byte) string {
	return sign(s.keys(), id, timestamp, body)
}
