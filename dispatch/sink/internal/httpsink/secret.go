package httpsink

import (
	"fmt"
	"io"
	"log/slog"
)

// Redacted replaces a secret.
const Redacted = "[redacted]"

// Secret is a text that must not be shown, such as a bearer token. Printing, logging
// or marshalling it shows "[redacted]". A conversion to string yields the text.
type Secret string

// String returns Redacted, or "" for no secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return Redacted
}

// GoString returns the same as String.
func (s Secret) GoString() string { return s.String() }

// Format prints Redacted under every verb, because %d and the like would quote the
// text in their complaint about the type.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText returns Redacted.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue returns Redacted.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
