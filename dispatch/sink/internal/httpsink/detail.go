package httpsink

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxDetail is the length of a detail in characters.
const maxDetail = 300

// ErrorDetail says how much of an answer that fails a detail shows.
type ErrorDetail string

// The words of ErrorDetail; "" stands for the first.
const (
	ErrorDetailBody   ErrorDetail = "body"
	ErrorDetailStatus ErrorDetail = "status"
)

// Check reports a word that is none of them.
func (e ErrorDetail) Check() error {
	if e == "" || e == ErrorDetailBody || e == ErrorDetailStatus {
		return nil
	}
	return fmt.Errorf("error-detail is %q, must be %s or %s", string(e), ErrorDetailBody, ErrorDetailStatus)
}

// OneLine makes one line of at most 300 printable characters out of s, and an
// ellipsis if it was longer.
func OneLine(s string) string { return (*Redactor)(nil).OneLine(s) }

// OneLine is Clean with the secrets taken out.
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

// printableLine makes one blank out of what is no printable character, and takes no more of a
// text than redact looks at.
func printableLine(s string) string {
	var b strings.Builder
	blank := false
	for _, c := range s { // a byte that is no UTF-8 is U+FFFD
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
