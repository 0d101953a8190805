package httpsink

import (
	"fmt"
	"net/http"
	"strings"
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

// ReplayHeader marks a request of a replay, so the receiver may have had its rows
// before. Its value is the id of the replay.
const ReplayHeader = "Sluicebox-Replay"

// SetReplay sets the replay of a request. A request with live rows, whose replay is
// "", has no such header.
func SetReplay(h http.Header, replay string) {
	if replay != "" {
		h.Set(ReplayHeader, PercentEncode(replay, ""))
	}
}

// idempotencyKey returns the id as a header value. It percent-encodes all bytes
// except visible ASCII, and %, so different ids stay different. It returns "", and no
// header is sent, for an id that is empty or too long.
func idempotencyKey(id string) string {
	if key := PercentEncode(id, ""); len(key) <= maxKey {
		return key
	}
	return ""
}

// PercentEncode percent-encodes % and every byte outside visible ASCII, in upper case
// (RFC 3986, section 2.1). It also encodes the characters in too. Decoding restores
// s, so different texts stay different.
func PercentEncode(s, too string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' || c == '%' || strings.IndexByte(too, c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
