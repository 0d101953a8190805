package flowcatalyst

import (
	"net/http"
	"strings"
)

// maxKey is the longest Idempotency-Key that is sent, in bytes. A longer one
// could make the whole header too large for the platform.
const maxKey = 255

// setIdempotencyKey names the one row of a request. A request of several rows
// has no such header: their ids are in their payloads.
//
// The map key is lower case on purpose. A header of this name tells net/http
// that it may repeat the POST on its own, out of sight of the lane; it looks for
// the canonical spelling only. Names of header fields are compared without
// regard to case (RFC 9110, section 5.1), so receivers see no difference.
func setIdempotencyKey(h http.Header, id string) {
	if key := idempotencyKey(id); key != "" {
		h["idempotency-key"] = []string{key}
	}
}

// idempotencyKey returns the id as a header value: as it is where it consists
// of visible ASCII without %, else with the other bytes percent-encoded
// (RFC 3986, section 2.1), so that different ids stay different. It returns ""
// for an id that is empty or too long, and no header is sent.
func idempotencyKey(id string) string {
	if len(id) > maxKey {
		return ""
	}
	if visible(id) && !strings.Contains(id, "%") {
		return id
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(id) {
		if c := id[i]; c <= ' ' || c >= 0x7f || c == '%' {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		} else {
			b.WriteByte(c)
		}
	}
	if b.Len() > maxKey {
		return ""
	}
	return b.String()
}
