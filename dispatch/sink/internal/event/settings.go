package event

import (
	"cmp"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/ascii"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
	"github.com/sluicebox/sluicebox/store"
)

// Format is how a message describes its payload.
type Format string

// Formats of a message. A sink may have more. The package comment explains them.
const (
	FormatRaw         Format = "raw"
	FormatCloudEvents Format = "cloudevents"
	FormatStructured  Format = "cloudevents-structured"
)

// IsEvent reports whether a row is sent as a CloudEvent.
func (f Format) IsEvent() bool { return strings.HasPrefix(string(f), string(FormatCloudEvents)) }

// maxPrefix leaves most of an id to the row.
const maxPrefix = 64

// Settings are the keys of a sink for what it sends. The Config of a sink inlines them. The zero
// value of a field stands for its default.
type Settings struct {
	Format Format `yaml:"format" doc:"raw: the body is the payload. cloudevents: the same, and headers describe it as a CloudEvent. cloudevents-structured: the body is a CloudEvent in JSON with the payload as its data." enum:"raw,cloudevents,cloudevents-structured"`

	// ContentType is the media type of the payloads. The default is application/json.
	ContentType string `yaml:"content-type" doc:"The content type of the payloads."`

	// CloudEventsSource identifies this outbox among all producers. An event requires it.
	CloudEventsSource string `yaml:"cloudevents-source" doc:"Required with a format of CloudEvents: the source of the events, which identifies this producer, for example /shop/orders."`

	// CloudEventsType is a template. The default is {type}, or {kind} for a row without a type.
	CloudEventsType string `yaml:"cloudevents-type" template:"true" doc:"The type of the events, which may have fields of the row, for example com.example.{type}. Empty: the type of the row, or its kind if it has none."`

	// CloudEventsSubject is a template. The default is {group}.
	CloudEventsSubject string `yaml:"cloudevents-subject" template:"true" doc:"The subject of the events, which may have fields of the row. Empty: the message group."`

	// Headers are sent with each message. A value is a template; a header whose field has no
	// value in a row is not sent with it. With a format of CloudEvents, ce-NAME is an extension
	// of the event.
	Headers map[string]sink.Secret `yaml:"headers" template:"true" doc:"Headers of each message, by name. A value may have fields of the row: {id}, {kind}, {group}, {type}, {attr.NAME}; without a value for one of them the header is not sent. {{ and }} are braces. ce-NAME is an extension of a CloudEvent. The values are treated as secrets."`

	// IDPrefix is prepended to the row's id.
	IDPrefix string `yaml:"id-prefix" doc:"Prefix of the row's id, for a receiver with rows of two outboxes that drops duplicates by the id."`
}

// DefaultSettings returns the defaults.
func DefaultSettings() Settings { return Settings{}.withDefaults() }

func (s Settings) withDefaults() Settings {
	s.Format = cmp.Or(s.Format, FormatRaw)
	s.ContentType = cmp.Or(s.ContentType, "application/json")
	return s
}

// Check reports the invalid values by their keys. It shows no value of a header.
func (s *Settings) Check(bad *store.FieldErrors) {
	if formats := []Format{FormatRaw, FormatCloudEvents, FormatStructured}; s.Format != "" && !slices.Contains(formats, s.Format) {
		bad.Add("format", "is %q, must be one of %q", string(s.Format), formats)
	}
	s.CheckEvent(bad)
	s.checkHeaders(bad)
	s.CheckIDPrefix(bad)
}

// CheckEvent reports the invalid values that describe the payload.
func (s *Settings) CheckEvent(bad *store.FieldErrors) {
	media, _, err := mime.ParseMediaType(s.ContentType)
	switch {
	case s.ContentType == "":
	case err != nil || !ascii.Printable(s.ContentType):
		bad.Add("content-type", "is %q, not a media type such as application/json", s.ContentType)
	case s.Format.IsEvent() && strings.HasPrefix(media, "application/cloudevents"):
		// Receivers distinguish the modes by the content type.
		bad.Add("content-type", "is %q, so the payload contains the event's attributes; "+
			"set format to %s for such payloads", s.ContentType, FormatRaw)
	}

	if !s.Format.IsEvent() {
		for _, f := range []struct{ key, value string }{
			{"cloudevents-source", s.CloudEventsSource}, {"cloudevents-type", s.CloudEventsType}, {"cloudevents-subject", s.CloudEventsSubject},
		} {
			if f.value != "" {
				bad.Add(f.key, "is only for a format of CloudEvents")
			}
		}
		return
	}

	if s.CloudEventsSource == "" {
		bad.Add("cloudevents-source", "is not set; set it to a URI that identifies this outbox, for example https://shop.example/orders or /shop/orders")
	} else if _, err := url.Parse(s.CloudEventsSource); err != nil || !ascii.Visible(s.CloudEventsSource) {
		bad.Add("cloudevents-source", "is %q, not a URI reference such as /shop/orders", s.CloudEventsSource)
	}

	if !ascii.Visible(s.CloudEventsType) {
		bad.Add("cloudevents-type", "is %q, must be visible ASCII characters such as com.example.{type}", s.CloudEventsType)
	} else if _, err := template.Parse(s.CloudEventsType); err != nil {
		bad.Add("cloudevents-type", "%s", err)
	}
	if _, err := template.Parse(s.CloudEventsSubject); err != nil {
		bad.Add("cloudevents-subject", "%s", err)
	}
}

