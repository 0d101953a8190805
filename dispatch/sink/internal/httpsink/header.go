package httpsink

import (
	"net/http"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/ascii"
)

// maxKey is the maximum length of an Idempotency-Key in bytes. A longer key could
// make the whole header too large for the receiver.
const maxKey = 255

// SetIdempotencyKey sets the Idempotency-Key of a request with one row. A request of
// several rows has no such header: its payloads hold the ids.
//
// The map key is lower case on purpose. net/http takes the canonical spelling as
// permission to repeat the request on its own, and the lane would not see that
// attempt. Receivers see no difference, because names of header fields are
// case-insensitive (RFC 9110, section 5.1).
func SetIdempotencyKey(h http.Header, id string) {
	if key := idempotencyKey(id); key != "" {
		h["idempotency-key"] = []string{key}
	}
}

// SetReplay sets the replay of a request. A request with live rows, whose replay is
// "", has no such header.
func SetReplay(h http.Header, replay string) {
	if replay != "" {
		h.Set(sink.ReplayHeader, ascii.PercentEncode(replay, ""))
	}
}

// idempotencyKey returns the id as a header value. It percent-encodes all bytes
// except visible ASCII, and %, so different ids stay different. It returns "", and no
// header is sent, for an id that is empty or too long.
func idempotencyKey(id string) string {
	if key := ascii.PercentEncode(id, ""); len(key) <= maxKey {
		return key
	}
	return ""
}
