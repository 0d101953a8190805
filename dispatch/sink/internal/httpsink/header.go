package httpsink

import (
	"net/http"
	"strings"
)

// maxKey is the longest Idempotency-Key that is sent, in bytes. A longer one
// could make the whole header too large for the receiver.
const maxKey = 255

// SetIdempotencyKey names the one row of a request. A request of several rows
// has no such header: their ids are in their payloads.
//
// The map key is lower case on purpose. A header of this name tells net/http
// that it may repeat the request on its own, out of sight of the lane; it looks
// for the canonical spelling only. Names of header fields are compared without
// regard to case (RFC 9110, section 5.1), so receivers see no difference.
func SetIdempotencyKey(h http.Header, id string) {
	if key := idempotencyKey(id); key != "" {
		h["idempotency-key"] = []string{key}
	}
}

// ReplayHeader tells a receiver that it may have had the rows of a request before,
// because somebody sends them again. Its value is the id of that replay.
const ReplayHeader = "Sluicebox-Replay"

// SetReplay names the replay that a request belongs to. One with live rows, whose
// replay is "", has no such header.
func SetReplay(h http.Header, replay string) {
	if replay != "" {
		h.Set(ReplayHeader, PercentEncode(replay, ""))
	}
}

// idempotencyKey returns the id as a header value: as it is where it consists
// of visible ASCII without %, else with the other bytes percent-encoded, so that
// different ids stay different. It returns "" for an id that is empty or too
// long, and no header is sent.
func idempotencyKey(id string) string {
	if len(id) > maxKey {
		return ""
	}
	key := PercentEncode(id, "")
	if len(key) > maxKey {
		return ""
	}
	return key
}

// PercentEncode returns s with the bytes that are no visible ASCII, with % and
// with the given characters percent-encoded (RFC 3986, section 2.1), in upper
// case. To decode it gives s back, so different texts stay different.
func PercentEncode(s, too string) string {
	encode := func(c byte) bool {
		return c <= ' ' || c >= 0x7f || c == '%' || strings.IndexByte(too, c) >= 0
	}
	n := 0
	for i := range len(s) {
		if encode(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(s) + 2*n)
	for i := range len(s) {
		if c := s[i]; encode(c) {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