// CheckIDPrefix reports an invalid prefix of ids.
func (s *Settings) CheckIDPrefix(bad *store.FieldErrors) {
	if len(s.IDPrefix) > maxPrefix || !ascii.Visible(s.IDPrefix) {
		bad.Add("id-prefix", "is %q, must be at most %d visible ASCII characters", s.IDPrefix, maxPrefix)
	}
}

// checkHeaders reports the headers that cannot be sent.
func (s *Settings) checkHeaders(bad *store.FieldErrors) {
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		if !IsHeaderName(name) {
			bad.Add("headers", "has the invalid name %q", name)
			continue
		}
		key, v := "headers."+name, string(s.Headers[name])
		if reason := s.reservedReason(name); reason != "" {
			bad.Add(key, "cannot be set: %s", reason)
		}
		switch _, err := template.Parse(v); {
		case v == "":
			bad.Add(key, "is empty; remove the header or set its value")
		case strings.ContainsFunc(v, unicode.IsControl):
			bad.Add(key, "contains a line break or another control character; check for a trailing newline")
		case err != nil: // it quotes the value
			bad.Add(key, "%s", template.Fault)
		}
	}
}

// reservedReason returns the reason why a header cannot be set, "" if it can.
func (s *Settings) reservedReason(name string) string {
	canonical := http.CanonicalHeaderKey(name)
	if extension, ok := strings.CutPrefix(canonical, "Ce-"); ok {
		return ReservedAttribute(strings.ToLower(extension), s.Format)
	}
	switch {
	case strings.HasPrefix(canonical, "Sluicebox-"):
		return "names starting with sluicebox- are reserved for the relay"
	case strings.HasPrefix(canonical, "Ce_"):
		return "write ce-NAME for an extension of a CloudEvent"
	case canonical == "Content-Type":
		return "use the key content-type"
	}
	return ""
}

// ReservedAttribute returns the reason why an attribute of events cannot be set as a header, "" if
// it can: as an extension, whose name has lower-case letters and digits (specification,
// "Naming conventions").
func ReservedAttribute(name string, format Format) string {
	key := ""
	switch name {
	case "type", "source", "subject":
		key = "; use the key cloudevents-" + name
	case "time":
		key = "; name its column in columns.time"
	case "id", "specversion", "datacontenttype", "partitionkey":
	case "data", "data_base64", "":
		return "it is no extension of an event"
	default:
		switch {
		case !format.IsEvent():
			return "names starting with ce- belong to the formats of CloudEvents"
		case strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") != "":
			return "the name of an extension has letters and digits only behind ce-"
		}
		return ""
	}
	return "the relay sets ce-" + name + key
}

// IsHeaderName reports whether s can be the name of a header (a field name of RFC 9110,
// section 5.6.2).
func IsHeaderName(s string) bool {
	for i := range len(s) {
		c := s[i]
		alphanumeric := '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !alphanumeric && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// Fields returns the attributes and the group that valid settings send, by key. The defaults of
// CloudEvents are not among them.
func (s *Settings) Fields() (all []sink.Field) {
	all = append(all, template.FieldsOf("cloudevents-type", s.CloudEventsType, true)...)
	all = append(all, template.FieldsOf("cloudevents-subject", s.CloudEventsSubject, false)...)
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		all = append(all, template.FieldsOf("headers."+name, string(s.Headers[name]), false)...)
	}
	return all
}

// Secrets returns the texts of valid settings that a receiver may echo and no detail may show.
func (s *Settings) Secrets() []string { return HeaderSecrets(s.Headers) }

// HeaderSecrets returns the texts of valid headers that no detail may show.
func HeaderSecrets(headers map[string]sink.Secret) (texts []string) {
	for name, value := range headers {
		t := template.MustParse(string(value))
		for _, literal := range HeaderLiterals(&t) {
			texts = append(texts, redact.PlainHeaderSecrets(name, literal)...)
		}
	}
	return texts
}

// HeaderLiterals returns the texts of a header that may be secrets: all but blanks and the
// scheme before a field.
func HeaderLiterals(t *template.Template) (texts []string) {
	for _, literal := range t.Literals() {
		literal = strings.TrimSpace(literal)
		scheme := strings.EqualFold(literal, "Bearer") || strings.EqualFold(literal, "Basic")
		if literal != "" && (t.Fixed() || !scheme) {
			texts = append(texts, literal)
		}
	}
	return texts
}
