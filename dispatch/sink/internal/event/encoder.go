package event

import (
	"cmp"
	"maps"
	"slices"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/ascii"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
)

// Binding is how a protocol carries the attributes of a CloudEvent.
type Binding struct {
	// Prefix begins the header of an attribute: ce_ in Kafka, cloudEvents: in AMQP. With ce-,
	// as in HTTP and NATS, values of a row are percent-encoded, because these protocols have
	// headers of ASCII.
	Prefix string

	// ContentType is the header of the content type, "" if the protocol has a property for it.
	ContentType string
}

// prefixASCII is the prefix of protocols with headers of ASCII.
const prefixASCII = "ce-"

// attribute encodes the value of an attribute (HTTP binding 1.0.2, section 3.1.3.2).
func (b *Binding) attribute(value string) string {
	if b.Prefix == prefixASCII {
		return ascii.PercentEncode(value, `"`)
	}
	return value
}

// Header is a header of a message.
type Header struct{ Name, Value string }

// Message is what a broker gets for a row.
type Message struct {
	Body []byte // read-only: it may be the payload

	// ContentType is that of the body. It is among the headers of a CloudEvent, if the binding
	// has one for it. A raw message has no such header.
	ContentType string

	Headers []Header // by name
}

// Encoder makes the messages of rows. It is safe for concurrent use.
type Encoder struct {
	binding     Binding
	format      Format
	contentType string
	idPrefix    string
	events      *Events

	// headers is a function, so that printing an Encoder does not show the texts.
	headers func() []header
}

// header is a header of the configuration.
type header struct {
	name      string
	value     template.Template
	extension bool // of the event
}

// text returns the text of the header for a row, "" if a field of it has no value. Only an
// extension is encoded as a whole: the text around the fields of other headers is the
// configuration's.
func (h *header) text(m *sink.Message, b *Binding) string {
	escape, encode := b.attribute, AsIs
	if h.extension {
		escape, encode = AsIs, b.attribute
	}
	text, missing := h.value.Text(m, escape)
	if missing != "" {
		return ""
	}
	return encode(text)
}

// NewEncoder returns an Encoder of valid settings.
func NewEncoder(s Settings, b Binding) *Encoder {
	s = s.withDefaults()
	var headers []header
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		value := template.MustParse(string(s.Headers[name]))
		extension, ok := Extension(name)
		switch {
		case ok && s.Format == FormatStructured: // part of the body
		case ok:
			headers = append(headers, header{b.Prefix + extension, value, true})
		default:
			headers = append(headers, header{name, value, false})
		}
	}
	return &Encoder{
		binding: b, format: s.Format, contentType: s.ContentType, idPrefix: s.IDPrefix,
		events: NewEvents(s), headers: func() []header { return headers },
	}
}

// Encode returns the message of a row. reason is set if the row can never be sent.
func (e *Encoder) Encode(m *sink.Message) (msg Message, reason string) {
	msg = Message{Body: m.Payload, ContentType: e.contentType}
	switch e.format {
	case FormatStructured:
		msg.ContentType = MediaType
		msg.Body, reason = e.events.JSON(m)
	case FormatCloudEvents:
		reason = e.addAttributes(&msg, m)
	}
	if reason != "" {
		return Message{}, reason
	}
	for _, h := range e.headers() {
		if text := h.text(m, &e.binding); text != "" {
			msg.Headers = append(msg.Headers, Header{h.name, text})
		}
	}
	if e.format.IsEvent() && e.binding.ContentType != "" {
		msg.Headers = append(msg.Headers, Header{e.binding.ContentType, msg.ContentType})
	}
	if m.Chain != "" {
		msg.Headers = append(msg.Headers, Header{sink.ChainHeader, m.Chain})
	}
	if m.Replay != "" {
		msg.Headers = append(msg.Headers, Header{sink.ReplayHeader, e.binding.attribute(m.Replay)})
	}
	slices.SortStableFunc(msg.Headers, func(a, b Header) int { return cmp.Compare(a.Name, b.Name) })
	return msg, ""
}

// addAttributes adds the headers of an event. reason is set if a required one has no value.
func (e *Encoder) addAttributes(msg *Message, m *sink.Message) (reason string) {
	id := ID(e.idPrefix, m.ID)
	if id == "" {
		return NoIDReason
	}
	a, reason := e.events.Attributes(m)
	if reason != "" {
		return reason
	}
	for _, h := range []Header{
		{"specversion", "1.0"}, {"id", id}, {"source", e.events.source}, {"type", a.Type},
		{"time", a.Time}, {"subject", a.Subject}, {"partitionkey", a.PartitionKey},
	} {
		if h.Value != "" { // none may be empty
			msg.Headers = append(msg.Headers, Header{e.binding.Prefix + h.Name, e.binding.attribute(h.Value)})
		}
	}
	return ""
}
