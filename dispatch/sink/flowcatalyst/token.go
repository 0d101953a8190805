package flowcatalyst

import (
	"fmt"
	"io"
	"log/slog"
)

const redacted = "[redacted]"

// Token is a bearer token. Printing, logging or marshalling it shows that there
// is one, never which. A conversion to string yields the token.
type Token string

// String returns a stand-in, or "" for no token.
func (t Token) String() string {
	if t == "" {
		return ""
	}
	return redacted
}

// GoString returns what String returns.
func (t Token) GoString() string { return t.String() }

// Format prints the stand-in under every verb; %d and the like would show the
// token in their complaint about the type.
func (t Token) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, t.String()) }

// MarshalText returns the stand-in.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// LogValue returns the stand-in.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }
