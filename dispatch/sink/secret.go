package sink

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/sluicebox/sluicebox/store"
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

// ErrorDetail is how much of a failed response the row's error column and the log show.
type ErrorDetail string

// Values of ErrorDetail. "" stands for ErrorDetailBody.
const (
	// ErrorDetailBody: the status and the beginning of the body.
	ErrorDetailBody ErrorDetail = "body"

	// ErrorDetailStatus: the status alone, for receivers that quote payloads.
	ErrorDetailStatus ErrorDetail = "status"
)

// Check reports an invalid value.
func (e ErrorDetail) Check() error {
	if e == "" || e == ErrorDetailBody || e == ErrorDetailStatus {
		return nil
	}
	return &store.FieldError{Key: "error-detail", Text: fmt.Sprintf("is %q, must be %s or %s", string(e), ErrorDetailBody, ErrorDetailStatus)}
}
