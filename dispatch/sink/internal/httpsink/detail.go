package httpsink

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/store"
)

// maxDetail is the maximum length of a detail in characters.
const maxDetail = 300

// ErrorDetail is how much of a failed response a detail shows.
type ErrorDetail string

// Values of ErrorDetail. "" stands for ErrorDetailBody.
const (
	ErrorDetailBody   ErrorDetail = "body"
	ErrorDetailStatus ErrorDetail = "status"
)

// Check reports an invalid value.
func (e ErrorDetail) Check() error {
	if e == "" || e == ErrorDetailBody || e == ErrorDetailStatus {
		return nil
	}
	return &store.FieldError{Key: "error-detail", Text: fmt.Sprintf("is %q, must be %s or %s", string(e), ErrorDetailBody, ErrorDetailStatus)}
}

// OneLine returns s as one line of at most 300 printable characters. A longer text
// ends in an ellipsis.
func OneLine(s string) string { return (*Redactor)(nil).OneLine(s) }

// OneLine is the function [OneLine], and also removes the secrets.
func (r *Redactor) OneLine(s string) string {
	s = r.redact(printableLine(s))
	end := 0 // of the first maxDetail characters
	for range maxDetail {
		_, size := utf8.DecodeRuneInString(s[end:])
		end += size
	}

	if end < len(s) {
		return strings.TrimSpace(s[:end]) + "…"
	}
	return strings.TrimSpace(s)
}

// printableLine replaces each run of spaces and unprintable characters by one space.
// It reads no more of s than redact scans.
func printableLine(s string) string {
	var b strings.Builder
	blank := false
	for _, c := range s { // an invalid byte is U+FFFD
		if unicode.IsSpace(c) || !unicode.IsPrint(c) {
			blank = b.Len() > 0
			continue
		}
		if blank {
			b.WriteByte(' ')
			blank = false
		}
		if b.WriteRune(c); b.Len() >= maxScanned {
			break
		}
	}
	return b.String()
}
