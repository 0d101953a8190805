package httpsink

import (
	"fmt"
	"io"
	"log/slog"
)

// Redacted stands where a secret would be.
const Redacted = "[redacted]"

// Secret is a text that is not to be seen, such as a bearer token. Printing,
// logging or marshalling it shows that there is one, never which. A conversion
// to string yields the text.
type Secret string

// String returns a stand-in, or "" for no secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return Redacted
}

// GoString returns what String returns.
func (s Secret) GoString() string { return s.String() }

// Format prints the stand-in under every verb; %d and the like would show the
// text in their complaint about the type.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText returns the stand-in.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue returns the stand-in.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
