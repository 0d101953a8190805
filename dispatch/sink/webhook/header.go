package webhook

import (
	"cmp"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/ascii"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
	"github.com/sluicebox/sluicebox/store"
)

// Headers of MetadataHeaders that are no template.
const (
	timeHeader    = "Sluicebox-Time"
	attemptHeader = "Sluicebox-Attempt"
)

// metadata returns the header for a value of MetadataHeaders, "" for an unknown one, and its
// template, "" if it has none. The value is encoded like the attributes of CloudEvents.
func metadata(word string) (header, text string) {
	switch word {
	case MetadataKind:
		return "Sluicebox-Kind", "{kind}"
	case MetadataGroup:
		return "Sluicebox-Group", "{group}"
	case MetadataType:
		return "Sluicebox-Type", "{type}"
	case MetadataTime:
		return timeHeader, ""
	case MetadataAttempt:
		return attemptHeader, ""
	}
	return "", ""
}

// setMetadata sets the headers of MetadataHeaders that are no template.
func (s *Sink) setMetadata(h http.Header, m *sink.Message) {
	for _, word := range s.cfg.MetadataHeaders {
		switch name, _ := metadata(word); name {
		case attemptHeader:
			h.Set(name, strconv.Itoa(m.Attempt))
		case timeHeader:
			if at := event.Time(m); at != "" {
				h.Set(name, at)
			}
		}
	}
}

// checkHeaders reports the headers that cannot be sent. The errors do not have their
// values.
func checkHeaders(bad *store.FieldErrors, c *Config) {
	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		canonical := http.CanonicalHeaderKey(name)
		if !event.IsHeaderName(name) {
			bad.Add("headers", "has the invalid name %q", name)
			continue
		}
		if reason := reservedReason(canonical, c.Format); reason != "" {
			bad.Add("headers."+name, "cannot be set: %s", reason)
		}
		if canonical == "Content-Encoding" && c.Compression != "" {
			bad.Add("headers."+name, "conflicts with compression, which sets the same header; keep one")
		}
		if canonical == "Authorization" && (c.Token != "" || c.OAuth.Enabled()) {
			bad.Add("headers."+name, "conflicts with token or oauth, which set the same header; keep one")
		}
		if other, twice := seen[canonical]; twice {
			bad.Add("headers."+name, "is the same header as headers.%s", other)
		}
		seen[canonical] = name
		v := string(c.Headers[name])
		if v == "" {
			bad.Add("headers."+name, "is empty; remove the header or set its value")
		}
		if !ascii.Printable(v) || v != strings.Trim(v, " ") {
			bad.Add("headers."+name, "contains a line break or a character outside ASCII, or starts or ends with a space; "+
				"check for a trailing newline")
		}
		if t, err := template.Parse(v); err != nil { // it quotes the value
			bad.Add("headers."+name, "%s", template.Fault)
		} else if _, extension := strings.CutPrefix(canonical, "Ce-"); !t.Fixed() && c.Format.severalRows() && !extension {
			bad.Add("headers."+name, "has a value of the row; format: %s has several rows a request", c.Format)
		}
	}
}

// rowHeaders are the headers that depend on the row, by name.
type rowHeaders map[string]template.Template

// set sets the headers of a row. A header whose field has no value is not sent, nor is an
// empty or a long one.
func (all rowHeaders) set(h http.Header, m *sink.Message) {
	for name, t := range all {
		if value, missing := t.Text(m, attribute); missing == "" && value != "" && len(value) <= maxValue {
			h.Set(name, value)
		}
	}
}

// secrets returns the values of a request's headers that no detail may show.
func (all rowHeaders) secrets(h http.Header) (texts []string) {
	for name := range all {
		if !strings.HasPrefix(name, "Sluicebox-") {
			texts = append(texts, redact.PlainHeaderSecrets(name, h.Get(name))...)
		}
	}
	return texts
}

// headerBytes returns the length of all headers.
func headerBytes(h http.Header) (sum int) {
	for name, values := range h {
		for _, value := range values {
			sum += len(name) + len(value)
		}
	}
	return sum
}

// splitHeaders returns the headers that do not depend on the row, and those that do.
func splitHeaders(c *Config) (fixed http.Header, byRow rowHeaders) {
	fixed, byRow = httpsink.Header(&c.HTTP, ""), rowHeaders{}
	for name, value := range c.Headers {
		t := template.MustParse(string(value))
		if _, ok := event.Extension(name); ok && c.Format.inBody() {
			continue
		} else if t.Fixed() {
			text, _ := t.Text(nil, nil)
			if ok {
				text = attribute(text)
			}
			fixed.Set(name, text)
		} else {
			byRow[name] = t
		}
	}
	for _, word := range c.MetadataHeaders {
		if name, text := metadata(word); text != "" {
			byRow[name] = template.MustParse(text)
		}
	}
	fixed.Set("Content-Type", cmp.Or(c.Format.mediaType(), c.ContentType))
	return fixed, byRow
}

// secretTexts returns the texts that a receiver may echo and no detail may show: those of
// headers, the signing keys, and of the address its path, the segments that may be a key, and
// its query.
func secretTexts(c *Config, to *address) []string {
	texts := event.HeaderSecrets(c.Headers)
	texts = append(texts, redact.ReferencesSecrets(c.References)...)
	for _, secret := range c.Secrets {
		texts = append(texts, string(secret), strings.TrimPrefix(string(secret), "whsec_"))
	}
	if !to.fixed() { // shared has the values of the example beside them
		for _, literal := range slices.Concat(to.path.Literals(), to.query.Literals()) {
			texts = append(texts, redact.PathSecrets(&url.URL{Path: literal})...)
		}
	}
	texts = append(texts, redact.PathSecrets(to.shared)...)
	return append(texts, redact.QuerySecrets(to.shared)...)
}

// reservedReason returns the reason why a header cannot be set, "" if it can. The
// name is in canonical form.
func reservedReason(name string, format Format) string {
	for _, prefix := range []string{"Webhook-", "Sluicebox-"} {
		if strings.HasPrefix(name, prefix) {
			return "names starting with " + strings.ToLower(prefix) + " are reserved for the relay"
		}
	}
	if extension, ok := strings.CutPrefix(name, "Ce-"); ok {
		return event.ReservedAttribute(strings.ToLower(extension), event.Format(format))
	}

	switch name {
	case "Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Proxy-Connection",
		"Proxy-Authorization", "Te", "Trailer", "Upgrade", "Http2-Settings", "Expect":
		return "it is reserved for the HTTP connection"
	case "Accept-Encoding":
		return "compressed responses are not supported"
	case "Content-Type":
		return "use the key content-type"
	case "User-Agent":
		return "use the key user-agent"
	case "Idempotency-Key", "X-Idempotency-Key":
		// net/http repeats a POST with either of them on its own; see package
		// httpsink.
		return "the relay sends the row's id as Idempotency-Key"
	}

	return ""
}
