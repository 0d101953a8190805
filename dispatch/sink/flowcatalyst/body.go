package flowcatalyst

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
)

// fit returns the number of leading messages that fit one request. If it is 0, reason is
// the reason why the first message can never be sent.
func (r *route) fit(msgs []sink.Message) (n int, reason string) {
	size := len(r.prefix) + len(r.suffix)
	for i := range msgs {
		m := &msgs[i]
		if i > 0 {
			size++ // the comma
		}
		size += len(m.Payload)
		if i == r.maxItems || m.Kind != msgs[0].Kind || size > r.maxBody || event.NotJSON(m.Payload) != "" {
			if i == 0 {
				reason = r.unsendableReason(m.Payload)
			}
			return i, reason
		}
	}
	return len(msgs), ""
}

// unsendableReason returns the reason why a payload can never be sent.
func (r *route) unsendableReason(payload []byte) string {
	if size := len(r.prefix) + len(payload) + len(r.suffix); size > r.maxBody {
		return fmt.Sprintf("not sent: payload of %d bytes needs a request of %d bytes; the limit of %s is %d",
			len(payload), size, r.name(), r.maxBody)
	}
	if len(payload) == 0 {
		return "not sent: payload is empty"
	}
	if !utf8.Valid(payload) {
		return "not sent: payload is not UTF-8 and so not JSON"
	}

	err := json.Unmarshal(payload, new(json.RawMessage))
	at := ""
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		at = fmt.Sprintf(" at byte %d", syntax.Offset)
	}
	return redact.OneLine(fmt.Sprintf("not sent: payload is not valid JSON%s: %v", at, err))
}

// body joins the payloads byte for byte. It computes the exact size, so that a
// request costs one allocation.
func (r *route) body(msgs []sink.Message) []byte {
	size := len(r.prefix) + len(r.suffix) + max(0, len(msgs)-1)
	for i := range msgs {
		size += len(msgs[i].Payload)
	}

	b := make([]byte, 0, size)
	b = append(b, r.prefix...)
	for i := range msgs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, msgs[i].Payload...)
	}
	return append(b, r.suffix...)
}
