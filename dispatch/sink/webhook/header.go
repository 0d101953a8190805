package webhook

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
	"github.com/sluicebox/sluicebox/store"
)

// metadata returns the header for a value of MetadataHeaders, "" for an unknown one, and
// its value for a row, "" for none. It is encoded like the attributes of CloudEvents.
func metadata(word string, m *sink.Message) (header, value string) {
	switch word {
	case MetadataKind:
		return "Sluicebox-Kind", attribute(m.Kind)
	case MetadataGroup:
		return "Sluicebox-Group", attribute(m.Group.Name)
	case MetadataAttempt:
		return "Sluicebox-Attempt", strconv.Itoa(m.Attempt)
	}
	return "", ""
}

// checkHeaders reports the fixed headers that cannot be sent. The errors do not have
// their values.
func checkHeaders(bad *store.FieldErrors, headers map[string]sink.Secret, token bool) {
	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		canonical := http.CanonicalHeaderKey(name)
		if !isHeaderName(name) {
			bad.Add("headers", "has the invalid name %q", name)
			continue
		}
		if reason := reservedReason(canonical); reason != "" {
			bad.Add("headers."+name, "cannot be set: %s", reason)
		}
		if canonical == "Authorization" && token {
			bad.Add("headers."+name, "conflicts with token, which sets the same header; keep one")
		}
		if other, twice := seen[canonical]; twice {
			bad.Add("headers."+name, "is the same header as headers.%s", other)
		}
		seen[canonical] = name
		v := string(headers[name])
		if v == "" {
			bad.Add("headers."+name, "is empty; remove the header or set its value")
		}
		if !httpsink.HeaderValue(v) || v != strings.Trim(v, " ") {
			bad.Add("headers."+name, "contains a line break or a character outside ASCII, or starts or ends with a space; "+
				"check for a trailing newline")
		}
	}
}

// fixedHeaders returns the headers that do not depend on the row.
func fixedHeaders(c *Config) http.Header {
	h := httpsink.Header(&c.HTTP, string(c.Token))
	for name, value := range c.Headers {
		h.Set(name, string(value))
	}
	h.Set("Content-Type", c.ContentType)
	return h
}

// secretTexts returns the texts that a receiver may echo and no detail may show: the
// token, the values of fixed headers, the signing keys, and of the address its path,
// the segments that may be a key, and its query.
func secretTexts(c *Config, to *url.URL) []string {
	texts := []string{string(c.Token)}
	for _, value := range c.Headers {
		texts = append(texts, redact.HeaderSecrets(string(value))...)
	}
	for _, secret := range c.Secrets {
		texts = append(texts, string(secret), strings.TrimPrefix(string(secret), "whsec_"))
	}
	texts = append(texts, redact.PathSecrets(to)...)
	return append(texts, redact.QuerySecrets(to)...)
}

// reservedReason returns the reason why a header cannot be set, "" if it can. The
// name is in canonical form.
func reservedReason(name string) string {
	for _, prefix := range []string{"Webhook-", "Ce-", "Sluicebox-"} {
		if strings.HasPrefix(name, prefix) {
			return "names starting with " + strings.ToLower(prefix) + " are reserved for the relay"
		}
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

// isHeaderName reports whether s can be a field name (RFC 9110, section 5.6.2).
func isHeaderName(s string) bool {
	for i := range len(s) {
		c := s[i]
		alphanumeric := '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !alphanumeric && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}
