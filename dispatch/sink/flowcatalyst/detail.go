package flowcatalyst

import (
	"strings"
	"unicode"
)

// maxDetail is the length of a detail in characters.
const maxDetail = 300

// clean makes one line of at most maxDetail printable characters out of s and
// takes the token out, which a receiver may well echo.
func clean(s, token string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if token != "" {
		s = strings.ReplaceAll(s, token, redacted)
	}
	var b strings.Builder
	n, blank := 0, false
	for _, r := range s {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) {
			blank = n > 0
			continue
		}
		if blank {
			b.WriteByte(' ')
			n++
			blank = false
		}
		if n >= maxDetail {
			return strings.TrimSpace(b.String()) + "…"
		}
		b.WriteRune(r)
		n++
	}
	return b.String()
}
